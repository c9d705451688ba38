"""Response types of the REST API.

Unknown fields are ignored, so that an older client works with a newer control plane, and every field that was added
later has a default, so that a newer client works with an older control plane.
"""

from datetime import datetime
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Answer(msgspec.Struct, frozen=True):
    """Base class of the types that describe a response of the API or a part of one."""


class Reason(Answer, frozen=True):
    code: str
    message: str


class Action(Answer, frozen=True):
    """Whether the caller may take an action now; if not, the code and the reason with which it would be refused."""

    allowed: bool
    code: str | None = None
    reason: str | None = None


class Objection(Answer, frozen=True):
    """One reason of a refusal. `field` is a JSON pointer into the request body, `parameter` is a parameter's name."""

    code: str
    message: str
    field: str | None = None
    parameter: str | None = None


class NodeGroup(Answer, frozen=True):
    """Nodes for which the same reason of a placement with a SKU applies. `obstacle`: what they lack."""

    code: str
    message: str
    obstacle: str
    nodes: int
    example: str
    sku: str = ""


class Nearest(Answer, frozen=True):
    """A similar request that could be placed now."""

    sku: str
    slot_count: int


class Outlook(Answer, frozen=True):
    """What is possible instead of a refused placement."""

    nearest: Nearest | None = None
    earliest_possible_at: datetime | None = None


class ExceededLimit(Answer, frozen=True):
    """A limit that a request would exceed. The holder is the project or the caller that has the limit."""

    scope: str
    holder: str
    limit_name: str
    limit: str
    used: str
    requested: str
    remaining: str | None = None


class Problem(Answer, frozen=True):
    """Problem details (RFC 9457), extended by `reasons`, `hint` and `request_id`. `placement` and `outlook` are present
    if no node is suitable for an allocation, `exceeded` if a request would exceed quotas.
    """

    title: str
    status: int
    type: str = "about:blank"
    hint: str | None = None
    detail: str | None = None
    reasons: tuple[Objection, ...] = ()
    request_id: str | None = None
    placement: tuple[NodeGroup, ...] | None = None
    outlook: Outlook | None = None
    exceeded: tuple[ExceededLimit, ...] | None = None


class Page(Answer, frozen=True):
    items: tuple[msgspec.Raw, ...]
    next_cursor: str | None = None


class Drift(Answer, frozen=True):
    """A difference between the desired and the observed state of a node."""

    node_id: str
    kind: str
    desired: str
    observed: str
    since: datetime
    slot_id: str | None = None
    ingress_id: str | None = None
    scope: str | None = None
    blocks: bool | None = None


class Failure(Answer, frozen=True):
    """A bring-up that failed due to a node fault."""

    slot_id: str
    allocation_id: str
    reason: Reason
    failed_at: datetime


class PublicAddress(Answer, frozen=True):
    address: str
    use: str
    first_port: int | None = None
    last_port: int | None = None


class RemainingSlot(Answer, frozen=True):
    slot_id: str
    reason: Reason


class Drain(Answer, frozen=True):
    """The last drain of a cordoned node. `outcome` is None while it runs, then `empty` or `incomplete`."""

    reason: str
    since: datetime
    release_at: datetime | None = None
    outcome: str | None = None
    remaining: tuple[RemainingSlot, ...] = ()


class MacPool(Answer, frozen=True):
    first: str
    last: str


class UnsupportedMode(Answer, frozen=True):
    """A network mode that slices on a node cannot have, and what the node lacks for it."""

    mode: str
    reason: str


class Node(Answer, frozen=True):
    id: str
    state: str
    subnet: str
    l2_domain: str | None = None
    bridge: str | None = None
    mac_pool: MacPool | None = None
    hostname: str | None = None
    agent_version: str | None = None
    simulated: bool | None = None
    images: tuple[str, ...] | None = None
    missing: tuple[str, ...] | None = None
    unsupported_modes: tuple[UnsupportedMode, ...] = ()
    drift: tuple[Drift, ...] = ()
    slot_drift: tuple[Drift, ...] = ()
    public_addresses: tuple[PublicAddress, ...] = ()
    seen_at: datetime | None = None
    spooled_reports: int | None = None
    reports_throttled_at: datetime | None = None
    key_thumbprint: str | None = None
    superseded_session: int | None = None
    superseded_at: datetime | None = None
    revoked: str | None = None
    excluded: Reason | None = None
    failures: tuple[Failure, ...] = ()
    cordoned: str | None = None
    drain: Drain | None = None
    blocked_by: str | None = None
    allowed_actions: dict[str, Action] | None = None


class RegisteredNode(Answer, frozen=True):
    id: str
    subnet: str
    enrolment_token: str
    token_expires_at: datetime


class DeviceEvidence(Answer, frozen=True):
    path: str
    value: str


class FabricMetadata(Answer, frozen=True):
    link_layer: str | None = None
    rdma_device: str | None = None
    port_state: str | None = None
    physical_state: str | None = None
    rate_mbit: int | None = None
    mtu: int | None = None
    guid: str | None = None
    mac: str | None = None


class SlotDevice(Answer, frozen=True):
    address: str
    use: str
    number: str | None = None
    kind: str | None = None
    numa_node: int | None = None
    unreadable: str | None = None
    model: str | None = None
    memory_mib: int | None = None
    bar_mib: int | None = None
    uuid: str | None = None
    iommu_group: str | None = None
    root_port: str | None = None
    physical_function: str | None = None
    vf_number: int | None = None
    representor: str | None = None
    fabric_metadata: FabricMetadata | None = None
    evidence: tuple[DeviceEvidence, ...] = ()
    granted: bool = False


class CheckedDevice(Answer, frozen=True):
    """What a PCI function reported about its health after a release; `faults` are sentences."""

    address: str
    faults: tuple[str, ...] = ()
    responds: bool | None = None
    link_mtps: int | None = None
    link_width: int | None = None
    most_link_mtps: int | None = None
    most_link_width: int | None = None
    bars: tuple[int, ...] = ()
    fatal_errors: int | None = None
    nonfatal_errors: int | None = None
    unreadable: str | None = None


class DeviceCheck(Answer, frozen=True):
    """A check of the PCI functions of a slot after the release by an allocation."""

    allocation_id: str
    devices: tuple[CheckedDevice, ...] = ()


class ApprovedDevice(Answer, frozen=True):
    """A PCI function as an approval accepted it."""

    address: str
    use: str
    number: str | None = None
    numa_node: int | None = None
    iommu_group: str | None = None
    root_port: str | None = None
    physical_function: str | None = None
    vf_number: int | None = None
    model: str | None = None
    memory_mib: int | None = None
    uuid: str | None = None
    link_layer: str | None = None


class ApprovedHardware(Answer, frozen=True):
    """Hardware to which the newest approval bound a slot."""

    vcpus: int
    memory_mib: int
    numa_node: int | None = None
    devices: tuple[ApprovedDevice, ...] = ()


class Slot(Answer, frozen=True):
    id: str
    node_id: str
    index: int
    state: str
    skus: tuple[str, ...] = ()
    vcpus: int | None = None
    memory_mib: int | None = None
    network_device: str | None = None
    devices: tuple[SlotDevice, ...] = ()
    numa_node: int | None = None
    approved_hardware: ApprovedHardware | None = None
    mac_address: str | None = None
    private_ip: str | None = None
    allocation_id: str | None = None
    reason: Reason | None = None
    drift: tuple[Drift, ...] = ()
    device_check: DeviceCheck | None = None
    excluded: Reason | None = None
    failures: tuple[Failure, ...] = ()
    blocked_by: str | None = None
    allowed_actions: dict[str, Action] | None = None


class PlacementPreview(Answer, frozen=True):
    sku: str | None = None
    slots: tuple[str, ...] = ()
    reasons: tuple[Objection, ...] = ()
    exceeded: tuple[ExceededLimit, ...] = ()
    outlook: Outlook | None = None
    groups: tuple[NodeGroup, ...] = ()


class Placement(Answer, frozen=True):
    """How the slots of an allocation were chosen. `position` is the last one of the ledger before the placement."""

    allocation_id: str
    attempt: int
    placed_at: datetime
    position: int
    sku: str
    slots: tuple[str, ...]
    order: str
    groups: tuple[NodeGroup, ...]


class SerialLog(Answer, frozen=True):
    """Newest output of the serial port of a slice, which the guest wrote. `kept_bytes` is the size of the log that the
    node keeps; of a removed slice, the size that its log had at the removal. `truncated`: older output is left out.
    """

    allocation_id: str
    slot_id: str
    node_id: str
    text: str
    kept_bytes: int
    truncated: bool


class Console(Answer, frozen=True):
    """An open console session. `origin` is that of the page that may use it; None: a program without origin."""

    id: str
    allocation_id: str
    slot_id: str
    node_id: str
    kind: str
    actor: str
    state: str
    origin: str | None = None


class Consoles(Answer, frozen=True):
    """The open console sessions, oldest first."""

    items: tuple[Console, ...]


class ConsoleTicket(Answer, frozen=True):
    """A new console session. `ticket` is accepted once until `ticket_expires_at`, on the WebSocket `path`."""

    id: str
    allocation_id: str
    slot_id: str
    node_id: str
    kind: str
    actor: str
    ticket_expires_at: datetime
    path: str
    ticket: str
    origin: str | None = None


class TerminalTicket(Answer, frozen=True):
    """A new terminal. The WebSocket `url` of the SSH gateway accepts `ticket` once until `ticket_expires_at`."""

    id: str
    allocation_id: str
    slot_id: str
    node_id: str
    actor: str
    origin: str
    ticket_expires_at: datetime
    url: str
    ticket: str


class CutConsole(Answer, frozen=True):
    """A console session that ends within a second."""

    id: str


class SshCertificate(Answer, frozen=True):
    """An SSH certificate for the slices of an allocation, valid until `valid_until`. `certificate` is a line of an
    OpenSSH certificate file.
    """

    allocation_id: str
    certificate: str
    fingerprint: str
    key_id: str
    serial: int
    valid_until: datetime


class AllocatedSlot(Answer, frozen=True):
    slot_id: str
    node_id: str
    mac_address: str | None = None
    private_ip: str | None = None
    ready: bool | None = None
    actual_ip: str | None = None
    lease_state: str | None = None


class Lease(Answer, frozen=True):
    granted_at: datetime
    expires_at: datetime


class Endpoint(Answer, frozen=True):
    kind: str
    address: str
    port: int | None = None
    node_id: str | None = None
    via: str | None = None


class Replacement(Answer, frozen=True):
    """The placement of an allocation on another node, after its bring-up failed."""

    vacated: tuple[str, ...]
    reason: Reason
    attempt: int | None = None


class Ingress(Answer, frozen=True):
    """An ingress rule."""

    id: str
    slot_id: str
    state: str
    public_address: str
    reason: Reason | None = None
    protocol: str | None = None
    public_port: int | None = None
    port: int | None = None
    sources: tuple[str, ...] = ()
    allowed_actions: dict[str, Action] | None = None


class Condition(Answer, frozen=True):
    code: str
    message: str
    node_id: str | None = None
    since: datetime | None = None


class ReleaseOverdue(Answer, frozen=True):
    """A release that was not complete by its deadline, with the slots that are not proved empty."""

    deadline: datetime
    remaining: tuple[RemainingSlot, ...] = ()


class Queued(Answer, frozen=True):
    """The wait of an allocation for capacity. `position` in the queue counts from 1."""

    priority: int
    queued_at: datetime
    waits_until: datetime
    reason: Reason
    position: int | None = None
    earliest_possible_at: datetime | None = None


class SshGateway(Answer, frozen=True):
    """The SSH gateway, for `ssh -J ID@ADDRESS USER@slice`. `host_key` is its public key (OpenSSH)."""

    address: str
    host_key: str | None = None


class Allocation(Answer, frozen=True):
    id: str
    project: str
    sku: str
    state: str
    network_mode: str
    image: str
    requested_at: datetime
    version: int
    """Number of the allocation's events that this view includes."""
    sku_version: int | None = None
    image_version: int | None = None
    app_profile: str | None = None
    price_per_hour: str | None = None
    reason: Reason | None = None
    slots: tuple[AllocatedSlot, ...] = ()
    lease: Lease | None = None
    endpoints: tuple[Endpoint, ...] = ()
    ingress: tuple[Ingress, ...] = ()
    replaced: Replacement | None = None
    release_overdue: ReleaseOverdue | None = None
    queue: Queued | None = None
    labels: dict[str, str] = {}
    apart_from: dict[str, str] = {}
    conditions: tuple[Condition, ...] | None = None
    gateway_access: bool = False
    ssh_gateway: SshGateway | None = None
    terminal_address: str | None = None
    generation: int | None = None
    allowed_actions: dict[str, Action] | None = None


class HealthCheck(Answer, frozen=True):
    name: str
    status: str
    message: str
    latency_ms: float | None = None
    leads: bool | None = None
    behind: int | None = None
    lag_seconds: float | None = None


class DriftCount(Answer, frozen=True):
    open: int
    blocking: int


class BlockedSlotCount(Answer, frozen=True):
    """Numbers of slots that are free but cannot get a slice now, by the reason and by SKU."""

    by_reason: dict[str, int]
    by_sku: dict[str, int]


class Status(Answer, frozen=True):
    """The status of the control plane: its health checks, and counts, which are present only if Postgres responds."""

    status: str
    checks: tuple[HealthCheck, ...]
    nodes: dict[str, int] | None = None
    slots: dict[str, int] | None = None
    blocked_slots: BlockedSlotCount | None = None
    drift: DriftCount | None = None
    tasks: dict[str, int] | None = None
    failing_sinks: tuple[str, ...] = ()


class Event(Answer, frozen=True):
    """One event of the ledger. `data` is the fact; its shape depends on `type`."""

    position: int
    stream: str
    type: str
    recorded_at: datetime
    actor: str
    data: dict[str, object]
    version: int
    """Number of the event in its stream."""
    project: str | None = None
    reason: str | None = None
    id: str | None = None
    causation_id: str | None = None
    """Id of the event that caused it."""


class Step(Answer, frozen=True):
    """The current step of a task, as its node reported it."""

    step: str
    number: int
    at: datetime
    of: int | None = None
    task_id: str | None = None
    slot_id: str | None = None


class Parked(Answer, frozen=True):
    stream: str
    since: datetime
    error: str
    next_look_at: datetime | None = None
    allowed_actions: dict[str, Action] | None = None


class Task(Answer, frozen=True):
    id: str
    kind: str
    state: str
    node_id: str
    created_at: datetime
    slot_id: str | None = None
    allocation_id: str | None = None
    attempt: int | None = None
    cancelling: bool = False
    sends: int = 0
    deliveries: int | None = None
    sent_at: datetime | None = None
    due_at: datetime | None = None
    ended_at: datetime | None = None
    reason: Reason | None = None
    result: dict[str, object] | None = None
    progress: Step | None = None
    parked: Parked | None = None
    allowed_actions: dict[str, Action] | None = None


class ReachPath(Answer, frozen=True):
    """A network path from one part of Sliceplane to another."""

    client: str
    server: str
    address: str
    transport: str
    encrypted: bool
    credential: str
    survives_private_redis: bool
    warnings: tuple[str, ...] = ()


def decode(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode the JSON of one response. Raises `msgspec.ValidationError` or `msgspec.DecodeError`."""
    return msgspec.json.decode(raw, type=kind)
