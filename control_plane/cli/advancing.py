"""How far things are on their way through the log, and how fast: bars on a terminal, now and then a line elsewhere.

The rate is that of the last looks, counted in positions, nearly all of which are events. What is drawn goes to
stderr and is gone afterwards; what stays is one line for each thing that arrived.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.screen import Screen

_LINE_SECONDS: Final = 2.0
_WIDE: Final = 80
"""Columns; on fewer there is no room for a bar."""


class Advancing(Protocol):
    """Is told where each thing is, and when one has arrived."""

    def at(self, name: str, position: int, last: int) -> None: ...

    def arrived(self, name: str, last: int, how: str) -> None: ...


@contextmanager
def advancing(screen: Screen, what: str) -> Iterator[Advancing]:
    """What fits the screen, for as long as the block lasts. `what` is done to each of the things."""
    if screen.json:
        yield Silence()
    elif screen.lively:
        with _bars(screen.err) as bars:
            yield Bars(bars, what)
    else:
        yield Lines(screen.err, what)


class Silence:
    def at(self, name: str, position: int, last: int) -> None:
        pass

    def arrived(self, name: str, last: int, how: str) -> None:
        pass


class Bars:
    """A line for each thing, redrawn by Rich's thread."""

    def __init__(self, drawn: Progress, what: str) -> None:
        self._drawn, self._what = drawn, what
        self._tasks: dict[str, TaskID] = {}
        self._began = time.monotonic()

    def at(self, name: str, position: int, last: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._drawn.add_task(f"{self._what} {name}", total=last, name=name)
        self._drawn.update(self._tasks[name], completed=position, total=last)

    def arrived(self, name: str, last: int, how: str) -> None:
        if name in self._tasks:
            self._drawn.remove_task(self._tasks.pop(name))
        self._drawn.console.print(_arrival(name, last, how, time.monotonic() - self._began))


class Lines:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what = console, what
        self._told: dict[str, tuple[float, int]] = {}
        self._began = time.monotonic()

    def at(self, name: str, position: int, last: int) -> None:
        now = time.monotonic()
        then, before = self._told.setdefault(name, (now, position))
        if now - then < _LINE_SECONDS or position <= before:
            return
        self._told[name] = now, position
        rate = f"{(position - before) / (now - then):,.0f} events/s"
        self._console.print(f"{self._what} {name}: {_share(position, last)}, {rate}")

    def arrived(self, name: str, last: int, how: str) -> None:
        self._console.print(_arrival(name, last, how, time.monotonic() - self._began))


def _bars(console: Console) -> Progress:
    wide = (TextColumn("{task.description}"), BarColumn(None, complete_style="cyan"), _Where(), _Rate())
    narrow = (TextColumn("{task.fields[name]}"), TextColumn("{task.percentage:.0f} %"), _Rate())
    return Progress(
        SpinnerColumn(style="cyan"),
        *(wide if console.width >= _WIDE else narrow),
        console=console,
        transient=True,
        expand=console.width >= _WIDE,
        redirect_stdout=False,
        redirect_stderr=False,
        speed_estimate_period=10,
    )


class _Where(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_share(int(task.completed), int(task.total or 0)), no_wrap=True)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} events/s", "dim", no_wrap=True)


def _share(position: int, last: int) -> str:
    if not last:
        return "waiting for its turn"
    return f"{position:,} of {last:,}"


def _arrival(name: str, last: int, how: str, seconds: float) -> Text:
    rate = f", {last / seconds:,.0f} events/s" if seconds >= 1 else ""
    return Text.assemble(f"{name} ", (how, "green"), (f" in {words.span(seconds)}{rate}", "dim"))
