"""Tests that database functions which run as the ledger's owner resolve names only in schemas where no caller can
create objects.
"""

import psycopg
import pytest

from events.ledger.append import StoredAnswer, append, take_key
from events.ledger.merkle import EventRow, leaf_of
from tests.ledger.given import because, on, plain, takes
from tests.ledger.test_keys import KEY
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
async def hostile_session(conn: psycopg.AsyncConnection, database: Database) -> psycopg.AsyncConnection:
    """Database session with a search path in which hostile functions and operators come before those of the server."""
    with psycopg.connect(database.admin_dsn) as admin:
        admin.execute(HOSTILE)
    await conn.execute("set search_path = hostile, pg_catalog")
    row = await (await conn.execute("select clock_timestamp()::text")).fetchone()
    assert row is not None
    assert row[0].startswith("1970")
    await conn.commit()
    return conn


@pytest.mark.parametrize("calls", [1, 8])  # once with a custom plan, and often enough for a cached one
async def test_append_with_a_hostile_search_path_calls_no_hostile_function(
    hostile_session: psycopg.AsyncConnection, calls: int
) -> None:
    for version in range(calls):
        await append(hostile_session, [on("slot-a", version, takes(f"lab-a/{version}"))], because())
        await append(hostile_session, [on("slot-b", version)], because())
        await append(hostile_session, [on(f"slot-c{version}", 0, plain())], because())
        await hostile_session.commit()
    assert await take_key(hostile_session, KEY) is None
    assert len(await append(hostile_session, [on("slot-d", 0)], because(), key=KEY, answer="{}")) == 1
    await hostile_session.commit()
    await hostile_session.execute("set search_path = pg_catalog, pg_temp")

    rows = await (await hostile_session.execute("select * from ledger.event order by position")).fetchall()
    events = [EventRow(*row[:-1]) for row in rows]
    assert [event.position for event in events] == list(range(1, 3 * calls + 2))
    assert all(event.recorded_at.year > 1970 for event in events)
    assert [row[-1] for row in rows] == [leaf_of(event) for event in events]
    assert await take_key(hostile_session, KEY) == StoredAnswer("{}")


async def test_append_after_the_caller_set_synchronous_commit_off_sets_synchronous_commit_on(
    conn: psycopg.AsyncConnection,
) -> None:
    """The setting `synchronous_commit` takes effect at the commit, which follows the call of `append`."""
    await conn.execute("set synchronous_commit = off")
    await append(conn, [on("slot-a", 0)], because())
    row = await (await conn.execute("show synchronous_commit")).fetchone()
    assert row == ("on",)
