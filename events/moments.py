"""From a time to a place in the log: the last event recorded until then, exactly (LED-8).

An appender takes the fence, reads the clock, draws positions, and commits. So two things are asked, in this order.

First whether the time is *settled*: whether all that recorded something until then have ended. Who has is not among
the holders of the fence any more; who is, and began its transaction later than that, records a later time. One
look tells a time before which all is settled, and an appender that hangs holds back only times since it began.

Then for the place. Positions and times ascend together, but for those who were slow between the clock and the
drawing: the log is halved to the first event that was recorded `SLACK` later than the time, behind which nothing can
be of that time, and walked back from there. There is no index on the time, which every append would pay for.
"""

from datetime import datetime, timedelta
from typing import Final, NamedTuple

import psycopg

from events.values import Position

SLACK: Final = timedelta(seconds=30)
"""More than an appender lives between the clock and its positions (readers wait for it 5 s at most, P29), together
with what the server's clock was ever set back."""

_CLOCK: Final = "select clock_timestamp()"
_OLDEST: Final = """
select min(a.xact_start), coalesce(bool_or(a.xact_start is null), false)
  from ledger.fence() as fence
 cross join lateral unnest(fence.holders) as h(holder)
  left join pg_catalog.pg_locks l on l.virtualtransaction = h.holder and l.locktype = 'virtualxid'
  left join pg_catalog.pg_stat_activity a on a.pid = l.pid
"""
_PLACE: Final = """
with recursive halved(low, high) as (
    select 0::bigint, coalesce((select max(position) from ledger.event), 0) + 1
  union all
    select case when late then low else middle end, case when late then middle else high end
      from (select low, high, (low + high) / 2 as middle from halved where high - low > 1) as step
     cross join lateral (
        select coalesce((select e.recorded_at > %(late)s from ledger.event e
                          where e.position >= step.middle order by e.position limit 1), true) as late) as probe
)
select coalesce(
  (select e.position from ledger.event e
    where e.position < (select min(high) from halved) and e.recorded_at <= %(moment)s
    order by e.position desc limit 1), 0)
"""


class Settled(NamedTuple):
    """`now` is the server's clock. All that was recorded before `before` is committed; None when that is not known."""

    now: datetime
    before: datetime | None


async def settled(conn: psycopg.AsyncConnection) -> Settled:
    """One look at who is appending. The connection's transaction must be fresh: within one, who is
    there is looked up once.
    """
    # The clock first: who takes the fence after the look at its holders reads a later time than this.
    clock = await (await conn.execute(_CLOCK)).fetchone()
    oldest = await (await conn.execute(_OLDEST)).fetchone()
    assert clock is not None
    assert oldest is not None
    began, unknown = oldest
    return Settled(clock[0], None if unknown else began or clock[0])


async def position_at(conn: psycopg.AsyncConnection, moment: datetime) -> Position:
    """The last position that was recorded until a settled moment; 0 when none was."""
    found = await conn.execute(_PLACE, {"moment": moment, "late": moment + SLACK}, prepare=True)
    row = await found.fetchone()
    assert row is not None
    return Position(row[0])
