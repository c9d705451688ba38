"""The view of an allocation in the API: a pure function of its facts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, assert_never

from pydantic import BaseModel

from control_plane.api.views.allowed_actions import AllowedActions, actions_on_allocation, actions_on_ingress
from control_plane.api.views.views import ReasonView, RemainingSlotView, reason_view, remaining_slot_view
from control_plane.decisions.access import Principal
from control_plane.decisions.allocation_states import (
    Accepted,
    Active,
    Allocation,
    AnyDesiredStateFact,
    Failed,
    Released,
    Releasing,
    Requested,
    Stopped,
    Stopping,
    Waiting,
    awaiting_proof,
    fold,
    lease_of,
    ready_slots,
    state_name,
)
from control_plane.decisions.ingress import (
    IngressState,
    IngressStates,
    Lost,
    Published,
    Removed,
    Reserved,
    Withdrawn,
    ingress_states_of,
)
from events.allocations import (
    AllocationFact,
    AllocationReplaced,
    SliceAddressObserved,
    SliceInterrupted,
    SliceReady,
    SliceRemovalOverridden,
    SliceRemoved,
    SliceStopped,
)
from events.facts import Reason
from events.ingress import IngressReserved
from events.values import IngressId, SlotId, index_of, node_of

_SSH_VERSION: Final = "SSH-"
"""First characters that an SSH server sends (RFC 4253, section 4.2)."""


class AllocatedSlot(BaseModel):
    """A slot of an allocation. `ready`: whether its slice runs and passed the readiness check. `actual_ip` and
    `lease_state` (of the DHCP lease) are what the node last observed of the slice (NOD-5). Both are null before they
    are observed, while the slice is interrupted or proved to be off, and after its removal.
    """

    slot_id: str
    node_id: str
    slot_index: int
    mac_address: str
    private_ip: str
    ready: bool
    actual_ip: str | None
    lease_state: str | None


class LeaseView(BaseModel):
    granted_at: datetime
    expires_at: datetime


class Endpoint(BaseModel):
    """An address at which a slice is reachable. `via`: `node` if only from its own node, `public` if from every network
    that its ingress allows.

    `kind` of an endpoint via the node is what the readiness check found: `ssh`, or `tcp` if the image defines another
    check. Of a public endpoint it is what the ingress forwards: `tcp`, `udp` or a whole `address`.
    """

    kind: str
    address: str
    port: int | None
    """Null if all ports of the address lead to the slice."""
    node_id: str
    via: str


class IngressView(BaseModel):
    """An ingress rule. `state`: reserved, published, lost (its node found that it does not lead to the slice),
    withdrawn or removed; `reason` is why it is lost or was withdrawn. If `protocol` is null, all traffic to the public
    address goes to the slice. If `sources` is empty, all are allowed.

    The state is reserved while the allocation stops or is stopped, and withdrawn once the allocation is released or
    failed: an ingress that the node has been ordered to close is never shown as published.
    """

    id: str
    slot_id: str
    state: str
    reason: ReasonView | None
    public_address: str
    protocol: str | None
    public_port: int | None
    port: int | None
    sources: list[str]
    allowed_actions: AllowedActions | None = None
    """Actions that the caller may take now, or the reason why not; null in views of the past, which is immutable."""


class ConditionView(BaseModel):
    """A present condition of an allocation. `code` is `node_unreachable`: the heartbeat of `node_id` is overdue, so its
    slices are shown as last reported, and `since` is the last heartbeat, null if none; or `node_draining`: an admin
    started to drain `node_id` at `since`, and `message` states when the drain releases the allocation, if it does.
    """

    code: str
    message: str
    node_id: str
    since: datetime | None


class ReplacementView(BaseModel):
    """The placement of an allocation on another node: the former slots (`vacated`) and the reason. `attempt` is the
    number of this placement, counted from 1.
    """

    vacated: list[str]
    reason: ReasonView
    attempt: int


class ReleaseOverdueView(BaseModel):
    """The release of an allocation that was not complete by its deadline. `remaining` lists the slots that still await
    the proof that they are empty, each with the reason at the deadline.
    """

    deadline: datetime
    remaining: list[RemainingSlotView]


class QueueView(BaseModel):
    """The wait of an allocation for capacity."""

    priority: int
    queued_at: datetime
    waits_until: datetime
    """When the allocation fails unless it is placed by then."""
    reason: ReasonView
    """Why the allocation could not be placed at the last attempt; in views of the past, when it was requested."""
    position: int | None = None
    """Position in the queue of all waiting requests, counted from 1; null in views of the past and in events."""
    earliest_possible_at: datetime | None = None
    """When enough slots are free at the earliest, according to the ends of leases, if no other request gets them; null
    if it is not known, in lists and in views of the past."""


class SshGateway(BaseModel):
    """The SSH gateway, for `ssh -J ID@ADDRESS USER@slice`. `host_key` is its public key (OpenSSH); null if unknown."""

    address: str
    host_key: str | None


class AllocationView(BaseModel):
    """An allocation. `slots` are the current ones. If the bring-up failed due to a node fault and the allocation was
    placed on another node, `replaced` has its former slots. This happens at most once, and never if
    `replace_on_failure` is false.

    `network_id`, `network_policy_id` and `project_network_id` name networks that are shared with other slices; they are
    null, because slices are isolated from each other.

    `version` counts the facts of the allocation in this view, `generation` those up to the last that changed the
    desired state of its slots. `generation` is 0 before the placement: while the allocation waits for capacity, and in
    views of the past.
    """

    id: str
    project: str
    sku: str
    sku_version: int | None
    """Version of the SKU; null for an allocation of the first release, which had no catalogue."""
    state: str
    reason: ReasonView | None
    network_mode: str
    network_id: str | None
    network_policy_id: str | None
    project_network_id: str | None
    image: str
    image_version: int | None
    """Version of the image; null for an allocation of the first release, which had no catalogue."""
    app_profile: str | None
    price_per_hour: str | None
    """Price of one slot per hour, a decimal number in the currency of the deployment; null before the placement."""
    slots: list[AllocatedSlot]
    lease: LeaseView | None
    endpoints: list[Endpoint]
    ingress: list[IngressView]
    replace_on_failure: bool
    gateway_access: bool
    """Whether the SSH gateway may log in to the slices."""
    replaced: ReplacementView | None
    release_overdue: ReleaseOverdueView | None
    """Set while the state is releasing or failed and slots were not proved empty by the deadline."""
    queue: QueueView | None
    """Set while the state is waiting."""
    labels: dict[str, str]
    apart_from: dict[str, str]
    """Labels: no node was used on which another allocation of the project with one of these labels held a slot."""
    conditions: list[ConditionView] | None = None
    """Empty if no condition applies; null in views of the past, because heartbeats are not events."""
    ssh_gateway: SshGateway | None = None
    """Null if the allocation is not active or the operator names no gateway, in lists, and in views of the past."""
    terminal_address: str | None = None
    """URL of the WebSockets of terminals in the browser. Null if the allocation is not active or the deployment has no
    terminals, in lists, and in views of the past."""
    version: int
    generation: int
    requested_at: datetime
    allowed_actions: AllowedActions | None = None
    """Actions that the caller may take now, or the reason why not; null in views of the past, which is immutable."""


def allocation_view(
    facts: tuple[AllocationFact, ...], requested_at: datetime, principal: Principal | None = None
) -> AllocationView:
    """Return the view of an allocation after these facts. With a principal, it has the actions that the principal may
    take in this state, which must be the present one.
    """
    state = fold(facts)
    assert state is not None, "the stream of an allocation must begin with the request of the allocation"
    request, used, ingresses = state.request, state.specification, ingress_states_of(facts)
    return AllocationView(
        id=request.allocation_id,
        project=request.project,
        sku=request.sku,
        sku_version=used.sku.version or None if used else None,
        state=state_name(state),
        reason=reason_view(state.reason if isinstance(state, Releasing | Released | Failed) else None),
        network_mode=request.network_mode,
        network_id=request.network_id,
        network_policy_id=request.network_policy_id,
        project_network_id=request.project_network_id,
        image=request.image,
        image_version=used.image.version or None if used else None,
        app_profile=used.app_profile.name if used and used.app_profile else None,
        price_per_hour=used.sku.content.price_per_hour if used and not isinstance(state, Waiting) else None,
        slots=[] if isinstance(state, Requested) else _slots(state, facts),
        lease=None if isinstance(state, Requested) else _lease(state),
        endpoints=_endpoints(state, facts, ingresses) if isinstance(state, Active) else [],
        ingress=[_ingress_view(each, state, principal) for each in ingresses.values()],
        replace_on_failure=request.replace_on_failure,
        gateway_access=request.gateway_key is not None,
        replaced=_replacement(facts),
        release_overdue=_release_overdue(state),
        queue=_queue(state),
        labels=request.labels,
        apart_from=request.apart_from,
        version=len(facts),
        generation=_generation(facts),
        requested_at=requested_at,
        allowed_actions=None if principal is None else actions_on_allocation(principal, state, ingresses),
    )


def ingress_view(facts: Sequence[AllocationFact], ingress: IngressId, principal: Principal) -> IngressView:
    """Return the present view of one ingress rule of an allocation."""
    state = fold(tuple(facts))
    assert state is not None, "an ingress rule belongs to an allocation that was requested"
    return _ingress_view(ingress_states_of(facts)[ingress], state, principal)


def _replacement(facts: Sequence[AllocationFact]) -> ReplacementView | None:
    for fact in reversed(facts):
        if isinstance(fact, AllocationReplaced):
            reason = ReasonView(code=fact.reason.code, message=fact.reason.message)
            return ReplacementView(vacated=list(fact.vacated), reason=reason, attempt=fact.attempt)
    return None


def _queue(state: Allocation) -> QueueView | None:
    if not isinstance(state, Waiting):
        return None
    queued = state.queued
    return QueueView(
        priority=queued.priority,
        queued_at=queued.queued_at,
        waits_until=queued.waits_until,
        reason=ReasonView(code=queued.reason.code, message=queued.reason.message),
    )


def _release_overdue(state: Allocation) -> ReleaseOverdueView | None:
    overdue = state.overdue if isinstance(state, Releasing | Failed) else None
    left = [each for each in overdue.remaining if each.slot_id in awaiting_proof(state)] if overdue else []
    if overdue is None or not left:
        return None
    return ReleaseOverdueView(deadline=overdue.deadline, remaining=list(map(remaining_slot_view, left)))


def _slots(state: Accepted, facts: Sequence[AllocationFact]) -> list[AllocatedSlot]:
    seen = _observed(facts)
    up = ready_slots(state)
    return [
        AllocatedSlot(
            slot_id=slot.slot_id,
            node_id=node_of(slot.slot_id),
            slot_index=index_of(slot.slot_id),
            mac_address=slot.network.mac_address,
            private_ip=slot.network.private_ip,
            ready=slot.slot_id in up,
            actual_ip=seen[slot.slot_id].actual_ip if slot.slot_id in seen else None,
            lease_state=seen[slot.slot_id].lease_state if slot.slot_id in seen else None,
        )
        for slot in state.slots
    ]


def _observed(facts: Sequence[AllocationFact]) -> dict[SlotId, SliceAddressObserved]:
    """Return the last observed address of each slot with a slice that may hold an address.

    When a slice is ready again after an interruption or a stop, its last observed address is valid again: if the node
    observes the same address, no new fact is recorded.
    """
    last: dict[SlotId, SliceAddressObserved] = {}
    ended: set[SlotId] = set()
    for fact in facts:
        match fact:
            case SliceAddressObserved(slot_id=slot):
                last[slot] = fact
                ended.discard(slot)
            case SliceReady(slot_id=slot):
                ended.discard(slot)
            case SliceInterrupted(slot_id=slot) | SliceStopped(slot_id=slot):
                ended.add(slot)
            case SliceRemoved(slot_id=slot) | SliceRemovalOverridden(slot_id=slot):
                ended.add(slot)
            case _:
                pass
    return {slot: fact for slot, fact in last.items() if slot not in ended}


def _lease(state: Accepted) -> LeaseView | None:
    lease = lease_of(state)
    return None if lease is None else LeaseView(granted_at=lease.granted_at, expires_at=lease.expires_at)


def _endpoints(state: Active, facts: Sequence[AllocationFact], ingresses: IngressStates) -> list[Endpoint]:
    ready = {fact.slot_id: fact for fact in facts if isinstance(fact, SliceReady)}
    check = state.specification.image.content.readiness
    kind = "ssh" if check.banner.startswith(_SSH_VERSION) else "tcp"
    by_node = (
        Endpoint(kind=kind, address=fact.address, port=fact.port, node_id=node_of(slot), via="node")
        for slot, fact in sorted(ready.items())
    )
    public = (_public(each.asked) for each in ingresses.values() if isinstance(each, Published))
    return [*by_node, *public]


def _public(ingress: IngressReserved) -> Endpoint:
    service = ingress.rule.service
    return Endpoint(
        kind=service.protocol if service else "address",
        address=ingress.rule.public_address,
        port=service.public_port if service else None,
        node_id=node_of(ingress.slot_id),
        via="public",
    )


def _ingress_view(ingress: IngressState, allocation: Allocation, principal: Principal | None) -> IngressView:
    reserved, service = ingress.asked, ingress.asked.rule.service
    state = _ingress_state(ingress, allocation)
    reason = ingress.reason if isinstance(ingress, Withdrawn) else None
    return IngressView(
        id=reserved.ingress_id,
        slot_id=reserved.slot_id,
        state=state,
        reason=reason_view(_why_lost(reserved) if state == "lost" else reason),
        public_address=reserved.rule.public_address,
        protocol=service.protocol if service else None,
        public_port=service.public_port if service else None,
        port=service.port if service else None,
        sources=list(reserved.rule.sources),
        allowed_actions=None if principal is None else actions_on_ingress(principal),
    )


def _why_lost(reserved: IngressReserved) -> Reason:
    service = reserved.rule.service
    guest = (
        f"nothing in the slice answers on {service.protocol}/{service.port}"
        if service
        else "the slice does not answer"
    )
    where = reserved.rule.public_address + (f":{service.public_port}" if service else "")
    message = (
        f"{where} does not lead to the slice: {guest}, or rules of another program on the node block the way; the "
        "ingress is published again when the node finds that traffic reaches the slice"
    )
    return Reason("ingress_lost", message)


def _ingress_state(ingress: IngressState, allocation: Allocation) -> str:
    match ingress:
        case Reserved() | Published() | Lost() if isinstance(allocation, Releasing | Failed | Released):
            return "withdrawn"
        case Reserved():
            return "reserved"
        case Published() | Lost() if isinstance(allocation, Stopping | Stopped):
            return "reserved"
        case Published():
            return "published"
        case Lost():
            return "lost"
        case Withdrawn():
            return "withdrawn"
        case Removed():
            return "removed"
        case _:
            assert_never(ingress)


def _generation(facts: Sequence[AllocationFact]) -> int:
    version = len(facts)
    while version > 0 and not isinstance(facts[version - 1], AnyDesiredStateFact):
        version -= 1
    return version
