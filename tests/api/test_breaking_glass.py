"""A slot that its node does not prove empty is freed by an admin, and the ledger says who did it and why (ALC-11)."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.api.node import BEAT, admit, allocate, batch
from tests.servers.plane import RunningPlane

BREAK = "/nodes/n1/slots/0/break-glass"
WHY = {"why": "its host burned down"}


@pytest.fixture
def node(running_plane: RunningPlane) -> httpx.Client:
    return admit(running_plane, "n1")


def told(allocation: str, **fields: Any) -> dict[str, Any]:
    """A report of the node about its only slot, the first of a spool of its own."""
    body = {"slot_id": "n1/0", "allocation_id": allocation, **fields}
    return batch(str(uuid4()), (1, body))


def left_behind(plane: RunningPlane, node: httpx.Client) -> str:
    """An allocation that was released, and whose node still finds something of it."""
    allocation: str = allocate(plane).json()["id"]
    plane.client().delete(f"/allocations/{allocation}")
    remains = told(allocation, kind="slice.remains", leftovers=["tap slice0"])
    assert node.post("/reports", json=remains).is_success
    assert slot(plane)["state"] == "withheld"
    return allocation


def slot(plane: RunningPlane) -> dict[str, Any]:
    [found] = plane.client().get("/slots").json()["items"]
    return dict(found)


def test_a_withheld_slot_is_free_at_once_and_somebody_else_may_have_it(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    allocation = left_behind(running_plane, node)
    assert allocate(running_plane).status_code == 409

    freed = running_plane.client().post(BREAK, json=WHY)

    assert (freed.status_code, freed.json()["state"], freed.json()["reason"]) == (200, "free", None)
    assert running_plane.client().get(f"/allocations/{allocation}").json()["state"] == "released"
    assert allocate(running_plane).status_code == 202


def test_the_ledger_says_who_did_it_why_and_what_was_found_last(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    allocation = left_behind(running_plane, node)
    running_plane.client().post(BREAK, json=WHY)

    rows = running_plane.rows(
        "select type, data::jsonb, actor, correlation_id from ledger.event order by position desc limit 3"
    )

    released, waived, freed = sorted(rows)
    assert [released[0], waived[0], freed[0]] == [
        "allocation.released",
        "allocation.slice_removal_waived",
        "slot.freed_unproved",
    ]
    assert freed[1] == {
        "slot_id": "n1/0",
        "allocation_id": allocation,
        "leftovers": ["tap slice0"],
        **WHY,
    }
    assert freed[2].startswith("key:")
    asked = running_plane.rows("select correlation_id from ledger.event where type = 'allocation.requested'")
    assert {row[3] for row in rows} == {asked[0][0]}


def test_a_node_that_never_answers_again_keeps_no_slot(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    allocation = allocate(running_plane).json()["id"]
    running_plane.client().delete(f"/allocations/{allocation}")

    assert running_plane.client().post(BREAK, json=WHY).json()["state"] == "free"


def test_what_the_node_says_afterwards_changes_nothing(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    allocation = left_behind(running_plane, node)
    running_plane.client().post(BREAK, json=WHY)
    node.post("/heartbeat", json=BEAT)
    taken = allocate(running_plane).json()
    before = running_plane.rows("select max(position) from ledger.event")

    for late in (
        told(allocation, kind="slice.remains", leftovers=["tap slice0", "ovs port slice0"]),
        told(allocation, kind="slice.removed", absent=["link"]),
    ):
        assert node.post("/reports", json=late).is_success

    assert running_plane.rows("select max(position) from ledger.event") == before
    assert (slot(running_plane)["state"], slot(running_plane)["allocation_id"]) == ("claimed", taken["id"])


def test_glass_is_broken_once_however_often_the_same_request_is_sent(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    left_behind(running_plane, node)
    client = running_plane.client(**{"Idempotency-Key": "once"})

    answers = [client.post(BREAK, json=WHY) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    assert running_plane.rows("select count(*) from ledger.event where type = 'slot.freed_unproved'") == [
        (1,)
    ]


def test_only_a_slot_that_waits_for_proof_is_freed_so(
    running_plane: RunningPlane, node: httpx.Client
) -> None:
    client = running_plane.client()
    free = client.post(BREAK, json=WHY)
    assert (free.status_code, free.json()["reasons"][0]["code"]) == (409, "not_awaiting_proof")

    allocate(running_plane)
    assert "slot n1/0 is claimed" in client.post(BREAK, json=WHY).json()["reasons"][0]["message"]
    assert client.post("/nodes/n1/slots/9/break-glass", json=WHY).status_code == 404
    assert client.post(BREAK, json={"why": ""}).status_code == 422
    assert client.post(BREAK).status_code == 422
