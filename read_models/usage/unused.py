"""The unused parts of reservations over time: the reserved slots of a SKU minus those that the project held (ALC-13).

A reservation applies from the time at which the database recorded it, and a slot counts from its claim until it is free
again. Both follow from events alone, and neither can change later. So the unused part of a closed billing period is
permanent, and needs no corrections.
"""

from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from events.values import Position, ProjectId, SkuName
from read_models.usage.intervals import UsageFilter
from read_models.usage.periods import Piece
from read_models.usage.tables import TIME

KIND: Final = "unused_reservation"
_QUERY: Final = sa.text(
    """
with reserved_sku as (
  select distinct project, jsonb_object_keys(reservations) as sku from read.usage_reservation
   where project = any(coalesce(:projects, array[project]))
), level as (
  select r.project, s.sku, r.position, r.set_at as at, coalesce((r.reservations ->> s.sku)::integer, 0) as slots
    from reserved_sku s join read.usage_reservation r using (project)
   where s.sku = coalesce(:sku, s.sku) and r.position <= coalesce(:known_to, r.position)
), change as (
  select project, sku, position, at,
         slots - lag(slots, 1, 0) over (partition by project, sku order by position) as reserved, 0 as used,
         true as by_reservation
    from level
   union all
  select project, sku, position, changed_at, 0, change, false
    from read.usage_slot join reserved_sku using (project, sku)
   where sku = coalesce(:sku, sku) and position <= coalesce(:known_to, position)
), step as (
  select project, sku, position, at, lead(at) over ordered as until,
         sum(reserved) over ordered as reserved, sum(used) over ordered as held,
         max(position) filter (where by_reservation) over ordered as reserved_by,
         max(position) filter (where not by_reservation) over ordered as held_by
    from change window ordered as (partition by project, sku order by at, position)
), cut as (
  select *, (reserved - held)::integer as slots,
         greatest(at, :begins_at) as starts_at, least(until, :ends_at) as ends_at
    from step where reserved > held
)
select project, sku, slots, reserved::integer, held::integer, reserved_by, held_by, position, starts_at, ends_at,
       slots * extract(epoch from ends_at - starts_at) as slot_seconds
  from cut where starts_at < ends_at order by project, sku, starts_at, position
"""
)


class Unused(NamedTuple):
    """The unused part of a reservation: `slots` from `starts_at` to `ends_at`. `slot_seconds` is exact.

    It is the number of `reserved` slots, by the event at the position `reserved_by`, minus the number of slots that the
    project held, which the event at `held_by` changed last; None if it had not held any. `position` is that of the
    event with which the part began: one of both.
    """

    project: ProjectId
    sku: SkuName
    slots: int
    reserved: int
    held: int
    reserved_by: Position
    held_by: Position | None
    position: Position
    starts_at: datetime
    ends_at: datetime
    slot_seconds: Decimal


async def unused_parts(conn: AsyncConnection, which: UsageFilter, piece: Piece) -> list[Unused]:
    """Return the unused parts of reservations in a range of time, by project, SKU and time. Reservations have no
    labels, so a filter by label excludes all of them.
    """
    if which.label is not None:
        return []
    query = _QUERY.bindparams(
        sa.bindparam("projects", None if which.within is None else sorted(which.within), ARRAY(sa.Text)),
        sa.bindparam("sku", which.sku, sa.Text),
        sa.bindparam("known_to", piece.known_to, sa.BigInteger),
        sa.bindparam("begins_at", piece.starts_at, TIME),
        sa.bindparam("ends_at", piece.ends_at, TIME),
    )
    return [Unused(*row) for row in await conn.execute(query)]


def sums(parts: list[Unused]) -> dict[tuple[ProjectId, SkuName], Decimal]:
    """Return the sum of the slot-seconds of unused parts of reservations, by project and SKU."""
    found: dict[tuple[ProjectId, SkuName], Decimal] = {}
    for each in parts:
        key = each.project, each.sku
        found[key] = found.get(key, Decimal(0)) + each.slot_seconds
    return found
