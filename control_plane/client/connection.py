"""Connection settings that the synchronous and the asynchronous client share: headers, timeouts, and the errors of a
failed connection.
"""

from collections.abc import Mapping
from typing import Final

import httpx

from control_plane.client.errors import UnexpectedResponse, Unreachable, Untrusted
from control_plane.client.streams import QUIET_SECONDS
from control_plane.client.trust import why_untrusted
from control_plane.version import release

TIMEOUT: Final = httpx.Timeout(30.0, connect=5.0)
QUICK: Final = httpx.Timeout(10.0, connect=5.0)
"""Timeouts in seconds of a health check request: longer than the time in which the server completes a health check."""


def headers_of(api_key: str) -> dict[str, str]:
    """Return the headers that every request has. With an empty API key, requests have no Authorization header."""
    authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return {**authorization, "User-Agent": f"sliceplane/{release()}"}


def unreachable(url: str, error: httpx.TransportError) -> Unreachable:
    """Return the exception to raise for a failed connection to a URL."""
    if untrusted := why_untrusted(error):
        what, advice = untrusted
        return Untrusted(f"cannot verify the certificate of {url}: {what}", advice)
    what = str(error) or type(error).__name__
    return Unreachable(f"cannot reach the control plane at {url}: {what}")


def refuse_other_content(headers: Mapping[str, str]) -> None:
    """Check that a response is an event stream. Raises `UnexpectedResponse`."""
    found = headers.get("content-type", "")
    if not found.startswith("text/event-stream"):
        raise UnexpectedResponse(
            f"the server returned content type {found or '(none)'} instead of an event stream (text/event-stream)"
        )


def shortened(error: httpx.TransportError, seconds: float) -> bool:
    """Return whether a read timed out after `seconds`, which were fewer than usual because a deadline is near."""
    return isinstance(error, httpx.ReadTimeout) and seconds < QUIET_SECONDS
