"""Node that a test controls with API requests, without an agent. Its slices fail to start if the test reports so."""

from typing import Any, Final
from uuid import uuid4

import httpx

from tests.api.node import BEAT, admit, allocate, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until

REFUSED: Final = {"code": "step_refused", "message": "machine.start: start slice0: the hypervisor refused"}
_COUNTED: Final = """
select (select position from read.checkpoint where name = 'slot_counts') >= max(position)
from ledger.event where stream_id like %(slots)s
"""
UNREACHABLE_GUEST: Final = {"code": "not_reachable", "message": "10.100.1.10: port 22: no answer"}


class Node:
    """An enrolled node with approved slots. It reports only what a test makes it report."""

    def __init__(self, plane: RunningPlane, name: str = "n1", slots: int = 3) -> None:
        self.plane, self.name, self.client = plane, name, admit(plane, name, slots)
        # Placement prefers a node with few free slots, and would take a new one of which only some slots are counted.
        until(
            lambda: plane.rows(_COUNTED, slots=f"slot-{name}/%") == [(True,)], f"slots of {name} are counted"
        )
        self._spool, self._sequence = str(uuid4()), 0

    def report(
        self,
        allocation: dict[str, Any],
        kind: str,
        slot: int = 0,
        order: str | None = None,
        **fields: object,
    ) -> None:
        """Send a report about the slice in slot `slot` of the allocation, as the result of `order` if it is given."""
        self._sequence += 1
        slot_id = allocation["slots"][slot]["slot_id"]
        body = {"kind": kind, "slot_id": slot_id, "allocation_id": allocation["id"], **fields}
        report = batch(self._spool, (self._sequence, body))
        report["reports"][0]["order_id"] = order
        answer = self.client.post("/reports", json=report)
        assert answer.is_success, answer.text
        assert self.client.post("/heartbeat", json=BEAT).is_success

    def report_failed(
        self, allocation: dict[str, Any], reason: dict[str, str] = REFUSED, slot: int = 0
    ) -> None:
        keep_nodes_reachable(self.plane)
        self.report(allocation, "slice.failed", slot, reason=reason)

    def report_removed(self, allocation: dict[str, Any]) -> None:
        """Report the slices in all slots of the allocation as removed, which proves the slots empty."""
        for number in range(len(allocation["slots"])):
            self.report(allocation, "slice.removed", number, absent=["machine"])

    def report_ready(self, allocation: dict[str, Any], slot: int = 0, order: str | None = None) -> None:
        address = allocation["slots"][slot]["private_ip"]
        self.report(allocation, "slice.ready", slot, order, address=address, port=22, banner="SSH-2.0-x")

    def complete_order(self, allocation: dict[str, Any]) -> None:
        """Wait for the order of the allocation's only slot, and report the slice ready as its result."""
        query = "select order_id::text from work.task where slot_id = %(slot)s and kind = 'slice.apply'"
        [slot] = [each["slot_id"] for each in allocation["slots"]]
        until(lambda: bool(self.plane.rows(query, slot=slot)), f"{slot} has an order")
        [(order,)] = self.plane.rows(query, slot=slot)
        self.report_ready(allocation, order=order)

    def view(self) -> dict[str, Any]:
        with self.plane.client() as client:
            return dict(client.get(f"/nodes/{self.name}").json())

    def slots(self) -> dict[str, dict[str, Any]]:
        with self.plane.client() as client:
            listed = client.get("/slots", params={"node": self.name}).json()["items"]
        return {each["id"]: each for each in listed}


def keep_nodes_reachable(plane: RunningPlane) -> None:
    """Set the last heartbeat of all nodes to the current time, so that slow tests make no node unreachable."""
    plane.rows("update work.node_seen set seen_at = clock_timestamp() returning 1")


def accepted_allocation(plane: RunningPlane, **fields: object) -> dict[str, Any]:
    """Request an allocation and return it. Raises `AssertionError` if the request is refused."""
    keep_nodes_reachable(plane)
    answer = allocate(plane, **fields)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def recorded_events(plane: RunningPlane, *types: str) -> list[tuple[str, str]]:
    """Return the stream and the type of each event with one of the given types, in ledger order."""
    return plane.rows(
        "select stream_id, type from ledger.event where type = any(%(types)s) order by position",
        types=[*types],
    )


def moved_allocation(plane: RunningPlane) -> dict[str, Any]:
    """Create an allocation that moved from slot n1/0, which is free again, to slot n2/0 because its start failed.
    Return it as it was created.
    """
    first = Node(plane, "n1", slots=1)
    moved = accepted_allocation(plane)
    Node(plane, "n2", slots=1)
    first.report_failed(moved)
    first.report_removed(moved)
    return moved
