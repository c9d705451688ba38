"""Times, amounts and states in the words and colours of the screen."""

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

from rich.text import Text

_UNITS: Final = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
_COLOURS: Final = {
    "active": "green", "free": "green", "enrolled": "green", "bound": "green",
    "placed": "yellow", "provisioning": "yellow", "starting": "yellow", "releasing": "yellow",
    "stopping": "yellow", "stopped": "dim",
    "expected": "yellow", "discovered": "yellow",
    "claimed": "cyan",
    "done": "green", "due": "yellow", "sent": "yellow", "waiting": "yellow", "cancelling": "yellow",
    "refused": "red", "poisoned": "red", "expired": "red", "cancelled": "dim", "superseded": "dim",
    "failed": "red", "silent": "red", "revoked": "red", "withheld": "red",
    "released": "dim", "removed": "dim",
}  # fmt: skip


def state(name: str) -> Text:
    return Text(name, _COLOURS.get(name, ""))


def allocation_state(name: str, conditions: Collection[str]) -> Text:
    """The state, with the conditions that qualify it."""
    shown = state(name)
    for code in sorted(conditions):
        shown.append(f", {code.removeprefix('node_')}", "red")
    return shown


def node_state(name: str, blocked_by: str | None) -> Text:
    """What keeps slices from a node tells more than that it is enrolled."""
    return state(name) if blocked_by in (None, name) else _blocked(blocked_by)


def slot_state(name: str, blocked_by: str | None) -> Text:
    """Free is a slot that something new may be placed in."""
    return _blocked(blocked_by) if name == "free" and blocked_by else state(name)


def _blocked(blocked_by: str | None) -> Text:
    return Text(f"blocked: {blocked_by}", "red")


def span(seconds: float) -> str:
    """A length of time with the precision that matters: `0.34 s`, `12.5 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if seconds < 1:
        return f"{max(seconds, 0):.2f} s"
    if seconds < _UNITS[-1][0]:
        return f"{seconds:.1f} s"
    for unit, name, part, part_name in _UNITS:
        if seconds >= unit:
            rest = int(seconds % unit // part)
            return f"{int(seconds // unit)} {name}" + (f" {rest} {part_name}" if rest else "")
    raise AssertionError("a minute is the smallest unit, and seconds were shorter")


def since(moment: datetime | None, now: datetime | None = None) -> str:
    """Counted from `now`, or else from this machine's clock."""
    return "never" if moment is None else f"{span(_timestamp(now) - moment.timestamp())} ago"


def until(moment: datetime, now: datetime | None = None) -> str:
    """Counted likewise."""
    left = moment.timestamp() - _timestamp(now)
    return f"in {span(left)}" if left > 0 else f"{span(-left)} ago"


def _timestamp(now: datetime | None) -> float:
    return (now or datetime.now(UTC)).timestamp()


def clock(moment: datetime) -> str:
    """Local time of day, to the second, with its date and zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def instant(moment: datetime) -> str:
    """Local time to the millisecond, with its date and zone, for lines that are compared with each other."""
    local = moment.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d} {local:%Z}"


def amount(mebibytes: int | None) -> str:
    if mebibytes is None:
        return "-"
    return f"{mebibytes // 1024} GiB" if mebibytes % 1024 == 0 else f"{mebibytes} MiB"


def rate(mbit: int | None) -> str:
    return "-" if mbit is None else f"{mbit} Mbit/s"


def step(name: str, number: int, of: int | None) -> str:
    """`port (3 of 7)`, or `boot (4)` while nobody knows how many steps there are."""
    return f"{name} ({number} of {of})" if of else f"{name} ({number})"
