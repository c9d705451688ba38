"""Pages of node tasks: state, progress, result and reason of failure."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.pages.details import Row, actions, page
from control_plane.client.answers import Parked, Task

_SUBJECTS: Final = ("aspect", "kind", "name")
"""Names of the fields that identify a record in a task's result. They are displayed first, although the API sorts
fields by name.
"""


def tasks(items: Iterable[Task]) -> RenderableType:
    table = _table("ID", "KIND", "STATE", "PLACE", "REQUESTED", "NOTES")
    for item in items:
        place, requested = item.slot_id or item.node_id, words.since(item.created_at)
        table.add_row(item.id, item.kind, _state(item), place, requested, Text("; ").join(_notes(item)))
    return table if table.row_count else Text("no tasks")


def _state(item: Task) -> Text:
    return words.state("cancelling" if item.cancelling else item.state)


def _notes(item: Task) -> Iterator[Text]:
    if item.parked:
        yield Text(f"parked: {item.parked.error}", "red")
    if item.reason:
        yield Text(item.reason.message)
    if item.progress:
        yield Text(words.step(item.progress.step, item.progress.number, item.progress.of))
    if item.attempt is not None and item.attempt > 1:
        yield Text(f"attempt {item.attempt}")


def task(item: Task) -> Table:
    return page(_task(item))


def _task(item: Task) -> Iterator[Row]:
    yield "task", Text(item.id, "bold")
    yield "kind", item.kind
    yield "state", _state(item)
    if item.reason:
        yield "reason", Text.assemble(item.reason.message, (f"  [{item.reason.code}]", "dim"))
    if item.parked:
        yield "parked", Text(f"{item.parked.error} (since {words.clock(item.parked.since)})", "red")
    yield "place", f"slot {item.slot_id}" if item.slot_id else f"node {item.node_id}"
    if item.allocation_id:
        yield "allocation", item.allocation_id
    yield "at", f"{words.clock(item.created_at)} ({words.since(item.created_at)})"
    yield "sent", _sent(item)
    if item.progress:
        step = words.step(item.progress.step, item.progress.number, item.progress.of)
        yield "progress", f"{step}, {words.since(item.progress.at)}"
    if item.ended_at:
        yield "ended", f"{words.clock(item.ended_at)} ({words.since(item.ended_at)})"
    yield from _result(item)
    yield from actions(item.allowed_actions)


def _sent(item: Task) -> str:
    if not item.sends:
        return "not yet"
    fetched = "" if item.deliveries is None else f", fetched {_times(item.deliveries)}"
    attempt = "" if item.attempt is None else f", attempt {item.attempt}"
    return f"{_times(item.sends)}{fetched}{attempt}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _result(item: Task) -> Iterator[Row]:
    """Yield a row for each field of a task's result. The function works for any kind of task, also for new kinds."""
    for name, value in (item.result or {}).items():
        if name != "kind":
            yield name.replace("_", " "), _formatted(value)


def _formatted(value: object) -> str:
    match value:
        case [dict(), *_]:
            return "\n".join(_record(each) for each in value)
        case []:
            return "none"
        case [*several]:
            return ", ".join(map(str, several))
        case None:
            return "-"
        case str() | int():
            return _plain(value)
        case _:
            return msgspec.json.encode(value).decode()


def _record(record: object) -> str:
    assert isinstance(record, dict), "all items of a list in the API have the same type"
    fields = sorted(record.items(), key=_rank)
    return "  ".join(_part(value) for _, value in fields if value not in (None, []))


def _rank(field: tuple[str, object]) -> int:
    """Return the sort key of a field of a record in a task's result.

    Fields that identify the record come first, and fields that contain records, which are put on lines of their own,
    come last.
    """
    match field:
        case name, _ if name in _SUBJECTS:
            return 0
        case _, [dict(), *_]:
            return 2
        case _:
            return 1


def _part(value: object) -> str:
    """Format a field of a record in a task's result; records inside the field are put on separate lines."""
    match value:
        case [dict(), *_]:
            return "".join(f"\n    {_record(each)}" for each in value)
        case [*several]:
            return ", ".join(map(str, several))
        case _:
            return _plain(value)


def _plain(value: object) -> str:
    return {True: "ok", False: "NOT OK"}[value] if isinstance(value, bool) else str(value)


def parked(items: Iterable[Parked]) -> RenderableType:
    table = _table("STREAM", "PARKED", "NEXT RETRY", "ERROR")
    for item in items:
        retry = "-" if item.next_look_at is None else words.until(item.next_look_at)
        table.add_row(item.stream, words.since(item.since), retry, Text(item.error, "red"))
    return table if table.row_count else Text("no parked streams")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table
