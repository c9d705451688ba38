"""Place an allocation on another node after its bring-up failed due to a node fault.

The transaction that stores the node's report also assigns other slots to the allocation, or fails it. The old slots are
emptied like those of any allocation that ends, and become free once their node proves that they are empty.
"""

from dataclasses import dataclass
from datetime import timedelta

from control_plane.commands.admission.reservations import restricted
from control_plane.commands.loaded import LoadedAllocation
from control_plane.commands.placement_request import PlacementRequest, needs_root_disk
from control_plane.commands.searching import FoundSlots, apart_nodes, find_slots
from control_plane.decisions import allocation as life
from control_plane.decisions import ingress
from control_plane.decisions.allocation_states import Provisioning
from control_plane.decisions.fleet.exclusion import is_of_node
from control_plane.decisions.placing.suitability import demand_of
from control_plane.decisions.refusals import Conflict
from control_plane.handle import RetryWithoutLocks, Transaction
from events.allocations import AllocationFact
from events.facts import Reason
from events.ledger.append import Change
from events.values import NodeId, SlotId, ingress_of, new_uuid, node_of
from read_models import projects


@dataclass(frozen=True, slots=True)
class Replacing:
    """Handler of a failed bring-up, which places the allocation on another node or fails it.

    The handler first skips slots that other transactions have locked. If the remaining slots do not suffice, it runs
    again in another transaction and waits for the locked ones (see `searching`).
    """

    unreachable_after: timedelta
    """Time without heartbeat after which a node is unreachable."""
    simulated_allowed: bool

    async def __call__(
        self, transaction: Transaction, loaded: LoadedAllocation, slot: SlotId, reason: Reason
    ) -> tuple[Change, ...]:
        """Place an allocation with a failed bring-up on another node, or fail it. Raises `RetryWithoutLocks` to wait
        for locked slots.
        """
        state = loaded.state
        if not (
            isinstance(state, Provisioning)
            and is_of_node(reason)
            and life.may_be_replaced(state, slot, transaction.now)
        ):
            return loaded.changes(life.fail_slice(state, slot, reason))
        try:
            apart = await apart_nodes(transaction.conn, state.request)
            reserved = await projects.reserved(transaction.conn)
            request = self._placement_request(loaded, state, apart)
            wanted, claimable = await restricted(transaction.conn, request, reserved)
            place = await find_slots(transaction, wanted)
            if check := claimable.last_check(transaction, wanted, place, claimed=False):
                await check(transaction.conn)
        except Conflict as nowhere:
            if not transaction.wait_for_locked:
                raise RetryWithoutLocks from nowhere
            return loaded.changes(life.fail_slice(state, slot, _both(reason, nowhere)))
        # The use of the old slots ends with the proof that they are empty. No quota is checked: the allocation was
        # accepted already, and must not fail because it counts twice in between.
        claims = place.claims(state.request.allocation_id, loaded.rows[slot].use)
        return loaded.changes(_facts(loaded, state, place, reason), *claims)

    def _placement_request(
        self, loaded: LoadedAllocation, state: Provisioning, apart: frozenset[NodeId]
    ) -> PlacementRequest:
        held = [each.slot_id for each in state.slots]
        ingress_rules = [
            (ingress_of(new_uuid()), request)
            for request in ingress.ingress_requests_of(loaded.ingress_rules, held)
        ]
        return PlacementRequest(
            state.request,
            demand_of(state.specification),
            ingress_rules,
            self.unreachable_after,
            simulated_allowed=self.simulated_allowed,
            needs_root_disk=needs_root_disk(state.specification),
            except_nodes=frozenset(map(node_of, held)),
            apart_nodes=apart,
        )


def _facts(
    loaded: LoadedAllocation, state: Provisioning, place: FoundSlots, reason: Reason
) -> tuple[AllocationFact, ...]:
    replaced = life.replace_slots(state, place.slots, reason)
    message = f"the allocation was moved to node {node_of(place.slots[0].slot_id)} after this failure: {reason.message}"
    withdrawn = ingress.withdraw_all(loaded.ingress_rules, Reason("replaced", message))
    # Ingress rules precede the placement, because its position becomes the token of an order that contains them.
    return *withdrawn, *place.reserved, replaced


def _both(reason: Reason, nowhere: Conflict) -> Reason:
    """Return the reason of a failed bring-up, extended by why the allocation is not placed on another node."""
    return Reason(reason.code, f"{reason.message}; the allocation was not placed on another node: {nowhere}")
