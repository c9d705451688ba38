"""An admin force-releases a slot that its node does not prove empty; actor and reason are recorded (ALC-11)."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.api.node import BEAT, admit, allocate, batch
from tests.servers.plane import RunningPlane

FORCE_RELEASE = "/nodes/n1/slots/0/force-release"
REASON = {"reason": "its host burned down"}


@pytest.fixture
def node(emptied_plane: RunningPlane) -> httpx.Client:
    return admit(emptied_plane, "n1")


def report_batch(allocation: str, **fields: Any) -> dict[str, Any]:
    """Build a batch with one report about the only slot of the node, as the first batch of a new spool."""
    body = {"slot_id": "n1/0", "allocation_id": allocation, **fields}
    return batch(str(uuid4()), (1, body))


def allocation_with_leftovers(plane: RunningPlane, node: httpx.Client) -> str:
    """Release an allocation and report leftovers, which quarantines its slot. Return the id of the allocation."""
    allocation: str = allocate(plane).json()["id"]
    plane.client().delete(f"/allocations/{allocation}")
    remains = report_batch(allocation, kind="slice.removal_incomplete", leftovers=["tap slice0"])
    assert node.post("/reports", json=remains).is_success
    assert shown_slot(plane)["state"] == "quarantined"
    return allocation


def shown_slot(plane: RunningPlane) -> dict[str, Any]:
    [found] = plane.client().get("/slots").json()["items"]
    return dict(found)


def test_force_released_quarantined_slot_is_free_at_once_and_can_be_allocated_again(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    allocation = allocation_with_leftovers(emptied_plane, node)
    assert allocate(emptied_plane).status_code == 409

    freed = emptied_plane.client().post(FORCE_RELEASE, json=REASON)

    assert (freed.status_code, freed.json()["state"], freed.json()["reason"]) == (200, "free", None)
    assert emptied_plane.client().get(f"/allocations/{allocation}").json()["state"] == "released"
    assert allocate(emptied_plane).status_code == 202


def test_force_release_records_actor_reason_and_last_reported_leftovers(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    allocation = allocation_with_leftovers(emptied_plane, node)
    emptied_plane.client().post(FORCE_RELEASE, json=REASON)

    rows = emptied_plane.rows(
        "select type, data::jsonb, actor, correlation_id from ledger.event order by position desc limit 3"
    )

    released, overridden, freed = sorted(rows)
    assert [released[0], overridden[0], freed[0]] == [
        "allocation.released",
        "allocation.slice_removal_overridden",
        "slot.force_released",
    ]
    assert freed[1].pop("use")["project"] == "default"
    assert freed[1] == {
        "slot_id": "n1/0",
        "allocation_id": allocation,
        "leftovers": ["tap slice0"],
        **REASON,
    }
    assert freed[2].startswith("key:")
    requested = emptied_plane.rows(
        "select correlation_id from ledger.event where type = 'allocation.requested'"
    )
    assert {row[3] for row in rows} == {requested[0][0]}


def test_releasing_slot_of_a_node_that_does_not_respond_can_be_force_released(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    allocation = allocate(emptied_plane).json()["id"]
    emptied_plane.client().delete(f"/allocations/{allocation}")

    assert emptied_plane.client().post(FORCE_RELEASE, json=REASON).json()["state"] == "free"


def test_reports_of_a_node_after_a_force_release_add_no_event(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    allocation = allocation_with_leftovers(emptied_plane, node)
    emptied_plane.client().post(FORCE_RELEASE, json=REASON)
    node.post("/heartbeat", json=BEAT)
    taken = allocate(emptied_plane).json()
    before = emptied_plane.rows("select max(position) from ledger.event")

    for late in (
        report_batch(
            allocation, kind="slice.removal_incomplete", leftovers=["tap slice0", "ovs port slice0"]
        ),
        report_batch(allocation, kind="slice.removed", absent=["link"]),
    ):
        assert node.post("/reports", json=late).is_success

    assert emptied_plane.rows("select max(position) from ledger.event") == before
    assert (shown_slot(emptied_plane)["state"], shown_slot(emptied_plane)["allocation_id"]) == (
        "claimed",
        taken["id"],
    )


def test_repeated_force_release_with_one_idempotency_key_is_recorded_once(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    allocation_with_leftovers(emptied_plane, node)
    client = emptied_plane.client(**{"Idempotency-Key": "once"})

    answers = [client.post(FORCE_RELEASE, json=REASON) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert emptied_plane.rows("select count(*) from ledger.event where type = 'slot.force_released'") == [
        (1,)
    ]


def test_force_release_of_a_slot_that_is_neither_releasing_nor_quarantined_is_refused(
    emptied_plane: RunningPlane, node: httpx.Client
) -> None:
    client = emptied_plane.client()
    free = client.post(FORCE_RELEASE, json=REASON)
    assert (free.status_code, free.json()["reasons"][0]["code"]) == (409, "not_awaiting_proof")

    allocate(emptied_plane)
    assert "slot n1/0 is claimed" in client.post(FORCE_RELEASE, json=REASON).json()["reasons"][0]["message"]
    assert client.post("/nodes/n1/slots/9/force-release", json=REASON).status_code == 404
    assert client.post(FORCE_RELEASE, json={"reason": ""}).status_code == 422
    assert client.post(FORCE_RELEASE).status_code == 422
