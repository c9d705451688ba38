"""HTTP connections to the control plane, shared by agents of one process that ask in one place and believe the same.

A lone agent has its own. In a process with a thousand, a thousand pools would be a thousand idle sockets, and all that
a pool holds besides, an address and a context for TLS, is the same. Who asks is said in each request. A pool lives
until the last agent that uses it gives it back. An idle connection is kept until the API ends it.
"""

import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from urllib3 import BaseHTTPResponse, HTTPConnectionPool, Timeout
from urllib3.connectionpool import connection_from_url
from urllib3.util import parse_url

from node_agent.settings import Settings, api_trust

_TIMEOUT: Final = Timeout(connect=3.0, read=10.0)
_CONNECTIONS: Final = 64
"""Kept at most: more than the threads that ask, so that none is thrown away after its use."""


@dataclass(slots=True)
class _Shared:
    pool: HTTPConnectionPool
    users: int = 0


_shared: Final[dict[tuple[str, ssl.SSLContext | None], _Shared]] = {}
_lock: Final = threading.Lock()


class SharedClient:
    """The use of a pool that others may use too, until `close` or as a context. Raises `SettingsRefused`."""

    def __init__(self, settings: Settings) -> None:
        self._key = settings.api_url, api_trust(settings)
        self._path = (parse_url(settings.api_url).path or "").rstrip("/")
        self._is_used = True
        with _lock:
            if self._key not in _shared:
                _shared[self._key] = _Shared(_pool(*self._key))
            shared = _shared[self._key]
            shared.users += 1
        self.pool = shared.pool

    def post(self, path: str, body: str, headers: Mapping[str, str]) -> BaseHTTPResponse:
        """The answer, read to its end, whatever it is. Raises `urllib3.exceptions.HTTPError`."""
        return self.pool.urlopen(
            "POST", self._path + path, body=body, headers=headers, retries=False, redirect=False
        )

    def __enter__(self) -> "SharedClient":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give it back."""
        with _lock:
            shared = _shared[self._key] if self._is_used else None
            self._is_used = False
            if shared is None:
                return
            shared.users -= 1
            if shared.users:
                return
            del _shared[self._key]
        shared.pool.close()


def _pool(api_url: str, trusted: ssl.SSLContext | None) -> HTTPConnectionPool:
    # It knows of no proxies and no .netrc: those of the host's root are not for the agent's secret.
    over_tls = {} if trusted is None else {"ssl_context": trusted}
    return connection_from_url(api_url, timeout=_TIMEOUT, maxsize=_CONNECTIONS, **over_tls)
