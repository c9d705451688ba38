"""An allocation as its caller sees it: a pure function of its facts."""

from collections.abc import Sequence
from datetime import datetime
from typing import assert_never

from pydantic import BaseModel

from control_plane.api.views import ReasonView, reason_view
from control_plane.decisions.allocation_states import (
    Active,
    AnyWish,
    Failed,
    Placed,
    Released,
    Releasing,
    Requested,
    fold,
    lease_of,
    ready_slots,
    state_name,
)
from control_plane.decisions.ingress import Lost, Published, Removed, Reserved, Way, Withdrawn, ways_of
from control_plane.decisions.readiness import check_of
from events.allocations import (
    AllocationFact,
    SliceAddressObserved,
    SliceReady,
)
from events.ingress import IngressReserved
from events.values import index_of, node_of


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
    """Where a slice answers; `via` says from where: `node` is from its own node only, `public` from wherever its
    ingress may be used.

    `kind` by a node is what answered when the slice was found ready: `ssh`, or `tcp` where its image names another
    sign. In public it is what leads there: `tcp`, `udp` or a whole `address`.
    """

    kind: str
    address: str
    port: int | None
    """Null where all ports of the address lead to the slice."""
    node_id: str
    via: str


class IngressView(BaseModel):
    """A way in from outside. `state`: reserved, published, lost (the node found it gone), withdrawn or removed; where
    `protocol` is null, all that comes to the public address is for the slice. No `sources`: everybody may come.
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


class AllocationView(BaseModel):
    """`version` counts the facts of the allocation that this tells, `generation` those up to the last that changed what
    its slots should carry; that is 0 before it was placed, which only the past shows: a request is placed as it is
    recorded.
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
    ingress: list[IngressView]
    labels: dict[str, str]
    version: int
    generation: int
    requested_at: datetime


def allocation_view(facts: tuple[AllocationFact, ...], requested_at: datetime) -> AllocationView:
    state = fold(facts)
    assert state is not None, "an allocation has facts"
    request = state.request
    return AllocationView(
        id=request.allocation_id,
        project=request.project,
        sku=request.sku,
        state=state_name(state),
        reason=reason_view(state.reason if isinstance(state, Releasing | Released | Failed) else None),
        network_mode=request.network_mode,
        image=request.image,
        slots=[] if isinstance(state, Requested) else _slots(state, facts),
        lease=None if isinstance(state, Requested) else _lease(state),
        endpoints=_endpoints(facts) if isinstance(state, Active) else [],
        ingress=[ingress_view(way) for way in ways_of(facts).values()],
        labels=request.labels,
        version=len(facts),
        generation=_generation(facts),
        requested_at=requested_at,
    )


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
    lease = lease_of(state)
    return None if lease is None else LeaseView(granted_at=lease.granted_at, expires_at=lease.expires_at)


def _endpoints(facts: Sequence[AllocationFact]) -> list[Endpoint]:
    ready = {fact.slot_id: fact for fact in facts if isinstance(fact, SliceReady)}
    kind = check_of(facts).kind
    by_node = (
        Endpoint(kind=kind, address=fact.address, port=fact.port, node_id=node_of(slot), via="node")
        for slot, fact in sorted(ready.items())
    )
    public = (_public(way.asked) for way in ways_of(facts).values() if isinstance(way, Published))
    return [*by_node, *public]


def _public(way: IngressReserved) -> Endpoint:
    service = way.mapping.service
    return Endpoint(
        kind=service.protocol if service else "address",
        address=way.mapping.public_address,
        port=service.public_port if service else None,
        node_id=node_of(way.slot_id),
        via="public",
    )


def ingress_view(way: Way) -> IngressView:
    asked, service = way.asked, way.asked.mapping.service
    return IngressView(
        id=asked.ingress_id,
        slot_id=asked.slot_id,
        state=_way_state(way),
        reason=reason_view(way.reason if isinstance(way, Withdrawn) else None),
        public_address=asked.mapping.public_address,
        protocol=service.protocol if service else None,
        public_port=service.public_port if service else None,
        port=service.port if service else None,
        sources=list(asked.mapping.sources),
    )


def _way_state(way: Way) -> str:
    match way:
        case Reserved():
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
            assert_never(way)


def _generation(facts: Sequence[AllocationFact]) -> int:
    return max((version for version, fact in enumerate(facts, 1) if isinstance(fact, AnyWish)), default=0)
