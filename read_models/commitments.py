"""What the leases of a project cost in a range of time, including the newest events (ALC-13).

The tables of usage are written by the projector, so they may be older than the ledger. A check of a budget must contain
everything that is committed. The query therefore adds the events behind the checkpoint of these tables, in the same
snapshot: tables and checkpoint are always committed together.

An allocation without a lease yet counts from its placement as if its lease began now, until it ends without a lease.
A request that waits for capacity does not count.
"""

from collections.abc import Collection
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from events.values import ProjectId
from read_models.usage.tables import PROJECTION

_QUERY: Final = sa.text(
    """
with behind as materialized (
  select position, type, data::jsonb as data, recorded_at from ledger.event
   where position > coalesce((select position from read.checkpoint where name = :projection), 0)
     and type = any(array['allocation.requested', 'allocation.specified', 'allocation.lease_granted',
                          'allocation.lease_renewed', 'allocation.lease_ended'])
), request as (
  select allocation_id, project, slot_count from read.usage_request where project = any(:projects)
   union all
  select data ->> 'allocation_id', data ->> 'project', (data ->> 'slot_count')::integer from behind
   where type = 'allocation.requested' and data ->> 'project' = any(:projects)
), price as (
  select allocation_id, price_per_hour from read.usage_price
   where allocation_id in (select allocation_id from request)
   union all
  select data ->> 'allocation_id', (data -> 'sku' -> 'content' ->> 'price_per_hour')::numeric from behind
   where type = 'allocation.specified'
), change as (
  select allocation_id, kind, starts_at, ends_at from read.usage_lease
   where allocation_id in (select allocation_id from request)
   union all
  select data ->> 'allocation_id', split_part(type, '_', 2), (data ->> 'granted_at')::timestamptz,
         coalesce((data ->> 'expires_at')::timestamptz, recorded_at)
    from behind where type like 'allocation.lease_%'
), lease as (
  select allocation_id, max(starts_at) as starts_at,
         least(max(ends_at) filter (where kind <> 'ended'), min(ends_at) filter (where kind = 'ended')) as ends_at
    from change group by allocation_id
), term as (
  select allocation_id, starts_at, ends_at from lease
   union all
  select allocation_id, :now, :now + make_interval(secs => (requested.data::jsonb ->> 'lease_seconds')::integer)
    from request
    join ledger.event requested on requested.stream_id = 'allocation-' || allocation_id and requested.version = 1
   where allocation_id not in (select allocation_id from lease)
     and exists (
       select from ledger.event placed
        where placed.stream_id = 'allocation-' || allocation_id and placed.type = 'allocation.placed')
     and not exists (
       select from ledger.event ending
        where ending.stream_id = 'allocation-' || allocation_id
          and ending.type = any(array['allocation.releasing', 'allocation.failed']))
), priced as (
  select project, slot_count * price_per_hour as price,
         greatest(starts_at, :begins_at) as starts_at, least(ends_at, :ends_at) as ends_at
    from request join term using (allocation_id) join price using (allocation_id)
)
select project,
       coalesce(sum(price * extract(epoch from least(ends_at, :now) - starts_at))
                filter (where starts_at < least(ends_at, :now)), 0) as spent,
       coalesce(sum(price * extract(epoch from ends_at - starts_at)) filter (where starts_at < ends_at), 0) as committed
  from priced group by project
"""
)


class Commitments(NamedTuple):
    """Sums of the leases of a project in a range of time: of each its price per hour multiplied by its slot-seconds,
    exactly. `spent` counts until now, `committed` until the end of each lease or of the range.
    """

    spent: Decimal = Decimal(0)
    committed: Decimal = Decimal(0)


async def commitments(
    conn: AsyncConnection,
    names: Collection[ProjectId],
    begins_at: datetime,
    ends_at: datetime,
    now: datetime,
) -> dict[ProjectId, Commitments]:
    """Return the commitments of each of these projects in the range from `begins_at` to `ends_at`."""
    query = _QUERY.bindparams(
        sa.bindparam("projects", sorted(names), ARRAY(sa.Text)),
        sa.bindparam("projection", PROJECTION),
        *(
            sa.bindparam(name, moment, sa.DateTime(timezone=True))
            for name, moment in (("begins_at", begins_at), ("ends_at", ends_at), ("now", now))
        ),
    )
    found = {
        ProjectId(row.project): Commitments(row.spent, row.committed) for row in await conn.execute(query)
    }
    return {name: found.get(name, Commitments()) for name in names}
