"""Progress display of the wait for an allocation: an animated line on a terminal, plain lines elsewhere.

Durations of past states are computed from ledger times; that of the current state runs on the local clock from when its
event arrived. The line is written to stderr and removed afterwards, so that stdout contains only the result.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.pages.event_line import gist
from control_plane.cli.screen import Screen
from control_plane.client.answers import Condition, Step
from control_plane.client.errors import SliceplaneError
from control_plane.client.timeline import Timeline


class Progress(Protocol):
    """Display of the progress of one allocation."""

    def update(self, timeline: Timeline) -> None: ...

    def step(self, step: Step) -> None: ...

    def lost(self, lost: SliceplaneError) -> None: ...

    def back(self) -> None: ...

    def conditions(self, found: Sequence[Condition]) -> None:
        """Show the present conditions of the allocation, such as a node that does not respond."""
        ...


@contextmanager
def shown(screen: Screen, timeline: Timeline) -> Iterator[Progress]:
    """Provide the progress display while the `with` block runs: a live line on a terminal, plain lines elsewhere,
    nothing in formats for programs.
    """
    if screen.machine:
        yield Silence()
    elif screen.lively:
        line = LiveLine(timeline)
        # With redirection, Rich would write the command's result to stderr together with the line.
        with Live(
            line,
            console=screen.err,
            refresh_per_second=10,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield line
        screen.err.print(_summary(line.timeline))
    else:
        yield PlainLines(screen.err)


class Silence:
    def update(self, timeline: Timeline) -> None:
        pass

    def step(self, step: Step) -> None:
        pass

    def lost(self, lost: SliceplaneError) -> None:
        pass

    def back(self) -> None:
        pass

    def conditions(self, found: Sequence[Condition]) -> None:
        pass


class LiveLine:
    """Progress line that Rich's thread redraws ten times a second from the state that `update` stores."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self._lost = False
        self._conditions: Sequence[Condition] = ()
        self._step: Step | None = None
        self._began = self._news = time.monotonic()
        self._spinner = Spinner("dots")

    def update(self, timeline: Timeline) -> None:
        if timeline.state != self.timeline.state:
            self._news = time.monotonic()
            self._step = None
        self.timeline = timeline

    def step(self, step: Step) -> None:
        self._step = step

    def lost(self, lost: SliceplaneError) -> None:
        self._lost = True

    def back(self) -> None:
        self._lost = False

    def conditions(self, found: Sequence[Condition]) -> None:
        self._conditions = found

    def __rich__(self) -> Text:
        now, timeline = time.monotonic(), self.timeline
        frame = int(now * 1000 / self._spinner.interval) % len(self._spinner.frames)
        return Text.assemble(
            (f"{self._spinner.frames[frame]} ", "cyan"),
            words.state(timeline.state),
            f" {words.span(now - self._news)}",
            (f"  total {words.span(now - self._began)}  {_took(timeline)}", "dim"),
            self._note(),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _note(self) -> Text:
        if self._lost:
            return Text("  connection lost, retrying", "red")
        if self._conditions:
            return Text(f"  {'; '.join(each.message for each in self._conditions)}", "red")
        if self._step is not None:
            return Text(f"  {_doing(self._step)}")
        latest = self.timeline.latest
        return Text(f"  {gist(latest, self.timeline.allocation)}" if latest else "")


class PlainLines:
    """Progress display for logs and pipes: a line of text for each new state of the allocation."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0
        self._began: datetime | None = None
        self._steps: dict[str | None, str] = {}
        self._conditions: frozenset[str] = frozenset()

    def update(self, timeline: Timeline) -> None:
        for step in timeline.steps[self._printed :]:
            after = (step.since - timeline.steps[0].since).total_seconds()
            self._console.print(f"{words.span(after):>10}  {step.state}")
        self._printed = len(timeline.steps)
        self._began = timeline.steps[0].since if timeline.steps else None

    def step(self, step: Step) -> None:
        """Print each progress step on a line, once, even if the node reports the step several times."""
        if self._began is None or self._steps.get(step.task_id) == step.step:
            return
        self._steps[step.task_id] = step.step
        after = (step.at - self._began).total_seconds()
        self._console.print(f"{words.span(after):>10}  {_doing(step)}")

    def lost(self, lost: SliceplaneError) -> None:
        self._console.print(f"connection lost, retrying: {lost.what}")

    def back(self) -> None:
        self._console.print("reconnected")

    def conditions(self, found: Sequence[Condition]) -> None:
        """Print each condition when it begins, and a line when none is left."""
        for each in found:
            if each.message not in self._conditions:
                self._console.print(each.message)
        if self._conditions and not found:
            self._console.print("all nodes of the allocation respond again")
        self._conditions = frozenset(each.message for each in found)


def _doing(step: Step) -> str:
    where = f"{step.slot_id}: " if step.slot_id else ""
    return f"{where}{words.step(step.step, step.number, step.of)}"


def _took(timeline: Timeline) -> str:
    return ", ".join(f"{state} {words.span(seconds)}" for state, seconds in timeline.durations())


def _summary(timeline: Timeline) -> Text:
    total = sum(seconds for _, seconds in timeline.durations())
    return Text.assemble(
        words.state(timeline.state), f" after {words.span(total)}", (f"  ({_took(timeline)})", "dim")
    )
