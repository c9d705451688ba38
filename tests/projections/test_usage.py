"""Usage follows from the events of leases: its totals equal a computation by hand after every history (PLT-9)."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.database import engine_of
from control_plane.projector.gathering import Gathering
from deploy.embedded.lab_catalogue import SMALL
from deploy.embedded.stack import sqlalchemy_url
from events.allocations import LeaseEnded, LeaseGranted, LeaseRenewed
from events.envelope import Cause, Recorded
from events.facts import Fact
from events.values import (
    AllocationId,
    Epoch,
    Position,
    ProjectId,
    SkuName,
    allocation_of,
    stream_of_allocation,
)
from read_models import usage
from read_models.projections import PROJECTIONS
from read_models.rows import Span
from read_models.usage import Grouping, UsageFilter
from read_models.usage_pieces import Amount, amount_of, pieces_of
from tests.decisions.histories import REQUESTED, specified
from tests.projections import usage_by_hand as by_hand
from tests.servers.postgres import Database
from tests.torture import count

START = datetime(2026, 3, 1, tzinfo=UTC)
CAUSE = Cause("key:test", "test", UUID(int=1), START)
NAMES = [allocation_of(UUID(int=number)) for number in range(1, 5)]
moments = st.builds(
    lambda minutes, micros: START + timedelta(minutes=minutes, microseconds=micros),
    st.integers(0, 30),
    st.sampled_from([0, 1, 333_333]),
)
prices = st.sampled_from(["0", "0.01", "3.20", "7", "0.000001"])
Change = tuple[Fact, datetime]


@st.composite
def changes(draw: st.DrawFn, name: AllocationId) -> list[Change]:
    """Draw the facts of one allocation in their order, each with the time at which it is recorded."""
    labels = draw(st.sampled_from([{}, {"team": "a"}, {"team": "b", "job": "1"}]))
    project, sku = draw(st.sampled_from(["red", "blue"])), draw(st.sampled_from(["s", "m"]))
    content = msgspec.structs.replace(SMALL, price_per_hour=draw(prices))
    replace = msgspec.structs.replace
    requested = replace(
        REQUESTED,
        allocation_id=name,
        project=ProjectId(project),
        sku=SkuName(sku),
        slot_count=draw(st.integers(1, 8)),
        labels=labels,
    )
    found: list[Fact] = [requested, replace(specified(content), allocation_id=name)]
    start, *ends = draw(st.lists(moments, min_size=2, max_size=4))
    if draw(st.sampled_from([True, True, True, False])):
        found.append(LeaseGranted(name, start, ends[0]))
        found += [LeaseRenewed(name, end) for end in ends[1:]]
        if draw(st.booleans()):
            found.append(LeaseEnded(name))
    return [(fact, draw(moments)) for fact in found]


@st.composite
def histories(draw: st.DrawFn) -> list[Recorded[Fact]]:
    """Generate a ledger of interleaved facts of several allocations; those of each allocation keep their order."""
    streams = [draw(changes(name)) for name in NAMES]
    order = draw(st.permutations([index for index, each in enumerate(streams) for _ in each]))
    events = list[Recorded[Fact]]()
    taken = [0] * len(streams)
    for position, index in enumerate(order, 1):
        fact, recorded_at = streams[index][taken[index]]
        taken[index] += 1
        events.append(
            Recorded(
                Position(position), UUID(int=position), stream_of_allocation(NAMES[index]), taken[index],
                fact, CAUSE, recorded_at, Epoch(1),
            )
        )  # fmt: skip
    return events


@pytest.fixture
def runner(database: Database) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


async def project(conn: AsyncConnection, events: list[Recorded[Fact]]) -> None:
    """Write the rows of these events as the projector does."""
    gathering = Gathering([PROJECTIONS[usage.PROJECTION]], {usage.PROJECTION: frozenset()})
    gathering.add(events)
    await gathering.write(conn, Span(Position(0), events[-1].position))


@pytest.mark.timeout(300)  # Shrinking a failing history takes minutes.
def test_totals_of_any_history_equal_the_computation_by_hand_from_its_events(
    database: Database, runner: asyncio.Runner
) -> None:
    engine = engine_of(sqlalchemy_url(database.app_dsn).render_as_string(hide_password=False), 1)
    filters = st.sampled_from(
        [
            UsageFilter(),
            UsageFilter(within=frozenset({ProjectId("red")})),
            UsageFilter(sku=SkuName("s")),
            UsageFilter(label=("team", "a")),
            UsageFilter(frozenset({ProjectId("red"), ProjectId("blue")}), SkuName("m"), ("job", "1")),
        ]
    )
    groupings = st.sampled_from([Grouping("project"), Grouping("sku"), Grouping("label", "team")])

    @settings(
        max_examples=count(2000, usual_share=40),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(histories(), st.lists(moments, min_size=1, max_size=2).map(sorted), filters, groupings)
    def totals_equal(
        events: list[Recorded[Fact]],
        between: list[datetime],
        which: UsageFilter,
        grouping: Grouping,
    ) -> None:
        begin, end = None if len(between) == 1 else between[0], between[-1]

        async def found() -> dict[str, Amount | None]:
            async with engine.connect() as conn:
                await project(conn, events)
                pieces = pieces_of(begin, end)
                everything = await usage.totals(conn, which, pieces, None)
                groups = await usage.totals(conn, which, pieces, grouping)
                await conn.rollback()
            assert sum(each.entries for each in groups) == sum(each.entries for each in everything)
            return {"total": everything[0].amount if everything else None} | {
                f"= {each.key}": each.amount for each in groups
            }

        leases = [
            (lease, duration)
            for lease in by_hand.leases(events).values()
            if (which.within is None or lease.project in which.within)
            and which.sku in (None, lease.sku)
            and (which.label is None or which.label in lease.labels.items())
            if (duration := by_hand.metered(lease, begin, end))
        ]

        def key(lease: by_hand.Lease) -> str | None:
            named = {"project": lease.project, "sku": lease.sku, "label": lease.labels.get("team")}
            return named[grouping.field if grouping.label is None else "label"]

        wanted = {"total": by_hand.rounded(leases) if leases else None} | {
            f"= {each}": by_hand.rounded([lease for lease in leases if key(lease[0]) == each])
            for each in {key(lease) for lease, _ in leases}
        }
        assert runner.run(found()) == wanted

    try:
        totals_equal()
    finally:
        runner.run(engine.dispose())


@pytest.mark.parametrize(
    ("seconds", "price", "rounded"),
    [
        ("3600", "1", "1.000000"),
        ("1", "0.0036", "0.000001"),
        ("1", "0.0018", "0.000000"),
        ("3", "0.0018", "0.000002"),
        ("5", "0.0018", "0.000002"),
        ("1", "1", "0.000278"),
        ("999999999999.999999", "3.20", "888888888.888889"),
    ],
)
def test_price_is_rounded_once_half_to_even_to_six_decimals(seconds: str, price: str, rounded: str) -> None:
    amount = amount_of(Decimal(seconds), Decimal(seconds) * Decimal(price))
    assert f"{amount.price:f}" == rounded
