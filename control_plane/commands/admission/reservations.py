"""Reservations of slots: which free slots a request must leave to other projects, and how reservations are fulfilled.

A request is checked twice, like its quotas. Before the search, classes of slots that would have to be taken from
reservations are excluded from it, without a lock. Before the append, with its slots already claimed, the request takes
the lock of each reserved SKU that its slots can carry, and counts again; this check decides. A request reads nothing
of this while no other project has a reservation.

The free slots and the used parts of reservations are read by one statement: a slot that a project takes from its
reservation changes both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.placement_request import PlacementRequest
from control_plane.commands.searching import FoundSlots, on_fit_node, suitable_classes
from control_plane.decisions.placing.suitability import Demand
from control_plane.decisions.refusals import Conflict
from control_plane.decisions.reservations import Reservation, Supply, against_taking, permits
from control_plane.handle import LastCheck, RetryWithoutLocks, Transaction, UseByHolder
from control_plane.work import placeable
from events.allocations import AllocationRequested
from events.entries import SkuContent
from events.slot_states import Free, slot_state_name
from events.values import AllocationId, ImageName, ProjectId, SkuName, StreamId, stream_of_entry
from read_models import catalogue, slots

Reserved = Mapping[ProjectId, Mapping[SkuName, int]]
"""The reservations of each project: numbers of slots by SKU."""
_RESERVATIONS: Final = sa.text(
    """
select project, slots,
       (select count(*) from read.slot where use ->> 'project' = project and use ->> 'sku' = :sku) as used
  from (select project, (reservations ->> :sku)::integer as slots from read.project
         where reservations is not null and archived is null) as reserved
 where slots is not null
"""
).columns(sa.column("project", sa.Text), sa.column("slots", sa.Integer), sa.column("used", sa.Integer))


class Placeable(NamedTuple):
    """Conditions under which a node counts as usable: it sent a heartbeat within `unreachable_after`, and it is not
    simulated unless `simulated_allowed` is true.
    """

    unreachable_after: timedelta
    simulated_allowed: bool


class ReservedSku(NamedTuple):
    """A request for one slot of a reserved SKU (`wanted`), and the keys of the slot classes that can carry the SKU."""

    wanted: PlacementRequest
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Claimable:
    """The reserved SKUs that the slots of a request of a project can carry."""

    project: ProjectId
    skus: Mapping[SkuName, ReservedSku]

    def last_check(
        self, transaction: Transaction, wanted: PlacementRequest, found: FoundSlots, *, claimed: bool = True
    ) -> LastCheck | None:
        """Return the check that decides whether a request may have the slots that it has found; None if they can carry
        no reserved SKU. It raises `Conflict`, or `RetryWithoutLocks` to search again. `claimed` states whether the rows
        of the slots are claimed when the check is made.
        """
        touched = {name: each for name, each in self.skus.items() if each.keys & found.classes}
        if not touched:
            return None

        async def judge(conn: AsyncConnection, _used: UseByHolder) -> None:
            supplies = [await _supply(conn, each) for each in touched.values()]
            taken = 0 if claimed else len(found.slots)
            if lacking := [each for each in supplies if not permits(each, self.project, taken)]:
                if not transaction.wait_for_locked:
                    raise RetryWithoutLocks
                raise Conflict(
                    against_taking(lacking, self.project, wanted.request.slot_count, wanted.demand)
                )

        return LastCheck(frozenset(map(lock_of, touched)), judge)


def lock_of(sku: SkuName) -> StreamId:
    """Return the name of the lock of a reserved SKU, which a request takes before it claims slots that can carry it."""
    return stream_of_entry("sku", sku)


async def restricted(
    conn: AsyncConnection, wanted: PlacementRequest, reserved: Reserved
) -> tuple[PlacementRequest, Claimable]:
    """Exclude from a request for slots all classes of slots that it would have to take from reservations of other
    projects. Return the changed request, and the SKUs reserved by other projects that its slots can carry.
    """
    project = wanted.request.project
    of_others = {sku for holder, each in reserved.items() if holder != project for sku in each}
    if not of_others:
        return wanted, Claimable(project, {})
    own = frozenset(await suitable_classes(conn, wanted.demand))
    nodes = Placeable(wanted.unreachable_after, wanted.simulated_allowed)
    skus = {name: each for name, each in (await _carriers(conn, of_others, nodes)).items() if each.keys & own}
    supplies = {name: await _supply(conn, each) for name, each in skus.items()}
    count = wanted.request.slot_count
    lacking = [name for name, each in supplies.items() if not permits(each, project, count)]
    kept = frozenset[str]().union(*(skus[name].keys for name in lacking))
    limited = replace(
        wanted, kept_classes=kept & own, kept_supplies=tuple(supplies[name] for name in lacking)
    )
    return limited, Claimable(project, skus)


async def supplies(conn: AsyncConnection, names: set[SkuName], nodes: Placeable) -> dict[SkuName, Supply]:
    """Return, for each of these SKUs that is offered, its reservations and the number of free slots for it."""
    return {name: await _supply(conn, each) for name, each in (await _carriers(conn, names, nodes)).items()}


async def carriers_of_others(
    conn: AsyncConnection, project: ProjectId, reserved: Reserved, nodes: Placeable
) -> list[tuple[frozenset[str], int]]:
    """Return, for each SKU that is reserved for other projects, the classes of slots that can carry it, and how many of
    their free slots `project` may take.
    """
    of_others = {sku for holder, each in reserved.items() if holder != project for sku in each}
    found = (await _carriers(conn, of_others, nodes)).values() if of_others else ()
    all_supplies = [(each.keys, await _supply(conn, each)) for each in found]
    return [
        (keys, each.left_for(project)) for keys, each in all_supplies if each.reserved_for_others(project)
    ]


def request_for_one(name: SkuName, sku: SkuContent, nodes: Placeable) -> PlacementRequest:
    """Return a request for one slot of a SKU with any image and network mode."""
    requested = AllocationRequested(
        AllocationId(""), ProjectId(""), name, sku.network_modes[0], ImageName(""), (), 0, 1, {}
    )
    demand = Demand(name, sku, (sku.fabric,))
    return PlacementRequest(
        requested,
        demand,
        (),
        nodes.unreachable_after,
        simulated_allowed=nodes.simulated_allowed,
        is_for_sku=True,
    )


async def _carriers(
    conn: AsyncConnection, names: set[SkuName], nodes: Placeable
) -> dict[SkuName, ReservedSku]:
    """Return those of the named SKUs that are not retired, each with a request for one slot on a node that meets the
    conditions `nodes`, and with the classes of slots that can carry it. A reservation of a retired SKU keeps no slots
    free, because no allocation can use them.
    """
    found = dict[SkuName, ReservedSku]()
    for entry in await catalogue.offered(conn, "sku"):
        name = SkuName(entry.name)
        if name in names and isinstance(entry.content, SkuContent):
            wanted = request_for_one(name, entry.content, nodes)
            found[name] = ReservedSku(wanted, frozenset(await suitable_classes(conn, wanted.demand)))
    return found


async def _supply(conn: AsyncConnection, sku: ReservedSku) -> Supply:
    # Counted from the slots and not from work.slot_counts, which lack the changes of this transaction.
    slot, name = slots.slot, sku.wanted.demand.name
    by_node = (
        sa.select(slot.c.node_id, sa.func.count().label("free"))
        .where(
            slot.c.state == sa.literal_column(f"'{slot_state_name(Free())}'"),
            slot.c["class"] == sa.any_(sa.cast(sorted(sku.keys), ARRAY(sa.Text))),
            placeable.all_hold(placeable.SLOT),
        )
        .group_by(slot.c.node_id)
        .subquery("by_node")
    )
    free = sa.select(sa.func.coalesce(sa.func.sum(by_node.c.free), 0)).where(
        *on_fit_node(sku.wanted, by_node.c.node_id)
    )
    reserved = _RESERVATIONS.bindparams(sku=name).subquery("reservation")
    # The outer join returns the free slots also if the last reservation has just been removed.
    one = sa.select(free.scalar_subquery().label("free")).subquery("counted")
    query: sa.Select[Any] = sa.select(one.c.free, reserved).select_from(
        sa.outerjoin(one, reserved, sa.true())
    )
    rows: Sequence[Any] = (await conn.execute(query)).all()
    found = (
        Reservation(ProjectId(row.project), name, row.slots, row.used)
        for row in rows
        if row.project is not None
    )
    return Supply(name, int(rows[0].free), tuple(sorted(found)))
