"""Response bodies of the API. Pure functions from facts and rows to bodies."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel

from control_plane.api.views.allowed_actions import AllowedActions, actions_on_node
from control_plane.decisions.access import Principal
from control_plane.decisions.fleet.drain import occupied, remaining_slots
from control_plane.decisions.fleet.drift import scope_of
from events.catalog import name_of
from events.drift import OpenDrift
from events.envelope import Recorded
from events.facts import Fact, FailedBringUp, Reason, RemainingSlot
from events.nodes import MacPool, PublicAddress
from events.slot_states import slot_state_name
from events.slots import ApprovedHardware, SlotDevice
from events.values import NetworkMode, NodeId, PciAddress, SlotId
from read_models.nodes import NodeRow
from read_models.slots import DeviceCheck, SlotRow
from tasks.drift import Scope


class ReasonView(BaseModel):
    code: str
    message: str


class DriftView(BaseModel):
    """A difference between desired and observed state of a node, with the evidence. docs/drift.md lists the kinds.

    `scope` is what the drift concerns: the node with all its slots, one slot, or one of its ingress rules (exposure).
    `slot_id` is null if it concerns all slots of the node, and `ingress_id` if it concerns more than one ingress rule.
    While a drift with `blocks` is open, no new slice is placed in the slot that it concerns, or on the node if it
    concerns all slots.
    """

    node_id: str
    slot_id: str | None
    ingress_id: str | None
    scope: Scope
    kind: str
    desired: str
    observed: str
    since: datetime
    blocks: bool


class FailureView(BaseModel):
    """A bring-up that failed due to a node fault."""

    slot_id: str
    allocation_id: str
    reason: ReasonView
    failed_at: datetime


class PublicAddressView(BaseModel):
    """A public address of a node. `use`: assigned to one slice as a `whole`, or port by port (`ports`). Only `ports`
    has `first_port` and `last_port`.
    """

    address: str
    use: str
    first_port: int | None
    last_port: int | None


class MacPoolView(BaseModel):
    """MAC addresses that the slots of a node can get: all from `first` to `last`, both included."""

    first: str
    last: str


class UnsupportedModeView(BaseModel):
    """A network mode that slices on a node cannot have, and what the node lacks for it."""

    mode: NetworkMode
    reason: str


class NodeView(BaseModel):
    """A node. `state`: registered, enrolled, revoked, unreachable (the heartbeat of an enrolled node is overdue), or
    resyncing (its agent started and has not yet compared every slot with its desired state, or not yet
    delivered the results).

    Heartbeats are not events: in views of the past a node is registered, enrolled or revoked, and `seen_at` is null.
    `removed` is returned by the removal of a registration; such a node is not listed, and its history is kept.

    `key_thumbprint` (RFC 7638) identifies the node's key, and is null while the node has no access. At `superseded_at`,
    an agent with this key that ran from a copied or restored disk was refused; `superseded_session` is the session it
    presented. `revoked` is the reason why its access was revoked.

    `excluded` is the reason why the node is excluded from placement after failed bring-ups. It stays excluded until a
    slice comes up there or an admin readmits it. `failures` are the consecutive failed bring-ups, oldest first.

    `cordoned` is the reason why an admin closed the node for new placements; null while it is open.

    `blocked_by` is the reason why no new slice is placed on the node: the kind of a drift, `missing` (the node lacks
    what the field `missing` lists), `resyncing`, `unreachable`, `cordoned`, the code of an exclusion
    (`bring_ups_failed`), the state of a node without access or of one that is to enrol again and sends no heartbeats,
    or `simulated` if only requests that name the node are placed on it; null if slices are placed there, and in views
    of the past.

    Slots get `bridge`, `l2_domain` and a MAC of `mac_pool` when they are approved; without a pool, their MACs are
    derived from their ids.

    `simulated` is true if the agent keeps the node's host in memory: it carries out every task, but its slices have no
    guests. It is false for a real host, and null until the node has described itself.

    `reports_throttled_at` is the time at which the node exceeded its report budget; null while the node is within its
    budget. While a node exceeds it, only the newest of its host descriptions is recorded, and its other reports are
    delayed.
    """

    id: str
    state: str
    subnet: str
    l2_domain: str
    bridge: str
    mac_pool: MacPoolView | None
    hostname: str | None
    agent_version: str | None
    simulated: bool | None
    images: list[str]
    missing: list[str]
    unsupported_modes: list[UnsupportedModeView]
    """Network modes that slices on the node cannot have now. Requests for other modes are placed on the node."""
    drift: list[DriftView]
    """Drift that concerns all slots of the node. Drift of one slot is in the view of the slot and in `slot_drift`."""
    public_addresses: list[PublicAddressView]
    """Public addresses at which slices of the node can be reached."""
    seen_at: datetime | None
    spooled_reports: int | None
    """Reports not yet delivered at the time of the last heartbeat. A node with a full spool accepts no orders."""
    reports_throttled_at: datetime | None
    key_thumbprint: str | None
    superseded_session: int | None
    superseded_at: datetime | None
    revoked: str | None
    excluded: ReasonView | None
    failures: list[FailureView]
    cordoned: str | None
    blocked_by: str | None
    allowed_actions: AllowedActions | None = None
    """Actions that the caller may take now, or the reason why not; null in views of the past and of a removed node."""


class RemainingSlotView(BaseModel):
    """A slot that is not empty, and the reason why it is not."""

    slot_id: str
    reason: ReasonView


class DrainView(BaseModel):
    """The last drain of a cordoned node.

    At `release_at`, the allocations that still hold slots of the node are released; null if they end by themselves.
    `outcome` is null while the drain runs; then `empty`, or `incomplete` if slots were not empty in time after the
    release. `remaining` lists the slots that are not empty, at the end of the drain if it has ended.
    """

    reason: str
    since: datetime
    release_at: datetime | None
    outcome: str | None
    remaining: list[RemainingSlotView]


class NodeDetail(NodeView):
    """A node with its last drain and the drift of its slots. `drain` is null if the node was not drained since it was
    cordoned, and while it is not cordoned.
    """

    drain: DrainView | None

    slot_drift: list[DriftView]
    """Drift that concerns one slot or one of its ingress rules, slot by slot."""


class Live(NamedTuple):
    """What is not derived from events alone: a node's present state, and its last heartbeat if it sent one."""

    state: str
    seen_at: datetime | None
    spooled_reports: int | None


class DeviceEvidenceView(BaseModel):
    """A file of the node that a fact was read from. In its path, `*` stands for the name of a network link that may
    change.
    """

    path: str
    value: str


class FabricMetadataView(BaseModel):
    """Connection of a network function to its fabric.

    `link_layer` is `infiniband` or `ethernet`; with Ethernet and an `rdma_device`, the function supports RoCE.
    `port_state` is the state of the RDMA port, or of the network link if there is no RDMA device. A virtual function
    that is reserved for guests has the link layer, states, rate and MTU of its physical function.
    """

    link_layer: str | None
    rdma_device: str | None
    port_state: str | None
    physical_state: str | None
    rate_mbit: int | None
    mtu: int | None
    guid: str | None
    mac: str | None


class SlotDeviceView(BaseModel):
    """A PCI function that is assigned to the slice in this slot. `granted`: whether an admin granted it to the slot.

    If no function was found at the address, `number` is null; if it or its files could not be read, `unreadable` is the
    reason. Every fact is null that the node does not report. `memory_mib` is the memory of a GPU of this model, and
    `bar_mib` the size of its largest prefetchable 64-bit BAR. `root_port` is the topmost bridge above the function.
    `vf_number` is the number of a virtual function within `physical_function`, and `representor` the port name of its
    representor. `evidence` lists the files of the node that state these facts.
    """

    address: str
    use: str
    number: str | None
    kind: str | None
    numa_node: int | None
    unreadable: str | None
    model: str | None
    memory_mib: int | None
    bar_mib: int | None
    uuid: str | None
    iommu_group: str | None
    root_port: str | None
    physical_function: str | None
    vf_number: int | None
    representor: str | None
    fabric_metadata: FabricMetadataView | None
    evidence: list[DeviceEvidenceView]
    granted: bool


class CheckedDeviceView(BaseModel):
    """What a PCI function reported about its health after a release. A value is null if the node does not report
    it.
    """

    address: str
    faults: list[str]
    """Faults of the function, one sentence each; empty if it has none."""
    responds: bool | None
    """False if each byte of the function's configuration space reads as 0xFF."""
    link_mtps: int | None
    """Speed of the PCIe link, in million transfers per second."""
    link_width: int | None
    """Number of lanes that the link uses."""
    most_link_mtps: int | None
    """Highest speed that both ends of the link support."""
    most_link_width: int | None
    """Largest number of lanes that both ends of the link support."""
    bars: list[int]
    """Sizes of the BARs in bytes."""
    fatal_errors: int | None
    """Number of uncorrectable fatal errors since the node started (PCIe AER)."""
    nonfatal_errors: int | None
    """Number of uncorrectable nonfatal errors since the node started (PCIe AER)."""
    unreadable: str | None
    """Reason why the function could not be read."""


class DeviceCheckView(BaseModel):
    """A check of the PCI functions of a slot after a release."""

    allocation_id: str
    """Allocation that had the functions until the release."""
    devices: list[CheckedDeviceView]


class ApprovedDeviceView(BaseModel):
    """A PCI function as an approval accepted it. The fields are those of the functions in `devices`; null was not
    known.
    """

    address: str
    use: str
    number: str | None
    numa_node: int | None
    iommu_group: str | None
    root_port: str | None
    physical_function: str | None
    vf_number: int | None
    model: str | None
    memory_mib: int | None
    uuid: str | None
    link_layer: str | None


class ApprovedHardwareView(BaseModel):
    """Hardware to which the newest approval bound a slot. Hardware that differs is the drift `slot.changed`."""

    vcpus: int
    memory_mib: int
    numa_node: int | None
    devices: list[ApprovedDeviceView]


class SlotView(BaseModel):
    """A slot. `excluded` and `failures` are the same fields as in the view of a node, but concern this slot only.

    `blocked_by` is the reason why no new slice is placed in the slot, even if it were free: `blocked_by` of its node,
    the kind of a drift of the slot, or the code of the slot's exclusion; null if there is no such reason, and in views
    of the past.
    """

    id: str
    node_id: str
    index: int
    state: str
    skus: list[str]
    vcpus: int
    memory_mib: int
    network_device: str
    devices: list[SlotDeviceView]
    numa_node: int | None
    approved_hardware: ApprovedHardwareView | None
    """Null until the first approval."""
    mac_address: str | None
    private_ip: str | None
    allocation_id: str | None
    reason: ReasonView | None
    drift: list[DriftView]
    device_check: DeviceCheckView | None
    """Health of the PCI functions after the newest release of the slot; null before the first one."""
    excluded: ReasonView | None
    failures: list[FailureView]
    blocked_by: str | None
    allowed_actions: AllowedActions | None = None
    """Actions that the caller may take now, or the reason why not; null in views of the past, which is immutable."""


class EventView(BaseModel):
    """An event of the ledger with its whole envelope; `data` is the fact."""

    position: int
    id: str
    stream: str
    version: int
    type: str
    project: str | None
    actor: str
    reason: str
    correlation_id: str
    causation_id: str | None
    trace_context: str | None
    observed_at: datetime
    recorded_at: datetime
    epoch: int
    data: dict[str, Any]


def reason_view(reason: Reason | None) -> ReasonView | None:
    return None if reason is None else ReasonView(code=reason.code, message=reason.message)


def node_view(node: NodeRow, live: Live, blocked_by: str | None, principal: Principal) -> NodeView:
    """Return the present view of a node."""
    actions = actions_on_node(principal, node)
    present = {**live._asdict(), "blocked_by": blocked_by, "allowed_actions": actions}
    return past_node_view(node).model_copy(update=present)


def past_node_view(node: NodeRow) -> NodeView:
    """Return the view of a node derived from events alone."""
    return NodeView(
        id=node.node_id,
        state=node.state,
        subnet=node.subnet,
        l2_domain=node.l2_domain,
        bridge=node.network.bridge,
        mac_pool=_pool_view(node.network.mac_pool),
        hostname=node.hostname,
        agent_version=node.agent_version,
        simulated=node.simulated,
        images=list(node.images or ()),
        missing=list(node.missing or ()),
        unsupported_modes=[
            UnsupportedModeView(mode=mode, reason=reason)
            for mode, reason in sorted(node.unsupported_modes.items())
        ],
        drift=[drift_view(node.node_id, None, each) for each in node.drift],
        public_addresses=[_address_view(each) for each in node.public_addresses],
        seen_at=None,
        spooled_reports=None,
        reports_throttled_at=node.throttled_at,
        key_thumbprint=node.key_thumbprint,
        superseded_session=node.superseded_session,
        superseded_at=node.superseded_at,
        revoked=node.revoked,
        excluded=reason_view(node.excluded),
        failures=[_failure_view(each) for each in node.failures],
        cordoned=node.cordoned,
        blocked_by=None,
    )


def in_detail(nodes: Iterable[tuple[NodeView, NodeRow]], slots: Iterable[SlotRow]) -> list[NodeDetail]:
    """Return each node with its drain and the drift of its slots. `slots` contains the slots of all these nodes."""
    by_node: defaultdict[str, list[SlotRow]] = defaultdict(list)
    for slot in slots:
        by_node[slot.node_id].append(slot)
    return [_in_detail(view, row, by_node[row.node_id]) for view, row in nodes]


def _in_detail(view: NodeView, node: NodeRow, slots: Sequence[SlotRow]) -> NodeDetail:
    drift = [drift_view(slot.node_id, slot.slot_id, each) for slot in slots for each in slot.drift]
    drain = _drain_view(node, slots, reachable=view.state != "unreachable")
    return NodeDetail(**dict(view), drain=drain, slot_drift=drift)


def _drain_view(node: NodeRow, slots: Sequence[SlotRow], *, reachable: bool) -> DrainView | None:
    if node.drain is None:
        return None
    ended = node.drain_ended
    if ended is None:
        found = (occupied(slot.slot_id, slot.state) for slot in slots)
        held = [each for each in found if each is not None]
        remaining = remaining_slots(node.drain, held, reachable=reachable)
    else:
        remaining = ended.remaining
    return DrainView(
        reason=node.drain.reason,
        since=node.drain.started_at,
        release_at=node.drain.release_at,
        outcome=None if ended is None else ended.outcome,
        remaining=list(map(remaining_slot_view, remaining)),
    )


def remaining_slot_view(item: RemainingSlot) -> RemainingSlotView:
    reason = ReasonView(code=item.reason.code, message=item.reason.message)
    return RemainingSlotView(slot_id=item.slot_id, reason=reason)


def _pool_view(pool: MacPool | None) -> MacPoolView | None:
    return None if pool is None else MacPoolView(first=pool.first, last=pool.last)


def _address_view(address: PublicAddress) -> PublicAddressView:
    ports = (address.first_port, address.last_port) if address.use == "ports" else (None, None)
    return PublicAddressView(
        address=address.address, use=address.use, first_port=ports[0], last_port=ports[1]
    )


def slot_view(
    slot: SlotRow, blocked_by: str | None = None, allowed_actions: AllowedActions | None = None
) -> SlotView:
    """Return the view of a slot. `blocked_by` is the reason why the slot is not offered at present, and
    `allowed_actions` are the actions that the caller may take; the view of an earlier time has neither.
    """
    return SlotView(
        id=slot.slot_id,
        node_id=slot.node_id,
        index=slot.index,
        state=slot_state_name(slot.state),
        skus=list(slot.skus),
        vcpus=slot.hardware.vcpus,
        memory_mib=slot.hardware.memory_mib,
        network_device=slot.hardware.network_device,
        devices=[_device_view(each, slot.granted) for each in slot.devices],
        numa_node=slot.numa_node,
        approved_hardware=_approved_hardware_view(slot.approved_hardware),
        mac_address=slot.network.mac_address if slot.network else None,
        private_ip=slot.network.private_ip if slot.network else None,
        allocation_id=slot.allocation_id,
        reason=reason_view(slot.reason),
        drift=[drift_view(slot.node_id, slot.slot_id, each) for each in slot.drift],
        device_check=_device_check_view(slot.device_check),
        excluded=reason_view(slot.excluded),
        failures=[_failure_view(each) for each in slot.failures],
        blocked_by=blocked_by,
        allowed_actions=allowed_actions,
    )


def _device_check_view(check: DeviceCheck | None) -> DeviceCheckView | None:
    return None if check is None else DeviceCheckView.model_validate(msgspec.to_builtins(check))


def _approved_hardware_view(approved: ApprovedHardware | None) -> ApprovedHardwareView | None:
    return None if approved is None else ApprovedHardwareView.model_validate(msgspec.to_builtins(approved))


def _failure_view(failure: FailedBringUp) -> FailureView:
    return FailureView(
        slot_id=failure.slot_id,
        allocation_id=failure.allocation_id,
        reason=ReasonView(code=failure.reason.code, message=failure.reason.message),
        failed_at=failure.failed_at,
    )


def _device_view(device: SlotDevice, granted: Collection[PciAddress]) -> SlotDeviceView:
    return SlotDeviceView.model_validate(
        {**msgspec.to_builtins(device), "granted": device.address in granted}
    )


def drift_view(node: NodeId, slot: SlotId | None, drift: OpenDrift) -> DriftView:
    return DriftView(
        node_id=node,
        slot_id=slot,
        ingress_id=drift.ingress_id,
        scope=scope_of(drift, slot),
        kind=drift.kind,
        desired=drift.desired,
        observed=drift.observed,
        since=drift.since,
        blocks=drift.blocks,
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
        reason=cause.reason,
        correlation_id=str(cause.correlation_id),
        causation_id=None if cause.causation_id is None else str(cause.causation_id),
        trace_context=cause.trace_context,
        observed_at=cause.observed_at,
        recorded_at=recorded.recorded_at,
        epoch=recorded.epoch,
        data=msgspec.to_builtins(recorded.fact),
    )
