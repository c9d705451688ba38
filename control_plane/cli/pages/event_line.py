"""One event on one line: position, time with date and zone, type, content, reason, actor and request."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.text import Text

from control_plane.cli.pages import words
from control_plane.client.answers import Event

_TYPE_WIDTH: Final = len("allocation.slice_address_observed")
_LONGEST: Final = 48


def line(event: Event, of: str = "") -> Text:
    """Return the output line of an event. Values equal to `of`, the name of the requested resource, are omitted."""
    return Text.assemble(
        (f"{event.position:>6}  {words.instant(event.recorded_at)}  ", "dim"),
        (f"{event.type:<{_TYPE_WIDTH}}", "bold"),
        f"  {gist(event, of)}",
        (f"  by {event.actor}" + (f" ({event.reason})" if event.reason else ""), "dim"),
    )


def gist(event: Event, of: str = "") -> str:
    """Return a short summary of an event's data, on one line. It does not depend on the event type, so it also works
    for new types.
    """
    limits = event.data.get("limits")
    data = {**event.data, **limits} if isinstance(limits, dict) else event.data
    shown = {name: value for name, value in data.items() if value not in (None, "", [], of)}
    return " ".join(line for part in _parts(shown) for line in part.splitlines())


def _parts(data: Mapping[str, object]) -> Iterator[str]:
    for name, value in data.items():
        match name, value:
            case "reason", {"message": str(message)}:
                yield message
            case (("reason" | "reason"), str()):
                yield value
            case "slots", [*slots]:
                yield ", ".join(str(slot["slot_id"]) for slot in slots if isinstance(slot, dict))
            case (("drift" | "remaining"), [*several]):
                yield "; ".join(_record(each) for each in several if isinstance(each, dict))
            case (("slot_id" | "node_id" | "allocation_id"), str()):
                yield value
            case _, str() if name.endswith("_sha256"):
                yield f"{name}={value[:8]}…"
            case _, str() | int():
                yield f"{name}={_short(str(value))}"
            case _, [*several]:
                yield f"{name}={_short(','.join(map(str, several)))}"
            case _:
                continue


def _record(item: Mapping[str, Any]) -> str:
    """Return a drift, or a slot that is not empty with its reason, on one line."""
    if "slot_id" in item and "reason" in item:
        return f"{item['slot_id']}: {item['reason']['message']}"
    return f"{item.get('kind')}: desired {item.get('desired')}, observed {item.get('observed')}"


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"
