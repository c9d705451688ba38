"""What people see of `up`: a line for each thing that happened, with its time, and a spinner while something takes
long.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

DETAILS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "allocation.placed": lambda data: ", ".join(slot["slot_id"] for slot in data["slots"]),
    "allocation.replaced": lambda data: (
        f"{', '.join(slot['slot_id'] for slot in data['slots'])}, since {data['reason']['message']}"
    ),
    "allocation.slice_address_observed": lambda data: (
        f"{data['actual_ip'] or 'none yet'} ({data['lease_state']})"
    ),
    "allocation.slice_ready": lambda data: f"{data['address']}:{data['port']} says {data['banner']}",
    "slot.released": lambda data: f"absent: {', '.join(data['absent'])}",
}


class Screen:
    """Lines on standard output. On a terminal the step under way has a spinner; elsewhere it has two lines."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Something begins or happened."""
        self.console.print(f"[dim]{self._clock()}[/] {escape(text)}")

    def note(self, text: str) -> None:
        """A detail of what was said last."""
        self.console.print(f"[dim]{'':>8}[/]   {escape(text)}")

    def good(self, text: str) -> None:
        self.console.print(f"[dim]{self._clock()}[/] [bold green]{escape(text)}[/]")

    def bad(self, text: str) -> None:
        self.console.print(f"[dim]{self._clock()}[/] [bold red]{escape(text)}[/]")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show that `text` is under way, then how long it took."""
        began = time.monotonic()
        if not self.console.is_terminal:
            self.say(f"{text} ...")
        with self.console.status(f"{escape(text)} ..."):
            yield
        self.say(f"{text}: {time.monotonic() - began:.1f} s")

    def event(self, event: dict[str, Any], first: dict[str, Any]) -> None:
        """An event of an allocation's story, with the time since its first."""
        took = _moment(event["recorded_at"]) - _moment(first["recorded_at"])
        explain = DETAILS.get(event["type"], _reason)
        detail = explain(event["data"])
        name = f"[bold]{event['type']}[/]" if event["type"].startswith("allocation.") else event["type"]
        self.console.print(
            f"[dim]{self._clock()}[/]   [cyan]+{took:6.2f} s[/] {name} [dim]{event['actor']}[/] {escape(detail)}"
        )

    def _clock(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"


def _reason(data: dict[str, Any]) -> str:
    """The event's reason, or its admin's `why`, in words; empty for an event without one."""
    match data:
        case {"reason": {"message": str(words)}} | {"reason": str(words)} | {"why": str(words)}:
            return words
        case _:
            return ""


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
