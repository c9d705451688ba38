"""`drift`: somebody else changes a node that carries a slice; how long until that is on record (NOD-9).

A whole Sliceplane with real nodes. In each round every kind of change is made once on the node, by the tools that an
operator has. The clock goes from right before the change, as the node's shell reads it, to the fact in the ledger that
names what was found, as the database reads it; both are this machine's. Then what is not the agent's to mend is put
back, and the next change waits until nothing is open and the slice is active again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bench.lab_site import Slice, allocated, found, lab_site, state
from bench.measure import Bench, Measurement, Progress, Round, TakeRound, percentile
from deploy.embedded.site import Site
from node_agent.lab.harms import HARMS, names
from tasks.drift import DriftKind

ROUNDS: Final = 20
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
    """A site, and the slice that it carries; `seen` is how far its ledger was read."""

    site: Site
    slice_: Slice
    seen: int = 0

    async def notice(self, kind: DriftKind) -> float:
        """Milliseconds."""
        harm = HARMS[kind]
        await found(self._told, lambda events: not events)
        began = float((await self._do(f"date +%s.%N; {harm.done}")).split()[0])
        recorded = await found(lambda: self._recorded(kind), lambda at: at is not None)
        assert recorded is not None
        await self._do(harm.undone)
        await found(self._is_settled, bool)
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
        self.seen = max([self.seen, *(event["position"] for event in events)])
        return events

    async def _do(self, script: str) -> str:
        slice_ = self.slice_
        known = names(slice_.index, slice_.mac, slice_.address, str(slice_.node.folder / "run"))
        return (await asyncio.to_thread(slice_.node.run, ["sh", "-ec", script], environment=known)).stdout

    async def _is_settled(self) -> bool:
        is_active = await state(self.site, self.slice_.allocation) == "active"
        return is_active and not await asyncio.to_thread(self.site.api.items, "/drift")


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with lab_site() as site:
        slice_ = await allocated(site)
        carrying = Carrying(site, slice_)

        async def take(_number: int, progress: Progress) -> Round:
            took: dict[str, list[float]] = {}
            for number, (name, kind) in enumerate(KINDS.items()):
                took[name] = [await carrying.notice(kind)]
                progress((number + 1) / len(KINDS))
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
