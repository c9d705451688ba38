"""Progress of rebuilds and verifications through the ledger: bars on a terminal, a line every few seconds elsewhere.

The displayed rate is measured over the last polls. It counts ledger positions, of which nearly all are events. Bars are
drawn on stderr and removed afterwards; one line remains for each item that is complete.
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
"""Minimum number of terminal columns for a bar."""


class Advancing(Protocol):
    """Progress display of named items. `at` updates the ledger position of an item, `arrived` completes the item."""

    def at(self, name: str, position: int, last: int) -> None: ...

    def arrived(self, name: str, last: int, how: str) -> None: ...


@contextmanager
def advancing(screen: Screen, what: str) -> Iterator[Advancing]:
    """Provide the progress display while the `with` block runs: bars on a terminal, lines elsewhere, nothing in formats
    for programs.

    `what` is the activity, such as "rebuilding".
    """
    if screen.machine:
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
    """A progress bar for each item, redrawn by Rich's thread."""

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress, self._what = progress, what
        self._tasks: dict[str, TaskID] = {}
        self._began = time.monotonic()

    def at(self, name: str, position: int, last: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(f"{self._what} {name}", total=last, name=name)
        self._progress.update(self._tasks[name], completed=position, total=last)

    def arrived(self, name: str, last: int, how: str) -> None:
        if name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))
        self._progress.console.print(_arrival(name, last, how, time.monotonic() - self._began))


class Lines:
    """Progress display for logs and pipes: a line of text for each item every few seconds."""

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what = console, what
        self._printed: dict[str, tuple[float, int]] = {}
        self._began = time.monotonic()

    def at(self, name: str, position: int, last: int) -> None:
        now = time.monotonic()
        then, before = self._printed.setdefault(name, (now, position))
        if now - then < _LINE_SECONDS or position <= before:
            return
        self._printed[name] = now, position
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
        return "waiting to start"
    return f"{position:,} of {last:,}"


def _arrival(name: str, last: int, how: str, seconds: float) -> Text:
    rate = f", {last / seconds:,.0f} events/s" if seconds >= 1 else ""
    return Text.assemble(f"{name} ", (how, "green"), (f" in {words.span(seconds)}{rate}", "dim"))
