"""HTTP connections to the control plane, shared by agents of one process that ask in one place and believe the same.

A lone agent has its own. In a process with a thousand, a thousand pools would be a thousand idle sockets, and all that
a client holds besides, an address and a context for TLS, is the same. Who asks is said in each request. A client lives
until the last agent that uses it gives it back.
"""

import ssl
import threading
from dataclasses import dataclass
from typing import Final

import httpx

from node_agent.settings import Settings, api_trust

KEPT_SECONDS: Final = 60.0
"""How long a connection is kept that is not used: over all but the longest intervals of heartbeats."""
_TIMEOUT: Final = httpx.Timeout(10.0, connect=3.0)
_LIMITS: Final = httpx.Limits(
    max_connections=100, max_keepalive_connections=20, keepalive_expiry=KEPT_SECONDS
)


@dataclass(slots=True)
class _Shared:
    client: httpx.Client
    users: int = 0


_shared: Final[dict[tuple[str, ssl.SSLContext], _Shared]] = {}
_lock: Final = threading.Lock()


class SharedClient:
    """The use of a client that others may use too, until `close` or as a context. Raises `SettingsRefused`."""

    def __init__(self, settings: Settings) -> None:
        self._key = settings.api_url, api_trust(settings)
        self._is_used = True
        with _lock:
            if self._key not in _shared:
                _shared[self._key] = _Shared(_client(*self._key))
            shared = _shared[self._key]
            shared.users += 1
        self.http = shared.client

    def __enter__(self) -> httpx.Client:
        return self.http

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
        shared.client.close()


def _client(api_url: str, trusted: ssl.SSLContext) -> httpx.Client:
    # Proxies and .netrc of the host's root are not for the agent's secret.
    return httpx.Client(base_url=api_url, verify=trusted, timeout=_TIMEOUT, limits=_LIMITS, trust_env=False)
