"""The rows of the access log in `work.access`: how they are written, closed, deleted and read.

Positions come from the only row of `work.access_head`. A transaction that closes rows holds its lock until the commit,
so positions become visible in their order, and a reader that continues after a position misses no row. (The ledger's
fence is an advisory lock, which the application's role may not take.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.work.tables import access, access_head
from events.ledger.connection import fetch_values

BATCH: Final = 1000
"""Number of rows closed or deleted per transaction, so that no request waits long for its row."""


class NewRow(msgspec.Struct, frozen=True, gc=False):
    """A row to insert into the access log. `age` is the number of seconds since the request arrived. `place` numbers
    the rows of a batch that get a position, from 1; None: the row gets no position yet and stays open.
    """

    request_id: str
    age: float
    method: str
    route: str | None
    path: str
    principal: str | None
    credential: str | None
    source: str | None
    status: int | None
    outcome: str | None
    reasons: Sequence[str]
    duration_ms: int | None
    count: int
    place: int | None


class ChangedRow(msgspec.Struct, frozen=True, gc=False):
    """New values of an open row of the access log. `place` numbers the rows of a batch that get a position, from 1;
    None: the row stays open.
    """

    request_id: str
    principal: str | None
    credential: str | None
    status: int | None
    outcome: str | None
    reasons: Sequence[str]
    duration_ms: int | None
    count: int
    place: int | None


class Batch(NamedTuple):
    """Changes of the access log that are committed together. `positions` is the number of rows in the batch that get a
    position.
    """

    new: Sequence[NewRow]
    changed: Sequence[ChangedRow]
    dropped: Sequence[str]
    positions: int


@dataclass(frozen=True, slots=True)
class Retention:
    """Maximum number and maximum age of the rows that the access log keeps."""

    rows: int
    age: timedelta


# One statement, which is a transaction of its own. It may run twice, if the first answer was lost: a row is inserted
# once, and a row with a position is not changed.
_STORE: Final = """
with head as (
  update work.access_head set position = position + %(positions)s::bigint where %(positions)s::bigint > 0
  returning position - %(positions)s::bigint as before
), dropped as (
  delete from work.access where request_id = any(%(dropped)s::text[]) and position is null
), changed as (
  update work.access as access
  set principal = changed.principal, credential = changed.credential, status = changed.status,
    outcome = changed.outcome, reasons = changed.reasons, duration_ms = changed.duration_ms,
    count = changed.count, position = head.before + changed.place
  from json_to_recordset(%(changed)s::json) as changed(request_id text, principal text, credential text,
    status smallint, outcome text, reasons text[], duration_ms integer, count integer, place bigint)
  left join head on true
  where access.request_id = changed.request_id and access.position is null
)
insert into work.access (request_id, process, opened_at, method, route, path, principal, credential, source, status,
  outcome, reasons, duration_ms, count, position)
select new.request_id, %(process)s::uuid, clock_timestamp() - make_interval(secs => new.age), new.method, new.route,
  new.path, new.principal, new.credential, new.source, new.status, new.outcome, new.reasons, new.duration_ms,
  new.count, head.before + new.place
from json_to_recordset(%(new)s::json) as new(request_id text, age double precision, method text, route text, path text,
  principal text, credential text, source text, status smallint, outcome text, reasons text[], duration_ms integer,
  count integer, place bigint)
left join head on true
on conflict (request_id) do nothing
"""

# A process that writes the access log holds the lock of `ledger.lead` under its name until it ends.
_MISSING: Final = """
select distinct process from work.access
where position is null and process <> %(own)s and not exists (
  select from pg_locks where locktype = 'advisory' and classid = 21329
    and objid::bigint = hashtext('access ' || process)::bigint & 4294967295
    and database = (select oid from pg_database where datname = current_database())
)
"""
# A row that counts requests has its outcome before its position.
_INTERRUPT: Final = """
with found as (
  select request_id, row_number() over (order by opened_at, request_id) as place from work.access
  where position is null and process = any(%(processes)s::uuid[]) order by opened_at, request_id limit %(batch)s
), head as (
  update work.access_head set position = position + (select count(*) from found)
  returning position - (select count(*) from found) as before
)
update work.access as access
set outcome = coalesce(outcome, 'interrupted'), position = head.before + found.place
from found cross join head where access.request_id = found.request_id and access.position is null
"""
_PRUNE: Final = """
delete from work.access where position in (
  select position from (
    select position, opened_at from work.access where position is not null order by position limit %(batch)s
  ) as oldest
  where position <= (select position from work.access_head) - %(rows)s
    or opened_at < clock_timestamp() - %(age)s::interval
)
"""

Writer = psycopg.AsyncConnection[tuple[object, ...]]


async def connect(dsn: str) -> Writer:
    """Open the connection on which a process writes the access log. Each statement is a transaction of its own."""
    conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True, application_name="access log")
    # A crash of the database may lose the last moment of the log; a commit that waits for the disk would delay every
    # request. The planner must not choose a scan of the whole table while the table is still small.
    await conn.execute(
        "set synchronous_commit = off; set enable_seqscan = off; set enable_hashjoin = off;"
        " set enable_mergejoin = off; set jit = off"
    )
    return conn


async def show_alive(conn: Writer, process: UUID) -> None:
    """Hold the lock that shows that a process lives, until the connection ends. Idempotent."""
    await fetch_values(conn, "select ledger.lead('access ' || %s::uuid)", [process])


async def store(conn: Writer, process: UUID, batch: Batch) -> None:
    """Store a batch of access log rows of an API process. Storing the same batch again changes nothing."""
    values = {
        "process": process,
        "new": msgspec.json.encode(batch.new).decode(),
        "changed": msgspec.json.encode(batch.changed).decode(),
        "dropped": list(batch.dropped),
        "positions": batch.positions,
    }
    await conn.execute(_STORE, values, prepare=True)


async def missing_processes(conn: Writer, own: UUID) -> set[UUID]:
    """Return the processes, other than `own`, that have open rows but do not hold the lock of `show_alive`."""
    return set(await fetch_values(conn, _MISSING, {"own": own}))


async def interrupt(conn: Writer, processes: Sequence[UUID]) -> int:
    """Close at most `BATCH` open rows of processes that have ended, as interrupted; return their number."""
    closed = await conn.execute(_INTERRUPT, {"processes": list(processes), "batch": BATCH})
    return closed.rowcount


async def prune(conn: Writer, kept: Retention) -> int:
    """Delete at most `BATCH` rows that exceed the number or the age in `kept`; return how many were deleted."""
    pruned = await conn.execute(_PRUNE, {"batch": BATCH, "rows": kept.rows, "age": kept.age})
    return pruned.rowcount


@dataclass(frozen=True, slots=True)
class AccessFilter:
    """Which rows of the access log a query returns. None: any value. The times limit the arrival of the request."""

    request_id: str | None = None
    principal: str | None = None
    route: str | None = None
    method: str | None = None
    outcome: str | None = None
    source: str | None = None
    begin: datetime | None = None
    end: datetime | None = None

    def with_outcome(self, outcome: str | None) -> "AccessFilter":
        return replace(self, outcome=outcome)

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        equal = {
            access.c[name]: value
            for name in ("request_id", "principal", "route", "method", "outcome", "source")
            if (value := getattr(self, name)) is not None
        }
        times = [] if self.begin is None else [access.c.opened_at >= self.begin]
        times += [] if self.end is None else [access.c.opened_at <= self.end]
        return [*(column == value for column, value in equal.items()), *times]


async def newest(
    conn: AsyncConnection, which: AccessFilter, *, after: int, before: int | None, limit: int
) -> Sequence[sa.RowMapping]:
    """Return rows of the access log with positions above `after`, newest first, optionally only rows below `before`."""
    query = sa.select(access).where(access.c.position > after, *which.conditions())
    if before is not None:
        query = query.where(access.c.position < before)
    return (await conn.execute(query.order_by(access.c.position.desc()).limit(limit))).mappings().all()


async def following(
    engine: AsyncEngine, which: AccessFilter, *, after: int, limit: int
) -> Sequence[sa.RowMapping]:
    """Return rows of the access log after a position, in the order of positions.

    Every returned position is on the database's disk, so that a crash of the database cannot give it to another row.
    """
    # This commit waits for the disk, and with it all earlier commits reach the disk.
    async with engine.begin() as conn:
        touched = sa.update(access_head).values(position=access_head.c.position)
        last: int = (await conn.execute(touched.returning(access_head.c.position))).scalar_one()
    query = (
        sa.select(access)
        .where(access.c.position > after, access.c.position <= last, *which.conditions())
        .order_by(access.c.position)
        .limit(limit)
    )
    async with engine.connect() as conn:
        return (await conn.execute(query)).mappings().all()


async def in_progress(
    conn: AsyncConnection, which: AccessFilter, *, descending: bool, limit: int
) -> Sequence[sa.RowMapping]:
    """Return rows of requests in progress, in the order of their arrival, or newest first."""
    query = sa.select(access).where(
        access.c.position.is_(None), access.c.outcome.is_(None), *which.conditions()
    )
    arrival = access.c.opened_at.desc() if descending else access.c.opened_at
    return (await conn.execute(query.order_by(arrival, access.c.request_id).limit(limit))).mappings().all()
