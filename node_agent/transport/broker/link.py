"""A node's two connections to Redis, and its retries while Redis is unavailable.

One connection carries every command, under a lock; the other only waits until the queue has an entry. There is no pool
and no hidden retry: a broken connection is closed, and the caller gets `QueueUnavailable` and retries later. Over TLS,
a server that fails verification counts as unavailable, with the cause as the reason.
"""

import socket
import ssl
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol, cast

import redis
from redis import ConnectionPool, SSLConnection
from redis.backoff import NoBackoff
from redis.retry import Retry
from typing_extensions import override

from node_agent.runtime.backoff import Backoff
from tasks.scripts import DEFAULT_QUEUE, QueueKeys, Script
from tasks.trust import trust, why_untrusted

_ANSWER_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """Address and credentials of a node's queue. `namespace` comes from the control plane at enrolment.

    With `tls`, Redis must present a certificate for `host` that is signed by `ca` (PEM; None: a CA of the system).
    """

    host: str
    port: int
    username: str
    password: str = field(repr=False)
    namespace: str
    queue: str = DEFAULT_QUEUE
    tls: bool = False
    ca: str | None = None

    @property
    def keys(self) -> QueueKeys:
        return QueueKeys.of(self.namespace, self.queue)


class QueueUnavailable(Exception):
    """Redis is unavailable: no connection, login, permission, script or memory. Wait and retry.

    The node need not act to end any of these causes. For example, a Redis that lost its data has neither the node's
    user nor the scripts until the control plane restores them.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Connection(Protocol):
    """The part of redis-py's connection class that the agent uses; redis-py has no type hints for this part."""

    _sock: socket.socket | None
    password: str

    def connect(self) -> None:
        """Connect to Redis; do nothing if the connection is open."""

    def send_command(self, *words: str | int | float) -> None: ...
    def read_response(self) -> object: ...
    def disconnect(self) -> None: ...


class Line:
    """One connection to Redis, used by one thread at a time. Every method raises `QueueUnavailable`."""

    def __init__(
        self,
        address: QueueAddress,
        *,
        name: str,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        self._connection = _connection(address, name, answer_seconds)
        self._lock = threading.Lock()
        self._ended = False

    def run(self, script: Script, keys: QueueKeys, *args: str | int) -> object:
        """Run a Redis script that the control plane has loaded, and return its response."""
        return self.call("EVALSHA", script.sha, 5, *keys.all(), *args)

    def call(self, *words: str | int | float) -> object:
        with self._lock:
            try:
                return self._exchange(*words)
            except redis.ResponseError as error:
                raise QueueUnavailable(f"Redis refused a command: {type(error).__name__}: {error}") from error
            except (redis.RedisError, OSError) as error:
                self._connection.disconnect()
                raise QueueUnavailable(
                    why_untrusted(error) or f"Redis did not answer: {type(error).__name__}: {error}"
                ) from error
            except BaseException:
                # A time limit may interrupt between sending and reading: the next caller would read this response.
                self._connection.disconnect()
                raise

    def _exchange(self, *words: str | int | float) -> object:
        self._connection.connect()
        if self._ended:
            raise QueueUnavailable("this agent has closed its connection to Redis")
        self._connection.send_command(*words)
        return self._connection.read_response()

    def end(self) -> None:
        """Interrupt a call that waits on this Redis connection in another thread, and refuse every later call."""
        self._ended = True
        # Not disconnect(): it would free the parser's buffer while the other thread reads into it. A socket that is
        # shut down looks as if the server had closed it, which that thread handles. redis-py has no public way to do
        # this.
        sock = self._connection._sock  # noqa: SLF001 (the reason is above)
        if sock is not None:
            try:
                # Use the plain socket's shutdown: the TLS socket's own would first remove the encryption, and the
                # reading thread would parse encrypted bytes as a response.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return  # the reading thread closed it at the same time

    def use_password(self, password: str) -> None:
        """Use a new Redis password from the next connection on; an open connection continues."""
        self._connection.password = password

    def trust_ca(self, ca: str | None) -> None:
        """Trust a new CA from the next TLS connection to Redis on; an open connection continues."""
        if isinstance(self._connection, _TrustingConnection):
            self._connection.trusted = _trusted(ca)

    def close(self) -> None:
        self.end()
        with self._lock:
            self._connection.disconnect()


def redis_backoff() -> Backoff:
    """Return the backoff between attempts to reach Redis. Its delays are short, because an attempt is cheap."""
    return Backoff(first=0.05, cap=2.0)


_trusted: Final = lru_cache(maxsize=8)(trust)
"""Return the TLS context that trusts the given CA. The context is cached, because a process may have a fleet of agents
that trust the same CA, and a connection does not change its context."""


class _TrustingConnection(SSLConnection):
    """A TLS connection to Redis with the agent's own TLS context.

    redis-py's context trusts the system's CAs in addition to the given CA, and reads all CAs at every connection.
    """

    def __init__(self, *, trusted: ssl.SSLContext, **settings: Any) -> None:
        super().__init__(**settings)
        self.trusted = trusted

    @override
    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return self.trusted.wrap_socket(sock, server_hostname=self.host)


def _connection(address: QueueAddress, name: str, answer_seconds: float) -> _Connection:
    # RESP2, because nothing here reads the push messages of RESP3; no driver_info, because a node's user has no
    # permission for CLIENT SETINFO.
    over_tls: dict[str, Any] = (
        {"connection_class": _TrustingConnection, "trusted": _trusted(address.ca)} if address.tls else {}
    )
    pool = ConnectionPool(
        **over_tls,
        host=address.host,
        port=address.port,
        username=address.username,
        password=address.password,
        protocol=2,
        driver_info=None,
        client_name=name,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=answer_seconds,
        socket_connect_timeout=_CONNECT_SECONDS,
        socket_keepalive=True,
    )
    return cast(_Connection, pool.make_connection())
