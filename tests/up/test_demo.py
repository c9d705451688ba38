"""Demo data in an empty database: `./dev up --demo` records weeks of history with times in the past."""

import asyncio
import os
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from control_plane.decisions.budgets import money, month_of
from deploy.demo.clock import LedgerNotEmpty
from deploy.demo.fill import fill
from deploy.demo.fleet import DemoFleet, DemoRefused
from deploy.demo.plan import CLIMATE, Sizes, planned_allocations
from deploy.embedded.lab_catalogue import publish_lab_catalogue
from deploy.embedded.layout import Layout
from deploy.embedded.screen import Screen
from deploy.embedded.stack import sqlalchemy_url
from events.values import correlation_of
from read_models.commitments import commitments
from read_models.projections import PROJECTIONS
from tests.projections.fleet import living
from tests.servers.postgres import Database

SIZES: Final = Sizes(nodes=12, days=3, per_day=24)
UNTIL: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
APPEND: Final = """
select pg_get_functiondef(oid) from pg_proc
 where pronamespace = 'ledger'::regnamespace and proname like 'append%' order by proname
"""

OF_ALLOCATIONS: Final = """
select distinct substr(stream_id, length('allocation-') + 1), type, correlation_id from ledger.event
 where stream_id like 'allocation-%' and type in ('allocation.requested', 'allocation.releasing', 'allocation.released')
"""
LAST: Final = "select max(position) from ledger.event"
ORDERS: Final = """
select count(*), count(task.order_id) from read.slot
  left join work.task on task.slot_id = slot.slot_id and task.allocation_id = slot.allocation_id and task.state = 'done'
 where slot.state = 'claimed'
"""
RELEASED: Final = """
select count(*), count(*) filter (where exists (
  select from work.task
   where task.allocation_id = substr(event.stream_id, length('allocation-') + 1)
     and task.kind = 'slice.remove' and task.state = 'done'
)) from ledger.event where type = 'allocation.released' and recorded_at > '2026-11-19T14:00Z'
"""
"""Allocations that were released in the last 22 hours before `UNTIL`, and those of them with a task that removed a
slice.
"""
NEWEST: Final = """
select type, count(*) from (
  select distinct on (stream_id) stream_id, type from ledger.event where type in ({}) order by stream_id, position desc
) as newest group by type
"""
TASKS: Final = """
select state, reason ->> 'code', created_at <= ended_at and ended_at < now() from work.task
 where state not in ('done', 'superseded') order by created_at
"""
VERIFICATIONS: Final = "select state, requested_at, ended_at from work.verification order by requested_at"
WAITING: Final = "select project, priority from read.waiting where is_waiting order by priority desc"
GPUS: Final = """
select state, jsonb_array_length(granted) from read.slot where devices @> '[{"use": "gpu"}]' order by slot_id
"""
RESERVED: Final = """
select (reservations ->> 'c1.large')::integer - (
  select count(*) from read.slot where use ->> 'project' = project and use -> 'vcpus' = '8'
) from read.project where project = 'climate'
"""
BUDGET: Final = "select (limits ->> 'budget_per_month')::float from read.project where project = 'climate'"
USED: Final = "select count(*), sum(ends_at - starts_at) from read.usage_lease where starts_at is not null"


def filled(database: Database) -> list[tuple[float, datetime]]:
    """Record demo data, and return the progress that was reported."""
    shown: list[tuple[float, datetime]] = []
    fill(
        database.admin_dsn, sqlalchemy_url(database.app_dsn), SIZES,
        lambda share, moment: shown.append((share, moment)), until=UNTIL,
    )  # fmt: skip
    return shown


def rows(database: Database, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(database.admin_dsn) as conn:
        return conn.execute(query.encode()).fetchall()


# About 500 commands, each in its own transaction, and then a replay of every read model: 5 to 20 s.
async def test_demo_data_are_a_consistent_history_with_times_in_the_past_and_with_usage(
    database: Database,
) -> None:
    before = rows(database, APPEND)
    shown = await asyncio.to_thread(filled, database)
    assert rows(database, APPEND) == before, "the functions that stamp events are restored"
    assert [share for share, _ in shown] == sorted(share for share, _ in shown)

    times = [moment for (moment,) in rows(database, "select recorded_at from ledger.event order by position")]
    assert times == sorted(times)
    assert UNTIL - timedelta(days=3) < times[0] < times[-1] < UNTIL
    types = Counter(str(name) for (name,) in rows(database, "select type from ledger.event"))
    for name in (
        *(
            "service_account.created",
            "allocation.activated",
            "allocation.released",
            "allocation.replaced",
            "allocation.slice_interrupted",
        ),
        *("slot.retired", "slot.reprovisioned", "slot.repaired", "node.cordoned", "node.degraded"),
        *("sku.published", "project.limits_set", "project.reservations_set"),
        *("allocation.starting", "ingress.published", "ingress.withdrawn", "ingress.removed"),
    ):
        assert types[name] > 0, name

    assert_every_page_has_something_to_show(database)

    for allocation, name, correlation in rows(database, OF_ALLOCATIONS):
        assert correlation_of(allocation) == correlation, f"the timeline of {allocation} has its {name}"

    [(claimed, ordered)] = rows(database, ORDERS)
    assert ordered == claimed > 0, (
        "an agent with an empty host gets the order of each slice, and creates it again"
    )

    [(released, removed)] = rows(database, RELEASED)
    assert removed == released > 0, "the tasks of the last day are recorded"

    async with living(database) as fleet:
        await fleet.project([each.name for each in PROJECTIONS.values() if not each.inline], 500)
        assert await fleet.verify() == ()
        async with fleet.handle.engine.connect() as conn:
            found = await commitments(conn, [CLIMATE], *month_of(UNTIL), UNTIL)
    [(budget,)] = rows(database, BUDGET)
    assert 0.85 * budget < float(money(found[CLIMATE].committed)) <= budget, "a budget is nearly used up"
    [(leases, used)] = rows(database, USED)
    assert leases > 0
    assert used > timedelta(hours=10)


def assert_every_page_has_something_to_show(database: Database) -> None:
    """Assert what has to be in the demo data at their end."""
    assert newest(database, "allocation.stopped", "allocation.starting", "allocation.releasing")[
        "allocation.stopped"
    ]
    assert newest(database, "node.excluded", "node.readmitted") == {"node.excluded": 1, "node.readmitted": 1}
    assert newest(database, "ingress.published", "ingress.withdrawn")

    tasks = rows(database, TASKS)
    assert {state for state, _, _ in tasks} == {"failed", "expired"}, "no task is unfinished"
    assert len({code for _, code, _ in tasks}) >= 5
    assert all(in_order for _, _, in_order in tasks)

    [(equal, requested_at, ended_at), (asked, _, unfinished)] = rows(database, VERIFICATIONS)
    assert (equal, asked, unfinished) == ("equal", "asked", None)
    assert UNTIL - timedelta(days=3) < requested_at < ended_at < UNTIL

    assert rows(database, WAITING) == [("vision", 10), ("speech", 0)]
    assert rows(database, GPUS) == [("claimed", 4)] * 2
    [(unused,)] = rows(database, RESERVED)
    assert unused > 0


def newest(database: Database, *types: str) -> Counter[str]:
    """Return how often each of the types is the newest of them in a stream."""
    listed = ", ".join(f"'{each}'" for each in types)
    return Counter(dict(rows(database, NEWEST.format(listed))))


def test_demo_data_are_refused_by_a_ledger_with_events_and_change_nothing(database: Database) -> None:
    publish_lab_catalogue(sqlalchemy_url(database.app_dsn))
    before = rows(database, APPEND), rows(database, LAST)
    with pytest.raises(LedgerNotEmpty):
        filled(database)
    assert before == (rows(database, APPEND), rows(database, LAST))


def test_interrupted_recording_of_demo_data_ends_between_two_commands_and_restores_the_clock_of_the_ledger(
    database: Database,
) -> None:
    before = rows(database, APPEND)
    sent: list[float] = []

    def interrupt(share: float, _moment: datetime) -> None:
        if share > 0 and not sent:
            sent.append(share)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fill(database.admin_dsn, sqlalchemy_url(database.app_dsn), SIZES, interrupt, until=UNTIL)
    assert rows(database, APPEND) == before
    assert 0 < rows(database, "select count(*) from ledger.event")[0][0] < 300


def test_planned_allocations_of_the_demo_data_depend_on_the_seed_only() -> None:
    assert planned_allocations(SIZES, 1) == planned_allocations(SIZES, 1) != planned_allocations(SIZES, 2)


def test_incomplete_demo_data_are_refused_without_the_option_demo_and_deleted_with_it(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path)
    (layout.database / "data").mkdir(parents=True)
    interrupted = '{"sizes": [12, 3, 18], "complete": false}'
    (tmp_path / "demo.json").write_text(interrupted)
    (tmp_path / "client.json").write_text("{}")
    with pytest.raises(DemoRefused, match="with --demo, which records them again"):
        DemoFleet(layout, Screen())
    assert layout.database.exists()
    assert not DemoFleet(layout, Screen(), again=True).exists
    assert sorted(each.name for each in tmp_path.iterdir()) == ["client.json"]


def test_demo_data_of_a_ledger_with_events_are_refused_before_they_are_recorded_as_begun(
    database: Database, tmp_path: Path
) -> None:
    publish_lab_catalogue(sqlalchemy_url(database.app_dsn))
    fleet = DemoFleet(Layout(tmp_path), Screen())
    with pytest.raises(DemoRefused, match="not empty"):
        fleet.record(database.admin_dsn, sqlalchemy_url(database.app_dsn), SIZES)
    # An incomplete record would let `up --demo` delete this ledger.
    assert [*tmp_path.iterdir()] == []
