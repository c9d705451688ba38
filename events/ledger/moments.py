"""Map a time to a position in the ledger, exactly: the position of the last event recorded at or before the time
(LED-8).

An appender takes the fence (a shared lock), reads the clock, draws positions, and commits. So two questions are
answered, in this order.

The first is whether the time is *settled*: whether all transactions that recorded something up to that time have ended.
A transaction holds the fence until it ends, and records only times after its own begin. So every time before the begin
of the oldest transaction that holds the fence is settled (every time until now if none holds it), and an appender that
hangs delays only the times after its begin.

The second is the position. Positions and times ascend together, except for appenders that were slow between reading the
clock and drawing positions: a binary search finds the first event recorded `SLACK` later than the time. No later
position can have an event of that time, so the search walks back from there. There is no index on the time, because
every append would pay for it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import psycopg

from events.ledger.connection import fetch_row, fetch_value
from events.values import Position

SLACK: Final = timedelta(seconds=30)
"""Upper bound for the time between an appender's clock reading and its positions (readers wait at most 5 s for it, P29)
plus every backward step of the server's clock."""

_CLOCK: Final = "select clock_timestamp()"
_OLDEST: Final = """
select min(a.xact_start) as began, coalesce(bool_or(a.xact_start is null), false) as unknown
  from ledger.fence() as fence
 cross join lateral unnest(fence.holders) as h(holder)
  left join pg_catalog.pg_locks l on l.virtualtransaction = h.holder and l.locktype = 'virtualxid'
  left join pg_catalog.pg_stat_activity a on a.pid = l.pid
"""
_PLACES: Final = """
select place.position
  from unnest(%(moments)s::timestamptz[]) with ordinality as wanted(moment, number)
 cross join lateral (
    with recursive halved(low, high) as (
        select 0::bigint, coalesce((select max(position) from ledger.event), 0) + 1
      union all
        select case when late then low else middle end, case when late then middle else high end
          from (select low, high, (low + high) / 2 as middle from halved where high - low > 1) as step
         cross join lateral (
            select coalesce((select e.recorded_at > wanted.moment + %(slack)s from ledger.event e
                              where e.position >= step.middle order by e.position limit 1), true) as late) as probe
    )
    select coalesce(
      (select e.position from ledger.event e
        where e.position < (select min(high) from halved) and e.recorded_at <= wanted.moment
        order by e.position desc limit 1), 0) as position) as place
 order by wanted.number
"""


class Settled(NamedTuple):
    """State of the ledger at the server time `now`: all events recorded before the time `before` are committed.
    `before` is None if it cannot be determined.
    """

    now: datetime
    before: datetime | None


class _Oldest(NamedTuple):
    """Begin of the oldest transaction that holds the fence (the appenders' lock), and whether any begin is unknown."""

    began: datetime | None
    unknown: bool


async def settled(conn: psycopg.AsyncConnection) -> Settled:
    """Return the server time, and the time before which all events of the ledger are committed.

    The connection's transaction must be fresh: PostgreSQL reads the activity of other sessions once per transaction.
    """
    # Read the clock first: a transaction that takes the fence after the query of its holders records a later time.
    now: datetime = await fetch_value(conn, _CLOCK)
    oldest = await fetch_row(conn, _Oldest, _OLDEST)
    assert oldest is not None
    return Settled(now, None if oldest.unknown else oldest.began or now)


async def positions_at(conn: psycopg.AsyncConnection, moments: Sequence[datetime]) -> tuple[Position, ...]:
    """Return for each time the position of the last event recorded at or before it; 0 if there is none.

    The times must be settled: all events recorded before them are committed.
    """
    parameters = {"moments": [*moments], "slack": SLACK}
    rows = await (await conn.execute(_PLACES, parameters, prepare=True)).fetchall()
    return tuple(Position(row[0]) for row in rows)
