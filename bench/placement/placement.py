"""`placement`: what it costs to find slots for a request, and how this cost depends on the fleet and on the request.

Fleets of 800 and of 80,000 slots have databases of their own in one Postgres server, with 50 % and with 95 % of the
slots in use. A placement is what a command does to find and lock slots; it is rolled back afterwards. Fleets and
requests take turns, one placement each, so that all see the same load of the machine. An explanation is the grouping of
all nodes by their reasons, as a preview and a refusal show it.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from bench.harness.measure import Bench, Measurement, Progress, Round, TakeRound, percentile, rounded
from bench.harness.servers import bench_folder, migrated_postgres, sqlalchemy_url
from bench.placement.fleet import CONSTRAINED, GPU_MODEL, IMAGE, PLAIN, Fleet
from control_plane.commands.explaining import groups_of
from control_plane.commands.placement_request import PlacementRequest
from control_plane.commands.searching import find_slots
from control_plane.database import engine_of
from control_plane.decisions.placing.suitability import Demand
from control_plane.handle import Transaction
from deploy.embedded.lab_catalogue import SMALL
from events.allocations import AllocationRequested
from events.entries import SkuContent
from events.values import SkuName, allocation_of, new_uuid, project_id

ROUNDS: Final = 10
PLACEMENTS: Final = 100
EXPLANATIONS: Final = 5
SMALL_FLEET, LARGE_FLEET = 100, 10_000
"""Numbers of nodes, with eight slots each."""
FULL: Final = (0.5, 0.95)
_PLAIN: Final = Demand(PLAIN, msgspec.structs.replace(SMALL, vcpus=24, memory_mib=245_760), ("none",))
_CONTENT: Final[SkuContent] = msgspec.structs.replace(
    _PLAIN.sku, gpu_model=GPU_MODEL, gpu_count=1, fabric="ib", numa="single"
)
_CONSTRAINED: Final = Demand(CONSTRAINED, _CONTENT, ("ib",))


def _wanted(demand: Demand) -> PlacementRequest:
    request = AllocationRequested(
        allocation_id=allocation_of(new_uuid()),
        project=project_id("default"),
        sku=SkuName(demand.name),
        network_mode="private-nat",
        image=IMAGE,
        ssh_authorized_keys=(),
        lease_seconds=3600,
        slot_count=1,
        labels={},
    )
    return PlacementRequest(request, demand, (), timedelta(seconds=30), simulated_allowed=False)


async def _place(conn: AsyncConnection, wanted: PlacementRequest) -> float:
    """Return the milliseconds that it takes to find and lock the slots of a request."""
    began = time.perf_counter()
    await find_slots(Transaction(conn, datetime.now(UTC), wait_for_locked=False), wanted)
    spent = time.perf_counter() - began
    await conn.rollback()
    return spent * 1000


async def _explain(conn: AsyncConnection, wanted: PlacementRequest) -> float:
    """Return the milliseconds that it takes to group all nodes by their reasons."""
    began = time.perf_counter()
    await groups_of(conn, wanted)
    spent = time.perf_counter() - began
    await conn.rollback()
    return spent * 1000


@asynccontextmanager
async def _running() -> AsyncIterator[TakeRound]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        conns: dict[tuple[int, float], AsyncConnection] = {}
        for nodes in (SMALL_FLEET, LARGE_FLEET):
            for full in FULL:
                server = opened.enter_context(migrated_postgres(folder / f"{nodes}-{full}"))
                Fleet(nodes, full).write(server.admin_dsn)
                engine = engine_of(sqlalchemy_url(server), 1)
                opened.push_async_callback(engine.dispose)
                conns[nodes, full] = await opened.enter_async_context(engine.connect())
        plain, constrained = _wanted(_PLAIN), _wanted(_CONSTRAINED)
        for conn in conns.values():
            await _explain(conn, plain)

        async def take(_number: int, progress: Progress) -> Round:
            found: dict[str, list[float]] = {}
            for number in range(PLACEMENTS):
                for (nodes, full), conn in conns.items():
                    for name, wanted in (("plain", plain), ("constrained", constrained)):
                        spent = await _place(conn, wanted)
                        found.setdefault(f"{name} {nodes} {full}", []).append(spent)
                progress((number + 1) / PLACEMENTS)
            for _ in range(EXPLANATIONS):
                for full in FULL:
                    spent = await _explain(conns[LARGE_FLEET, full], constrained)
                    found.setdefault("explain", []).append(spent)
            return found

        yield take


def _scaling(rounds: Sequence[Round], full: float) -> Measurement:
    small, large = f"plain {SMALL_FLEET} {full}", f"plain {LARGE_FLEET} {full}"
    bases = [median(each[small]) for each in rounds]
    ratios = [median(each[large]) / base for each, base in zip(rounds, bases, strict=True)]
    return Measurement(
        f"placement.scaling_{full:.0%}".removesuffix("%"),
        rounded(median(ratios)),
        "ratio",
        rounded(median(bases)),
    )


def _constrained(rounds: Sequence[Round]) -> Measurement:
    """Return the rate with constraints divided by the rate without, in the large fleet that is half full."""
    plain, constrained = (f"{name} {LARGE_FLEET} {FULL[0]}" for name in ("plain", "constrained"))
    rates = [1000 / median(each[plain]) for each in rounds]
    ratios = [1000 / median(each[constrained]) / rate for each, rate in zip(rounds, rates, strict=True)]
    return Measurement(
        "placement.constrained_ratio", rounded(median(ratios)), "ratio", rounded(median(rates))
    )


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    scaling = [_scaling(rounds, full) for full in FULL]
    worst = max(scaling, key=lambda each: each.value)
    return (
        Measurement("placement.scaling", worst.value, worst.unit, worst.baseline),
        *scaling,
        percentile("placement.explain_ms", rounds, "explain", "ms", 95),
        _constrained(rounds),
    )


BENCH: Final = Bench(
    name="placement",
    explanation="cost of a placement in 80,000 slots against 800, with constraints, and of its explanation",
    shape=f"{PLACEMENTS} placements in fleets of {SMALL_FLEET} and {LARGE_FLEET} nodes",
    rounds=ROUNDS,
    running=_running,
    results=_results,
)
