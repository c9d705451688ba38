"""A node's two connections to Redis, and how it waits when Redis is away.

One line carries every command, under a lock; the other only waits for the queue to have something in it. There is
no pool and no hidden retry: a line that breaks is dropped, its caller hears `QueueAway`, and calls again later. Over
TLS, a server that is not believed is away like any other, and the reason says so.
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

from tasks.backoff import Backoff
from tasks.scripts import DEFAULT_QUEUE, QueueKeys, Script
from tasks.trust import trust, why_untrusted

_ANSWER_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 3.0


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """Where a node finds its orders, and as whom. `namespace` comes from the control plane at enrolment.

    With `tls`, whoever answers must show a certificate of `ca` (PEM; None: of a CA of the system) for `host`.
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


class QueueAway(Exception):
    """Redis cannot be used now: no connection, no login, no right, no script, no memory. Wait and call again.

    All of these pass without the node's doing: an empty Redis has neither its user nor the scripts until the
    control plane restores them.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Connection(Protocol):
    """What we use of redis-py's connection, which ships without types."""

    _sock: socket.socket | None
    password: str

    def connect(self) -> None:
        """Nothing, if connected."""

    def send_command(self, *words: str | int | float) -> None: ...
    def read_response(self) -> object: ...
    def disconnect(self) -> None: ...


class Line:
    """One connection, used by one thread at a time. Every method raises `QueueAway`."""

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
        """The answer of a script that the control plane has loaded."""
        return self.call("EVALSHA", script.sha, 5, *keys.all(), *args)

    def call(self, *words: str | int | float) -> object:
        with self._lock:
            try:
                return self._exchange(*words)
            except redis.ResponseError as error:
                raise QueueAway(f"{type(error).__name__}: {error}") from error
            except (redis.RedisError, OSError) as error:
                self._connection.disconnect()
                raise QueueAway(why_untrusted(error) or f"{type(error).__name__}: {error}") from error
            except BaseException:
                # A time limit may interrupt between the two: the next caller would read this one's answer.
                self._connection.disconnect()
                raise

    def _exchange(self, *words: str | int | float) -> object:
        self._connection.connect()
        if self._ended:
            raise QueueAway("the line was ended")
        self._connection.send_command(*words)
        return self._connection.read_response()

    def end(self) -> None:
        """Break off a call that waits in another thread, and refuse every later one."""
        self._ended = True
        # Not disconnect(): it takes the parser's buffer away from under the thread that reads into it. A socket
        # shut down reads as closed by the server, which that thread knows how to handle. redis-py names no other way.
        sock = self._connection._sock  # noqa: SLF001 (the reason is above)
        if sock is not None:
            try:
                # The socket's own shutdown: that of a TLS socket would first drop the encryption from under the reader,
                # who would take for an answer what is still on its way.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                return  # closed by the reader at the same moment

    def use_password(self, password: str) -> None:
        """From the next connection on; one that exists goes on."""
        self._connection.password = password

    def believe(self, ca: str | None) -> None:
        """From the next connection on, over TLS; one that exists goes on."""
        if isinstance(self._connection, _TrustingConnection):
            self._connection.trusted = _trusted(ca)

    def close(self) -> None:
        self.end()
        with self._lock:
            self._connection.disconnect()


def patience() -> Backoff:
    """The pauses between two attempts at Redis: it is asked little, and asked again soon."""
    return Backoff(first=0.05, cap=2.0)


_trusted: Final = lru_cache(maxsize=8)(trust)
"""One context for all lines that believe the same: they do not change it, and a process may hold a fleet."""


class _TrustingConnection(SSLConnection):
    """Over TLS with a context of ours: redis-py's own believes the system's CAs beside the one given, and reads them
    all at every connection.
    """

    def __init__(self, *, trusted: ssl.SSLContext, **settings: Any) -> None:
        super().__init__(**settings)
        self.trusted = trusted

    @override
    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return self.trusted.wrap_socket(sock, server_hostname=self.host)


def _connection(address: QueueAddress, name: str, answer_seconds: float) -> _Connection:
    # RESP2, because RESP3 brings pushed messages that nobody here reads; no driver_info, because CLIENT SETINFO
    # is not among the rights of a node's user.
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
