"""Pages of the usage of slots."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.pages.details import Row, page
from control_plane.cli.pages.tables import nothing, table
from control_plane.client.usage_answers import Period, PeriodBill, UnusedPart, Usage, UsageEntry


def usage(item: Usage, grouping: str | None) -> RenderableType:
    """Return the page of a total, with the table of its groups if there is a grouping, and that of the unused parts of
    reservations if there are any.
    """
    parts: list[RenderableType] = [page(_total(item))]
    if grouping is not None:
        parts += [Text(), _groups(item, grouping)]
    if item.unused_reservations:
        parts += [Text(), _unused(item)]
    return Group(*parts)


def _unused(item: Usage) -> RenderableType:
    rows = table("RESERVED BY", "SKU", "UNUSED SLOT-SECONDS")
    for each in item.unused_reservations:
        rows.add_row(each.project, each.sku, each.slot_seconds)
    return rows


def unused(items: Iterable[UnusedPart]) -> RenderableType:
    """Return the table of the unused parts of reservations. The columns BY have the positions of the events."""
    rows = table(
        "PROJECT", "SKU", "FROM", "TO", "RESERVED", "BY", "HELD", "BY", "UNUSED", "UNUSED SLOT-SECONDS"
    )
    for item in items:
        times = (words.clock(item.starts_at), words.clock(item.ends_at))
        held_by = "-" if item.held_by is None else str(item.held_by)
        numbers = (str(item.reserved), str(item.reserved_by), str(item.held), held_by, str(item.slots))
        rows.add_row(item.project, item.sku, *times, *numbers, item.slot_seconds)
    return (
        rows
        if rows.row_count
        else nothing("no unused parts of reservations", "show the reservations: sliceplane reservations list")
    )


def _groups(item: Usage, grouping: str) -> RenderableType:
    rows = table(grouping.removeprefix("label:").upper(), "SLOT-SECONDS", "PRICE", "ENTRIES")
    for each in item.groups:
        rows.add_row(each.key or "-", each.amount.slot_seconds, each.amount.price, str(each.entries))
    return rows


def _total(item: Usage) -> Iterator[Row]:
    if item.period is not None:
        yield "period", item.period
    yield "from", "the beginning" if item.begin is None else words.clock(item.begin)
    yield "to", f"{words.clock(item.end)}, with the events up to position {item.position}"
    yield "slot-seconds", Text(item.total.slot_seconds, "bold")
    yield "price", Text(item.total.price, "bold")


def entries(items: Iterable[UsageEntry]) -> RenderableType:
    """Return the table of entries. The column EVENTS has the positions of the events, as `sliceplane events list` takes
    them.
    """
    rows = table(
        "KIND",
        "ALLOCATION",
        "PROJECT",
        "SKU",
        "PER HOUR",
        "SLOTS",
        "FROM",
        "TO",
        "SLOT-SECONDS",
        "PRICE",
        "EVENTS",
    )
    for item in items:
        end = f"{words.clock(item.ends_at)}{' (running)' if item.running else ''}"
        events = ", ".join(f"{each.position} {each.type}" for each in item.events)
        size = (f"{item.sku} v{item.sku_version}", item.price_per_hour, str(item.slot_count))
        times = (words.clock(item.starts_at), end)
        amount = (item.amount.slot_seconds, item.amount.price)
        rows.add_row(_kind(item), item.allocation_id, item.project, *size, *times, *amount, events)
    return rows if rows.row_count else nothing("no usage", "usage begins when an allocation is active")


def _kind(item: UsageEntry) -> str:
    """Return the kind of a usage entry; for a correction, also the period that it corrects."""
    kind = item.kind.replace("_", "-")
    if item.service_period in (None, item.billing_period):
        return kind
    return f"{kind} of {item.service_period}"


def periods(items: Iterable[Period]) -> RenderableType:
    """Return the table of billing periods."""
    rows = table("PERIOD", "STATE", "FROM", "TO", "THROUGH", "CLOSED")
    for item in items:
        closed = "-" if item.closed_at is None else f"{words.clock(item.closed_at)} by {item.closed_by}"
        through = "-" if item.through is None else str(item.through)
        times = (words.clock(item.starts_at), words.clock(item.ends_at))
        rows.add_row(item.name, words.state(item.state), *times, through, closed)
    return rows


def period(item: PeriodBill) -> RenderableType:
    """Return the page of a billing period with the totals of its bill."""
    return page(_period(item))


def _period(item: PeriodBill) -> Iterator[Row]:
    yield "period", Text(item.name, "bold")
    yield "state", words.state(item.state)
    yield "from", words.clock(item.starts_at)
    yield "to", words.clock(item.ends_at)
    if item.closed_at is not None:
        yield "closed", f"{words.clock(item.closed_at)} by {item.closed_by}, event {item.position}"
        yield "usage", f"with the events up to position {item.through}"
    for name, amount in (("metered", item.metered), ("corrections", item.corrections), ("total", item.total)):
        yield name, f"{amount.slot_seconds} slot-seconds, price {amount.price}"
