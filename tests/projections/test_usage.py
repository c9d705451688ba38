"""Usage follows from the events of leases: its totals equal a computation by hand after every history (PLT-9)."""

import asyncio
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control_plane.database import engine_of
from deploy.embedded.stack import sqlalchemy_url
from events.envelope import Recorded
from events.facts import Fact
from events.values import ProjectId, SkuName
from read_models.usage import entries as usage
from read_models.usage.amounts import Amount, amount_of
from read_models.usage.entries import Grouping
from read_models.usage.intervals import UsageFilter
from read_models.usage.periods import Bill, Piece
from tests.projections import usage_by_hand as by_hand
from tests.projections.usage_histories import histories, moments, project
from tests.servers.postgres import Database
from tests.torture import count


@pytest.fixture
def runner(database: Database) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.mark.timeout(300)  # Shrinking a failing history takes minutes.
def test_usage_totals_of_any_history_equal_the_computation_by_hand_from_its_events(
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
                bill = Bill(Piece(begin, end))
                everything = await usage.totals(conn, which, bill, None)
                groups = await usage.totals(conn, which, bill, grouping)
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
def test_price_of_usage_is_rounded_once_half_to_even_to_six_decimals(
    seconds: str, price: str, rounded: str
) -> None:
    amount = amount_of(Decimal(seconds), Decimal(seconds) * Decimal(price))
    assert f"{amount.price:f}" == rounded
