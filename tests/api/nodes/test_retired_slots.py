"""Slots that an admin retires, approves again, and reprovisions with another MAC and another IP address."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import pytest

from tests.api.broken_nodes import Node, accepted_allocation, codes, keep_nodes_reachable, recorded_events
from tests.api.node import KEY, admit, allocate
from tests.servers.plane import RunningPlane
from tests.torture import count
from tests.waiting import until

WHY: Final = "its GPU is returned to the vendor"
CHANGES: Final = ("slot.retired", "slot.reinstated", "slot.reprovisioned")
CLAIMED_LATER: Final = """
select claimed.stream_id from ledger.event claimed
  join ledger.event retired on retired.stream_id = claimed.stream_id and retired.type = 'slot.retired'
 where claimed.type = 'slot.claimed' and claimed.position > retired.position
"""
ADDRESSES: Final = "select kind, value from ledger.claim where kind in ('mac', 'ip') order by kind"
CLAIMED: Final = "select count(*) from read.slot where state = 'claimed'"


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    return emptied_plane


def send(plane: RunningPlane, action: str, slot: str = "n1/0", **fields: object) -> httpx.Response:
    node, _, index = slot.partition("/")
    with plane.client() as client:
        return client.post(f"/nodes/{node}/slots/{index}/{action}", json={"reason": WHY, **fields})


def done(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def approve(plane: RunningPlane) -> dict[str, Any]:
    with plane.client() as client:
        return done(client.post("/nodes/n1/slots/0/approve"))


def identity(slot: dict[str, Any]) -> tuple[str, str]:
    return slot["mac_address"], slot["private_ip"]


def test_retired_slot_receives_no_slice_until_it_is_approved_again_and_keeps_its_addresses(
    plane: RunningPlane,
) -> None:
    node = Node(plane, slots=1)
    before = node.slots()["n1/0"]

    retired = done(send(plane, "retire"))
    assert done(send(plane, "retire")) == retired

    assert (retired["state"], retired["reason"]) == (
        "retired",
        {"code": "retired_by_admin", "message": WHY},
    )
    assert identity(retired) == identity(before)
    assert allocate(plane).status_code == 409
    assert codes(send(plane, "reprovision")) == ["slot_not_free"]
    again = approve(plane)
    assert (again["state"], again["reason"], again["skus"]) == ("free", None, before["skus"])
    assert identity(again) == identity(before)
    assert accepted_allocation(plane)
    assert [each for _, each in recorded_events(plane, *CHANGES)] == ["slot.retired", "slot.reinstated"]


def test_slot_that_is_not_free_is_neither_retired_nor_reprovisioned(plane: RunningPlane) -> None:
    node = Node(plane, slots=1)
    made = accepted_allocation(plane)
    for action in ("retire", "reprovision"):
        refused = send(plane, action)
        assert (refused.status_code, codes(refused)) == (409, ["slot_not_free"])
        assert f"slot n1/0 is claimed, not free: allocation {made['id']} holds it" in refused.text
        assert node.slots()["n1/0"]["allowed_actions"][action]["code"] == "slot_not_free"
    admit(plane, "n2", approve=False)
    for action in ("retire", "reprovision"):
        assert "slot n2/0 is discovered, not free: approve it first" in send(plane, action, "n2/0").text
        assert codes(send(plane, action, "n1/7")) == ["unknown_slot"]
        assert send(plane, action, reason="").status_code == 422
    assert recorded_events(plane, *CHANGES) == []


def test_reprovisioned_slot_gives_its_new_addresses_to_the_next_slice_and_frees_the_old_ones(
    plane: RunningPlane,
) -> None:
    node = Node(plane, slots=1)
    before = node.slots()["n1/0"]

    after = done(send(plane, "reprovision"))

    assert after["state"] == "free"
    assert after["mac_address"] != before["mac_address"]
    assert after["private_ip"] != before["private_ip"]
    [(_, address), (_, mac)] = plane.rows(ADDRESSES)
    assert (address.endswith(f"/{after['private_ip']}"), mac) == (True, f"default/{after['mac_address']}")
    [placed] = accepted_allocation(plane)["slots"]
    assert identity(placed) == identity(after)
    until(lambda: bool(plane.rows("select 1 from work.task")), "the order is derived")
    [(order,)] = plane.rows('select "order" from work.task')
    assert after["mac_address"] in order
    assert f'"{after["private_ip"]}"' in order


def creations(plane: RunningPlane) -> Iterator[dict[str, Any]]:
    """Create allocations until the control plane refuses one, and yield those that it placed."""
    with plane.client() as client:
        while True:
            body = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}
            made = client.post("/allocations", json=body)
            if made.status_code != 202:
                assert codes(made) in (["no_healthy_slot"], ["no_capacity"]), made.text
                return
            yield made.json()


def test_nothing_is_placed_in_a_slot_after_it_was_retired_while_callers_create_allocations(
    plane: RunningPlane,
) -> None:
    slots, creators = 64, count(16, 4)
    node = Node(plane, slots=slots)
    keep_nodes_reachable(plane)
    with ThreadPoolExecutor(creators) as pool:
        creating = [pool.submit(lambda: list(creations(plane))) for _ in range(creators)]
        until(lambda: plane.rows(CLAIMED)[0][0] >= 4, "allocations are being created")
        answers = [send(plane, "retire", f"n1/{index}") for index in reversed(range(slots))]
        made = [each for creator in creating for each in creator.result()]

    retired = [each for each in answers if each.status_code == 200]
    assert retired
    assert {tuple(codes(each)) for each in answers if each not in retired} <= {("slot_not_free",)}
    assert plane.rows(CLAIMED_LATER) == []
    states = [each["state"] for each in node.slots().values()]
    assert (states.count("retired"), states.count("claimed")) == (len(retired), len(made))
