"""The control plane's connections to Redis: short-tempered, and over TLS where the URL says `rediss://`.

Who answers must show a certificate of the CA in `redis_ca_file` (without that file: of one of the system's) for the
host in the URL. Options of TLS in the URL itself are not heeded, so that none of them leaves the check out.
"""

import ssl
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import ConnectionPool, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from control_plane.certificates import redis_ca
from control_plane.settings import Settings
from tasks.trust import trust

# Twice this is how long a Redis that hangs is waited for (once more on a new connection). The sweeper asks twice in a
# transaction, and Postgres ends those that idle for four seconds: a first answer that comes as late as it may, and a
# second that never comes, are over before that.
REDIS_SECONDS: Final = 0.75


def redis_client(settings: Settings) -> Redis:
    """Connects when it is used. Raises `UnusableCertificate`."""
    url = settings.redis_url.get_secret_value()
    pool = ConnectionPool.from_url(
        url,
        socket_timeout=REDIS_SECONDS,
        socket_connect_timeout=REDIS_SECONDS,
        retry=Retry(NoBackoff(), 1),
    )
    if urlsplit(url).scheme == "rediss":
        pool.connection_class = _TrustingConnection
        kept = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith("ssl_")}
        pool.connection_kwargs = {**kept, "trusted": trust(redis_ca(settings))}
    return Redis.from_pool(pool)


class _TrustingConnection(SSLConnection):
    """Over TLS with a context of ours: redis-py's own believes the system's CAs beside the one given."""

    def __init__(self, *, trusted: ssl.SSLContext, **settings: Any) -> None:
        super().__init__(**settings)
        self.ssl_context.context = trusted
