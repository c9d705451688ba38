"""The page of `events causes`: each event is indented below its cause."""

from datetime import UTC, datetime

from rich.console import Console

from control_plane.cli.pages.causes import tree
from control_plane.client.answers import Event
from control_plane.client.history_answers import Causes


def event(name: str, cause: str | None) -> Event:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    return Event(
        position=int(name), stream="node-n1", type="node.cordoned", recorded_at=at, actor="key:a", data={}, version=1,
        id=name, causation_id=cause,
    )  # fmt: skip


def test_tree_marks_the_event_and_indents_each_event_below_its_cause() -> None:
    found = Causes(
        event=event("3", "2"),
        causes=[event("2", "1"), event("1", None)],
        effects=[event("4", "3"), event("5", "4"), event("6", "3")],
        others=[event("7", None)],
        complete=True,
    )
    console = Console(width=200, record=True, file=None)
    with console.capture() as capture:
        console.print(tree(found))
    lines = capture.get().splitlines()
    indents = {
        line.strip(" →").split()[0]: len(line) - len(line.lstrip(" →")) for line in lines if "node." in line
    }
    base = indents["1"]
    assert {name: indent - base for name, indent in indents.items()} == {
        "1": 0, "2": 2, "3": 4, "4": 6, "5": 8, "6": 6, "7": 0,
    }  # fmt: skip
    assert [line[0] for line in lines if "node." in line].count("→") == 1
