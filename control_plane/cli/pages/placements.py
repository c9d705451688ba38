"""Pages of a previewed and of a past placement: the slots, and the reason of every node in groups."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType

from control_plane.cli.pages import words
from control_plane.cli.pages.details import Row, page
from control_plane.cli.pages.tables import nothing, table
from control_plane.client.answers import NodeGroup, Placement, PlacementPreview

_ORDERS: Final = {
    "pack": "the suitable node with the fewest free slots",
    "spread": "the suitable node with the most free slots",
}


def preview(item: PlacementPreview) -> RenderableType:
    return Group(page(_result(item)), "", _groups(item.groups))


def placement(item: Placement) -> RenderableType:
    return Group(page(_chosen(item)), "", _groups(item.groups))


def _groups(groups: Sequence[NodeGroup]) -> RenderableType:
    several = len({group.sku for group in groups}) > 1
    rows = table(*(["SKU"] if several else []), "NODES", "REASON", "OBSTACLE", "FOR EXAMPLE")
    for group in groups:
        obstacle = {"nothing": "-", "use": "in use"}.get(group.obstacle, group.obstacle)
        own = (str(group.nodes), group.message, obstacle, group.example)
        rows.add_row(*([group.sku] if several else []), *own)
    return rows if rows.row_count else nothing("no nodes", "sliceplane nodes register NODE")


def _chosen(item: Placement) -> Iterator[Row]:
    yield "allocation", item.allocation_id
    yield "sku", item.sku
    yield "slots", ", ".join(item.slots)
    yield "placed", f"{words.clock(item.placed_at)}, after position {item.position}"
    if item.attempt > 1:
        yield "attempt", f"{item.attempt}: the slices could not be brought up on the node before"
    yield "chosen", _ORDERS.get(item.order, item.order)
    yield (
        "note",
        "heartbeats, agents, public addresses and reservations of the past are not known",
    )


def _result(item: PlacementPreview) -> Iterator[Row]:
    if item.sku:
        yield "sku", item.sku
    yield "slots", ", ".join(item.slots) or "none: the request would be refused"
    for reason in item.reasons:
        yield "reason", f"{reason.message} [{reason.code}]"
    if item.outlook:
        yield from words.outlook(item.outlook)
