"""Times and positions in the past, converted from command-line options to the format of the API.

`10m ago` and `-10m` are relative to this machine's clock; a time without a zone is in this machine's local time. The
control plane refuses a time or position in the future.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

_AGO: Final = re.compile(r"-?((?:\d{1,6}[smhdw])+)(\s+ago)?", re.ASCII)
_PART: Final = re.compile(r"(\d+)([smhdw])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_POSITION: Final = re.compile(r"position:\d{1,18}", re.ASCII)
FORMS: Final = "'10m ago' or -10m, 2026-11-21T09:30:00Z, '2026-11-21 09:30' (local), or position:N"


def _now() -> datetime:
    return datetime.now(UTC)


def time_or_position(given: str, clock: Callable[[], datetime] = _now) -> str:
    """Return a time or position in the format of the API. Raises `typer.BadParameter`."""
    if _POSITION.fullmatch(given):
        return given
    ago = _AGO.fullmatch(given)
    if ago and (given.startswith("-") or ago[2]):
        seconds = sum(int(count) * _SECONDS[unit] for count, unit in _PART.findall(ago[1]))
        try:
            return _rfc3339(clock() - timedelta(seconds=seconds))
        except OverflowError:
            raise typer.BadParameter(f"the time {given!r} is before the year 1; use a later time") from None
    try:
        return _rfc3339(datetime.fromisoformat(given).astimezone())
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{given!r} is not a time or position; use {FORMS}") from None


def counted_from(at: str | None, recorded: datetime | None) -> datetime | None:
    """Return the time to which the ages in a response are relative; None means now.

    For a response as of a time, it is that time; as of a position, the time when the last event up to it was recorded.
    """
    if at is None:
        return None
    if _POSITION.fullmatch(at):
        return recorded
    return datetime.fromisoformat(at)


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def time_only(given: str, clock: Callable[[], datetime] = _now) -> str:
    """Return a time in the format of the API. Raises `typer.BadParameter` also for a position."""
    if _POSITION.fullmatch(given):
        raise typer.BadParameter(f"{given!r} is a position of the ledger; use a time, such as '10m ago'")
    return time_or_position(given, clock)


def time_option(given: str | None) -> str | None:
    """Return the value of an option that is a time, in the format of the API. Raises `typer.BadParameter`."""
    return None if given is None else time_only(given)


def _option(given: str | None) -> str | None:
    return None if given is None else time_or_position(given)


At = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        callback=_option,
        help=f"Show the state as of this time or position: {FORMS}.",
        show_default=False,
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHEN",
        callback=_option,
        help=f"Begin after this time or position: {FORMS}. Default: the beginning of the ledger.",
        show_default=False,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        callback=_option,
        help="End at this time or position, in the same form. Default: now.",
        show_default=False,
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHEN",
        callback=time_option,
        help="Begin at this time: '10m ago' or -10m, 2026-11-21T09:30:00Z, or '2026-11-21 09:30' (local).",
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="WHEN",
        callback=time_option,
        help="End at this time, in the same form. Default: now.",
        show_default=False,
    ),
]
