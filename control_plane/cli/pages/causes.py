"""The causes and effects of an event, as a tree."""

from collections.abc import Iterator
from typing import Final

from rich.console import Group
from rich.text import Text

from control_plane.cli.pages import event_line
from control_plane.client.history_answers import Causes

_INDENT: Final = "  "


def tree(found: Causes) -> Group:
    """Return a line for each event: the causes, the first one first, the event itself, marked with an arrow, and its
    effects. Each event is indented below its cause.
    """
    return Group(*_lines(found))


def _lines(found: Causes) -> Iterator[Text]:
    levels: dict[str | None, int] = {}
    for event in [*reversed(found.causes), found.event, *found.effects]:
        level = levels[event.causation_id] + 1 if event.causation_id in levels else 0
        levels[event.id] = level
        mark = "→ " if event is found.event else "  "
        yield Text.assemble(mark, _INDENT * level, event_line.line(event))
    if found.others:
        yield Text("other events with the same correlation id:")
    for event in found.others:
        yield Text.assemble("  ", event_line.line(event))
