"""Limits for the clients of one process of the SSH gateway: connections, failed attempts to authenticate, and sessions
that are opened per minute and at the same time. Each session appends three events to the ledger.

A key that is not accepted, and a connection that names a user and ends without authentication, count as a failed
attempt of the source address and of the allocation that the client named. When one of the two has used up its quota,
the gateway accepts no key for it until a part of the quota is regained. A known allocation id is sufficient to use up
the quota of the allocation; ids are not guessable.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import ceil
from typing import Final

from control_plane.api.requests.rate_windows import Charge, LocalWindows, Quota
from events.values import AllocationId

MOST_CONNECTIONS: Final = 1000
"""Maximum number of connections of a process."""
MOST_OF_SOURCE: Final = 50
"""Maximum number of connections from one source address. Connections that are counted as `PROXIES` are exempt."""
MOST_OF_ALLOCATION: Final = 10
"""Maximum number of SSH connections of a process that are authenticated for one allocation."""
PROXIES: Final = "proxies"
"""Source for which a connection from a trusted proxy counts until its HTTP request names the address of the client."""
MOST_OPENINGS: Final = 8
"""Maximum number of sessions of one allocation that a process opens at the same time."""
_CONCURRENT_OPENINGS: Final = 4
"""Half of the database connections of a process. The other half is for the checks and the ends of open sessions."""
_MOST_COUNTERS: Final = 10_000
_WINDOW_SECONDS: Final = 60


class TooManyOpenings(Exception):
    """`MOST_OPENINGS` sessions are being opened."""


class Limits:
    """Counters of the clients of one process of the SSH gateway, with their limits. Not thread-safe: used by one event
    loop.
    """

    def __init__(self, failures_per_minute: int, sessions_per_minute: int) -> None:
        """`failures_per_minute`: failed attempts of an address, and of an allocation; `sessions_per_minute`: sessions
        to the slices of an allocation. 0: not limited.
        """
        self._quota = Quota("ssh", failures_per_minute, _WINDOW_SECONDS) if failures_per_minute else None
        self._failures = LocalWindows(_MOST_COUNTERS)
        self._sessions_quota = (
            Quota("ssh_sessions", sessions_per_minute, _WINDOW_SECONDS) if sessions_per_minute else None
        )
        self._sessions = LocalWindows(_MOST_COUNTERS)
        self._connections = Counter[str]()
        self._authenticated = Counter[str]()
        self._openings = Counter[str]()
        self._concurrent_openings = asyncio.Semaphore(_CONCURRENT_OPENINGS)

    def connect(self, source: str) -> bool:
        """Count a new connection, and return whether it is within the limits. `disconnect` must be called for it."""
        self._connections[source] += 1
        is_within = source == PROXIES or self._connections[source] <= MOST_OF_SOURCE
        return is_within and self._connections.total() <= MOST_CONNECTIONS

    def disconnect(self, source: str) -> None:
        """Count the end of a connection."""
        self._connections[source] -= 1
        self._connections += Counter()  # removes counters that are 0

    def enter(self, allocation: str) -> bool:
        """Count an authenticated SSH connection for an allocation, and return whether it is within the limit. `leave`
        must be called for it.
        """
        self._authenticated[allocation] += 1
        return self._authenticated[allocation] <= MOST_OF_ALLOCATION

    def leave(self, allocation: str) -> None:
        """Count the end of an authenticated SSH connection."""
        self._authenticated[allocation] -= 1
        self._authenticated += Counter()  # removes counters that are 0

    def failed(self, *subjects: str) -> None:
        """Count a failed attempt of an address or allocation."""
        if self._quota is not None:
            for subject in subjects:
                self._failures.spend(Charge(self._quota, subject))

    def blocked_seconds(self, *subjects: str) -> int:
        """Return the seconds until the gateway accepts attempts of all these addresses and allocations to authenticate;
        0 if it accepts them now.
        """
        if self._quota is None:
            return 0
        windows = [self._failures.read(Charge(self._quota, subject)) for subject in subjects]
        blocked = [each.regained_in(self._quota) for each in windows if not each.remaining(self._quota)]
        return ceil(max(blocked, default=0.0))

    def open_session(self, allocation: AllocationId) -> int:
        """Count a new session to a slice of an allocation. Return 0 if it is within the quota, else the seconds until
        the next one is.
        """
        if self._sessions_quota is None:
            return 0
        spent = self._sessions.spend(Charge(self._sessions_quota, allocation))
        return 0 if spent.admitted else max(1, ceil(spent.window.regained_in(self._sessions_quota)))

    @asynccontextmanager
    async def opening(self, subject: str) -> AsyncIterator[None]:
        """Wait until one more session can be opened. `subject` is the allocation, or the console session of a ticket.
        Raises `TooManyOpenings`, at once, if too many sessions of the subject are being opened.
        """
        if self._openings[subject] >= MOST_OPENINGS:
            raise TooManyOpenings
        self._openings[subject] += 1
        try:
            async with self._concurrent_openings:
                yield
        finally:
            self._openings[subject] -= 1
            self._openings += Counter()  # removes counters that are 0
