"""A billing period is closed with the position of the usage, and not before the usage has every event of the period."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.billing.closing import close_period
from control_plane.database import engine_of
from control_plane.decisions.billing import Bounds
from control_plane.decisions.refusals import Conflict
from control_plane.handle import Handle
from control_plane.origin import Origin
from deploy.embedded.stack import sqlalchemy_url
from events.values import PeriodName, Position, new_uuid
from read_models.usage.periods import Period, closed_before
from tests.ledger.given import committed, on
from tests.servers.postgres import Database

NAME = PeriodName("first")


@pytest.fixture
def runner(database: Database) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


async def wake_no_follower() -> None:
    """Do nothing. Replaces the function that wakes followers of the ledger after an append."""


async def project_up_to(conn: psycopg.AsyncConnection, position: int) -> None:
    """Record that the usage has the events up to a position, as the projector does."""
    await conn.execute(
        "insert into read.checkpoint (name, position) values ('usage', %s)"
        " on conflict (name) do update set position = excluded.position",
        [position],
    )
    await conn.commit()


def test_period_is_closed_only_when_the_usage_has_every_event_recorded_before_its_end(
    database: Database, runner: asyncio.Runner
) -> None:
    url = sqlalchemy_url(database.app_dsn).render_as_string(hide_password=False)

    async def closed() -> tuple[Position, list[Period]]:
        engine = engine_of(url, 2)

        async def later(_conn: AsyncConnection) -> datetime:
            return datetime.now(UTC) + timedelta(days=1)

        handle = Handle(engine, wake_no_follower, later)
        try:
            async with await psycopg.AsyncConnection.connect(database.app_dsn) as conn:
                [first] = await committed(conn, on("a", 0))
                [second] = await committed(conn, on("b", 0))
                between = Bounds(first.recorded_at - timedelta(hours=1), second.recorded_at)
                after = between._replace(ends_at=second.recorded_at + timedelta(microseconds=1))
                origin = Origin("key:test", "test", new_uuid())
                for position, bounds in ((0, between), (first.position, after)):
                    await project_up_to(conn, position)
                    with pytest.raises(Conflict) as refused:
                        await handle(close_period(NAME, bounds, origin))
                    assert [each.code for each in refused.value.objections] == ["usage_incomplete"]
                await handle(close_period(NAME, between, origin))
                await handle(close_period(NAME, between, origin))
            async with engine.connect() as reader:
                return first.position, await closed_before(reader, None)
        finally:
            await engine.dispose()

    position, [period] = runner.run(closed())
    assert (period.number, period.name, period.through) == (1, NAME, position)
