"""The commands that create an allocation, and that show where it would be placed."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.catalogue import specification
from control_plane.commands.explaining import groups_of
from control_plane.commands.outlook import outlook_of
from control_plane.commands.placement_request import NewAllocation, PlacementRequest
from control_plane.commands.projects import against_project
from control_plane.commands.searching import FoundSlots, apart_nodes, find_slots
from control_plane.decisions.deadlines import ready_within
from control_plane.decisions.leases import against_length, limits_of
from control_plane.decisions.placing.explanation import Group, Unplaced, field_of_sku, unplaced_with_any
from control_plane.decisions.refusals import Conflict, refuse_if
from control_plane.handle import Command, Decision, RetryWithoutLocks, Transaction
from control_plane.origin import Origin
from events.allocations import (
    AllocationFact,
    AllocationPlaced,
    AllocationSpecified,
)
from events.ledger.append import Change
from events.values import (
    SkuName,
    SlotId,
    stream_of_allocation,
)


def create_allocation(
    new: NewAllocation, origin: Origin, render: Callable[[tuple[AllocationFact, ...], datetime], str]
) -> Command:
    """Create an allocation: choose and claim its slots and ingress rules.

    Raises `UnknownName` if its project or one of its entries of the catalogue does not exist, and `Conflict` if an
    entry is retired, if the entries do not fit each other, or if there is no capacity.

    `render` makes the caller's response from the allocation's first facts and their time.
    """

    async def command(transaction: Transaction) -> Decision:
        options = await _options(transaction.conn, new)
        try:
            option, found = await _find_slots_for_any(transaction, options)
        except Conflict as nothing:
            if not transaction.wait_for_locked:
                raise RetryWithoutLocks from nothing
            raise await _with_outlook(transaction.conn, nothing, new, options) from None
        name = new.request.allocation_id
        placed = AllocationPlaced(
            allocation_id=name,
            slots=found.slots,
            deadline=transaction.now + ready_within(option.specified.sku.content),
        )
        # Ingress rules precede the placement, because its position becomes the token of an order that contains them.
        facts: tuple[AllocationFact, ...] = (
            option.wanted.request,
            option.specified,
            *found.reserved,
            placed,
        )
        answer = render(facts, transaction.now)
        changes = (Change(stream_of_allocation(name), 0, facts), *found.claims)
        return Decision(changes, origin.at(transaction.now), answer)

    return command


def preview_placement(
    new: NewAllocation,
    origin: Origin,
    render: Callable[[SkuName | None, Sequence[SlotId], Conflict | None, Sequence[Group]], str],
) -> Command:
    """Search slots for an allocation like `create_allocation`, without creating it.

    `render` makes the caller's response from the SKU and the slots that it would get, the refusal if it would be
    refused, and the groups of all nodes. Raises `UnknownName` and `Conflict` for a request that no placement can help.
    """

    async def command(transaction: Transaction) -> Decision:
        options = await _options(transaction.conn, new)
        groups = [group for each in options for group in await groups_of(transaction.conn, each.wanted)]
        try:
            option, found = await _find_slots_for_any(transaction, options)
        except Conflict as nothing:
            if not transaction.wait_for_locked:
                raise RetryWithoutLocks from nothing
            refusal = await _with_outlook(transaction.conn, nothing, new, options)
            answer = render(None, [], refusal, groups)
        else:
            slot_ids = [each.slot_id for each in found.slots]
            answer = render(option.wanted.request.sku, slot_ids, None, groups)
        return Decision((), origin.at(transaction.now), answer)

    return command


class _Option(NamedTuple):
    """A SKU that a new allocation may get: the specification with this SKU, and the slots that it needs."""

    specified: AllocationSpecified
    wanted: PlacementRequest


async def _options(conn: AsyncConnection, new: NewAllocation) -> list[_Option]:
    """Return an option for each SKU of a new allocation, in the order of preference. Raises `UnknownName` or `Conflict`
    with every objection to its project, to its entries of the catalogue and to the length of its lease.
    """
    against, found = await against_project(conn, new.request.project, "/project"), list[AllocationSpecified]()
    for place, sku in enumerate((new.request.sku, *new.alternative_skus)):
        specified = await specification(conn, new.as_sku(sku), new.app_profile)
        if isinstance(specified, AllocationSpecified):
            against += against_length(new.request.lease_seconds, limits_of(specified))
            found.append(specified)
        else:
            field = field_of_sku(place)
            against += (each._replace(field=field) if each.field == "/sku" else each for each in specified)
    refuse_if([*dict.fromkeys(against)])
    apart = await apart_nodes(conn, new.request)
    return [_Option(each, new.placed_as(each, apart)) for each in found]


async def _find_slots_for_any(
    transaction: Transaction, options: Sequence[_Option]
) -> "tuple[_Option, FoundSlots]":
    """Return the first option for which a node has free slots, and these slots. Raises `Conflict` with the refusals of
    all options.

    The row locks taken for an option are released before the next one is tried: the transaction may wait for rows of
    the next one, while others wait for those of the first.
    """
    refusals: list[Conflict] = []
    for each in options:
        try:
            if len(options) == 1:
                return each, await find_slots(transaction, each.wanted)
            async with transaction.conn.begin_nested():
                return each, await find_slots(transaction, each.wanted)
        except Conflict as nothing:
            refusals.append(nothing)
    raise unplaced_with_any(refusals)


async def _with_outlook(
    conn: AsyncConnection, refusal: Conflict, new: NewAllocation, options: Sequence[_Option]
) -> Conflict:
    """Return the refusal of a request, with its outlook if no node is suitable."""
    if not isinstance(refusal, Unplaced):
        return refusal
    return refusal.with_outlook(await outlook_of(conn, new, [each.wanted for each in options]))
