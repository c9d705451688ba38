"""Pages of the capacity of the fleet."""

from collections.abc import Iterable

from rich.console import RenderableType

from control_plane.cli.pages import words
from control_plane.cli.pages.tables import nothing, table
from control_plane.client.capacity_answers import (
    Capacity,
    CapacityHistory,
    CapacityReport,
    NodeCapacity,
    Numbers,
)

_STATUSES = ("FREE", "CLAIMED", "QUARANTINED", "BLOCKED")


def skus(item: CapacityReport) -> RenderableType:
    """Return the table of SKUs. The column FITS is `-` where it is not known."""
    rows = table("SKU", "FITS", *_STATUSES)
    for each in item.skus:
        rows.add_row(each.sku, "-" if each.fits is None else str(each.fits), *_numbers(each))
    return rows if rows.row_count else nothing("no SKUs", "sliceplane skus publish SKU")


def nodes(items: Iterable[NodeCapacity]) -> RenderableType:
    """Return the table with one row for each SKU of each node."""
    rows = table("NODE", "SKU", *_STATUSES)
    for item in items:
        for each in item.skus:
            rows.add_row(item.node_id, each.sku, *_numbers(each))
    return rows if rows.row_count else nothing("no approved slots", "sliceplane slots approve SLOT")


def history(item: CapacityHistory, sku: str | None) -> RenderableType:
    """Return the table with one row for each point and SKU; with `sku`, only of this SKU."""
    rows = table("TIME", "SKU", *_STATUSES)
    for point in item.points:
        for each in point.skus:
            if sku in (None, each.sku):
                rows.add_row(words.clock(point.at), each.sku, *_numbers(each))
    return rows if rows.row_count else nothing("no slots in this range", "sliceplane capacity")


def _numbers(each: Capacity | Numbers) -> tuple[str, ...]:
    return (str(each.free), str(each.claimed), str(each.quarantined), str(each.blocked))
