"""Pages of read models: the state of each, and the differences between their tables and the replayed ledger."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from control_plane.client.projection_answers import Difference, Projection

_COLOURS: Final = {"live": "green", "rebuilding": "yellow", "stopped": "red"}


def projections(items: Iterable[Projection]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("NAME", "STATE", "POSITION", "TABLES", "NOTES"):
        table.add_column(name, no_wrap=True)
    for item in items:
        notes = Text("; ").join(_notes(item))
        state = Text(item.state, _COLOURS.get(item.state, ""))
        table.add_row(item.name, state, _where(item), ", ".join(item.tables), notes)
    return table


def _where(item: Projection) -> str:
    """Return the position of a read model. A model that each append updates is always at the end of the ledger."""
    if item.inline:
        return f"{item.last_position} (updated by each append)"
    position = item.position or 0
    behind = item.last_position - position
    return str(position) if behind <= 0 else f"{position} ({behind} behind)"


def _notes(item: Projection) -> Iterator[Text]:
    if item.stopped:
        yield Text(f"stopped at position {item.stopped.position}: {item.stopped.error}", "red")
    if item.rebuild and item.rebuild.stopped:
        stop = item.rebuild.stopped
        yield Text(f"the rebuild of this read model stopped at position {stop.position}: {stop.error}", "red")
    elif item.rebuild:
        yield Text(
            f"the rebuild of this read model is at position {item.rebuild.position} of {item.last_position}"
        )
        if item.rebuild.waits_for:
            yield Text(item.rebuild.waits_for, "yellow")
    if item.skipped:
        yield Text(f"skips events at these positions on request: {', '.join(map(str, item.skipped))}")


def differences(items: Iterable[Difference]) -> RenderableType:
    """Return the page of a verification's differences: for each table, a row with its live and its replayed values."""
    return Group(*(part for item in items for part in _difference(item)))


def _difference(item: Difference) -> Iterator[RenderableType]:
    key = ", ".join(f"{name}={_value(value)}" for name, value in item.key.items())
    changed = "  the ledger was changed" if item.kind == "ledger" else ""
    yield Text.assemble(
        (item.table, "bold red"), (changed, "red"), f"  first difference at {key}{_what(item)}"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("COLUMN", no_wrap=True)
    table.add_column("LIVE", overflow="fold")
    table.add_column("REPLAYED", overflow="fold")
    for name in item.columns:
        table.add_row(name, _cell(item.live, name), _cell(item.replayed, name))
    yield Padding(table, (0, 0, 1, 2))


def _what(item: Difference) -> str:
    if item.live is None:
        return ": this row is missing"
    return ": the replayed ledger does not have this row" if item.replayed is None else ""


def _cell(row: dict[str, object] | None, name: str) -> str:
    return "" if row is None else _value(row.get(name))


def _value(value: object) -> str:
    return value if isinstance(value, str) and value else msgspec.json.encode(value).decode()
