"""Python client of the REST API: `Client` (synchronous) and `AsyncClient` have the same methods.

Both send the calls that `calls` describes, with the bodies in `bodies`, and return the types in `answers`. Requests and
responses are values that pure functions build and read; the transports only send, sleep and repeat. A failed call
raises a `SliceplaneError` (see `errors`).
"""

from typing import TYPE_CHECKING

from control_plane.client import bodies, calls, catalogue, errors
from control_plane.client.errors import SliceplaneError
from control_plane.client.exchange import Call, ListCall, Reply, WatchCall
from control_plane.client.streams import Following
from control_plane.client.sync import Client

if TYPE_CHECKING:
    from control_plane.client.asynchronous import AsyncClient

__all__ = [
    "AsyncClient",
    "Call",
    "Client",
    "Following",
    "ListCall",
    "Reply",
    "SliceplaneError",
    "WatchCall",
    "bodies",
    "calls",
    "catalogue",
    "errors",
]


def __getattr__(name: str) -> object:
    """Import `AsyncClient` when it is used: the import of asyncio would delay every run of the command line."""
    if name == "AsyncClient":
        from control_plane.client.asynchronous import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
