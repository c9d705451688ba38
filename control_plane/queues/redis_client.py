"""The control plane's connections to Redis: with short timeouts, and over TLS if the URL begins with `rediss://`.

The server must present a certificate for the host in the URL, issued by the CA in `redis_ca_file` (without that file,
by one of the system's CAs). TLS options in the URL are ignored, so that none of them can disable the verification.
"""

import ssl
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo

from control_plane.certificates import redis_ca
from control_plane.settings import Settings
from tasks.trust import trust

# A hanging Redis is waited for twice this long (with one retry on a new connection). The task sender queries Redis
# twice in a transaction, and Postgres ends transactions that idle for four seconds: a first answer that is as late as
# allowed and a second that never arrives take less than that.
REDIS_SECONDS: Final = 0.75

_DRIVER: Final = DriverInfo()
"""Name and version of redis-py, which each connection reports to the server. Without a common object, each new
connection would read the version from the package's metadata again, which takes 5 ms.
"""


_MOST_CONNECTIONS: Final = 1000
"""Maximum number of connections of a client. Each end of a stream has a connection of its own, and one more while it
publishes; with redis-py's limit of 100, fewer than 50 console sessions would fit into a process of the API."""


def redis_client(settings: Settings) -> Redis:
    """Return a client that connects on first use. Raises `UnusableCertificate`."""
    url = settings.redis_url.get_secret_value()
    pool = ConnectionPool.from_url(
        url,
        max_connections=_MOST_CONNECTIONS,
        socket_timeout=REDIS_SECONDS,
        socket_connect_timeout=REDIS_SECONDS,
        retry=Retry(NoBackoff(), 1),
        driver_info=_DRIVER,
    )
    if urlsplit(url).scheme == "rediss":
        pool.connection_class = _TrustingConnection
        kept = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith("ssl_")}
        pool.connection_kwargs = {**kept, "trusted": trust(redis_ca(settings))}
    return Redis.from_pool(pool)


class _TrustingConnection(SSLConnection):
    """A TLS connection with its own context: redis-py's default context also trusts the system's CAs."""

    def __init__(self, *, trusted: ssl.SSLContext, **settings: Any) -> None:
        super().__init__(**settings)
        self.ssl_context.context = trusted
