"""What runs as the ledger's owner finds its functions where no caller can put others."""

import psycopg
import pytest

from events.append import append, take_key
from events.append_many import append_many
from events.merkle import EventRow, leaf_of
from tests.ledger.given import because, on, plain, takes
from tests.ledger.test_batches import KEY, command
from tests.servers.postgres import Database

HOSTILE = """
create schema hostile;
grant usage on schema hostile to public;
create function hostile.clock_timestamp() returns timestamptz language sql as $$ select 'epoch'::timestamptz $$;
create function hostile.sha256(bytea) returns bytea language sql as $$ select '\\x00'::bytea $$;
create function hostile.nextval(regclass) returns bigint language sql as $$ select 77::bigint $$;
create function hostile.pg_advisory_xact_lock_shared(integer, integer) returns void language sql as $$ select $$;
create function hostile.hostile_text(jsonb, text) returns text language sql as $$ select 'hostile' $$;
create operator hostile.->> (function = hostile.hostile_text, leftarg = jsonb, rightarg = text);
create function hostile.never(text, text) returns boolean language sql as $$ select false $$;
create operator hostile.<> (function = hostile.never, leftarg = text, rightarg = text);
"""


@pytest.fixture
async def misled(conn: psycopg.AsyncConnection, database: Database) -> psycopg.AsyncConnection:
    """A session that finds another's functions and operators before the server's own."""
    with psycopg.connect(database.admin_dsn) as admin:
        admin.execute(HOSTILE)
    await conn.execute("set search_path = hostile, pg_catalog")
    row = await (await conn.execute("select clock_timestamp()::text")).fetchone()
    assert row is not None
    assert row[0].startswith("1970")
    await conn.commit()
    return conn


@pytest.mark.parametrize("calls", [1, 8])  # once planned anew, and often enough for a cached plan
async def test_nothing_that_append_stores_comes_from_a_function_of_the_callers(
    misled: psycopg.AsyncConnection, calls: int
) -> None:
    for version in range(calls):
        await append(misled, [on("slot-a", version, takes(f"lab-a/{version}"))], because())
        await append_many(
            misled, [command(on("slot-b", version)), command(on(f"slot-c{version}", 0, plain()))]
        )
        await misled.commit()
    assert await take_key(misled, KEY) is None
    assert len(await append(misled, [on("slot-d", 0)], because(), key=KEY, answer="{}")) == 1
    await misled.commit()
    await misled.execute("set search_path = pg_catalog, pg_temp")

    rows = await (await misled.execute("select * from ledger.event order by position")).fetchall()
    events = [EventRow(*row[:-1]) for row in rows]
    assert [event.position for event in events] == list(range(1, 3 * calls + 2))
    assert all(event.recorded_at.year > 1970 for event in events)
    assert [row[-1] for row in rows] == [leaf_of(event) for event in events]
    key = await (await misled.execute("select principal, answer from ledger.command_key")).fetchone()
    assert key == ("caller:alice", "{}")


async def test_synchronous_commit_is_on_whatever_the_caller_set(conn: psycopg.AsyncConnection) -> None:
    """It counts at commit, which is after the call."""
    for appending in (
        lambda: append(conn, [on("slot-a", 0)], because()),
        lambda: append_many(conn, [command(on("slot-b", 0))]),
    ):
        await conn.execute("set synchronous_commit = off")
        await appending()
        row = await (await conn.execute("show synchronous_commit")).fetchone()
        assert row == ("on",)
        await conn.commit()
