"""Page of a previewed placement: the slots, and the reason of every node in groups."""

from collections.abc import Iterator

from rich.console import Group, RenderableType

from control_plane.cli.pages import words
from control_plane.cli.pages.details import Row, page
from control_plane.cli.pages.tables import nothing, table
from control_plane.client.answers import PlacementPreview


def preview(item: PlacementPreview) -> RenderableType:
    several = len({group.sku for group in item.groups}) > 1
    rows = table(*(["SKU"] if several else []), "NODES", "REASON", "MISSING", "FOR EXAMPLE")
    for group in item.groups:
        missing = "-" if group.obstacle == "nothing" else group.obstacle
        own = (str(group.nodes), group.message, missing, group.example)
        rows.add_row(*([group.sku] if several else []), *own)
    groups = rows if rows.row_count else nothing("no nodes", "sliceplane nodes register NODE")
    return Group(page(_result(item)), "", groups)


def _result(item: PlacementPreview) -> Iterator[Row]:
    if item.sku:
        yield "sku", item.sku
    yield "slots", ", ".join(item.slots) or "none: the request would be refused"
    for reason in item.reasons:
        yield "reason", f"{reason.message} [{reason.code}]"
    if item.outlook:
        yield from words.outlook(item.outlook)
