"""The operations of the REST API. Each function returns the call of one operation, which `Client` or `AsyncClient`
sends.

The parameter `at` is a moment in the past, as a time (RFC 3339) or `position:N`; the response then describes the state
at this moment. A function with a name in the path of its operation raises `InvalidName` if the name cannot be one
segment of the path.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from control_plane.client import bodies
from control_plane.client.access_answers import (
    AccessRow,
    Caller,
    Capabilities,
    IssuedKey,
    Key,
    PrincipalQuota,
    Project,
    Reservation,
    RevokedPrincipal,
    ServiceAccount,
    Session,
    StartedSession,
)
from control_plane.client.answers import (
    Allocation,
    Consoles,
    ConsoleTicket,
    CutConsole,
    Drift,
    Event,
    Ingress,
    Node,
    Parked,
    Placement,
    PlacementPreview,
    ReachPath,
    RegisteredNode,
    SerialLog,
    Slot,
    SshCertificate,
    Status,
    Task,
    TerminalTicket,
)
from control_plane.client.audit_answers import ConsistencyProof, Head, InclusionProof, Sinks
from control_plane.client.capacity_answers import CapacityHistory, CapacityReport, NodeCapacity
from control_plane.client.exchange import Call, ListCall, Params, WatchCall
from control_plane.client.history_answers import Causes, Changes, History
from control_plane.client.paths import (
    allocation_path,
    console_path,
    history_path,
    ingress_path,
    key_path,
    node_path,
    parked_path,
    period_path,
    project_path,
    projection_path,
    reservation_path,
    service_account_path,
    session_path,
    slot_path,
    task_path,
    usage_params,
    verification_path,
)
from control_plane.client.projection_answers import Projection, Verification
from control_plane.client.usage_answers import Period, PeriodBill, UnusedPart, Usage, UsageEntry

_ALLOCATIONS: Final = "/v1/allocations"
_EVENTS: Final = "/v1/events"


def _truth(value: bool | None) -> str | None:  # noqa: FBT001 (the only argument)
    return None if value is None else str(value).lower()


def create_allocation(body: bodies.CreateAllocation) -> Call[Allocation]:
    """Create an allocation. The response has its slots; with `wait_for_capacity` in the body, the request may wait for
    capacity and have no slots yet. Use `wait_for` of the client to wait until the allocation is active.
    """
    return Call("POST", _ALLOCATIONS, Allocation, body=body)


def preview_placement(body: bodies.CreateAllocation) -> Call[PlacementPreview]:
    """Show where an allocation would be placed now, and why each node is or is not suitable. Nothing is created."""
    return Call("POST", "/v1/placements/preview", PlacementPreview, body=body)


def placement(name: str) -> Call[Placement]:
    """Explain why an allocation has its slots: why each node was or was not suitable just before the placement."""
    return Call("GET", allocation_path(name, "placement"), Placement)


def serial_log(
    name: str, *, slot: int | None = None, attempt: int | None = None, tail: int | None = None
) -> Call[SerialLog]:
    """Return the newest output of the serial port of a slice, also of one that was removed some days ago. `slot` is the
    number of its slot among those of the allocation (default: 0, the first one), `attempt` the number of the placement,
    counted from 1 (default: the newest), and `tail` the maximum number of lines (default: at most the last mebibyte of
    the output).
    """
    query = {"slot": slot, "attempt": attempt, "tail": tail}
    return Call("GET", allocation_path(name, "serial-log"), SerialLog, query)


def request_console(name: str, body: bodies.NewConsole) -> Call[ConsoleTicket]:
    """Request a session on the serial port or the display of a slice, and return the ticket of the session. Only admins
    may use this call.
    """
    return Call("POST", allocation_path(name, "console-sessions"), ConsoleTicket, body=body)


def request_terminal(name: str, body: bodies.NewTerminal) -> Call[TerminalTicket]:
    """Request a terminal in a slice for a web page with the origin `body.origin`. The ticket in the response is
    accepted once.
    """
    return Call("POST", allocation_path(name, "terminal-sessions"), TerminalTicket, body=body)


def request_ssh_certificate(name: str, public_key: str) -> Call[SshCertificate]:
    """Issue an SSH certificate for a public key. The slices of the allocation accept it until it expires."""
    body = bodies.RequestSshCertificate(public_key=public_key)
    return Call("POST", allocation_path(name, "ssh-certificates"), SshCertificate, body=body)


def consoles() -> Call[Consoles]:
    """Return the open console sessions, oldest first."""
    return Call("GET", "/v1/console-sessions", Consoles)


def cut_console(name: str, reason: str) -> Call[CutConsole]:
    """Cut a console session: its connection ends within a second."""
    return Call("POST", console_path(name, "cut"), CutConsole, body=bodies.Because(reason=reason))


def allocations(
    *,
    project: str | None = None,
    states: Sequence[str] | None = None,
    labels: Mapping[str, str] | None = None,
    at: str | None = None,
) -> ListCall[Allocation]:
    """List allocations, the newest first. An allocation is listed if it matches every filter: it belongs to `project`,
    is in one of `states`, and has all `labels`.
    """
    label = None if labels is None else [f"{name}={value}" for name, value in labels.items()]
    filters = {"project": project, "state": states, "label": label, "at": at}
    return ListCall(_ALLOCATIONS, Allocation, filters)


def allocation(name: str, *, at: str | None = None) -> Call[Allocation]:
    """Show an allocation."""
    return Call("GET", allocation_path(name), Allocation, {"at": at})


def stop_allocation(name: str) -> Call[Allocation]:
    """Stop the slices of an allocation. The allocation keeps its slots and addresses."""
    return Call("POST", allocation_path(name, "stop"), Allocation)


def start_allocation(name: str) -> Call[Allocation]:
    """Start the slices of a stopped allocation."""
    return Call("POST", allocation_path(name, "start"), Allocation)


def renew_lease(name: str, seconds: int) -> Call[Allocation]:
    """Extend the lease of an allocation so that it ends `seconds` from now. A lease that ends later is not changed."""
    body = bodies.RenewLease(lease_seconds=seconds)
    return Call("POST", allocation_path(name, "lease"), Allocation, body=body)


def release_allocation(name: str) -> Call[Allocation]:
    """Release an allocation."""
    return Call("DELETE", allocation_path(name), Allocation)


def report_fault(name: str, fault: str) -> Call[Allocation]:
    """Release an allocation and report a fault of its hardware. Its slots are then excluded from placement."""
    body = bodies.ReportFault(fault=fault)
    return Call("POST", allocation_path(name, "fault"), Allocation, body=body)


def allocation_events(name: str) -> ListCall[Event]:
    """List the events of an allocation, the oldest first."""
    return ListCall(allocation_path(name, "events"), Event)


def watch_allocation(name: str, *, after: str | None = None) -> WatchCall[Event]:
    """Follow the events of an allocation from the first one, or after `after`, a cursor or `position:N`."""
    return WatchCall(allocation_path(name, "watch"), Event, {"after": after})


def add_ingress(allocation_name: str, body: bodies.OpenIngress) -> Call[Ingress]:
    """Add an ingress rule to an allocation."""
    return Call("POST", allocation_path(allocation_name, "ingress"), Ingress, body=body)


def remove_ingress(allocation_name: str, ingress: str) -> Call[Allocation]:
    """Remove an ingress rule from an allocation."""
    return Call("DELETE", ingress_path(allocation_name, ingress), Allocation)


def nodes(
    *,
    states: Sequence[str] | None = None,
    name_prefix: str | None = None,
    cordoned: bool | None = None,
    excluded: bool | None = None,
    drift: bool | None = None,
    at: str | None = None,
) -> ListCall[Node]:
    """List nodes by name. A node is listed if it matches every filter: its state is one of `states`, its id begins with
    `name_prefix`, and the node is (True) or is not (False) cordoned, excluded from placement, or subject to open drift.
    """
    filters = {
        "state": states,
        "name": name_prefix,
        "cordoned": _truth(cordoned),
        "excluded": _truth(excluded),
        "drift": _truth(drift),
        "at": at,
    }
    return ListCall("/v1/nodes", Node, filters)


def node(name: str, *, at: str | None = None) -> Call[Node]:
    """Show a node."""
    return Call("GET", node_path(name), Node, {"at": at})


def register_node(name: str) -> Call[RegisteredNode]:
    """Register a node, and return its enrolment token, which is accepted once."""
    return Call("POST", "/v1/nodes", RegisteredNode, body=bodies.RegisterNode(id=name))


def remove_node(name: str) -> Call[Node]:
    """Remove the registration of a node that never enrolled."""
    return Call("DELETE", node_path(name), Node)


def revoke_node(name: str, reason: str) -> Call[Node]:
    """Revoke the access of a node. Its slices continue to run."""
    return Call("POST", node_path(name, "revoke"), Node, body=bodies.Because(reason=reason))


def readmit_node(name: str, reason: str) -> Call[Node]:
    """Readmit a node that was excluded from placement."""
    return Call("POST", node_path(name, "readmit"), Node, body=bodies.Because(reason=reason))


def cordon_node(name: str, reason: str) -> Call[Node]:
    """Close a node for new placements. The slices on the node continue to run."""
    return Call("POST", node_path(name, "cordon"), Node, body=bodies.Because(reason=reason))


def uncordon_node(name: str, reason: str) -> Call[Node]:
    """Open a cordoned node for placements again. This cancels its drain."""
    return Call("POST", node_path(name, "uncordon"), Node, body=bodies.Because(reason=reason))


def drain_node(name: str, body: bodies.DrainNode) -> Call[Node]:
    """Cordon a node and drain it: wait until its allocations end, or release them after a time in seconds. For a node
    that is being drained, change this time.
    """
    return Call("POST", node_path(name, "drain"), Node, body=body)


def reopen_enrolment(name: str) -> Call[RegisteredNode]:
    """Return a new enrolment token for a node. This invalidates the earlier token."""
    return Call("POST", node_path(name, "enrolment"), RegisteredNode)


def set_public_addresses(name: str, body: bodies.NodeAddresses) -> Call[Node]:
    """Replace the public addresses of a node."""
    return Call("PUT", node_path(name, "public-addresses"), Node, body=body)


def configure_node(name: str, body: bodies.ConfigureNode) -> Call[Node]:
    """Set the bridge, the layer-2 domain and the MAC pool of a node."""
    return Call("PUT", node_path(name, "network"), Node, body=body)


def drift(node_name: str | None = None, *, at: str | None = None) -> ListCall[Drift]:
    """List the open drift of a node, or of all nodes."""
    path = "/v1/drift" if node_name is None else node_path(node_name, "drift")
    return ListCall(path, Drift, {"at": at})


def slots(*, node_name: str | None = None, at: str | None = None) -> ListCall[Slot]:
    """List slots by node and index."""
    return ListCall("/v1/slots", Slot, {"node": node_name, "at": at})


def slot(name: str, *, at: str | None = None) -> Call[Slot]:
    """Show a slot."""
    return Call("GET", slot_path(name), Slot, {"at": at})


def approve_slot(name: str, skus: Sequence[str] = ()) -> Call[Slot]:
    """Approve a discovered slot for use, or offer an approved slot under other SKUs. `skus` are the SKUs under which
    the slot is offered. Without `skus`, a new slot gets the SKU that uses most of it, and an approved slot keeps its
    SKUs.
    """
    body = bodies.ApproveSlot(skus=list(skus)) if skus else None
    return Call("POST", slot_path(name, "approve"), Slot, body=body)


def retire_slot(name: str, reason: str) -> Call[Slot]:
    """Retire a free slot: nothing is placed in it until it is approved again."""
    return Call("POST", slot_path(name, "retire"), Slot, body=bodies.Because(reason=reason))


def reprovision_slot(name: str, reason: str) -> Call[Slot]:
    """Give a free slot another MAC and another IP address."""
    return Call("POST", slot_path(name, "reprovision"), Slot, body=bodies.Because(reason=reason))


def force_release_slot(name: str, reason: str) -> Call[Slot]:
    """Release a slot that its node has not proved empty."""
    return Call("POST", slot_path(name, "force-release"), Slot, body=bodies.Because(reason=reason))


def readmit_slot(name: str, reason: str) -> Call[Slot]:
    """Readmit a slot that was excluded from placement."""
    return Call("POST", slot_path(name, "readmit"), Slot, body=bodies.Because(reason=reason))


def tasks(
    *,
    node_name: str | None = None,
    slot: str | None = None,
    allocation_name: str | None = None,
    states: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> ListCall[Task]:
    """List the tasks of nodes, the newest first. A task is listed if it matches every filter."""
    filters = {"node": node_name, "slot": slot, "allocation": allocation_name, "state": states, "kind": kinds}
    return ListCall("/v1/tasks", Task, filters)


def task(name: str) -> Call[Task]:
    """Show a task."""
    return Call("GET", task_path(name), Task)


def request_task(body: bodies.RequestTask) -> Call[Task]:
    """Request a task of a node: an inspection or a repair."""
    return Call("POST", "/v1/tasks", Task, body=body)


def retry_task(name: str) -> Call[Task]:
    """Retry a task that ended without success."""
    return Call("POST", task_path(name, "retry"), Task)


def cancel_task(name: str) -> Call[Task]:
    """Cancel a task."""
    return Call("POST", task_path(name, "cancel"), Task)


def watch_task(name: str) -> WatchCall[Event]:
    """Follow the events of a task."""
    return WatchCall(task_path(name, "watch"), Event)


def capacity(*, at: str | None = None, project: str | None = None) -> Call[CapacityReport]:
    """Show, for each SKU, its slots by status and how many more allocations of one slot could be placed now. With
    `project`, slots that are reserved for other projects are not counted as available.
    """
    return Call("GET", "/v1/capacity", CapacityReport, {"at": at, "project": project})


def node_capacity(*, at: str | None = None) -> ListCall[NodeCapacity]:
    """List nodes by name, each with its slots by SKU and status."""
    return ListCall("/v1/capacity/nodes", NodeCapacity, {"at": at})


def capacity_history(
    *,
    since: str | None = None,
    until: str | None = None,
    step: int | None = None,
    node_name: str | None = None,
) -> Call[CapacityHistory]:
    """Show the slots of each SKU by status at equal steps of `step` seconds from `since` until `until`, two times
    (RFC 3339). With `node_name`, only the slots of this node are counted.
    """
    params: Params = {"from": since, "until": until, "step": step, "node": node_name}
    return Call("GET", "/v1/capacity/history", CapacityHistory, params)


def usage(
    *,
    since: str | None = None,
    to: str | None = None,
    period: str | None = None,
    project: str | None = None,
    sku: str | None = None,
    label: str | None = None,
    group_by: str | None = None,
) -> Call[Usage]:
    """Show the usage of slots from `since` to `to`, or the usage that the billing period `period` bills. `since` and
    `to` are times (RFC 3339); None: from the first usage, and until now.

    `label` has the form NAME=VALUE. `group_by` is `project`, `sku` or `label:NAME`.
    """
    which = usage_params(since=since, to=to, period=period, project=project, sku=sku, label=label)
    return Call("GET", "/v1/usage", Usage, {**which, "group_by": group_by})


def usage_entries(
    *,
    since: str | None = None,
    to: str | None = None,
    period: str | None = None,
    project: str | None = None,
    sku: str | None = None,
    label: str | None = None,
) -> ListCall[UsageEntry]:
    """List the usage entries of which `usage` with the same arguments returns the total, each with the events from
    which it follows.
    """
    which = usage_params(since=since, to=to, period=period, project=project, sku=sku, label=label)
    return ListCall("/v1/usage/entries", UsageEntry, which)


def unused_reservations(
    *,
    since: str | None = None,
    to: str | None = None,
    period: str | None = None,
    project: str | None = None,
    sku: str | None = None,
    label: str | None = None,
) -> ListCall[UnusedPart]:
    """List the unused parts of reservations of which `usage` with the same arguments returns the total, each with its
    range of time.
    """
    which = usage_params(since=since, to=to, period=period, project=project, sku=sku, label=label)
    return ListCall("/v1/usage/unused-reservations", UnusedPart, which)


def billing_periods() -> ListCall[Period]:
    """List the billing periods in the order of time; the last one is the open period."""
    return ListCall("/v1/usage/periods", Period)


def billing_period(name: str) -> Call[PeriodBill]:
    """Show a billing period with the totals of its bill. The name `open` stands for the open period."""
    return Call("GET", period_path(name), PeriodBill)


def close_billing_period(name: str, body: bodies.ClosePeriod) -> Call[PeriodBill]:
    """Close a billing period after it has ended."""
    return Call("POST", period_path(name, "close"), PeriodBill, body=body)


def parked() -> ListCall[Parked]:
    """List the parked streams: event streams that the control plane cannot process."""
    return ListCall("/v1/parked", Parked)


def retry_parked(stream: str) -> Call[Parked]:
    """Retry a parked stream at once."""
    return Call("POST", parked_path(stream, "retry"), Parked)


def event_filters(
    *,
    after: str | None = None,
    streams: Sequence[str] | None = None,
    types: Sequence[str] | None = None,
    projects: Sequence[str] | None = None,
    actors: Sequence[str] | None = None,
    correlations: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
) -> Params:
    """Return the parameters `filters` of `events` and `watch_events`. An event is returned if it is after the cursor
    `after` and has, for each other filter that is given, one of the values of the filter.
    """
    named = {
        "stream": streams,
        "type": types,
        "project": projects,
        "actor": actors,
        "correlation": correlations,
        "id": ids,
    }
    return {"after": after, **{name: values or None for name, values in named.items()}}


def events(
    filters: Params | None = None, *, since: str | None = None, to: str | None = None
) -> ListCall[Event]:
    """List events of the ledger in the order of their positions, between two times or positions. `filters` comes from
    `event_filters`.
    """
    return ListCall(_EVENTS, Event, {**(filters or {}), "from": since, "to": to})


def causes(position: int) -> Call[Causes]:
    """Show an event of the ledger with the events that led to it and those that followed from it."""
    return Call("GET", f"{_EVENTS}/{position}/causes", Causes)


def watch_events(filters: Params | None = None) -> WatchCall[Event]:
    """Follow the events of the ledger. `filters` comes from `event_filters`."""
    return WatchCall(f"{_EVENTS}/watch", Event, filters or {})


def history(kind: str, name: str, *, at: str | None = None) -> Call[History]:
    """Show a resource at a past moment, computed from the ledger alone. The name of a slot, device or ingress rule has
    two parts, separated by a slash.
    """
    return Call("GET", history_path(kind, name), History, {"at": at})


def changes(
    kind: str, name: str, *, since: str | None = None, to: str | None = None, limit: int | None = None
) -> Call[Changes]:
    """Show the events that changed a resource between two moments, with the fields that they changed."""
    params: Params = {"from": since, "to": to, "limit": limit}
    return Call("GET", history_path(kind, name, "changes"), Changes, params)


def network_paths() -> ListCall[ReachPath]:
    """List the network paths between the parts of Sliceplane."""
    return ListCall("/v1/paths", ReachPath)


def heads() -> ListCall[Head]:
    """List the signed heads of the ledger, the newest first."""
    return ListCall("/v1/audit/heads", Head)


def sinks() -> Call[Sinks]:
    """Show the sinks, which store signed heads outside the database: the newest head that each sink has stored, or the
    error because of which it stores none.
    """
    return Call("GET", "/v1/audit/sinks", Sinks)


def inclusion(position: int, size: int | None = None) -> Call[InclusionProof]:
    """Show the proof that the Merkle tree over the first `size` positions of the ledger includes a position. The
    default of `size` is the size of the newest head.
    """
    return Call("GET", f"/v1/audit/proofs/{position}", InclusionProof, {"size": size})


def consistency(first: int, second: int | None = None) -> Call[ConsistencyProof]:
    """Show the proof that the Merkle tree over the first `first` positions of the ledger is a prefix of the tree over
    the first `second` positions. The default of `second` is the size of the newest head.
    """
    return Call("GET", "/v1/audit/consistency", ConsistencyProof, {"first": first, "second": second})


def projections() -> ListCall[Projection]:
    """List the read models."""
    return ListCall("/v1/projections", Projection)


def projection(name: str) -> Call[Projection]:
    """Show a read model."""
    return Call("GET", projection_path(name), Projection)


def rebuild_projection(name: str) -> Call[Projection]:
    """Rebuild a read model from the ledger."""
    return Call("POST", projection_path(name, "rebuild"), Projection)


def skip_event(name: str, body: bodies.SkipEvent) -> Call[Projection]:
    """Skip the event that stops a read model."""
    return Call("POST", projection_path(name, "skip"), Projection, body=body)


def retry_projection(name: str) -> Call[Projection]:
    """Retry the event that stops a read model."""
    return Call("POST", projection_path(name, "retry"), Projection)


def verify() -> Call[Verification]:
    """Start a verification, which compares all tables with a replay of the ledger. It runs after the call has
    returned.
    """
    return Call("POST", "/v1/verifications", Verification)


def verifications() -> ListCall[Verification]:
    """List verifications, the newest first."""
    return ListCall("/v1/verifications", Verification)


def verification(name: str) -> Call[Verification]:
    """Show a verification."""
    return Call("GET", verification_path(name), Verification)


def projects() -> ListCall[Project]:
    """List the projects of the caller."""
    return ListCall("/v1/projects", Project)


def project(name: str, *, at: str | None = None) -> Call[Project]:
    """Show a project."""
    return Call("GET", project_path(name), Project, {"at": at})


def create_project(body: bodies.CreateProject) -> Call[Project]:
    """Create a project."""
    return Call("POST", "/v1/projects", Project, body=body)


def describe_project(name: str, description: str) -> Call[Project]:
    """Change the description of a project."""
    return Call("PATCH", project_path(name), Project, body=bodies.DescribeProject(description=description))


def set_project_limits(name: str, body: bodies.SetProjectLimits) -> Call[Project]:
    """Replace all limits of a project."""
    return Call("PUT", project_path(name, "limits"), Project, body=body)


def reservations() -> ListCall[Reservation]:
    """List the reservations of the projects of the caller."""
    return ListCall("/v1/reservations", Reservation)


def set_reservation(project: str, sku: str, body: bodies.SetReservation) -> Call[Project]:
    """Reserve slots of a SKU for a project, or change the number of reserved slots."""
    return Call("PUT", reservation_path(project, sku), Project, body=body)


def remove_reservation(project: str, sku: str) -> Call[Project]:
    """Remove the reservation of a SKU for a project."""
    return Call("DELETE", reservation_path(project, sku), Project)


def archive_project(name: str, reason: str) -> Call[Project]:
    """Archive a project. The call is refused while an allocation of the project holds a slot."""
    return Call("POST", project_path(name, "archive"), Project, body=bodies.Because(reason=reason))


def erase_project(name: str, reason: str) -> Call[Project]:
    """Erase the personal data of a project permanently. The call is refused while an allocation of the project holds a
    slot, or a request of the project waits for capacity.
    """
    return Call("DELETE", project_path(name, "personal-data"), Project, body=bodies.Because(reason=reason))


def access_log(
    *,
    request_id: str | None = None,
    principal: str | None = None,
    route: str | None = None,
    method: str | None = None,
    outcome: str | None = None,
    source: str | None = None,
    since: str | None = None,
    to: str | None = None,
    after: int | None = None,
    order: str | None = None,
) -> ListCall[AccessRow]:
    """List the requests in the access log of the API that match every filter, the newest first. With the order `asc`,
    list them from the lowest position in the access log. Only requests after the position `after` are listed.
    """
    which: dict[str, str | int | None] = {
        "request_id": request_id,
        "principal": principal,
        "route": route,
        "method": method,
        "outcome": outcome,
        "source": source,
        "from": since,
        "to": to,
        "after": after,
        "order": order,
    }
    return ListCall("/v1/access-log", AccessRow, which)


def service_accounts() -> ListCall[ServiceAccount]:
    """List service accounts."""
    return ListCall("/v1/service-accounts", ServiceAccount)


def service_account(name: str) -> Call[ServiceAccount]:
    """Show a service account."""
    return Call("GET", service_account_path(name), ServiceAccount)


def create_service_account(body: bodies.CreateServiceAccount) -> Call[ServiceAccount]:
    """Create a service account with its role."""
    return Call("POST", "/v1/service-accounts", ServiceAccount, body=body)


def disable_service_account(name: str, reason: str) -> Call[ServiceAccount]:
    """Disable a service account. Its keys are refused from then on."""
    path = service_account_path(name, "disable")
    return Call("POST", path, ServiceAccount, body=bodies.Because(reason=reason))


def enable_service_account(name: str) -> Call[ServiceAccount]:
    """Enable a service account again. Its keys that are not revoked or expired are accepted from then on."""
    return Call("POST", service_account_path(name, "enable"), ServiceAccount)


def keys() -> ListCall[Key]:
    """List API keys, without their secrets."""
    return ListCall("/v1/keys", Key)


def key(name: str) -> Call[Key]:
    """Show an API key, without its secret."""
    return Call("GET", key_path(name), Key)


def issue_key(body: bodies.IssueKey) -> Call[IssuedKey]:
    """Issue an API key. Only this response contains the secret of the key."""
    return Call("POST", "/v1/keys", IssuedKey, body=body)


def rotate_key(name: str, body: bodies.RotateKey) -> Call[IssuedKey]:
    """Replace an API key by a new one with the same role, projects and scopes."""
    return Call("POST", key_path(name, "rotate"), IssuedKey, body=body)


def revoke_key(name: str, reason: str) -> Call[Key]:
    """Revoke an API key."""
    return Call("POST", key_path(name, "revoke"), Key, body=bodies.Because(reason=reason))


def start_session(body: bodies.StartSession) -> Call[StartedSession]:
    """Start a session with the API key or token of the client. Only this response contains the secret of the session,
    which a client uses like an API key.
    """
    return Call("POST", "/v1/sessions", StartedSession, body=body)


def sessions(*, actor: str | None = None, state: str | None = None) -> ListCall[Session]:
    """List the sessions that the caller may read, the oldest first."""
    return ListCall("/v1/sessions", Session, {"actor": actor, "state": state})


def session(name: str) -> Call[Session]:
    """Show a session, without its secret."""
    return Call("GET", session_path(name), Session)


def end_session(name: str, reason: str) -> Call[Session]:
    """End a session."""
    return Call("POST", session_path(name, "end"), Session, body=bodies.Because(reason=reason))


def revoke_principal(body: bodies.RevokePrincipal) -> Call[RevokedPrincipal]:
    """Revoke the credentials of a caller: the tokens of a user, an API key, or all keys of a service account."""
    return Call("POST", "/v1/principals/revoke", RevokedPrincipal, body=body)


def set_principal_limits(body: bodies.SetPrincipalLimits) -> Call[PrincipalQuota]:
    """Replace all limits of a caller."""
    return Call("PUT", "/v1/principals/limits", PrincipalQuota, body=body)


def principal_limits(actor: str | None = None) -> Call[PrincipalQuota]:
    """Show the limits of a caller, and what the caller uses of them. The default is the caller of this request."""
    return Call("GET", "/v1/principals/limits", PrincipalQuota, {"actor": actor})


def whoami() -> Call[Caller]:
    """Show the role, projects and scopes of the caller of this request, and the credential of the request."""
    return Call("GET", "/v1/whoami", Caller)


def capabilities() -> Call[Capabilities]:
    """Show the release of the control plane, and the identity providers with which users log in. The call needs no
    credentials.
    """
    return Call("GET", "/v1", Capabilities)


def status() -> Call[Status]:
    """Show the health checks, and the numbers of nodes, drift and tasks that need attention."""
    return Call("GET", "/v1/status", Status)


def readiness() -> Call[Status]:
    """Show the health checks, also while one of them fails. The call needs no credentials, and is sent once, without
    retries.
    """
    return Call("GET", "/readyz", Status, quick=True)
