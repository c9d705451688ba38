"""Pages of the usage of slots."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.pages.details import Row, page
from control_plane.cli.pages.tables import nothing, table
from control_plane.client.usage_answers import Usage, UsageEntry


def usage(item: Usage, grouping: str | None) -> RenderableType:
    """Return the page of a total, with the table of its groups if there is a grouping."""
    total = page(_total(item))
    if grouping is None:
        return total
    rows = table(grouping.removeprefix("label:").upper(), "SLOT-SECONDS", "PRICE", "ENTRIES")
    for each in item.groups:
        rows.add_row(each.key or "-", each.amount.slot_seconds, each.amount.price, str(each.entries))
    return Group(total, Text(), rows)


def _total(item: Usage) -> Iterator[Row]:
    yield "from", "the beginning" if item.begin is None else words.clock(item.begin)
    yield "to", f"{words.clock(item.end)}, with the events up to position {item.position}"
    yield "slot-seconds", Text(item.total.slot_seconds, "bold")
    yield "price", Text(item.total.price, "bold")


def entries(items: Iterable[UsageEntry]) -> RenderableType:
    """Return the table of entries. The column EVENTS has the positions of the events, as `sliceplane events list` takes
    them.
    """
    rows = table(
        "ALLOCATION", "PROJECT", "SKU", "PER HOUR", "SLOTS", "FROM", "TO", "SLOT-SECONDS", "PRICE", "EVENTS"
    )
    for item in items:
        end = f"{words.clock(item.ends_at)}{' (running)' if item.running else ''}"
        events = ", ".join(f"{each.position} {each.type}" for each in item.events)
        size = (f"{item.sku} v{item.sku_version}", item.price_per_hour, str(item.slot_count))
        times = (words.clock(item.starts_at), end)
        amount = (item.amount.slot_seconds, item.amount.price)
        rows.add_row(item.allocation_id, item.project, *size, *times, *amount, events)
    return rows if rows.row_count else nothing("no usage", "usage begins when an allocation is active")
