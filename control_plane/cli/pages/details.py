"""Pages of single resources: identity, state, and how to use the resource."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.ssh import can_log_in
from control_plane.client.answers import (
    Action,
    AllocatedSlot,
    Allocation,
    CheckedDevice,
    Condition,
    Drain,
    Drift,
    Endpoint,
    FabricMetadata,
    Failure,
    Ingress,
    Node,
    PublicAddress,
    Queued,
    Reason,
    RegisteredNode,
    RemainingSlot,
    Slot,
    SlotDevice,
    SshCertificate,
)

Row = tuple[str, RenderableType]
_ENDED: Final = frozenset({"failed", "released"})
_WITHOUT_LEASE: Final = _ENDED | {"releasing"}
"""States in which the lease of an allocation is over."""


def page(rows: Iterator[Row]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def actions(items: Mapping[str, Action] | None) -> Iterator[Row]:
    """Yield the row with the actions that the caller may take on a resource, and the refused ones with their reasons.

    Yield nothing if the view has no actions: it is a view of the past, or the control plane is older than this client.
    """
    if not items:
        return
    allowed = ", ".join(name for name, each in items.items() if each.allowed) or "none"
    refused: dict[str, list[str]] = {}
    for name, each in items.items():
        if not each.allowed:
            refused.setdefault(each.reason or each.code or "refused", []).append(name)
    reasons = "; ".join(f"not {', '.join(names)}: {reason}" for reason, names in refused.items())
    yield "actions", Text.assemble(allowed, (f" ({reasons})", "dim") if reasons else "")


def ssh_certificate(item: SshCertificate) -> Table:
    return page(_ssh_certificate(item))


def _ssh_certificate(item: SshCertificate) -> Iterator[Row]:
    yield "allocation", item.allocation_id
    yield "serial", str(item.serial)
    yield "key", item.fingerprint
    yield "key id", item.key_id
    yield "valid until", item.valid_until.isoformat()


def allocation(
    item: Allocation,
    *,
    simulated: Collection[str] = (),
    drift: Iterable[Drift] = (),
    now: datetime | None = None,
) -> Table:
    """Return the page of an allocation, with the part of `drift` that concerns its slots.

    `simulated` are the simulated nodes, which have no guests to log in to. `now` is the time to which ages are
    relative, for a past state the time of that state; this holds for all functions of this module.
    """
    slots = {slot.slot_id for slot in item.slots}
    own = [each for each in drift if each.slot_id in slots]
    return page(chain(_allocation(item, simulated, now), _drift(own, "", now)))


def _allocation(item: Allocation, simulated: Collection[str], now: datetime | None) -> Iterator[Row]:
    yield "allocation", Text(item.id, "bold")
    yield "state", words.allocation_state(item)
    if item.reason:
        yield "reason", Text.assemble(item.reason.message, (f"  [{item.reason.code}]", "dim"))
    for condition in item.conditions or ():
        yield "condition", _condition(condition, now)
    yield "requested", _requested(item)
    yield "at", f"{words.clock(item.requested_at)} ({words.since(item.requested_at, now)})"
    if item.queue:
        yield from _queue(item.queue, now)
    if item.labels:
        yield "labels", _labels(item.labels)
    if item.apart_from:
        yield "apart from", _labels(item.apart_from)
    yield "slot" if len(item.slots) == 1 else "slots", _slots(item)
    if item.replaced:
        reason = (
            f"{', '.join(item.replaced.vacated)}, where its bring-up failed: {item.replaced.reason.message}"
        )
        yield "former", Text.assemble(reason, (f"  [{item.replaced.reason.code}]", "dim"))
    if item.lease and item.state not in _WITHOUT_LEASE:
        yield (
            "lease",
            f"until {words.clock(item.lease.expires_at)} ({words.until(item.lease.expires_at, now)})",
        )
    if item.release_overdue:
        deadline = item.release_overdue.deadline
        text = f"not complete by its deadline {words.clock(deadline)} ({words.since(deadline, now)})"
        yield "release", Text(text, "red")
        yield from _remaining(item.release_overdue.remaining)
    yield from _reached(item, simulated)
    if now is None:  # a login is possible only in the present
        yield from _logins(item, simulated)
    yield from actions(item.allowed_actions)


def _queue(item: Queued, now: datetime | None) -> Iterator[Row]:
    """Yield the wait of an allocation for capacity."""
    place = "" if item.position is None else f"position {item.position} in the queue, "
    yield "waits", f"{place}priority {item.priority}, since {words.clock(item.queued_at)}"
    yield "until", f"{words.clock(item.waits_until)} ({words.until(item.waits_until, now)})"
    if item.earliest_possible_at:
        yield "earliest", f"{words.clock(item.earliest_possible_at)}, by the ends of leases"
    yield "waits for", Text.assemble(item.reason.message, (f"  [{item.reason.code}]", "dim"))


def _requested(item: Allocation) -> str:
    sku = item.sku if item.sku_version is None else f"{item.sku} version {item.sku_version}"
    image = item.image if item.image_version is None else f"{item.image} version {item.image_version}"
    profile = f", app profile {item.app_profile}" if item.app_profile else ""
    return f"{sku}, {item.network_mode}, {image}{profile}, project {item.project}"


def _reached(item: Allocation, simulated: Collection[str]) -> Iterator[Row]:
    """Yield the endpoints and ingress rules of an allocation."""
    for endpoint in item.endpoints:
        if endpoint.node_id in simulated:
            yield endpoint.kind, f"no guest to log in to: node {endpoint.node_id} is simulated"
        else:
            yield endpoint.kind, _endpoint(endpoint)
    for each in item.ingress:
        if each.state != "removed":
            yield "ingress", _ingress(each)


def _logins(item: Allocation, simulated: Collection[str]) -> Iterator[Row]:
    """Yield the command with which to log in to each slot of an allocation."""
    for index, slot in enumerate(item.slots):
        if slot.node_id in simulated or not can_log_in(item, index):
            continue
        chosen = f" --slot {index}" if len(item.slots) > 1 else ""
        yield "log in", Text(f"sliceplane ssh {item.id}{chosen}", "bold")


def _condition(condition: Condition, now: datetime | None) -> Text:
    since = "" if condition.since is None else f" ({words.since(condition.since, now)})"
    return Text.assemble((condition.message, "red"), since, (f"  [{condition.code}]", "dim"))


def ingress(item: Ingress) -> Table:
    return page(chain([("ingress", _ingress(item))], actions(item.allowed_actions)))


def _ingress(item: Ingress) -> Text:
    to = "" if item.port is None else f":{item.port}"
    text = Text.assemble(
        words.state(item.state), f"  {_public_side(item)} to {item.slot_id}{to}", ("  " + item.id, "dim")
    )
    if item.sources:
        text.append(f"\nfrom {', '.join(item.sources)} only")
    if item.reason:
        text.append(f"\n{item.reason.message}")
    return text


def _public_side(item: Ingress) -> str:
    """Return the public address of an ingress rule, with protocol and port if it has them."""
    if item.protocol is None:
        return item.public_address
    return f"{item.protocol}/{item.public_address}:{item.public_port}"


def _slots(item: Allocation) -> Text:
    lines = (Text("  ").join(_slot(slot, ended=item.state in _ENDED)) for slot in item.slots)
    return Text("\n").join(lines) if item.slots else Text("-")


def _slot(slot: AllocatedSlot, *, ended: bool) -> list[Text]:
    """Return the text of one slot: its identity and, unless the allocation has ended, its observed state."""
    parts = [Text(slot.slot_id), Text(slot.mac_address or "-"), Text(slot.private_ip or "-")]
    if ended:
        return parts
    if slot.ready:
        parts.append(Text("ready", "green"))
    if slot.lease_state:
        parts.append(Text.assemble("DHCP ", words.state(slot.lease_state)))
    if slot.actual_ip and slot.actual_ip != slot.private_ip:
        parts.append(Text(f"observed at {slot.actual_ip}", "red"))
    return parts


def _endpoint(endpoint: Endpoint) -> Text:
    if endpoint.port is None:
        return Text(endpoint.address)
    where = f"  (on node {endpoint.node_id})" if endpoint.via == "node" else ""
    return Text.assemble(f"{endpoint.address}:{endpoint.port}", (where, "dim"))


def node(item: Node, *, then: bool = False, now: datetime | None = None) -> Table:
    """Return the page of a node. If `then` is true, the page shows a past state and omits the last heartbeat, which is
    unknown.
    """
    return page(_node(item, then=then, now=now))


def _node(item: Node, *, then: bool, now: datetime | None) -> Iterator[Row]:
    yield "node", Text(item.id, "bold")
    yield "state", words.node_state(item.state, item.blocked_by)
    if not then:
        yield "heartbeat", words.since(item.seen_at)
    if item.spooled_reports:
        yield "reports", Text(f"{item.spooled_reports} not delivered yet", "yellow")
    if item.reports_throttled_at:
        first = words.since(item.reports_throttled_at, now)
        yield "throttled", Text(f"the node has exceeded its report budget since {first}", "yellow")
    if item.revoked:
        yield "revoked", Text(item.revoked, "red")
    if item.superseded_at:
        yield (
            "refused",
            Text.assemble(
                ("an agent that ran from a copy of this node's disk", "red"), f", {_copy(item, now)}"
            ),
        )
    if item.key_thumbprint:
        yield "key", item.key_thumbprint
    yield "subnet", item.subnet
    yield "network", _network(item)
    if item.hostname:
        yield "hostname", item.hostname
        yield "agent", f"{item.agent_version or 'unknown'}{' (simulated host)' if item.simulated else ''}"
        yield "images", ", ".join(item.images or ()) or "-"
    yield from _lacking(item)
    for address in item.public_addresses:
        yield "public", _public(address)
    yield from _service(item, now)
    yield from _exclusion(item.excluded, item.failures, now)
    yield from actions(item.allowed_actions)
    yield from _drift((*item.drift, *item.slot_drift), item.id, now)


def _lacking(item: Node) -> Iterator[Row]:
    if item.missing:
        yield "missing", Text("\n".join(item.missing), "red")
    for each in item.unsupported_modes:
        yield "unsupported", Text(f"network mode {each.mode}: {each.reason}", "red")


def _network(item: Node) -> str:
    pool = item.mac_pool
    macs = "derived MACs" if pool is None else f"MACs {pool.first} to {pool.last}"
    return f"bridge {item.bridge or 'unknown'}, L2 domain {item.l2_domain or 'unknown'}, {macs}"


def _service(item: Node, now: datetime | None) -> Iterator[Row]:
    """Yield the cordon of a node, the state of its drain, and the slots that are not empty."""
    if item.cordoned:
        yield "cordoned", Text(item.cordoned, "yellow")
    if item.drain is None:
        return
    yield "drain", _drain(item.drain, now)
    yield from _remaining(item.drain.remaining)


def _remaining(slots: Iterable[RemainingSlot]) -> Iterator[Row]:
    """Yield each slot that is not empty, with its reason."""
    for each in slots:
        message = f"{each.slot_id}: {each.reason.message}"
        yield "remaining", Text.assemble(message, (f"  [{each.reason.code}]", "dim"))


def _drain(drain: Drain, now: datetime | None) -> str:
    if drain.outcome is not None:
        state = f"ended {drain.outcome}"
    elif drain.release_at is None:
        state = "running; it waits until the allocations end by themselves"
    else:
        release = f"{words.clock(drain.release_at)} ({words.until(drain.release_at, now)})"
        state = f"running; allocations are released at {release}"
    return f"{state}; began {words.since(drain.since, now)}: {drain.reason}"


def _exclusion(excluded: Reason | None, failures: Iterable[Failure], now: datetime | None) -> Iterator[Row]:
    """Yield the reason why a node or slot is excluded from placement, and its failed bring-ups."""
    if excluded:
        yield "excluded", Text.assemble((excluded.message, "red"), (f"  [{excluded.code}]", "dim"))
    for each in failures:
        what = f"{each.slot_id}, {words.since(each.failed_at, now)}: {each.reason.message}"
        yield "failed", Text.assemble(what, (f"  [{each.reason.code}]  {each.allocation_id}", "dim"))


def _public(address: PublicAddress) -> str:
    span = "as a whole" if address.use == "whole" else f"ports {address.first_port} to {address.last_port}"
    return f"{address.address}, {span}"


def addresses(item: Node) -> Table:
    """Return the page with only the public addresses of a node."""
    listed = "\n".join(map(_public, item.public_addresses))
    return page(iter([("node", Text(item.id, "bold")), ("public", listed or "none")]))


def _copy(item: Node, now: datetime | None) -> str:
    return f"which presented session {item.superseded_session}, {words.since(item.superseded_at, now)}"


def slot(item: Slot, *, now: datetime | None = None) -> Table:
    return page(_slot_rows(item, now))


def _slot_rows(item: Slot, now: datetime | None) -> Iterator[Row]:
    yield "slot", Text(item.id, "bold")
    yield "state", words.state(item.state)
    if item.reason:
        yield "reason", Text.assemble(item.reason.message, (f"  [{item.reason.code}]", "dim"))
    yield (
        "size",
        f"{item.vcpus or '-'} vCPU, {words.amount(item.memory_mib)}, SKUs {', '.join(item.skus) or '-'}",
    )
    if (approved := item.approved_hardware) is not None:
        size = f"{approved.vcpus} vCPU, {words.amount(approved.memory_mib)}"
        yield (
            "approved",
            f"{size}, PCI functions {', '.join(each.address for each in approved.devices) or '-'}",
        )
    yield "address", f"{item.mac_address or '-'}  {item.private_ip or '-'}"
    if item.numa_node is not None:
        yield "memory", f"of NUMA node {item.numa_node}"
    for device in item.devices:
        yield device.use, _device(device)
        yield from (("", fact) for fact in _device_facts(device))
    yield "allocation", item.allocation_id or "none"
    if item.device_check:
        yield "checked", f"after the release of {item.device_check.allocation_id}"
        yield from (("", _health(each)) for each in item.device_check.devices)
    yield from _exclusion(item.excluded, item.failures, now)
    yield from actions(item.allowed_actions)
    yield from _drift(item.drift, item.id, now)


def _health(device: CheckedDevice) -> Text:
    if device.faults:
        return Text.assemble(f"{device.address}  ", ("; ".join(device.faults), "red"))
    link = "" if device.link_width is None else f", {device.link_width} lanes"
    speed = "" if device.link_mtps is None else f" at {device.link_mtps / 1000:g} GT/s"
    return Text(f"{device.address}  no fault{link}{speed}")


def _device(device: SlotDevice) -> str:
    found = f"{device.number} ({device.kind})" if device.number else "not present"
    what = f"{device.model}, {found}" if device.model else found
    near = "" if device.numa_node is None else f", NUMA node {device.numa_node}"
    return f"{device.address}  {what}{near}{'' if device.granted else ', not approved'}"


def _device_facts(device: SlotDevice) -> Iterator[str]:
    """Yield up to four lines about a PCI function: error, place and identity, physical function, and fabric."""
    if device.unreadable:
        yield f"unreadable: {device.unreadable}"
    facts = (
        ("memory", None if device.memory_mib is None else words.amount(device.memory_mib)),
        ("BAR", None if device.bar_mib is None else words.amount(device.bar_mib)),
        ("root port", device.root_port),
        ("IOMMU group", device.iommu_group),
        ("UUID", device.uuid),
    )
    if placed := ", ".join(f"{name} {value}" for name, value in facts if value is not None):
        yield placed
    if device.physical_function is not None:
        number = "" if device.vf_number is None else f" {device.vf_number}"
        representor = "no representor" if device.representor is None else f"representor {device.representor}"
        yield f"virtual function{number} of {device.physical_function}, {representor}"
    if device.fabric_metadata is not None and (fabric := ", ".join(_fabric_facts(device.fabric_metadata))):
        yield fabric


def _fabric_facts(fabric: FabricMetadata) -> Iterator[str]:
    facts = (
        ("link", fabric.link_layer),
        ("port", fabric.port_state),
        ("physical", fabric.physical_state),
        ("rate", None if fabric.rate_mbit is None else words.rate(fabric.rate_mbit)),
        ("MTU", fabric.mtu),
        ("RDMA", fabric.rdma_device),
        ("GUID", fabric.guid),
        ("MAC", fabric.mac),
    )
    return (f"{name} {value}" for name, value in facts if value is not None)


def _drift(found: Iterable[Drift], shown: str, now: datetime | None) -> Iterator[Row]:
    """Yield the lines about drift on the page of the resource `shown`.

    If drift concerns only a part of the resource (a slot, an ingress rule), its line names the part.
    """
    for each in found:
        part = " ".join(name for name in (each.slot_id, each.ingress_id) if name and name != shown)
        what = Text(each.kind, "red" if each.blocks else "")
        yield "drift", Text.assemble(what, f" of {part}" if part else "", f", {words.since(each.since, now)}")
        yield "", f"desired   {each.desired}\nobserved  {each.observed}"


def registered(item: RegisteredNode) -> Table:
    return page(_registered(item))


def _registered(item: RegisteredNode) -> Iterator[Row]:
    yield "node", Text(item.id, "bold")
    yield "subnet", item.subnet
    yield "token", Text(item.enrolment_token, "bold")
    expiry = f"{words.clock(item.token_expires_at)} ({words.until(item.token_expires_at)})"
    yield "valid", f"the token can be used once, until {expiry}"


def _labels(given: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(given.items()))
