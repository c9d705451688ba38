"""Places in the past as people name them, turned into what the API understands.

`10m ago` and `-10m` count from this machine's clock; a time without a zone is this machine's local time. What has
happened meanwhile is for the control plane to know: a place that is still to come is refused there.
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


def place(given: str, clock: Callable[[], datetime] = _now) -> str:
    """What to ask the API for. Raises `typer.BadParameter`."""
    if _POSITION.fullmatch(given):
        return given
    ago = _AGO.fullmatch(given)
    if ago and (given.startswith("-") or ago[2]):
        seconds = sum(int(count) * _SECONDS[unit] for count, unit in _PART.findall(ago[1]))
        try:
            return _rfc3339(clock() - timedelta(seconds=seconds))
        except OverflowError:
            raise typer.BadParameter(f"{given!r} is before all time") from None
    try:
        return _rfc3339(datetime.fromisoformat(given).astimezone())
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{given!r} is no place in the past, such as {FORMS}") from None


def counted_from(at: str | None, recorded: datetime | None) -> datetime | None:
    """From when ages are counted in an answer as of a place that `place` made: the time that was named, else when the
    last event up to there was recorded. None without a place: from now.
    """
    if at is None:
        return None
    if _POSITION.fullmatch(at):
        return recorded
    return datetime.fromisoformat(at)


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _option(given: str | None) -> str | None:
    return None if given is None else place(given)


At = Annotated[
    str | None,
    typer.Option(metavar="WHEN", callback=_option, help=f"As of then: {FORMS}.", show_default=False),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="WHEN",
        callback=_option,
        help=f"What came after that: {FORMS}. Else from the beginning.",
        show_default=False,
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        metavar="WHEN",
        callback=_option,
        help="What came until then, named likewise. Else until now.",
        show_default=False,
    ),
]
