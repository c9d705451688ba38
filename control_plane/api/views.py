"""What callers see. Pure functions from facts and rows to bodies."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec
from pydantic import BaseModel

from control_plane.decisions.allocation_states import (
    Active,
    Failed,
    Placed,
    Released,
    Releasing,
    Requested,
    Starting,
    fold,
    ready_slots,
    state_name,
)
from events.allocations import (
    AllocationFact,
    AllocationFailed,
    AllocationPlaced,
    AllocationReleasing,
    SliceAddressObserved,
    SliceReady,
    SliceRemovalRetried,
)
from events.catalog import name_of
from events.envelope import Recorded
from events.facts import Fact, Reason
from events.values import index_of, node_of
from read_models.nodes import NodeRow
from read_models.slots import SlotRow

SILENT_AFTER: Final = timedelta(seconds=20)


class ReasonView(BaseModel):
    code: str
    message: str


class AllocatedSlot(BaseModel):
    """`ready` says whether the slice passed its check and runs; `actual_ip` and `lease_state` are what the node last
    saw (NOD-5).
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
    """Where a slice answers; `via` says from where: `node` is from its own node only."""

    kind: str
    address: str
    port: int
    node_id: str
    via: str


class AllocationView(BaseModel):
    """`generation` counts the facts of the allocation up to the last that changed what its slots should carry; 0 before
    it was placed, which only the past shows: a request is placed as it is recorded.
    """

    id: str
    project: str
    sku: str
    state: str
    reason: ReasonView | None
    network_mode: str
    image: str
    slots: list[AllocatedSlot]
    lease: LeaseView | None
    endpoints: list[Endpoint]
    labels: dict[str, str]
    generation: int
    requested_at: datetime


class NodeView(BaseModel):
    """`state`: expected, enrolled, revoked, silent (an enrolled node's heartbeat is overdue), or resyncing (its agent started
    and has not yet compared every slot with what it should carry, or not yet delivered what it found).

    Heartbeats are no events: as of the past a node is expected, enrolled or revoked, and `seen_at` is null.

    `key_thumbprint` (RFC 7638) names the key by which the node is known, and is null while it has no access. At
    `superseded_at` somebody with this key was refused who ran from a copied or restored disk; `superseded_session` is
    the session that it knew. `revoked` is why an admin took the access away.
    """

    id: str
    state: str
    subnet: str
    l2_domain: str
    hostname: str | None
    agent_version: str | None
    simulated: bool | None
    images: list[str]
    missing: list[str]
    seen_at: datetime | None
    key_thumbprint: str | None
    superseded_session: int | None
    superseded_at: datetime | None
    revoked: str | None


class Seen(NamedTuple):
    """A node's last heartbeat."""

    at: datetime
    resynced: bool
    spooled_reports: int


class SlotView(BaseModel):
    id: str
    node_id: str
    index: int
    state: str
    sku: str | None
    vcpus: int
    memory_mib: int
    network_device: str
    mac_address: str | None
    private_ip: str | None
    allocation_id: str | None
    reason: ReasonView | None


class EventView(BaseModel):
    """An event of the ledger with its whole envelope; `data` is the fact."""

    position: int
    id: str
    stream: str
    version: int
    type: str
    project: str | None
    actor: str
    why: str
    correlation_id: str
    causation_id: str | None
    trace_context: str | None
    observed_at: datetime
    recorded_at: datetime
    epoch: int
    data: dict[str, Any]


def allocation_view(facts: tuple[AllocationFact, ...], requested_at: datetime) -> AllocationView:
    state = fold(facts)
    assert state is not None, "an allocation has facts"
    request = state.request
    return AllocationView(
        id=request.allocation_id,
        project=request.project,
        sku=request.sku,
        state=state_name(state),
        reason=_reason(state.reason if isinstance(state, Releasing | Released | Failed) else None),
        network_mode=request.network_mode,
        image=request.image,
        slots=[] if isinstance(state, Requested) else _slots(state, facts),
        lease=None if isinstance(state, Requested) else _lease(state),
        endpoints=_endpoints(facts) if isinstance(state, Active) else [],
        labels=request.labels,
        generation=_generation(facts),
        requested_at=requested_at,
    )


def _reason(reason: Reason | None) -> ReasonView | None:
    return None if reason is None else ReasonView(code=reason.code, message=reason.message)


def _slots(state: Placed, facts: Sequence[AllocationFact]) -> list[AllocatedSlot]:
    seen = {fact.slot_id: fact for fact in facts if isinstance(fact, SliceAddressObserved)}
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


def _lease(state: Placed) -> LeaseView | None:
    match state:
        case Active(lease=lease) | Starting(lease=lease) | Releasing(lease=lease) | Failed(lease=lease):
            pass
        case Released(lease=lease):
            pass
        case _:
            lease = None
    return None if lease is None else LeaseView(granted_at=lease.granted_at, expires_at=lease.expires_at)


def _endpoints(facts: Sequence[AllocationFact]) -> list[Endpoint]:
    ready = {fact.slot_id: fact for fact in facts if isinstance(fact, SliceReady)}
    return [
        Endpoint(kind="ssh", address=fact.address, port=fact.port, node_id=node_of(slot), via="node")
        for slot, fact in sorted(ready.items())
    ]


def _generation(facts: Sequence[AllocationFact]) -> int:
    wanted = AllocationPlaced | AllocationReleasing | AllocationFailed | SliceRemovalRetried
    return max((version for version, fact in enumerate(facts, 1) if isinstance(fact, wanted)), default=0)


def node_view(node: NodeRow, seen: Seen | None, now: datetime) -> NodeView:
    state = _node_state(seen, now) if node.state == "enrolled" else node.state
    return past_node_view(node).model_copy(
        update={"state": state, "seen_at": None if seen is None else seen.at}
    )


def past_node_view(node: NodeRow) -> NodeView:
    """The node as events alone tell of it."""
    return NodeView(
        id=node.node_id,
        state=node.state,
        subnet=node.subnet,
        l2_domain=node.l2_domain,
        hostname=node.hostname,
        agent_version=node.agent_version,
        simulated=node.simulated,
        images=list(node.images or ()),
        missing=list(node.missing or ()),
        seen_at=None,
        key_thumbprint=node.key_thumbprint,
        superseded_session=node.superseded_session,
        superseded_at=node.superseded_at,
        revoked=node.revoked,
    )


def _node_state(seen: Seen | None, now: datetime) -> str:
    if seen is None or seen.at < now - SILENT_AFTER:
        return "silent"
    return "enrolled" if seen.resynced and seen.spooled_reports == 0 else "resyncing"


def slot_view(slot: SlotRow) -> SlotView:
    return SlotView(
        id=slot.slot_id,
        node_id=slot.node_id,
        index=slot.index,
        state=slot.state,
        sku=slot.sku,
        vcpus=slot.hardware.vcpus,
        memory_mib=slot.hardware.memory_mib,
        network_device=slot.hardware.network_device,
        mac_address=slot.network.mac_address if slot.network else None,
        private_ip=slot.network.private_ip if slot.network else None,
        allocation_id=slot.allocation_id,
        reason=_reason(slot.reason),
    )


def event_view(recorded: Recorded[Fact]) -> EventView:
    cause = recorded.cause
    return EventView(
        position=recorded.position,
        id=str(recorded.event_id),
        stream=recorded.stream,
        version=recorded.version,
        type=name_of(recorded.fact),
        project=cause.project,
        actor=cause.actor,
        why=cause.why,
        correlation_id=str(cause.correlation_id),
        causation_id=None if cause.causation_id is None else str(cause.causation_id),
        trace_context=cause.trace_context,
        observed_at=cause.observed_at,
        recorded_at=recorded.recorded_at,
        epoch=recorded.epoch,
        data=msgspec.to_builtins(recorded.fact),
    )
