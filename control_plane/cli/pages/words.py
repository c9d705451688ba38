"""Display format of times, amounts and states."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from control_plane.client.answers import Allocation, Outlook

_UNITS: Final = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
_COLOURS: Final = {
    "active": "green", "free": "green", "enrolled": "green", "bound": "green",
    "placed": "yellow", "provisioning": "yellow", "starting": "yellow", "releasing": "yellow",
    "stopping": "yellow", "stopped": "dim",
    "registered": "yellow", "discovered": "yellow",
    "claimed": "cyan",
    "done": "green", "due": "yellow", "sent": "yellow", "waiting": "yellow", "cancelling": "yellow",
    "refused": "red", "poisoned": "red", "expired": "red", "cancelled": "dim", "superseded": "dim",
    "failed": "red", "unreachable": "red", "revoked": "red", "quarantined": "red",
    "released": "dim", "removed": "dim",
}  # fmt: skip


def state(name: str) -> Text:
    return Text(name, _COLOURS.get(name, ""))


def allocation_state(item: Allocation) -> Text:
    """Return the state of an allocation, followed by the codes of its conditions, such as `unreachable`, and by
    `overdue` if its release is.
    """
    shown = state(item.state)
    notes = sorted({each.code.removeprefix("node_") for each in item.conditions or ()})
    for note in [*notes, *(["overdue"] if item.release_overdue else [])]:
        shown.append(f", {note}", "red")
    return shown


def node_state(name: str, blocked_by: str | None) -> Text:
    """Return the state of a node, or the reason why it is blocked for placement, which is more specific."""
    return state(name) if blocked_by in (None, name) else _blocked(blocked_by)


def slot_state(name: str, blocked_by: str | None) -> Text:
    """Return the state of a slot. A free slot that is blocked for placement is shown as blocked."""
    return _blocked(blocked_by) if name == "free" and blocked_by else state(name)


def _blocked(blocked_by: str | None) -> Text:
    return Text(f"blocked: {blocked_by}", "red")


def span(seconds: float) -> str:
    """Format a duration with two units at most: `0.34 s`, `12.5 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if seconds < 1:
        return f"{max(seconds, 0):.2f} s"
    if seconds < _UNITS[-1][0]:
        return f"{seconds:.1f} s"
    for unit, name, part, part_name in _UNITS:
        if seconds >= unit:
            rest = int(seconds % unit // part)
            return f"{int(seconds // unit)} {name}" + (f" {rest} {part_name}" if rest else "")
    raise AssertionError("a duration of at least a minute must match one of the units")


def since(moment: datetime | None, now: datetime | None = None) -> str:
    """Format the time since a moment, relative to `now` or to this machine's clock; None is "never"."""
    return "never" if moment is None else f"{span(_timestamp(now) - moment.timestamp())} ago"


def until(moment: datetime, now: datetime | None = None) -> str:
    """Format the time until a moment, relative to `now` or to this machine's clock."""
    left = moment.timestamp() - _timestamp(now)
    return f"in {span(left)}" if left > 0 else f"{span(-left)} ago"


def _timestamp(now: datetime | None) -> float:
    return (now or datetime.now(UTC)).timestamp()


def clock(moment: datetime) -> str:
    """Format a moment as local date and time, to the second, with the zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def instant(moment: datetime) -> str:
    """Format a moment as local date and time, to the millisecond, with the zone, for lines that users compare."""
    local = moment.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d} {local:%Z}"


def amount(mebibytes: int | None) -> str:
    if mebibytes is None:
        return "-"
    return f"{mebibytes // 1024} GiB" if mebibytes % 1024 == 0 else f"{mebibytes} MiB"


def rate(mbit: int | None) -> str:
    return "-" if mbit is None else f"{mbit} Mbit/s"


def step(name: str, number: int, of: int | None) -> str:
    """Format a progress step as `port (3 of 7)`, or as `boot (4)` while the number of steps is unknown."""
    return f"{name} ({number} of {of})" if of else f"{name} ({number})"


def outlook(item: Outlook) -> Iterator[tuple[str, str]]:
    """Yield a row for each alternative to a placement that was refused: a similar request, or a later time."""
    if item.nearest:
        slots = "1 slot" if item.nearest.slot_count == 1 else f"{item.nearest.slot_count} slots"
        yield "possible", f"{slots} of SKU {item.nearest.sku} now"
    if item.earliest_possible_at:
        yield (
            "earliest",
            f"{clock(item.earliest_possible_at)}, when the leases of other allocations end",
        )
