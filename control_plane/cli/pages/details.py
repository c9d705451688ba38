"""One thing on a page of its own: what it is, how it stands, and how to use it."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.answers import (
    AllocatedSlot,
    Allocation,
    Drift,
    Endpoint,
    ExpectedNode,
    Ingress,
    Node,
    PublicAddress,
    Slot,
    SlotDevice,
)
from control_plane.cli.pages import words

Row = tuple[str, RenderableType]
_OVER: Final = frozenset({"failed", "released"})
_SSH_PORT: Final = 22
"""RFC 4253."""
# An address goes to one guest after another, each with a host key of its own: a remembered key is another guest's, and
# ssh would refuse to go on.
_NO_KNOWN_HOSTS: Final = "-o UserKnownHostsFile=/dev/null "


def page(rows: Iterator[Row]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def allocation(item: Allocation, *, simulated: Collection[str] = (), now: datetime | None = None) -> Table:
    """`simulated` names the nodes that are, and have no guests to log in to. As of the past ages are counted from then,
    `now`; here and below.
    """
    return page(_allocation(item, simulated, now))


def _allocation(item: Allocation, simulated: Collection[str], now: datetime | None) -> Iterator[Row]:
    yield "allocation", Text(item.id, "bold")
    yield "state", words.state(item.state)
    if item.reason:
        yield "reason", Text.assemble(item.reason.message, (f"  [{item.reason.code}]", "dim"))
    yield "asked for", f"{item.sku}, {item.network_mode}, {item.image}, project {item.project}"
    yield "at", f"{words.clock(item.requested_at)} ({words.since(item.requested_at, now)})"
    if item.labels:
        yield "labels", ", ".join(f"{name}={value}" for name, value in sorted(item.labels.items()))
    yield "slot" if len(item.slots) == 1 else "slots", _slots(item)
    if item.lease and item.state not in _OVER:
        yield (
            "lease",
            f"until {words.clock(item.lease.expires_at)} ({words.until(item.lease.expires_at, now)})",
        )
    for endpoint in item.endpoints:
        if endpoint.node_id in simulated:
            yield endpoint.kind, f"no guest to log in to: node {endpoint.node_id} is simulated"
        else:
            yield endpoint.kind, _endpoint(endpoint)
    for way in item.ingress:
        if way.state != "removed":
            yield "ingress", _ingress(way)
        if item.state == "active" and _is_ssh(way) and _node_of(way.slot_id) not in simulated:
            yield "ssh", _ssh(way.public_address, way.public_port)


def _node_of(slot: str) -> str:
    return slot.rpartition("/")[0]


def _is_ssh(way: Ingress) -> bool:
    return (way.state, way.protocol, way.port) == ("published", "tcp", _SSH_PORT)


def _ssh(address: str, port: int | None, *, remembered: bool = False) -> Text:
    """What to type to log in: every guest takes its keys for root (node_agent/seed.py)."""
    options = "" if remembered else _NO_KNOWN_HOSTS
    named = "" if port == _SSH_PORT else f"-p {port} "
    return Text(f"ssh {options}{named}root@{address}", "bold")


def ingress(way: Ingress) -> Table:
    return page(iter([("ingress", _ingress(way))]))


def _ingress(way: Ingress) -> Text:
    to = "" if way.port is None else f":{way.port}"
    leads = Text.assemble(
        words.state(way.state), f"  {way_in(way)} to {way.slot_id}{to}", ("  " + way.id, "dim")
    )
    if way.sources:
        leads.append(f"\nfrom {', '.join(way.sources)} only")
    if way.reason:
        leads.append(f"\n{way.reason.message}")
    return leads


def way_in(way: Ingress) -> str:
    """Its public side."""
    if way.protocol is None:
        return way.public_address
    return f"{way.protocol}/{way.public_address}:{way.public_port}"


def _slots(item: Allocation) -> Text:
    lines = (Text("  ").join(_slot(slot, over=item.state in _OVER)) for slot in item.slots)
    return Text("\n").join(lines) if item.slots else Text("-")


def _slot(slot: AllocatedSlot, *, over: bool) -> list[Text]:
    """Its identity, and what was seen of it; that says nothing any more once the allocation is over."""
    parts = [Text(slot.slot_id), Text(slot.mac_address or "-"), Text(slot.private_ip or "-")]
    if over:
        return parts
    if slot.ready:
        parts.append(Text("ready", "green"))
    if slot.lease_state:
        parts.append(Text.assemble("DHCP ", words.state(slot.lease_state)))
    if slot.actual_ip and slot.actual_ip != slot.private_ip:
        parts.append(Text(f"seen at {slot.actual_ip}", "red"))
    return parts


def _endpoint(endpoint: Endpoint) -> Text:
    if endpoint.port is None:
        return Text(endpoint.address)
    where = f"  (on node {endpoint.node_id})" if endpoint.via == "node" else ""
    if endpoint.kind != "ssh":
        return Text.assemble(f"{endpoint.address}:{endpoint.port}", (where, "dim"))
    line = _ssh(endpoint.address, endpoint.port, remembered=endpoint.via != "node")
    return Text.assemble(line, (where, "dim"))


def node(item: Node, *, then: bool = False, now: datetime | None = None) -> Table:
    """As of the past, `then`, nobody knows when it was heard of."""
    return page(_node(item, then=then, now=now))


def _node(item: Node, *, then: bool, now: datetime | None) -> Iterator[Row]:
    yield "node", Text(item.id, "bold")
    yield "state", words.node_state(item.state, item.blocked_by)
    if not then:
        yield "heard of", words.since(item.seen_at)
    if item.spooled_reports:
        yield "reports", Text(f"{item.spooled_reports} not delivered yet", "yellow")
    if item.revoked:
        yield "revoked", Text(item.revoked, "red")
    if item.superseded_at:
        yield "refused", Text.assemble(("a copy of its disk", "red"), f", {_copy(item, now)}")
    if item.key_thumbprint:
        yield "key", item.key_thumbprint
    yield "subnet", item.subnet
    if item.hostname:
        yield "hostname", item.hostname
        yield "agent", f"{item.agent_version or 'unknown'}{' (simulated host)' if item.simulated else ''}"
        yield "images", ", ".join(item.images or ()) or "-"
    if item.missing:
        yield "missing", Text("\n".join(item.missing), "red")
    for address in item.public_addresses:
        yield "public", _public(address)
    yield from _drift((*item.drift, *item.slot_drift), item.id, now)


def _public(address: PublicAddress) -> str:
    span = "as a whole" if address.use == "whole" else f"ports {address.first_port} to {address.last_port}"
    return f"{address.address}, {span}"


def addresses(item: Node) -> Table:
    """Its public addresses, and nothing else of a node."""
    told = "\n".join(map(_public, item.public_addresses))
    return page(iter([("node", Text(item.id, "bold")), ("public", told or "none")]))


def _copy(item: Node, now: datetime | None) -> str:
    return f"at session {item.superseded_session}, {words.since(item.superseded_at, now)}"


def slot(item: Slot, *, now: datetime | None = None) -> Table:
    return page(_slot_rows(item, now))


def _slot_rows(item: Slot, now: datetime | None) -> Iterator[Row]:
    yield "slot", Text(item.id, "bold")
    yield "state", words.state(item.state)
    if item.reason:
        yield "reason", Text.assemble(item.reason.message, (f"  [{item.reason.code}]", "dim"))
    yield "size", f"{item.vcpus or '-'} vCPU, {words.amount(item.memory_mib)}, SKU {item.sku or '-'}"
    yield "address", f"{item.mac_address or '-'}  {item.private_ip or '-'}"
    if item.numa_node is not None:
        yield "memory", f"of NUMA node {item.numa_node}"
    for device in item.devices:
        yield device.use, _device(device)
    yield "allocation", item.allocation_id or "none"
    yield from _drift(item.drift, item.id, now)


def _device(device: SlotDevice) -> str:
    what = f"{device.number} ({device.kind})" if device.number else "not there"
    near = "" if device.numa_node is None else f", NUMA node {device.numa_node}"
    return f"{device.address}  {what}{near}{'' if device.granted else ', not approved'}"


def _drift(found: Iterable[Drift], shown: str, now: datetime | None) -> Iterator[Row]:
    """On the page of the thing that is `shown`: what speaks for less than it says for what."""
    for each in found:
        less = " ".join(name for name in (each.slot_id, each.ingress_id) if name and name != shown)
        what = Text(each.kind, "red" if each.blocks else "")
        yield "drift", Text.assemble(what, f" of {less}" if less else "", f", {words.since(each.since, now)}")
        yield "", f"wanted  {each.wanted}\nfound   {each.found}"


def expected(item: ExpectedNode) -> Table:
    return page(_expected(item))


def _expected(item: ExpectedNode) -> Iterator[Row]:
    yield "node", Text(item.id, "bold")
    yield "subnet", item.subnet
    yield "token", Text(item.enrolment_token, "bold")
    yield "valid", f"until {words.clock(item.token_expires_at)} ({words.until(item.token_expires_at)}), once"
