"""Tables of lists: plain columns without lines, so that they can be copied as text."""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.client.answers import Allocation, Drift, Node, Slot


def table(*columns: str) -> Table:
    """Return an empty table with these columns."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        made.add_column(name, no_wrap=True)
    return made


def allocations(items: Iterable[Allocation], now: datetime | None = None) -> RenderableType:
    """Return the table of allocations. Ages are relative to `now`, for a past state the time of that state; this holds
    for all functions of this module.
    """
    rows = table("ID", "STATE", "SKU", "SLOTS", "ADDRESS", "PROJECT", "REQUESTED")
    for item in items:
        slots = ", ".join(slot.slot_id for slot in item.slots)
        addresses = ", ".join(slot.private_ip or "-" for slot in item.slots)
        requested = words.since(item.requested_at, now)
        state = words.allocation_state(item)
        rows.add_row(item.id, state, item.sku, slots, addresses, item.project, requested)
    return rows if rows.row_count else nothing("no allocations", "sliceplane allocations create --sku SKU")


def slots(items: Iterable[Slot]) -> RenderableType:
    rows = table("ID", "STATE", "SKU", "SIZE", "MAC", "ADDRESS", "ALLOCATION", "REASON")
    for item in items:
        size = f"{item.vcpus or '-'} vCPU, {words.amount(item.memory_mib)}{_devices(item)}"
        named = (item.mac_address or "-", item.private_ip or "-", item.allocation_id or "-")
        reason = "; ".join(each.message for each in (item.reason, item.excluded) if each)
        rows.add_row(item.id, _slot_state(item), ", ".join(item.skus) or "-", size, *named, reason)
    return (
        rows
        if rows.row_count
        else nothing(
            "no slots", "slots are reported by enrolled nodes; list the nodes: sliceplane nodes list"
        )
    )


def _devices(item: Slot) -> str:
    """Return how many PCI functions a slot has of each use, such as `gpu`, as text for a table cell."""
    counted = Counter(device.use for device in item.devices)
    return "".join(f", {number} {use}" for use, number in counted.items())


def _slot_state(item: Slot) -> Text:
    state = words.slot_state(item.state, item.blocked_by)
    other_drift = [each for each in item.drift if item.state != "free" or each.kind != item.blocked_by]
    return Text.assemble(state, (", drift", "red")) if other_drift else state


def nodes(items: Iterable[Node], *, then: bool = False, filtered: bool = False) -> RenderableType:
    """Return the table of nodes. If `then` is true, it shows a past state and omits heartbeats, which are unknown.
    `filtered` is whether the list has filters, so that there can be further nodes.
    """
    rows = table("ID", "STATE", "SUBNET", "KIND", "AGENT", "HEARTBEAT", "MISSING")
    for item in items:
        kind = {True: "simulated", False: "host", None: "-"}[item.simulated]
        heartbeat = "-" if then else words.since(item.seen_at)
        state, missing = words.node_state(item.state, item.blocked_by), ", ".join(item.missing or ())
        rows.add_row(item.id, state, item.subnet, kind, item.agent_version or "-", heartbeat, missing)
    if rows.row_count:
        return rows
    if filtered:
        return nothing("no nodes match the filters", "list all nodes: sliceplane nodes list")
    return nothing("no nodes", "register a node: sliceplane nodes register NODE")


def drift(items: Iterable[Drift], now: datetime | None = None) -> RenderableType:
    rows = table("WHERE", "SCOPE", "KIND", "PLACEMENT", "SINCE")
    rows.add_column("DESIRED")
    rows.add_column("OBSERVED")
    for item in items:
        placement = Text("blocked", "red") if item.blocks else Text("-")
        where = " ".join(name for name in (item.slot_id or item.node_id, item.ingress_id) if name)
        evidence = (item.kind, placement, words.since(item.since, now), item.desired, item.observed)
        rows.add_row(where, item.scope or "-", *evidence)
    return rows if rows.row_count else Text("no drift", "green")


def nothing(what: str, hint: str) -> Text:
    return Text.assemble(what, ("  > ", "cyan"), hint)
