"""One thing on a page of its own: what it is, how it stands, and how to use it."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.answers import (
    AllocatedSlot,
    Allocation,
    Condition,
    Drift,
    Endpoint,
    ExpectedNode,
    Failure,
    Ingress,
    Node,
    PublicAddress,
    Reason,
    Slot,
    SlotDevice,
)
from control_plane.cli.pages import words
from control_plane.cli.ssh import can_log_in

Row = tuple[str, RenderableType]
_OVER: Final = frozenset({"failed", "released"})


def page(rows: Iterator[Row]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def allocation(
    item: Allocation,
    *,
    simulated: Collection[str] = (),
    drift: Iterable[Drift] = (),
    now: datetime | None = None,
) -> Table:
    """`simulated` names the nodes that are, and have no guests to log in to; of `drift` that of its slots is shown. As
    of the past ages are counted from then, `now`; here and below.
    """
    slots = {slot.slot_id for slot in item.slots}
    own = [each for each in drift if each.slot_id in slots]
    return page(chain(_allocation(item, simulated, now), _drift(own, "", now)))


def _allocation(item: Allocation, simulated: Collection[str], now: datetime | None) -> Iterator[Row]:
    yield "allocation", Text(item.id, "bold")
    yield "state", words.allocation_state(item.state, {each.code for each in item.conditions or ()})
    if item.reason:
        yield "reason", Text.assemble(item.reason.message, (f"  [{item.reason.code}]", "dim"))
    for condition in item.conditions or ():
        yield "condition", _condition(condition, now)
    yield "asked for", f"{item.sku}, {item.network_mode}, {item.image}, project {item.project}"
    yield "at", f"{words.clock(item.requested_at)} ({words.since(item.requested_at, now)})"
    if item.labels:
        yield "labels", ", ".join(f"{name}={value}" for name, value in sorted(item.labels.items()))
    yield "slot" if len(item.slots) == 1 else "slots", _slots(item)
    if item.replaced:
        why = f"{', '.join(item.replaced.vacated)}, where its bring-up failed: {item.replaced.reason.message}"
        yield "before", Text.assemble(why, (f"  [{item.replaced.reason.code}]", "dim"))
    if item.lease and item.state not in _OVER:
        yield (
            "lease",
            f"until {words.clock(item.lease.expires_at)} ({words.until(item.lease.expires_at, now)})",
        )
    yield from _reached(item, simulated)
    if now is None:  # nothing of the past can be logged in to
        yield from _logins(item, simulated)


def _reached(item: Allocation, simulated: Collection[str]) -> Iterator[Row]:
    """Its endpoints and ingress rules."""
    for endpoint in item.endpoints:
        if endpoint.node_id in simulated:
            yield endpoint.kind, f"no guest to log in to: node {endpoint.node_id} is simulated"
        else:
            yield endpoint.kind, _endpoint(endpoint)
    for way in item.ingress:
        if way.state != "removed":
            yield "ingress", _ingress(way)


def _logins(item: Allocation, simulated: Collection[str]) -> Iterator[Row]:
    """What to type to log in to each of its slots."""
    for index, slot in enumerate(item.slots):
        if slot.node_id in simulated or not can_log_in(item, index):
            continue
        chosen = f" --slot {index}" if len(item.slots) > 1 else ""
        yield "log in", Text(f"sliceplane ssh {item.id}{chosen}", "bold")


def _condition(condition: Condition, now: datetime | None) -> Text:
    since = "" if condition.since is None else f" ({words.since(condition.since, now)})"
    return Text.assemble((condition.message, "red"), since, (f"  [{condition.code}]", "dim"))


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
    return Text.assemble(f"{endpoint.address}:{endpoint.port}", (where, "dim"))


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
    if item.reports_throttled_at:
        first = words.since(item.reports_throttled_at, now)
        yield "throttled", Text(f"its reports exceed their budget, first {first}", "yellow")
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
    yield from _exclusion(item.excluded, item.failures, now)
    yield from _drift((*item.drift, *item.slot_drift), item.id, now)


def _exclusion(excluded: Reason | None, failures: Iterable[Failure], now: datetime | None) -> Iterator[Row]:
    """Why nothing is placed there after failed bring-ups, and the evidence."""
    if excluded:
        yield "excluded", Text.assemble((excluded.message, "red"), (f"  [{excluded.code}]", "dim"))
    for each in failures:
        what = f"{each.slot_id}, {words.since(each.failed_at, now)}: {each.reason.message}"
        yield "failed", Text.assemble(what, (f"  [{each.reason.code}]  {each.allocation_id}", "dim"))


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
    yield from _exclusion(item.excluded, item.failures, now)
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
