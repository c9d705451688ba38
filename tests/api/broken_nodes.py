"""A node over the API whose machine starts fail when a test says so, and what the API then shows of it."""

from typing import Any, Final
from uuid import uuid4

import httpx

from tests.api.node import BEAT, admit, allocate, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until

REFUSED: Final = {"code": "step_refused", "message": "machine.start: start slice0: the hypervisor refused"}
SILENT_GUEST: Final = {"code": "not_reachable", "message": "10.100.1.10: port 22: no answer"}


class Node:
    """An enrolled node with approved slots, which reports what a test has it report."""

    def __init__(self, plane: RunningPlane, name: str = "n1", slots: int = 3) -> None:
        self.plane, self.name, self.client = plane, name, admit(plane, name, slots)
        self._spool, self._sequence = str(uuid4()), 0

    def reports(
        self,
        allocation: dict[str, Any],
        kind: str,
        slot: int = 0,
        order: str | None = None,
        **fields: object,
    ) -> None:
        """Report on the slice in the allocation's slot of that number, as a result of that order if there is one."""
        self._sequence += 1
        slot_id = allocation["slots"][slot]["slot_id"]
        body = {"kind": kind, "slot_id": slot_id, "allocation_id": allocation["id"], **fields}
        report = batch(self._spool, (self._sequence, body))
        report["reports"][0]["order_id"] = order
        answer = self.client.post("/reports", json=report)
        assert answer.is_success, answer.text
        assert self.client.post("/heartbeat", json=BEAT).is_success

    def fails(self, allocation: dict[str, Any], reason: dict[str, str] = REFUSED, slot: int = 0) -> None:
        all_are_heard(self.plane)
        self.reports(allocation, "slice.failed", slot, reason=reason)

    def empties(self, allocation: dict[str, Any]) -> None:
        """Prove every slot of the allocation empty."""
        for number in range(len(allocation["slots"])):
            self.reports(allocation, "slice.removed", number, absent=["machine"])

    def readies(self, allocation: dict[str, Any], slot: int = 0, order: str | None = None) -> None:
        address = allocation["slots"][slot]["private_ip"]
        self.reports(allocation, "slice.ready", slot, order, address=address, port=22, banner="SSH-2.0-x")

    def carries_out(self, allocation: dict[str, Any]) -> None:
        """Report the slice ready as the result of the newest order of its slot, once there is that order."""
        query = "select order_id::text from work.task where slot_id = %(slot)s and kind = 'slice.apply'"
        [slot] = [each["slot_id"] for each in allocation["slots"]]
        until(lambda: bool(self.plane.rows(query, slot=slot)), f"{slot} has an order")
        [(order,)] = self.plane.rows(query, slot=slot)
        self.readies(allocation, order=order)

    def shown(self) -> dict[str, Any]:
        with self.plane.client() as client:
            return dict(client.get(f"/nodes/{self.name}").json())

    def slots(self) -> dict[str, dict[str, Any]]:
        with self.plane.client() as client:
            listed = client.get("/slots", params={"node": self.name}).json()["items"]
        return {each["id"]: each for each in listed}


def all_are_heard(plane: RunningPlane) -> None:
    """Let no node count as silent, however slow the machine of the test is."""
    plane.rows("update work.node_seen set seen_at = clock_timestamp() returning 1")


def placed(plane: RunningPlane, **fields: object) -> dict[str, Any]:
    """An allocation that was asked for and not refused."""
    all_are_heard(plane)
    answer = allocate(plane, **fields)
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def recorded_events(plane: RunningPlane, *types: str) -> list[tuple[str, str]]:
    """Return streams and types of all facts of these types, in their order."""
    return plane.rows(
        "select stream_id, type from ledger.event where type = any(%(types)s) order by position",
        types=[*types],
    )
