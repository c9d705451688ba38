"""A slice's life as a node tells it, with everything that the API said at each step of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

import httpx

from tests.api.node import admit, allocate, batch
from tests.servers.plane import RunningPlane

SEEN: Final = ("/allocations", "/nodes", "/slots", "/nodes/n1")
_LAST: Final = "select position, clock_timestamp() from ledger.event order by position desc limit 1"


@dataclass(frozen=True)
class Moment:
    """What the API said about each path when the log ended at `position`; `time` lies behind that event."""

    position: int
    time: datetime
    said: dict[str, Any]


@dataclass
class Life:
    """A node with one slot, and the allocation that lives in it."""

    plane: RunningPlane
    node: httpx.Client
    allocation: str
    moments: list[Moment]
    _spool: str = field(default_factory=lambda: str(uuid4()))
    _sequence: int = 0

    def report(self, kind: str, **said: object) -> None:
        """The node reports something of the slice, and what the API says then is kept."""
        self._sequence += 1
        body = {"kind": kind, "slot_id": "n1/0", "allocation_id": self.allocation, **said}
        answer = self.node.post("/reports", json=batch(self._spool, (self._sequence, body)))
        assert answer.is_success, answer.text
        self.look()

    def release(self) -> None:
        assert self.plane.client().delete(f"/allocations/{self.allocation}").is_success
        self.look()

    def look(self) -> None:
        [(position, time)] = self.plane.rows(_LAST)
        paths = (*SEEN, f"/allocations/{self.allocation}")
        self.moments.append(Moment(position, time, {path: ask(self.plane, path).json() for path in paths}))


def ask(plane: RunningPlane, path: str, **query: str) -> httpx.Response:
    with plane.client() as client:
        return client.get(path, params=query)


def at(moment: Moment) -> Iterator[str]:
    """The two ways to name a moment."""
    yield f"position:{moment.position}"
    yield moment.time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def lived(plane: RunningPlane) -> Life:
    """A whole life: asked for, up, gone, back, released, and the slot free again."""
    node = admit(plane, "n1")
    made = allocate(plane, labels={"team": "a"})
    assert made.status_code == 202, made.text
    life = Life(plane, node, made.json()["id"], [])
    life.look()
    slot = made.json()["slots"][0]
    address = {"mac": slot["mac_address"], "expected_ip": slot["private_ip"]}
    life.report("slice.starting")
    life.report("slice.address", **address, actual_ip=None, lease_state="none")
    life.report("slice.address", **address, actual_ip=slot["private_ip"], lease_state="bound")
    life.report("slice.ready", address=slot["private_ip"], port=22, banner="SSH-2.0-x")
    life.report("slice.interrupted", reason={"code": "host_rebooted", "message": "the host rebooted"})
    life.report("slice.ready", address=slot["private_ip"], port=22, banner="SSH-2.0-x")
    life.release()
    life.report("slice.remains", leftovers=["tap tap0"])
    life.report("slice.removed", absent=["port", "lease"])
    return life
