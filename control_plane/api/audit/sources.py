"""Limit of the number of access log rows for requests that cost a client little: requests without valid credentials,
limited by source address, and requests that a quota refuses, limited by principal. Without this limit, one source or
principal could displace the rows of others.

A source or principal gets `ROWS` rows per minute. Further requests of the minute are counted in one row for each
method, route, status and reason. The row gets its position at the end of the minute, when its count is final, because a
row with a position never changes.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from control_plane.api.audit.entries import Entry

ROWS: Final = 60
SECONDS: Final = 60.0
SOURCES: Final = 1000
"""Maximum number of sources and principals that have a limit of their own in one minute; all further ones share a
limit.
"""
RATE_LIMITED: Final = "rate_limited"
"""Code of a refusal by a quota of requests."""
_NETWORK_BITS: Final = 64
"""A host with IPv6 usually has all addresses of a network of this prefix length (RFC 4291, section 2.5.4)."""


@dataclass(slots=True)
class _Window:
    """The requests of one source or principal within one minute. `counting`: the rows that count further requests."""

    end: float
    rows: int = 0
    counting: dict[object, Entry] = field(default_factory=dict)


class Sources:
    """The sources of requests without valid credentials, and the principals of requests that a quota refuses, in one
    process. Not thread-safe: used by one event loop.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._windows: dict[str, _Window] = {}

    def row_of(self, entry: Entry) -> Entry:
        """Return the entry in which a request is recorded: its own, or an earlier one with an increased count."""
        window = self._window(entry.principal or network_of(entry.source or "-"))
        if window.rows < ROWS:
            window.rows += 1
            return entry
        if entry.principal is not None:
            # A principal may have many credentials and addresses. The counted requests differ in them, so their row has
            # none: with those of the first request, it would attribute the others to a wrong credential.
            entry.path, entry.source, entry.credential = "", None, None
        return _counted(window, entry)

    def count(self, entry: Entry) -> Entry:
        """Count a request in an entry that all sources share, without path, source and principal; return the entry."""
        entry.path, entry.source, entry.principal, entry.credential = "", None, None, None
        return _counted(self._window(""), entry)

    def ended(self, *, all_windows: bool = False) -> Iterator[Entry]:
        """Remove the one-minute windows that have ended, or all windows, and yield their rows that count several
        requests.
        """
        now = math.inf if all_windows else self._now()
        for source in [source for source, window in self._windows.items() if window.end <= now]:
            for row in self._windows.pop(source).counting.values():
                row.closed = True
                yield row

    def _window(self, source: str) -> _Window:
        if source not in self._windows and len(self._windows) >= SOURCES:
            source = ""
        window = self._windows.get(source)
        if window is None:
            window = self._windows[source] = _Window(self._now() + SECONDS)
        return window


def _counted(window: _Window, entry: Entry) -> Entry:
    kind = (entry.method, entry.route, entry.status, entry.reasons, entry.principal)
    if (row := window.counting.get(kind)) is not None:
        row.count += 1
        return row
    entry.closed = False
    window.counting[kind] = entry
    return entry


def is_limited(entry: Entry) -> bool:
    """Return whether the number of rows for requests like this one is limited: it has no verified principal, or a quota
    refused it.
    """
    return entry.principal is None or RATE_LIMITED in entry.reasons


def network_of(source: str) -> str:
    """Return the name under which the rows of a source address are limited: for an IPv6 address, its network. An IPv4
    address that is mapped to IPv6 (RFC 4291, section 2.5.5.2) counts as the IPv4 address, because all mapped addresses
    are in one IPv6 network.
    """
    try:
        found = ip_address(source)
    except ValueError:
        return source
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is None:
            return str(IPv6Network((int(found), _NETWORK_BITS), strict=False))
        found = found.ipv4_mapped
    return str(found)
