"""Map a position of the ledger to the version that a stream had there.

Streams have an index by version and none by position, because every append would pay for it. Versions and positions
ascend together, so a binary search finds the version: a few dozen reads at most, however long the stream is.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

import psycopg

from events.ledger.connection import fetch_rows
from events.values import Position, StreamId

# Query for the version of the stream `asked.stream_id` at a position; 0 before its first fact.
VERSION_AT: Final = """
  with recursive halved(low, high) as (
      select 0::bigint, coalesce((select h.version from ledger.head h where h.stream_id = asked.stream_id), 0) + 1
    union all
      select case when there then middle else low end, case when there then high else middle end
        from (select low, high, (low + high) / 2 as middle from halved where high - low > 1) as step
       cross join lateral (select e.position <= %(upto)s as there from ledger.event e
                            where e.stream_id = asked.stream_id and e.version = step.middle) as probe
  ) select low as version from halved where high - low = 1
"""
_VERSIONS_AT: Final = f"""
select asked.stream_id, had.version from unnest(%(streams)s::text[]) as asked(stream_id)
 cross join lateral ({VERSION_AT}) as had
"""  # noqa: S608, put together from constants


class _Version(NamedTuple):
    stream_id: StreamId
    version: int


async def versions_at(
    conn: psycopg.AsyncConnection, streams: Collection[StreamId], position: Position
) -> dict[StreamId, int]:
    """Return the version that each stream had at a position; 0 before its first fact."""
    parameters = {"streams": sorted(streams), "upto": position}
    found = await fetch_rows(conn, _Version, _VERSIONS_AT, parameters, prepare=True)
    return {each.stream_id: each.version for each in found}
