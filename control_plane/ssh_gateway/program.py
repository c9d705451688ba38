"""The SSH gateway: a program with listeners of its own, through which callers reach the SSH ports of their slices, and
use terminals in the browser (ING-6).

A client connects with `ssh -J ALLOCATION@GATEWAY USER@slice`. The gateway authenticates it with a key of the
allocation, requests the slice's node to connect to port 22 of the slice, and passes on the bytes. The SSH connection to
the slice is encrypted between the client and the slice, so the gateway sees neither its content nor its keys.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

import asyncssh
import structlog

from control_plane.api.consoles.callers import SessionOver
from control_plane.certificates import server_context
from control_plane.identity.sealing import OrderKeys, order_keys
from control_plane.settings import Settings
from control_plane.ssh_gateway.channel import ChannelCaller
from control_plane.ssh_gateway.connection import Connection
from control_plane.ssh_gateway.flow import read_in_small_parts
from control_plane.ssh_gateway.limits import Limits
from control_plane.ssh_gateway.terminal import TerminalCaller
from control_plane.ssh_gateway.terminals import Terminals
from control_plane.wiring import CannotListen, NoHostKey, Plane, allow_connections
from events.facts import Reason

log = structlog.get_logger()
LOGIN_SECONDS: Final = 20
"""Time in which a client has to authenticate."""
LAST_SECONDS: Final = 2.0
_KEEPALIVE_SECONDS: Final = 15
_BACKLOG: Final = 128


class Gateway:
    """The open sessions of a process of the gateway, and its limits."""

    def __init__(self, plane: Plane, keys: OrderKeys) -> None:
        self.plane, self.keys = plane, keys
        settings = plane.settings
        self.limits = Limits(settings.unauthenticated_per_minute, settings.requests_per_minute)
        self.callers: set[ChannelCaller] = set()
        self.terminals: set[TerminalCaller] = set()
        self.connections: set[Connection] = set()
        self._sessions: set[asyncio.Task[Reason]] = set()

    def start(self, run: Coroutine[Any, Any, Reason]) -> asyncio.Task[Reason]:
        session = asyncio.create_task(run)
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)
        return session

    async def stop(self) -> None:
        """End all sessions and connections, and wait until the ends of sessions are recorded and clients are notified,
        for at most `LAST_SECONDS` each.
        """
        stopped = SessionOver("gateway_stopped", "the SSH gateway stops")
        for caller in [*self.callers]:
            caller.end(stopped)
        for terminal in [*self.terminals]:
            terminal.end(stopped)
        if self._sessions:
            await asyncio.wait(self._sessions, timeout=LAST_SECONDS)
        closing = [asyncio.create_task(each.wait_closed()) for each in self.connections]
        for connection in [*self.connections]:
            connection.disconnect("the SSH gateway stops")
        if closing:
            await asyncio.wait(closing, timeout=LAST_SECONDS)


async def serve_ssh(plane: Plane) -> None:
    """Serve SSH clients and terminals until cancelled; the open sessions then end. Raises `NoSigningKey`, `NoHostKey`,
    `UnusableCertificate` and `CannotListen` before it accepts a connection.
    """
    settings = plane.settings
    gateway, host_key = Gateway(plane, order_keys(settings)), _host_key(settings)
    secure = server_context(settings)
    allow_connections()
    read_in_small_parts()
    # Failed handshakes are not errors of this program, which has log events of its own.
    logging.getLogger("asyncssh").setLevel(logging.CRITICAL)
    async with AsyncExitStack() as listeners:
        for address in settings.ssh_gateway_listen.split(","):
            listener = await _listen(gateway, host_key, _open(address))
            listeners.callback(listener.close)
        for address in settings.terminal_listen.split(",") if settings.terminal_listen else ():
            await listeners.enter_async_context(Terminals(gateway).listen(_open(address), secure))
        log.info(
            "ssh_gateway_serving", listen=settings.ssh_gateway_listen, terminals=settings.terminal_listen
        )
        try:
            await asyncio.Event().wait()
        finally:
            await gateway.stop()


async def _listen(
    gateway: Gateway, host_key: asyncssh.SSHKey, listening: socket.socket
) -> asyncssh.SSHAcceptor:
    """Accept connections. Every kind of authentication, session and forwarding that is not named here is disabled."""
    return await asyncssh.listen(
        sock=listening,
        server_factory=lambda: Connection(gateway),
        server_host_keys=[host_key],
        server_version="Sliceplane",
        public_key_auth=True,
        password_auth=False,
        kbdint_auth=False,
        host_based_auth=False,
        gss_host=None,
        allow_pty=False,
        agent_forwarding=False,
        x11_forwarding=False,
        allow_scp=False,
        compression_algs=["none"],
        login_timeout=LOGIN_SECONDS,
        keepalive_interval=_KEEPALIVE_SECONDS,
    )


def _host_key(settings: Settings) -> asyncssh.SSHKey:
    path = settings.ssh_gateway_host_key_file
    if path is None:
        raise NoHostKey(
            "SLICEPLANE_SSH_GATEWAY_HOST_KEY_FILE is not set: name a file with a private key that ssh-keygen made"
        )
    try:
        return asyncssh.read_private_key(path)
    except OSError as error:
        raise NoHostKey(f"the host key {path} cannot be read: {error.strerror or error}") from error
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        raise NoHostKey(f"the host key {path} cannot be used: {error}") from error


def _open(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server((host, int(port)), backlog=_BACKLOG)
    except OSError as error:
        raise CannotListen(address, error, "SSH gateway") from error
