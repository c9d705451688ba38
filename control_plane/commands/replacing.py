"""Place an allocation on another node after its bring-up failed due to a node fault.

This is part of the transaction that stores the node's report: in it the allocation either gets other slots or fails.
The old slots are emptied like those of any allocation that ends, and are free once their node proves them empty.
"""

from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.living import Living
from control_plane.commands.placing import Place, Wanted, find_place
from control_plane.decisions import allocation as life
from control_plane.decisions import ingress
from control_plane.decisions.allocation_states import Provisioning
from control_plane.decisions.exclusion import is_of_node
from control_plane.decisions.refusals import Conflict
from control_plane.handle import StartAgain
from events.allocations import AllocationFact
from events.append import Change
from events.facts import Reason
from events.values import SlotId, ingress_of, new_uuid, node_of


class Replacing:
    """One attempt to handle a failed bring-up; it may run again in another transaction.

    The first run skips slots that other transactions have locked, the next waits for them (see `placing`).
    """

    def __init__(self, silent_after: timedelta, *, simulated_allowed: bool) -> None:
        self._silent_after, self._simulated_allowed = silent_after, simulated_allowed
        self._patient = False

    async def __call__(
        self, conn: AsyncConnection, living: Living, slot: SlotId, reason: Reason, now: datetime
    ) -> tuple[Change, ...]:
        """Place the allocation on another node, or let it fail. Raises `StartAgain` to wait for slots."""
        state = living.state
        if not (
            isinstance(state, Provisioning) and is_of_node(reason) and life.may_be_replaced(state, slot, now)
        ):
            return living.changes(life.fail_slice(state, slot, reason))
        try:
            place = await find_place(conn, self._wanted(living, state), patient=self._patient)
        except Conflict as nowhere:
            if not self._patient:
                self._patient = True
                raise StartAgain from nowhere
            return living.changes(life.fail_slice(state, slot, _both(reason, nowhere)))
        return living.changes(_facts(living, state, place, reason), *place.claims)

    def _wanted(self, living: Living, state: Provisioning) -> Wanted:
        held = [each.slot_id for each in state.slots]
        ways = [(ingress_of(new_uuid()), wish) for wish in ingress.wishes_of(living.ways, held)]
        return Wanted(
            state.request,
            ways,
            self._silent_after,
            simulated_allowed=self._simulated_allowed,
            besides=frozenset(map(node_of, held)),
        )


def _facts(living: Living, state: Provisioning, place: Place, reason: Reason) -> tuple[AllocationFact, ...]:
    replaced = life.replace_slots(state, place.slots, reason)
    why = f"the allocation is placed on node {node_of(place.slots[0].slot_id)}: {reason.message}"
    withdrawn = ingress.withdraw_all(living.ways, Reason("replaced", why))
    # Ingress rules before the placement: its position is the token of an order that has them.
    return *withdrawn, *place.reserved, replaced


def _both(reason: Reason, nowhere: Conflict) -> Reason:
    """Return the reason of the failed bring-up, extended by why the allocation is not placed on another node."""
    return Reason(reason.code, f"{reason.message}; not placed on another node: {nowhere}")
