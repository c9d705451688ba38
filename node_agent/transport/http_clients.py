"""HTTP connection pools to the control plane, shared by agents of one process with the same API URL and the same CA.

A process usually runs one agent, with one pool. In a process with a thousand agents, a thousand pools would hold a
thousand idle sockets, although their address and TLS context are equal. Each request carries its agent's credentials. A
pool is closed when the last agent that uses it releases it. An idle connection stays open until the API closes it.
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
"""Maximum number of connections in a pool: more than there are threads that send requests, so that every connection can
be kept open after its request."""


@dataclass(slots=True)
class _Shared:
    pool: HTTPConnectionPool
    users: int = 0


_shared: Final[dict[tuple[str, ssl.SSLContext | None], _Shared]] = {}
_lock: Final = threading.Lock()


class SharedClient:
    """HTTP client of one agent. It uses a shared connection pool until `close` or the end of its `with` block.

    Raises `SettingsRefused` if the CA file of the settings is not valid.
    """

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
        """Send a POST request and return the complete response of any status.

        Raises `urllib3.exceptions.HTTPError`.
        """
        return self.pool.urlopen(
            "POST", self._path + path, body=body, headers=headers, retries=False, redirect=False
        )

    def __enter__(self) -> "SharedClient":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the shared connection pool; the last release closes the pool."""
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
    # The pool uses no proxies and no .netrc: the agent's secret must not go where the host's root user configured.
    over_tls = {} if trusted is None else {"ssl_context": trusted}
    return connection_from_url(api_url, timeout=_TIMEOUT, maxsize=_CONNECTIONS, **over_tls)
