"""The past on the screen: how something stood, and what changed it, step by step and altogether."""

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.answers import Allocation, Node, Slot, decode
from control_plane.cli.pages import details, fields, words
from control_plane.cli.pasts import Change, Changes, Field, History, Holder, Holders, Kind, Place, Value


def history(item: History, now: datetime | None = None) -> RenderableType:
    """Ages in what was true are counted from then, `now`."""
    heading = Text.assemble("as of ", _place(item.at), style="dim")
    if _is_null(item.state):
        return Group(heading, Text.assemble((f"{item.kind} {item.name}", "bold"), " was not there yet"))
    return Group(heading, _state(item.kind, item.state, now))


def _is_null(state: msgspec.Raw) -> bool:
    return bytes(state) == b"null"


def _place(place: Place) -> str:
    when = "before the first event" if place.time is None else _clock(place.time)
    return f"position {place.position}, {when}"


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
        case Kind.ADDRESS | Kind.MAPPING | Kind.DEVICE:
            return _holders(decode(state, Holders))


def _holders(item: Holders) -> RenderableType:
    if not item.holders:
        return Text("nobody held it")
    return Group(*(details.page(_holder(holder)) for holder in item.holders))


def _holder(holder: Holder) -> Iterator[details.Row]:
    yield holder.kind, Text(holder.value, "bold")
    yield "held by", f"{holder.stream} since position {holder.since}"
    if holder.slot:
        yield "slot", Text.assemble(holder.slot.id, "  ", words.state(holder.slot.state))
    if tenant := holder.allocation:
        yield "allocation", f"{tenant.id}, project {tenant.project}"
        yield "asked for", f"{words.clock(tenant.requested_at)} by {tenant.requested_by}"
    elif holder.slot:
        yield "allocation", "none"


def changes(item: Changes) -> RenderableType:
    parts: list[RenderableType] = [
        Text(f"{item.kind} {item.name}", "bold"),
        Text(f"from  {_place(item.since)}", "dim"),
        Text(f"to    {_place(item.to)}", "dim"),
    ]
    if not item.changes:
        return Group(*parts, Text(), Text("nothing happened to it in between"))
    for change in item.changes:
        parts += [Text(), _heading(change), _fields(change.fields)]
    # What is told in part has no sum yet, and of what was not there before the sum is how it stands.
    if len(item.changes) > 1 and item.next_from is None and not _is_null(item.before):
        parts += [Text(), Text("altogether", "bold"), _fields(tuple(_net(item.changes)))]
    return Group(*parts)


def _heading(change: Change) -> Text:
    return Text.assemble(
        (f"{change.position:>6}  {words.instant(change.time)}  ", "dim"),
        (change.type, "bold"),
        f"  by {change.actor}",
        (f"  ({change.why})", "dim"),
    )


def _fields(changed: tuple[Field, ...]) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for style in ("dim", "", "dim", ""):
        table.add_column(style=style, no_wrap=True)
    for field in changed:
        if (name := fields.name(field.path)) is not None:
            before, after = fields.value(field.path, field.before), fields.value(field.path, field.after)
            table.add_row(f"        {name}", before, "→", after)
    return table if table.row_count else Text("        nothing that is shown changed", "dim")


def _net(steps: Iterable[Change]) -> Iterator[Field]:
    """The first value of each field and its last, where they differ."""
    first: dict[str, Value] = {}
    last: dict[str, Value] = {}
    for field in (field for step in steps for field in step.fields):
        first.setdefault(field.path, field.before)
        last[field.path] = field.after
    for path, before in first.items():
        if last[path] != before:
            yield Field(path, before, last[path])
