"""The application's role can do no harm to the log, and no role but the owner can stop it (P14)."""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from deploy.embedded.postgres import PostgresServer
from tests.ledger.given import committed, on
from tests.servers.postgres import Database, cloned

TABLES = ("event", "dead_position", "head", "claim", "command_key", "epoch")
DESTRUCTIVE = (
    "insert into ledger.{0} select * from ledger.{0}",
    "update ledger.{0} set {1} = {1}",
    "delete from ledger.{0}",
    "truncate ledger.{0}",
    "alter table ledger.{0} add column more text",
    "alter table ledger.{0} disable trigger all",
    "alter table ledger.{0} owner to sliceplane_app",
    "create trigger t before insert on ledger.{0} execute function suppress_redundant_updates_trigger()",
    "create index on ledger.{0} ({1})",
    "create rule r as on insert to ledger.{0} do instead nothing",
    "drop table ledger.{0}",
    "lock table ledger.{0} in share mode",
    "select * from ledger.{0} for update",
)


@pytest.fixture(scope="module")
def database(postgres_server: PostgresServer) -> Iterator[Database]:
    """One for all of these: what is refused changes nothing."""
    with cloned(postgres_server) as database:
        yield database


FIRST_COLUMN = {
    "event": "position",
    "dead_position": "position",
    "head": "stream_id",
    "claim": "kind",
    "command_key": "key",
    "epoch": "epoch",
}


@pytest.mark.parametrize("statement", DESTRUCTIVE)
@pytest.mark.parametrize("table", TABLES)
async def test_no_destructive_statement_passes(
    conn: psycopg.AsyncConnection, table: str, statement: str
) -> None:
    with pytest.raises(InsufficientPrivilege):
        await conn.execute(statement.format(table, FIRST_COLUMN[table]).encode())


@pytest.mark.parametrize(
    "statement",
    [
        "select nextval('ledger.position_seq')",
        "select setval('ledger.position_seq', 1)",
        "alter sequence ledger.position_seq restart",
        "select ledger.begin_epoch('mine')",
        "select ledger.hold_key('{}')",
        "create or replace function ledger.current_epoch() returns integer language sql return 9",
        "alter function ledger.append owner to sliceplane_app",
        "drop schema ledger cascade",
        "create table ledger.mine (x int)",
        "create table public.mine (x int)",
        "create table work.mine (x int)",
        "create schema mine",
        "create temporary table event (x int)",
        "set session_replication_role = replica",
        "set role sliceplane_owner",
        "alter role sliceplane_app superuser",
    ],
)
async def test_no_way_around_the_functions(conn: psycopg.AsyncConnection, statement: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        await conn.execute(statement.encode())


LOCKS = [
    f"select {function}({arguments})"
    for function in (
        "pg_advisory_lock",
        "pg_advisory_lock_shared",
        "pg_advisory_xact_lock",
        "pg_advisory_xact_lock_shared",
        "pg_try_advisory_lock",
        "pg_try_advisory_lock_shared",
        "pg_try_advisory_xact_lock",
        "pg_try_advisory_xact_lock_shared",
        "pg_advisory_unlock",
        "pg_advisory_unlock_shared",
    )
    for arguments in ("21328, 1", "91600062775297")
] + ["select pg_advisory_unlock_all()"]


@pytest.mark.parametrize("statement", LOCKS)
async def test_nobody_else_takes_an_advisory_lock(conn: psycopg.AsyncConnection, statement: str) -> None:
    with pytest.raises(InsufficientPrivilege):
        await conn.execute(statement.encode())


async def test_a_search_path_of_the_caller_does_not_lead_append_astray(conn: psycopg.AsyncConnection) -> None:
    await conn.execute("set search_path = work, public")
    await conn.commit()

    assert len(await committed(conn, on("slot-a", 0))) == 1
    row = await (await conn.execute("show search_path")).fetchone()
    assert row == ("work, public",)


async def test_sessions_of_the_application_are_bounded(conn: psycopg.AsyncConnection) -> None:
    cursor = await conn.execute(
        "select current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout'),"
        " current_setting('default_transaction_isolation')"
    )
    assert await cursor.fetchone() == ("4s", "5s", "read committed")


async def test_the_application_fills_read_models_and_work(
    database: Database, conn: psycopg.AsyncConnection
) -> None:
    with psycopg.connect(database.admin_dsn) as admin:
        admin.execute("create table read.probe (x int)")
        admin.execute("create table work.probe (x bigserial)")

    await conn.execute("insert into read.probe values (1)")
    await conn.execute("insert into work.probe default values")
    await conn.execute("update read.probe set x = 2")
    assert (await conn.execute("delete from read.probe")).rowcount == 1
