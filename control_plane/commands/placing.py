"""Commands that create an allocation, and that show where an allocation would be placed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.admission.quotas import Quotas, hold_project, ingress_use, with_budget
from control_plane.commands.admission.reservations import Claimable, restricted
from control_plane.commands.catalogue import specification
from control_plane.commands.explaining import groups_of
from control_plane.commands.outlook import outlook_of
from control_plane.commands.placement_request import NewAllocation, PlacementRequest, WaitOptions
from control_plane.commands.searching import FoundSlots, apart_nodes
from control_plane.commands.waiting import (
    Ahead,
    Placing,
    ahead_of,
    contest_kept,
    find_in_turn,
    place_contested,
)
from control_plane.decisions.deadlines import ready_within
from control_plane.decisions.leases import against_length, limits_of, limits_of_project
from control_plane.decisions.placing.explanation import (
    Group,
    Unplaced,
    field_of_sku,
    not_admitted,
    unplaced_with_any,
)
from control_plane.decisions.quotas import NotAdmitted, against_price, over_quota, use_of, whole_use
from control_plane.decisions.refusals import Conflict, refuse_if
from control_plane.decisions.waiting import may_wait, queued_ingress
from control_plane.handle import Command, Decision, RetryWithoutLocks, RunBefore, Transaction, combined
from control_plane.origin import Origin
from events.allocations import (
    AllocationFact,
    AllocationPlaced,
    AllocationQueued,
    AllocationSpecified,
)
from events.derived.quotas import ONE_WAITING, QuotaUse
from events.derived.waiting import Place
from events.facts import Reason
from events.ledger.append import Change
from events.slots import SlotUse
from events.values import (
    SkuName,
    SlotId,
    stream_of_allocation,
)

RenderNew = Callable[[tuple[AllocationFact, ...], datetime], str]
"""Function that makes the caller's response from the first facts of an allocation and their time."""


def create_allocation(new: NewAllocation, origin: Origin, render: RenderNew) -> Command:
    """Create an allocation: choose and claim its slots and ingress rules.

    Raises `UnknownName` if the project or a catalogue entry that the request names does not exist, and `Conflict` if an
    entry is retired, if the entries do not fit each other, if every SKU exceeds a quota or the price cap of the
    request, or if there is no capacity. A request with `wait` waits for capacity instead of a refusal if at least one
    of its SKUs is refused only because of the present state; the request waits for the first such SKU.

    `render` makes the caller's response from the allocation's first facts and their time.
    """

    async def command(transaction: Transaction) -> Decision:
        facts: tuple[AllocationFact, ...]
        options, ahead = await _options(transaction, new, origin.actor)
        result = await _find_slots_for_any(transaction, options, ahead)
        if isinstance(result, list):
            if not transaction.wait_for_locked and _searched(options):
                raise RetryWithoutLocks
            if new.wait is not None and (waits := _first_to_wait(options, result)) is not None:
                option, refusal = waits
                queued = _queued(new, new.wait, refusal, transaction.now)
                facts = (option.wanted.request, option.specified, queued)
                own = Change(stream_of_allocation(new.request.allocation_id), 0, facts)
                check = option.quotas.last_check(ONE_WAITING)
                return Decision((own,), origin.at(transaction.now), render(facts, transaction.now), check)
            refusal = unplaced_with_any(result)
            placing = Placing(new.unreachable_after, new.simulated_allowed)
            await contest_kept(transaction, ahead, placing)
            if ahead.contested:
                raise RunBefore(partial(place_contested, ahead=ahead, placing=placing), refusal)
            raise await _with_outlook(transaction, refusal, new, options, ahead)
        option, found = result
        # If other requests used the quota since the first check, the next run tries the alternatives.
        may_retry = len(options) > 1 and not transaction.wait_for_locked
        check = option.quotas.last_check(option.amounts, option.cost, may_retry=may_retry)
        of_slots = option.claimable.last_check(transaction, option.wanted, found)
        decision = option.placed_in(found, transaction.now, origin, render)
        return replace(decision, last_check=combined(of_slots, check))

    return command


def _queued(new: NewAllocation, wait: WaitOptions, refusal: Conflict, now: datetime) -> AllocationQueued:
    """Return the fact that a new allocation waits for capacity from the time `now` on. `refusal` is the reason why the
    allocation cannot be placed at this time.
    """
    return AllocationQueued(
        new.request.allocation_id,
        new.request.project,
        wait.priority,
        Reason(refusal.objections[0].code, str(refusal)),
        now,
        now + wait.duration,
        tuple(queued_ingress(*each) for each in new.ingress_rules),
    )


def _first_to_wait(
    options: Sequence["Option"], refusals: Sequence[Conflict]
) -> "tuple[Option, Conflict] | None":
    """Return the first option that is refused only because of the present state, with its refusal; None if every option
    is refused for another reason. `refusals` has the refusal of each option, in the same order.

    Raises `NotAdmitted` if too many requests of the project already wait for capacity.
    """
    for option, refusal in zip(options, refusals, strict=True):
        if may_wait(refusal):
            if exceeded := option.quotas.exceeded(ONE_WAITING):
                raise over_quota(exceeded)
            return option, refusal
    return None


def preview_placement(
    new: NewAllocation,
    origin: Origin,
    render: Callable[[SkuName | None, Sequence[SlotId], Conflict | None, Sequence[Group]], str],
) -> Command:
    """Search slots for an allocation like `create_allocation`, without creating the allocation.

    `render` makes the caller's response from the SKU and the slots that the allocation would get, the refusal if the
    request would be refused, and all nodes in groups with the same reason why they are or are not suitable. Raises
    `UnknownName` and `Conflict` for a request that is refused whatever slots are free.
    """

    async def command(transaction: Transaction) -> Decision:
        options, ahead = await _options(transaction, new, origin.actor)
        result = await _find_slots_for_any(transaction, options, ahead)
        if isinstance(result, list) and not transaction.wait_for_locked and _searched(options):
            raise RetryWithoutLocks
        groups = [
            group for each in options for group in await _groups_of_option(transaction.conn, each, ahead)
        ]
        if isinstance(result, list):
            refusal = unplaced_with_any(result)
            refusal = await _with_outlook(transaction, refusal, new, options, ahead)
            answer = render(None, [], refusal, groups)
        else:
            option, found = result
            slot_ids = [each.slot_id for each in found.slots]
            answer = render(option.wanted.request.sku, slot_ids, None, groups)
        return Decision((), origin.at(transaction.now), answer)

    return command


class Option(NamedTuple):
    """A SKU that a new allocation may get, with everything that follows from the choice of this SKU.

    `specified` is the specification of the allocation, and `wanted` its request for slots. `use` is what each slot
    counts towards `quotas`, the quotas that apply to the request. `claimable` has the reserved SKUs that the slots can
    carry. `cost` is what the lease costs in the month of the budget, as a weight (price per hour multiplied by
    slot-seconds). `refusal` is the reason why the allocation cannot get the SKU even if slots are free; None if it can.
    """

    specified: AllocationSpecified
    wanted: PlacementRequest
    use: SlotUse
    quotas: Quotas
    claimable: Claimable
    cost: Decimal
    refusal: NotAdmitted | None

    @property
    def amounts(self) -> QuotaUse:
        """What all slots and ingress rules of the allocation count towards quotas."""
        return _amounts(self.use, self.wanted)

    def placed_in(self, found: FoundSlots, now: datetime, origin: Origin, render: RenderNew) -> Decision:
        """Return the decision to create the allocation in the slots `found`, without a check of quotas."""
        name = self.wanted.request.allocation_id
        deadline = now + ready_within(self.specified.sku.content)
        placed = AllocationPlaced(allocation_id=name, slots=found.slots, deadline=deadline)
        # Ingress rules precede the placement, because its position becomes the token of an order that contains them.
        facts: tuple[AllocationFact, ...] = (self.wanted.request, self.specified, *found.reserved, placed)
        changes = (Change(stream_of_allocation(name), 0, facts), *found.claims(name, self.use))
        return Decision(changes, origin.at(now), render(facts, now))


def _amounts(use: SlotUse, wanted: PlacementRequest) -> QuotaUse:
    return whole_use(use, wanted.request.slot_count).plus(ingress_use(wanted.ingress_requests))


async def _options(transaction: Transaction, new: NewAllocation, actor: str) -> tuple[list[Option], Ahead]:
    """Return the options of a new allocation of the caller `actor`, one for each SKU in the order of preference, and
    the requests that wait for capacity and are ahead of the new request. Lock the project like `hold_project`.

    Raises `UnknownName` or `Conflict` with every objection to the project of the request, to the catalogue entries that
    the request names, and to the length of its lease.
    """
    conn, most_waiting = transaction.conn, None if new.wait is None else new.wait.most_waiting
    against, quotas, any_waiting = await hold_project(conn, new.request.project, actor, most_waiting)
    found = list[AllocationSpecified]()
    for place, sku in enumerate((new.request.sku, *new.alternative_skus)):
        specified = await specification(conn, new.as_sku(sku), new.app_profile)
        if isinstance(specified, AllocationSpecified):
            limits = limits_of(specified) + limits_of_project(new.request.project, quotas.project_limits)
            against += against_length(new.request.lease_seconds, limits)
            found.append(specified)
        else:
            field = field_of_sku(place)
            against += (each._replace(field=field) if each.field == "/sku" else each for each in specified)
    refuse_if([*dict.fromkeys(against)])
    quotas = await with_budget(conn, new.request.project, quotas, transaction.now)
    apart = await apart_nodes(conn, new.request)
    limited = [await restricted(conn, new.placed_as(each, apart), quotas.reserved) for each in found]
    options = [option_of(new, each, of, quotas, actor) for each, of in zip(found, limited, strict=True)]
    own = Place(0 if new.wait is None else new.wait.priority, transaction.now, new.request.allocation_id)
    if not any_waiting:
        return options, Ahead(own)
    ahead = await ahead_of(conn, own)
    return [
        each._replace(wanted=await ahead.without_kept(conn, each.wanted, transaction.now)) for each in options
    ], ahead


def option_of(
    new: NewAllocation,
    specified: AllocationSpecified,
    limited: tuple[PlacementRequest, Claimable],
    quotas: Quotas,
    actor: str,
) -> Option:
    """Return the option of a new allocation of the caller `actor` with the specification `specified`.

    `limited` is the result of `restricted` for this specification: a request for slots that leaves reserved slots to
    other projects, and the reserved SKUs that the slots can carry.
    """
    wanted, claimable = limited
    use = use_of(new.request.project, actor, specified)
    cost = quotas.cost_of_lease(use, new.request)
    if too_high := against_price(specified, new.request.slot_count, new.max_price_per_hour):
        return Option(specified, wanted, use, quotas, claimable, cost, NotAdmitted(too_high))
    exceeded = quotas.exceeded(_amounts(use, wanted), cost)
    refusal = over_quota(exceeded) if exceeded else None
    return Option(specified, wanted, use, quotas, claimable, cost, refusal)


def _searched(options: Sequence[Option]) -> bool:
    """Return whether slots were searched for one of the options, so that locked rows may have been skipped."""
    return any(each.refusal is None for each in options)


async def _find_slots_for_any(
    transaction: Transaction, options: Sequence[Option], ahead: Ahead
) -> tuple[Option, FoundSlots] | list[Conflict]:
    """Return the first option for which a node has free slots, and these slots; if there is none, the refusals of all
    options. Slots that a waiting request ahead could take are left out.

    If there are several options, the row locks that were taken for one option are released before the next option is
    tried. Otherwise this transaction could wait for rows of the next option while other transactions wait for rows of
    the earlier option.
    """
    refusals: list[Conflict] = []
    for each in options:
        if each.refusal is not None:
            refusals.append(each.refusal)
            continue
        try:
            if len(options) == 1:
                return each, await find_in_turn(transaction, each.wanted, ahead)
            async with transaction.conn.begin_nested():
                return each, await find_in_turn(transaction, each.wanted, ahead)
        except Conflict as nothing:
            refusals.append(nothing)
    return refusals


async def _groups_of_option(conn: AsyncConnection, option: Option, ahead: Ahead) -> Sequence[Group]:
    """Return all nodes in groups with the same reason why they are or are not suitable for an option. Slots must have
    been searched for the option before, so that `ahead` has the nodes of slots that a waiting request could take.
    """
    kept = option.wanted.kept_nodes | ahead.contested_nodes
    groups = await groups_of(conn, replace(option.wanted, kept_nodes=kept))
    return groups if option.refusal is None else not_admitted(groups, option.refusal)


async def _with_outlook(
    transaction: Transaction,
    refusal: Conflict,
    new: NewAllocation,
    options: Sequence[Option],
    ahead: Ahead,
) -> Conflict:
    """Return the refusal of a request. If no node is suitable, the refusal has an outlook: a similar request that could
    be placed now, and the earliest time at which the refused request may be placed.
    """
    if not isinstance(refusal, Unplaced):
        return refusal
    conn, quotas, apart = transaction.conn, options[0].quotas, options[0].wanted.apart_nodes

    async def admit(similar: NewAllocation, specified: AllocationSpecified) -> PlacementRequest | None:
        limited = await restricted(conn, similar.placed_as(specified, apart), quotas.reserved)
        option = option_of(similar, specified, limited, quotas, options[0].use.principal)
        if option.refusal is not None:
            return None
        wanted = await ahead.without_kept(conn, option.wanted, transaction.now)
        return replace(wanted, kept_nodes=wanted.kept_nodes | ahead.contested_nodes)

    searched = [each.wanted for each in options if each.refusal is None]
    specified = [each.specified for each in options]
    return refusal.with_outlook(await outlook_of(conn, new, specified, searched, admit))
