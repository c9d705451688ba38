"""What is seen while waiting for an allocation: a line that lives on a terminal, plain lines elsewhere.

Times of states that ended are the ledger's; the running one counts on the local clock from when its news came.
The line goes to stderr and is gone afterwards, so that stdout holds the result alone.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from control_plane.cli.answers import Step
from control_plane.cli.failures import Unreachable
from control_plane.cli.pages import words
from control_plane.cli.pages.event_line import gist
from control_plane.cli.screen import Screen
from control_plane.cli.story import Story


class Progress(Protocol):
    """Is told of news about one allocation."""

    def tell(self, story: Story) -> None: ...

    def step(self, step: Step) -> None: ...

    def lost(self, lost: Unreachable) -> None: ...

    def back(self) -> None: ...


@contextmanager
def shown(screen: Screen, story: Story) -> Iterator[Progress]:
    """The progress that fits the screen, for as long as the block lasts."""
    if screen.json:
        yield Silence()
    elif screen.lively:
        line = LiveLine(story)
        # Redirecting would have Rich write the result of a command to stderr with the line.
        with Live(
            line,
            console=screen.err,
            refresh_per_second=10,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield line
        screen.err.print(_summary(line.story))
    else:
        yield PlainLines(screen.err)


class Silence:
    def tell(self, story: Story) -> None:
        pass

    def step(self, step: Step) -> None:
        pass

    def lost(self, lost: Unreachable) -> None:
        pass

    def back(self) -> None:
        pass


class LiveLine:
    """Redrawn ten times a second by Rich's thread, which reads what `tell` leaves."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self._lost = False
        self._step: Step | None = None
        self._began = self._news = time.monotonic()
        self._spinner = Spinner("dots")

    def tell(self, story: Story) -> None:
        if story.state != self.story.state:
            self._news = time.monotonic()
            self._step = None
        self.story = story

    def step(self, step: Step) -> None:
        self._step = step

    def lost(self, lost: Unreachable) -> None:
        self._lost = True

    def back(self) -> None:
        self._lost = False

    def __rich__(self) -> Text:
        now, story = time.monotonic(), self.story
        frame = int(now * 1000 / self._spinner.interval) % len(self._spinner.frames)
        return Text.assemble(
            (f"{self._spinner.frames[frame]} ", "cyan"),
            words.state(story.state),
            f" {words.span(now - self._news)}",
            (f"  total {words.span(now - self._began)}  {_took(story)}", "dim"),
            self._note(),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _note(self) -> Text:
        if self._lost:
            return Text("  connection lost, trying again", "red")
        if self._step is not None:
            return Text(f"  {_doing(self._step)}")
        latest = self.story.latest
        return Text(f"  {gist(latest, self.story.allocation)}" if latest else "")


class PlainLines:
    """A line for each new state, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told = 0
        self._began: datetime | None = None
        self._steps: dict[str | None, str] = {}

    def tell(self, story: Story) -> None:
        for step in story.steps[self._told :]:
            after = (step.since - story.steps[0].since).total_seconds()
            self._console.print(f"{words.span(after):>10}  {step.state}")
        self._told = len(story.steps)
        self._began = story.steps[0].since if story.steps else None

    def step(self, step: Step) -> None:
        """A line for each step, however often it is told."""
        if self._began is None or self._steps.get(step.task_id) == step.step:
            return
        self._steps[step.task_id] = step.step
        after = (step.at - self._began).total_seconds()
        self._console.print(f"{words.span(after):>10}  {_doing(step)}")

    def lost(self, lost: Unreachable) -> None:
        self._console.print(f"connection lost, trying again: {lost.what}")

    def back(self) -> None:
        self._console.print("connected again")


def _doing(step: Step) -> str:
    where = f"{step.slot_id}: " if step.slot_id else ""
    return f"{where}{words.step(step.step, step.number, step.of)}"


def _took(story: Story) -> str:
    return ", ".join(f"{state} {words.span(seconds)}" for state, seconds in story.durations())


def _summary(story: Story) -> Text:
    total = sum(seconds for _, seconds in story.durations())
    return Text.assemble(
        words.state(story.state), f" after {words.span(total)}", (f"  ({_took(story)})", "dim")
    )
