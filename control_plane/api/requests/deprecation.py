"""Deprecated routes: declared with the route, and announced in the headers of each of its responses."""

from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute

from control_plane.api.requests.response_headers import set_header

_EXTENSION: Final = "x-sliceplane-deprecation"


def deprecated(*, since: datetime, sunset: datetime, link: str) -> dict[str, Any]:
    """Return the declaration of a route that is deprecated since a time, and may be removed after `sunset`. `link` is a
    page about its replacement.

    Merge the result into `openapi_extra`. Raises `ValueError` unless `since` is before `sunset`, and both have a time
    zone.
    """
    if since.tzinfo is None or sunset.tzinfo is None or since >= sunset:
        raise ValueError(
            f"a route deprecated since {since} cannot be removed after {sunset}: the second time must be later, and both need a time zone"
        )
    return {
        "deprecated": True,
        _EXTENSION: {"since": since.isoformat(), "sunset": sunset.isoformat(), "link": link},
    }


def announce_deprecation(request: Request) -> None:
    """Set the headers `Deprecation` (RFC 9745), `Sunset` (RFC 8594) and `Link` if the route is deprecated."""
    route = request.scope["route"]
    assert isinstance(route, APIRoute), f"the route must be an APIRoute, not {type(route).__name__}"
    declared = (route.openapi_extra or {}).get(_EXTENSION)
    if declared is None:
        return
    since, sunset = (datetime.fromisoformat(declared[name]).astimezone(UTC) for name in ("since", "sunset"))
    set_header(request, "Deprecation", f"@{since.timestamp():.0f}")
    set_header(request, "Sunset", format_datetime(sunset, usegmt=True))
    set_header(request, "Link", f'<{declared["link"]}>; rel="deprecation"; type="text/html"')
