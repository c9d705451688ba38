"""`drift`: time until a change made by another program on a node with a slice is recorded (NOD-9).

The benchmark runs a complete Sliceplane with real nodes, each with a slice. Each round makes every kind of change once
on one node, with an operator's tools. The start time is read in the node's shell just before the change. The end time
is the recording time of the event that names the drift. Both times come from the clock of this machine. Then changes
that the agent does not repair are undone. The next change waits until no drift is open, the slice is active again and
no further drift event arrives for a while, because one change can cause several drifts: removing a bridge also removes
its ports. The nodes take turns, because drift that recurs too often on one node stays open (`node_agent.host.drift`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bench.harness.measure import Bench, Measurement, Progress, Round, TakeRound, percentile
from bench.nodes.lab_site import ActiveSlice, allocation_state, lab_site, poll_until, slice_on_each_node
from deploy.embedded.site import LabSite
from node_agent.lab.fault_injection import INJECTED_FAULTS, InjectedFault, names
from tasks.drift import DriftKind

ROUNDS: Final = 20
_QUIET_SECONDS: Final = 1.5
"""Seconds without a new drift event after which no further drift of a change is expected: more than the longest pause
between two surveys.
"""
_EVENT_TYPES: Final = "&".join(
    f"type={type_}" for type_ in ("node.degraded", "node.repaired", "slot.degraded", "slot.repaired")
)
KINDS: Final[Mapping[str, DriftKind]] = {
    "bridge": "bridge.absent",
    "port": "port.absent",
    "flow": "port.flows",
    "tap": "link.absent",
    "address": "gateway.address",
    "nft": "gateway.rules",
    "forwarding": "gateway.forwarding",
    "lease": "lease.unreserved",
    "domain": "machine.absent",
    "dnsmasq": "gateway.dhcp",
    "uplink": "uplink.lost",
}
"""The drift kind of each change, by the name in its metric."""


@dataclass
class DriftReader:
    """Reads the drift events of a site.

    `position` is the ledger position up to which events were read; `last_event` is the time of the last new event.
    """

    site: LabSite
    position: int = 0
    last_event: float = 0.0

    async def time_to_record(self, slice_: ActiveSlice, kind: DriftKind, fault: InjectedFault) -> float:
        """Inject a fault. Return milliseconds until an event was recorded that names drift of the given kind."""
        await poll_until(lambda: self._is_settled(slice_), bool)
        began = float((await _run(slice_, f"date +%s.%N; {fault.inject_command}")).split()[0])
        recorded = await poll_until(lambda: self._recorded(kind), lambda at: at is not None)
        assert recorded is not None
        await _run(slice_, fault.revert_command)
        return (recorded.timestamp() - began) * 1e3

    async def _recorded(self, kind: DriftKind) -> datetime | None:
        """Return the recording time of the first new event that names drift of the given kind, or None.

        An event is new if it was recorded since the last call of `_new_events`.
        """
        naming = [
            event
            for event in await self._new_events()
            if kind in [each["kind"] for each in event["data"]["drift"]]
        ]
        return datetime.fromisoformat(naming[0]["recorded_at"]) if naming else None

    async def _new_events(self) -> list[dict[str, Any]]:
        """Return the drift events that were recorded since the last call."""
        path = f"/events?{_EVENT_TYPES}&after=position:{self.position}"
        events = await asyncio.to_thread(self.site.api.items, path)
        if events:
            self.position = max(event["position"] for event in events)
            self.last_event = time.monotonic()
        return events

    async def _is_settled(self, slice_: ActiveSlice) -> bool:
        is_active = await allocation_state(self.site, slice_.allocation) == "active"
        if (
            await self._new_events()
            or not is_active
            or await asyncio.to_thread(self.site.api.items, "/drift")
        ):
            return False
        return time.monotonic() - self.last_event > _QUIET_SECONDS


async def _run(slice_: ActiveSlice, script: str) -> str:
    environment = names(slice_.index, slice_.mac, slice_.address, str(slice_.node.folder / "run"))
    return (await asyncio.to_thread(slice_.node.run, ["sh", "-ec", script], environment=environment)).stdout


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with lab_site() as site:
        slices = await slice_on_each_node(site)
        reader = DriftReader(site)

        async def take(number: int, progress: Progress) -> Round:
            slice_ = slices[number % len(slices)]
            took: dict[str, list[float]] = {}
            for done, (name, kind) in enumerate(KINDS.items(), 1):
                took[name] = [await reader.time_to_record(slice_, kind, INJECTED_FAULTS[kind])]
                progress(done / len(KINDS))
            return took

        yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return tuple(percentile(f"drift.{name}.notice_p95_ms", rounds, name, "ms", 95) for name in KINDS)


BENCH: Final = Bench(
    name="drift",
    explanation="time until the ledger records a change that another program made on a real node",
    shape=f"drift, {', '.join(KINDS)}",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
