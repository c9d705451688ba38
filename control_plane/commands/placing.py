"""The commands that create an allocation, and that show where it would be placed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.catalogue import specification
from control_plane.commands.explaining import groups_of
from control_plane.commands.outlook import outlook_of
from control_plane.commands.placement_request import NewAllocation, PlacementRequest
from control_plane.commands.quotas import Quotas, hold_project, ingress_use
from control_plane.commands.searching import FoundSlots, apart_nodes, find_slots
from control_plane.decisions.deadlines import ready_within
from control_plane.decisions.leases import against_length, limits_of
from control_plane.decisions.placing.explanation import Group, Unplaced, field_of_sku, unplaced_with_any
from control_plane.decisions.quotas import NotAdmitted, against_price, over_quota, times, use_of
from control_plane.decisions.refusals import Conflict, refuse_if
from control_plane.handle import Command, Decision, RetryWithoutLocks, Transaction
from control_plane.origin import Origin
from events.allocations import (
    AllocationFact,
    AllocationPlaced,
    AllocationSpecified,
)
from events.derived.quotas import QuotaUse, amounts_of_slot
from events.ledger.append import Change
from events.slots import SlotUse
from events.values import (
    NodeId,
    SkuName,
    SlotId,
    stream_of_allocation,
)

RenderNew = Callable[[tuple[AllocationFact, ...], datetime], str]
"""Function that makes the caller's response from the first facts of an allocation and their time."""


def create_allocation(new: NewAllocation, origin: Origin, render: RenderNew) -> Command:
    """Create an allocation: choose and claim its slots and ingress rules.

    Raises `UnknownName` if its project or one of its entries of the catalogue does not exist, and `Conflict` if an
    entry is retired, if the entries do not fit each other, if every SKU exceeds a quota or the price cap of the
    request, or if there is no capacity.

    `render` makes the caller's response from the allocation's first facts and their time.
    """

    async def command(transaction: Transaction) -> Decision:
        options = await _options(transaction.conn, new, origin.actor)
        try:
            option, found = await _find_slots_for_any(transaction, options)
        except Conflict as nothing:
            if not transaction.wait_for_locked and _searched(options):
                raise RetryWithoutLocks from nothing
            raise await _with_outlook(transaction.conn, nothing, new, options) from None
        # If other requests used the quota since the first check, the next run tries the alternatives.
        may_retry = len(options) > 1 and not transaction.wait_for_locked
        check = option.quotas.last_check(option.amounts, may_retry=may_retry)
        return replace(option.placed_in(found, transaction.now, origin, render), last_check=check)

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
        options = await _options(transaction.conn, new, origin.actor)
        groups = [group for each in options for group in await groups_of(transaction.conn, each.wanted)]
        try:
            option, found = await _find_slots_for_any(transaction, options)
        except Conflict as nothing:
            if not transaction.wait_for_locked and _searched(options):
                raise RetryWithoutLocks from nothing
            refusal = await _with_outlook(transaction.conn, nothing, new, options)
            answer = render(None, [], refusal, groups)
        else:
            slot_ids = [each.slot_id for each in found.slots]
            answer = render(option.wanted.request.sku, slot_ids, None, groups)
        return Decision((), origin.at(transaction.now), answer)

    return command


class Option(NamedTuple):
    """A SKU that a new allocation may get: the specification with this SKU, the slots that it needs, what each of them
    counts towards quotas (`use`), and the quotas that apply. `refusal` is why the SKU is not used wherever there are
    free slots; None if it may be used.
    """

    specified: AllocationSpecified
    wanted: PlacementRequest
    use: SlotUse
    quotas: Quotas
    refusal: NotAdmitted | None

    @property
    def amounts(self) -> QuotaUse:
        """What the whole allocation counts towards quotas."""
        return _amounts(self.use, self.wanted)

    def placed_in(self, found: FoundSlots, now: datetime, origin: Origin, render: RenderNew) -> Decision:
        """Return the decision to create the allocation in these slots; its quotas are not checked."""
        name = self.wanted.request.allocation_id
        deadline = now + ready_within(self.specified.sku.content)
        placed = AllocationPlaced(allocation_id=name, slots=found.slots, deadline=deadline)
        # Ingress rules precede the placement, because its position becomes the token of an order that contains them.
        facts: tuple[AllocationFact, ...] = (self.wanted.request, self.specified, *found.reserved, placed)
        changes = (Change(stream_of_allocation(name), 0, facts), *found.claims(name, self.use))
        return Decision(changes, origin.at(now), render(facts, now))


def _amounts(use: SlotUse, wanted: PlacementRequest) -> QuotaUse:
    of_slots = times(amounts_of_slot(use), wanted.request.slot_count)
    return of_slots.plus(ingress_use(wanted.ingress_requests))


async def _options(conn: AsyncConnection, new: NewAllocation, actor: str) -> list[Option]:
    """Return an option for each SKU of a new allocation of the caller `actor`, in the order of preference. Raises
    `UnknownName` or `Conflict` with every objection to its project, to its entries of the catalogue and to the length
    of its lease.
    """
    against, quotas = await hold_project(conn, new.request.project, actor)
    found = list[AllocationSpecified]()
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
    return [option_of(new, each, apart, quotas, actor) for each in found]


def option_of(
    new: NewAllocation, specified: AllocationSpecified, apart: frozenset[NodeId], quotas: Quotas, actor: str
) -> Option:
    wanted, use = new.placed_as(specified, apart), use_of(new.request.project, actor, specified)
    if too_high := against_price(specified, new.request.slot_count, new.max_price_per_hour):
        return Option(specified, wanted, use, quotas, NotAdmitted(too_high))
    exceeded = quotas.exceeded(_amounts(use, wanted))
    return Option(specified, wanted, use, quotas, over_quota(exceeded) if exceeded else None)


def _searched(options: Sequence[Option]) -> bool:
    """Return whether slots were searched for one of the options, so that locked rows may have been skipped."""
    return any(each.refusal is None for each in options)


async def _find_slots_for_any(
    transaction: Transaction, options: Sequence[Option]
) -> "tuple[Option, FoundSlots]":
    """Return the first option for which a node has free slots, and these slots. Raises `Conflict` with the refusals of
    all options.

    The row locks taken for an option are released before the next one is tried: the transaction may wait for rows of
    the next one, while others wait for those of the first.
    """
    refusals: list[Conflict] = []
    for each in options:
        if each.refusal is not None:
            refusals.append(each.refusal)
            continue
        try:
            if len(options) == 1:
                return each, await find_slots(transaction, each.wanted)
            async with transaction.conn.begin_nested():
                return each, await find_slots(transaction, each.wanted)
        except Conflict as nothing:
            refusals.append(nothing)
    raise unplaced_with_any(refusals)


async def _with_outlook(
    conn: AsyncConnection, refusal: Conflict, new: NewAllocation, options: Sequence[Option]
) -> Conflict:
    """Return the refusal of a request, with its outlook if no node is suitable."""
    if not isinstance(refusal, Unplaced):
        return refusal
    return refusal.with_outlook(await outlook_of(conn, new, [each.wanted for each in options]))
