"""Pages of the past: the state of a resource at a position, and the changes between two positions."""

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.holdings import Holdings
from control_plane.cli.pages import details, fields, words
from control_plane.cli.pages.tables import table
from control_plane.client.answers import Allocation, Node, Slot, decode
from control_plane.client.history_answers import (
    Change,
    Changes,
    Field,
    History,
    Holder,
    Holders,
    Kind,
    Place,
    Value,
)


def history(
    item: History,
    held: Iterable[Holdings] = (),
    now: datetime | None = None,
    requested: datetime | None = None,
) -> RenderableType:
    """Return the page of a resource's past state, with the allocations that had it. Ages are relative to `now`, the
    time of that state; None: the state is that of the present. `requested` is the time for which the state was
    requested; None: the present or a position.
    """
    heading = Text(f"as of {_place(item.at)}" if requested is None else _as_of(requested, item.at), "dim")
    if _is_null(item.state):
        return Group(heading, Text.assemble((f"{item.kind} {item.name}", "bold"), " did not exist yet"))
    return Group(heading, _state(item.kind, item.state, now), *(_held(each, now) for each in held))


def _held(item: Holdings, now: datetime | None) -> RenderableType:
    """Return the section of the page with the table of the allocations that had a slot, newest first."""
    heading = Text(f"\nallocations of slot {item.slot}, newest first", "bold")
    rows = table("ALLOCATION", "PROJECT", "REQUESTED BY", "FROM", "UNTIL", "STATE NOW", "WHY IT ENDED")
    for each in item.newest:
        its = each.allocation
        rows.add_row(
            Text(each.name, "bold" if each.is_current else ""),
            its.project if its else "-",
            each.requested_by,
            words.clock(each.begin),
            words.clock(each.end) if each.end else "-",
            words.allocation_state(its) if its else "-",
            each.why,
        )
    none = "no allocation has the slot now" if now is None else "no allocation had the slot at that time"
    parts: list[RenderableType] = [*([] if item.is_held else [Text(none)]), *([rows] if item.newest else [])]
    return Group(heading, *parts)


def _is_null(state: msgspec.Raw) -> bool:
    return bytes(state) == b"null"


def _place(place: Place) -> str:
    if place.time is None:
        return f"position {place.position}, which is before the first event of the ledger"
    return f"position {place.position}, last event recorded {_clock(place.time)}"


def _as_of(requested: datetime, place: Place) -> str:
    # The age of the event is omitted: ages on the page are relative to the requested time.
    until = f", last event recorded {words.clock(place.time)}" if place.time else ""
    return f"as of {words.clock(requested)} (position {place.position}{until})"


def _clock(moment: datetime) -> str:
    return f"{words.clock(moment)} ({words.since(moment)})"


def _state(kind: Kind, state: msgspec.Raw, now: datetime | None) -> RenderableType:
    match kind:
        case Kind.ALLOCATION:
            return details.allocation(decode(state, Allocation), now=now)
        case Kind.NODE:
            return details.node(decode(state, Node), then=True, now=now)
        case Kind.SLOT:
            return details.slot(decode(state, Slot), now=now)
        case Kind.ADDRESS | Kind.INGRESS | Kind.DEVICE:
            return _holders(decode(state, Holders))


def _holders(item: Holders) -> RenderableType:
    if not item.holders:
        return Text("no slot or ingress rule held this resource at this position")
    return Group(*(details.page(_holder(holder)) for holder in item.holders))


def _holder(holder: Holder) -> Iterator[details.Row]:
    yield holder.kind, Text(holder.value, "bold")
    yield "held by", f"{holder.stream} since position {holder.since}"
    if holder.slot:
        yield "slot", Text.assemble(holder.slot.id, "  ", words.state(holder.slot.state))
    if tenant := holder.allocation:
        yield "allocation", f"{tenant.id}, project {tenant.project}"
        yield "requested", f"{words.clock(tenant.requested_at)} by {tenant.requested_by}"
    elif holder.slot:
        yield "allocation", "none"


def changes(item: Changes) -> RenderableType:
    parts: list[RenderableType] = [
        Text(f"{item.kind} {item.name}", "bold"),
        Text(f"from  {_place(item.since)}", "dim"),
        Text(f"to    {_place(item.to)}", "dim"),
    ]
    if not item.changes:
        return Group(*parts, Text(), Text("no events in this range"))
    for change in item.changes:
        parts += [Text(), _heading(change), _fields(change.fields)]
    # The net change is omitted if the list is incomplete, and for a new resource, where it would be the whole state.
    if len(item.changes) > 1 and item.next_from is None and not _is_null(item.before):
        parts += [Text(), Text("net change", "bold"), _fields(tuple(_net(item.changes)))]
    return Group(*parts)


def _heading(change: Change) -> Text:
    return Text.assemble(
        (f"{change.position:>6}  {words.instant(change.time)}  ", "dim"),
        (change.type, "bold"),
        f"  by {change.actor}",
        (f"  ({change.reason})", "dim"),
    )


def _fields(changed: tuple[Field, ...]) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for style in ("dim", "", "dim", ""):
        table.add_column(style=style, no_wrap=True)
    for field in changed:
        if (name := fields.name(field.path)) is not None:
            before, after = fields.value(field.path, field.before), fields.value(field.path, field.after)
            table.add_row(f"        {name}", before, "→", after)
    return table if table.row_count else Text("        no displayed field changed", "dim")


def _net(steps: Iterable[Change]) -> Iterator[Field]:
    """Yield the net change of each field of a resource: its first and its last value, if they differ."""
    first: dict[str, Value] = {}
    last: dict[str, Value] = {}
    for field in (field for step in steps for field in step.fields):
        first.setdefault(field.path, field.before)
        last[field.path] = field.after
    for path, before in first.items():
        if last[path] != before:
            yield Field(path, before, last[path])
