"""Lifecycle of one allocation. After each step, the API responses of all paths are recorded."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import httpx

from tests.api.node import admit, allocate, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until

RECORDED_PATHS: Final = ("/allocations", "/nodes", "/slots", "/nodes/n1")
_LISTED: Final = "select position >= %(position)s from read.checkpoint where name = 'allocations'"
_LAST: Final = "select position, clock_timestamp() from ledger.event order by position desc limit 1"


@dataclass(frozen=True)
class Moment:
    """API response of each path at the time `time`, when `position` was the position of the newest event."""

    position: int
    time: datetime
    responses: dict[str, Any]


@dataclass
class Lifecycle:
    """Node with one slot, the allocation in this slot, and the API responses recorded after each step so far."""

    plane: RunningPlane
    node: httpx.Client
    allocation: str
    moments: list[Moment]
    _spool: str = field(default_factory=lambda: str(uuid4()))
    _sequence: int = 0

    def report(self, kind: str, **fields: object) -> None:
        """Send a report about the slice as its node does, and record the API responses after the report."""
        self._sequence += 1
        body = {"kind": kind, "slot_id": "n1/0", "allocation_id": self.allocation, **fields}
        answer = self.node.post("/reports", json=batch(self._spool, (self._sequence, body)))
        assert answer.is_success, answer.text
        self.record_responses()

    def release(self) -> None:
        assert self.plane.client().delete(f"/allocations/{self.allocation}").is_success
        self.record_responses()

    def record_responses(self) -> None:
        [(position, time)] = self.plane.rows(_LAST)
        until(
            lambda: self.plane.rows(_LISTED, position=position) == [(True,)],
            "the list of allocations is up to date",
        )
        paths = (*RECORDED_PATHS, f"/allocations/{self.allocation}")
        self.moments.append(
            Moment(position, time, {path: get_view(self.plane, path).json() for path in paths})
        )


def get_view(plane: RunningPlane, path: str, **query: str) -> httpx.Response:
    with plane.client() as client:
        return client.get(path, params=query)


def at_values(moment: Moment) -> Iterator[str]:
    """Yield the two values of the API parameter `at` that select a recorded moment: its position and its time."""
    yield f"position:{moment.position}"
    yield moment.time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def record_lifecycle(plane: RunningPlane) -> Lifecycle:
    """Record the lifecycle of an allocation: requested, active, interrupted, active again, released, slot free."""
    node = admit(plane, "n1")
    response = allocate(plane, labels={"team": "a"})
    assert response.status_code == 202, response.text
    lifecycle = Lifecycle(plane, node, response.json()["id"], [])
    lifecycle.record_responses()
    slot = response.json()["slots"][0]
    address = {"mac": slot["mac_address"], "expected_ip": slot["private_ip"]}
    lifecycle.report("slice.starting")
    lifecycle.report("slice.address", **address, actual_ip=None, lease_state="none")
    lifecycle.report("slice.address", **address, actual_ip=slot["private_ip"], lease_state="bound")
    lifecycle.report("slice.ready", address=slot["private_ip"], port=22, banner="SSH-2.0-x")
    lifecycle.report("slice.interrupted", reason={"code": "host_rebooted", "message": "the host rebooted"})
    lifecycle.report("slice.ready", address=slot["private_ip"], port=22, banner="SSH-2.0-x")
    lifecycle.release()
    lifecycle.report("slice.removal_incomplete", leftovers=["tap tap0"])
    lifecycle.report("slice.removed", absent=["port", "lease"])
    return lifecycle
