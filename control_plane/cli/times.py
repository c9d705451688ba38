"""Times and positions in the past, converted from command-line options to the format of the API.

`10m ago`, `-10m` and `yesterday` are relative to this machine's clock; a time without a zone is in this machine's local
time. The control plane refuses a time or position in the future.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from control_plane.client.moments import POSITION, parse_moment

TIMES: Final = "'10m ago' or -10m, 'yesterday 10:00', '2026-11-21 09:30' (local), '2026-11-21 09:30 UTC', 2026-11-21T09:30:00Z"
FORMS: Final = f"{TIMES}, or position:N"


def _now() -> datetime:
    return datetime.now(UTC)


def time_or_position(given: str, clock: Callable[[], datetime] = _now) -> str:
    """Return a time or position in the format of the API. Raises `typer.BadParameter`."""
    found = parse_moment(given, clock(), None)
    if found is None:
        raise typer.BadParameter(f"{given!r} is not a time or position; use {FORMS}")
    return found


def counted_from(at: str | None, recorded: datetime | None) -> datetime | None:
    """Return the time to which the ages in a response are relative; None means now.

    For a response as of a time, it is that time; as of a position, the time when the last event up to it was recorded.
    """
    return None if at is None else time_of(at) or recorded


def time_of(at: str) -> datetime | None:
    """Return the time of a value in the format of the API; None for a position."""
    return None if POSITION.fullmatch(at) else datetime.fromisoformat(at)


def time_only(given: str, clock: Callable[[], datetime] = _now) -> str:
    """Return a time in the format of the API. Raises `typer.BadParameter` also for a position."""
    found = time_or_position(given, clock)
    if POSITION.fullmatch(found):
        raise typer.BadParameter(f"{given!r} is a position of the ledger; use a time, such as '10m ago'")
    return found


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
        help=f"Begin at this time: {TIMES}.",
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
