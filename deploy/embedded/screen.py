"""Terminal output of `up`: one timestamped line per action, and a spinner during a long step."""

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
    "allocation.slice_ready": lambda data: f"{data['address']}:{data['port']} sent {data['banner']}",
    "slot.released": lambda data: f"absent: {', '.join(data['absent'])}",
}


class Screen:
    """Lines on standard output. A step shows a spinner on a terminal; elsewhere its start and its end are printed."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self._began = time.monotonic()

    def show(self, text: str) -> None:
        """Print a line that begins with the time since the start of `up`."""
        self.console.print(f"[dim]{self._clock()}[/] {escape(text)}")

    def detail(self, text: str) -> None:
        """Print a detail of the previous line, indented."""
        self.console.print(f"[dim]{'':>8}[/]   {escape(text)}")

    def success(self, text: str) -> None:
        self.console.print(f"[dim]{self._clock()}[/] [bold green]{escape(text)}[/]")

    def error(self, text: str) -> None:
        self.console.print(f"[dim]{self._clock()}[/] [bold red]{escape(text)}[/]")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show the step `text` while the `with` block runs, then its duration."""
        began = time.monotonic()
        if not self.console.is_terminal:
            self.show(f"{text} ...")
        with self.console.status(f"{escape(text)} ..."):
            yield
        self.show(f"{text}: {time.monotonic() - began:.1f} s")

    @contextmanager
    def progress(self, text: str) -> Iterator[Callable[[float, str], None]]:
        """Show the step `text` while the `with` block runs, then its duration. The block calls the function that it
        gets with the finished share, from 0 to 1, and a detail: on a terminal each is shown, elsewhere each tenth.
        """
        began, printed = time.monotonic(), 0
        with self.console.status(f"{escape(text)} ...") as status:

            def show(share: float, detail: str) -> None:
                nonlocal printed
                line = f"{text}: {share:4.0%}  {detail}"
                status.update(escape(line))
                if not self.console.is_terminal and int(share * 10) > printed:
                    printed = int(share * 10)
                    self.show(line)

            yield show
        self.show(f"{text}: {time.monotonic() - began:.1f} s")

    def event(self, event: dict[str, Any], first: dict[str, Any]) -> None:
        """Print an event of an allocation's timeline with the time since the first shown event."""
        elapsed = _seconds(event["recorded_at"]) - _seconds(first["recorded_at"])
        explain = DETAILS.get(event["type"], _reason)
        detail = explain(event["data"])
        name = f"[bold]{event['type']}[/]" if event["type"].startswith("allocation.") else event["type"]
        self.console.print(
            f"[dim]{self._clock()}[/]   [cyan]+{elapsed:6.2f} s[/] {name} [dim]{event['actor']}[/] {escape(detail)}"
        )

    def _clock(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"


def _reason(data: dict[str, Any]) -> str:
    """Return the text of an event's reason, or an empty string for an event without a reason."""
    match data:
        case {"reason": {"message": str(words)}} | {"reason": str(words)} | {"reason": str(words)}:
            return words
        case _:
            return ""


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
