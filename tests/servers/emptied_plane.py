"""A running control plane that is shared by tests one after the other, and emptied before each of them.

It is stopped when a module follows that does not use it.

Emptying the tables takes a tenth of the processor time of a start, and the database connections of a running control
plane already have their statements planned. Before each test, the ledger, the read models and the tables of work in
progress are restored to their rows after the start, and Redis is emptied. Positions in the ledger are not drawn again,
so that the programs continue behind all earlier events. The API keeps recent events in memory for watches, which
therefore need `running_plane`. So does a test that stops a program, changes its settings or verifies the ledger, which
lacks positions after the tables were emptied.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pytest
from redis import Redis

from control_plane.queues.redis_nodes import MARKER
from deploy.embedded.postgres import PostgresServer
from read_models.projections import PROJECTIONS
from tests.servers.plane import RunningPlane, running
from tests.waiting import until

_NAME: Final = "reused_plane"
_running: Final[set[pytest.FixtureDef[Any]]] = set()
"""Definition of the fixture `reused_plane` while its control plane runs; empty while it does not."""
_FOLLOWERS: Final = 2 + sum(not each.inline for each in PROJECTIONS.values())
"""Followers of the ledger with a checkpoint: the dispatcher, and the projector with each of its read models and the
numbers of slots."""
_UP_TO_DATE: Final = """
select count(*) from read.checkpoint where position >= (select max(position) from ledger.event)
"""
_KEPT: Final = (
    "ledger.alembic_version",
    "ledger.epoch",
    "ledger.tree_head",
    "ledger.tree_node",
    "read.checkpoint",
    "work.access",
    "work.access_head",
)
_TABLES: Final = """
select format('%%I.%%I', table_schema, table_name), format('initial.%%I', table_schema || '.' || table_name)
  from information_schema.tables
 where table_schema in ('ledger', 'read', 'work') and table_type = 'BASE TABLE'
   and table_schema || '.' || table_name <> all(%s)
 order by table_schema || '.' || table_name <> 'ledger.event', 1
"""


@dataclass(frozen=True)
class _Reused:
    """Control plane that is emptied between tests. `emptying` is the SQL script that restores the first rows."""

    plane: RunningPlane
    admin: psycopg.Connection
    redis: Redis
    emptying: bytes

    def empty(self) -> None:
        """Restore the rows that the tables had after the start, and empty Redis."""
        _await_followers(self.plane)
        until(self._rows_restored, "the tables have their first rows")
        marker = self._marker()
        # In one transaction: without the marker, the dispatcher would restore Redis again.
        with self.redis.pipeline(transaction=True) as commands:
            commands.flushdb()
            commands.set(MARKER, marker)
            commands.execute()

    def _rows_restored(self) -> bool:
        """Restore the rows; return False after a deadlock with a transaction that the last test has left running."""
        try:
            self.admin.execute(self.emptying)
        except psycopg.errors.DeadlockDetected:
            self.admin.rollback()
            return False
        return True

    def _marker(self) -> bytes:
        """Wait until the control plane has restored Redis after its start or a loss of data. Return the value of the
        key that marks Redis as restored.
        """
        until(lambda: self.redis.get(MARKER) is not None, "the control plane has restored Redis")
        marker = self.redis.get(MARKER)
        assert isinstance(marker, bytes)
        return marker


@pytest.fixture(scope="session", name=_NAME)
def _reused_plane(postgres_server: PostgresServer) -> Iterator[_Reused]:
    with (
        running(postgres_server) as plane,
        psycopg.connect(plane.database.admin_dsn, autocommit=True) as admin,
        Redis.from_url(plane.redis.url) as redis,
    ):
        _await_followers(plane)
        yield _Reused(plane, admin, redis, _prepare(admin))


@pytest.fixture
def emptied_plane(reused_plane: _Reused) -> RunningPlane:
    """Control plane with an empty fleet, which other tests used before. The test stops no program."""
    reused_plane.empty()
    return reused_plane.plane


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    if fixturedef.argname == _NAME:
        _running.add(fixturedef)


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any]) -> None:
    _running.discard(fixturedef)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """Stop the control plane if the next module begins with another test: an idle one takes processor time."""
    result = yield
    if nextitem is not None and nextitem.path != item.path and not _uses_it(nextitem):
        for definition in {*_running}:
            definition.finish(item._request)  # type: ignore[attr-defined]  # private, as is each way to end a fixture
    return result


def _uses_it(item: pytest.Item) -> bool:
    return _NAME in getattr(item, "fixturenames", ())


def _await_followers(plane: RunningPlane) -> None:
    until(lambda: plane.rows(_UP_TO_DATE) == [(_FOLLOWERS,)], "all followers have read the ledger")


def _prepare(admin: psycopg.Connection) -> bytes:
    """Copy the present rows of all tables, and return the SQL script that restores them."""
    admin.execute("create schema initial")
    # Appends in progress end first, and others wait, so that no event of an earlier test is added afterwards.
    script = ["begin", "lock table ledger.event in share row exclusive mode"]
    for table, copy in admin.execute(_TABLES, [[*_KEPT]]).fetchall():
        rows = admin.execute(f"create table {copy} as table {table}").rowcount
        script.append(f"delete from {table}")
        if rows:
            script.append(f"insert into {table} select * from {copy}")
    return ";".join([*script, "commit"]).encode()
