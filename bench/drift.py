"""`drift`: somebody else changes a node that carries a slice; how long until that is on record (NOD-9).

A whole Sliceplane with real nodes, each with a slice. In each round every kind of change is made once on one of them,
by the tools that an operator has. The clock goes from right before the change, as the node's shell reads it, to the
fact in the ledger that names what was found, as the database reads it; both are this machine's. Then what is not the
agent's to mend is put back, and the next change waits until nothing is open, the slice is active again and nothing more
came of it for a while: a lost bridge takes the ports with it. The nodes take turns, or what comes up would come up so
often that it stays open (`node_agent.drift`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bench.lab_site import Slice, found, lab_site, one_on_each_node, state
from bench.measure import Bench, Measurement, Progress, Round, TakeRound, percentile
from deploy.embedded.site import Site
from node_agent.lab.harms import HARMS, Harm, names
from tasks.drift import DriftKind

ROUNDS: Final = 20
_QUIET_SECONDS: Final = 1.5
"""More than the longest pause between two surveys."""
_TOLD: Final = "&".join(
    f"type={type_}" for type_ in ("node.degraded", "node.mended", "slot.degraded", "slot.mended")
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
"""What is changed, by the metric's name."""


@dataclass
class Carrying:
    """A site; `seen` is how far its ledger was read, and `heard` when that had news."""

    site: Site
    seen: int = 0
    heard: float = 0.0

    async def notice(self, slice_: Slice, kind: DriftKind, harm: Harm) -> float:
        """Milliseconds from the harm to the event that names the kind."""
        await found(lambda: self._is_settled(slice_), bool)
        began = float((await _do(slice_, f"date +%s.%N; {harm.done}")).split()[0])
        recorded = await found(lambda: self._recorded(kind), lambda at: at is not None)
        assert recorded is not None
        await _do(slice_, harm.undone)
        return (recorded.timestamp() - began) * 1e3

    async def _recorded(self, kind: DriftKind) -> datetime | None:
        """When the first event that names the kind was, of those that came since the last look."""
        naming = [
            event for event in await self._told() if kind in [each["kind"] for each in event["data"]["drift"]]
        ]
        return datetime.fromisoformat(naming[0]["recorded_at"]) if naming else None

    async def _told(self) -> list[dict[str, Any]]:
        """What the ledger tells of drift since the last look."""
        path = f"/events?{_TOLD}&after=position:{self.seen}"
        events = await asyncio.to_thread(self.site.api.items, path)
        if events:
            self.seen, self.heard = max(event["position"] for event in events), time.monotonic()
        return events

    async def _is_settled(self, slice_: Slice) -> bool:
        is_active = await state(self.site, slice_.allocation) == "active"
        if await self._told() or not is_active or await asyncio.to_thread(self.site.api.items, "/drift"):
            return False
        return time.monotonic() - self.heard > _QUIET_SECONDS


async def _do(slice_: Slice, script: str) -> str:
    known = names(slice_.index, slice_.mac, slice_.address, str(slice_.node.folder / "run"))
    return (await asyncio.to_thread(slice_.node.run, ["sh", "-ec", script], environment=known)).stdout


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with lab_site() as site:
        slices = await one_on_each_node(site)
        carrying = Carrying(site)

        async def take(number: int, progress: Progress) -> Round:
            slice_ = slices[number % len(slices)]
            took: dict[str, list[float]] = {}
            for done, (name, kind) in enumerate(KINDS.items(), 1):
                took[name] = [await carrying.notice(slice_, kind, HARMS[kind])]
                progress(done / len(KINDS))
            return took

        yield take


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return tuple(percentile(f"drift.{name}.notice_p95_ms", rounds, name, "ms", 95) for name in KINDS)


BENCH: Final = Bench(
    name="drift",
    explanation="a real node is changed behind its agent's back; how long until that is on record",
    shape=f"drift, {', '.join(KINDS)}",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
