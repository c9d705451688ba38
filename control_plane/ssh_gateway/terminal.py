"""A terminal in the browser, as the caller of a console session: the gateway logs in to the slice for the caller.

The session passes the bytes of an SSH connection between the node and this end, like one of a client. Here the client
is asyncssh in this process, which logs in with the key of the gateway for the allocation, requests a shell with a
terminal, and passes its input and output to the WebSocket of the browser. Both sides wait for each other, so no
buffer grows. The SSH server belongs to the tenant of the slice, and may be hostile.

The host key of the slice is not verified: the node connects to the slice, over the bridge of the slices, so there is no
network in between on which another host could answer.
"""

import asyncio
import socket
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn, TypeVar

import asyncssh
import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from control_plane.api.consoles.callers import SessionOver
from control_plane.ssh_gateway.authorisation import Authorisation
from control_plane.ssh_gateway.flow import LEAST_PACKET, Flow, has_small_packets
from tasks.streams import MAX_MESSAGE

log = structlog.get_logger()
LOGIN_SECONDS: Final = 20.0
"""Time in which the SSH server of the slice has to accept the gateway and open a shell."""
_WINDOW: Final = 256 * 1024
_SIZE_SECONDS: Final = 0.1
"""Minimum time between two changes of the size of a terminal."""
_LEAST, _MOST = 2, 1000
_T = TypeVar("_T")
# In the order of OpenSSH. The library would choose RSA first, which dropbear offers even if it has no such key.
_HOST_KEYS: Final = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
_TERM: Final = "xterm-256color"


class InvalidMessage(Exception):
    """A message of a browser is not of the required type."""


def decoded(message: str | bytes, kind: type[_T]) -> _T:
    """Return the content of a JSON message of a browser. Raises `InvalidMessage`."""
    try:
        return msgspec.json.decode(message, type=kind)
    # The last two: brackets that are nested too deep, and text that is not UTF-8.
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidMessage(str(error)) from None


class Size(msgspec.Struct, frozen=True):
    """Size of a terminal in characters. Values out of range are replaced by the nearest permitted one."""

    columns: int = 80
    rows: int = 24

    @property
    def permitted(self) -> tuple[int, int]:
        return min(max(self.columns, _LEAST), _MOST), min(max(self.rows, _LEAST), _MOST)


class Login(NamedTuple):
    """How the gateway logs in to a slice."""

    user: str
    key: Ed25519PrivateKey


class _Client(asyncssh.SSHClient):
    """SSH client of a terminal. It attaches flow control as soon as the connection is made."""

    flow: Flow

    def connection_made(self, conn: asyncssh.SSHClientConnection) -> None:
        self.flow = Flow(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self.flow.close()


class TerminalCaller:
    """A caller with a terminal, of which the ticket was accepted. Implements `ConnectedCaller`."""

    def __init__(
        self, browser: ServerConnection, actor: str, authorisation: Authorisation, login: Login, size: Size
    ) -> None:
        self.actor = actor
        self._browser, self._authorisation, self._login, self._size = browser, authorisation, login, size
        self._over: SessionOver | None = None
        self._typed = False
        # The client of the SSH connection has one end, and the session the other one.
        self._client_end, self._session_end = socket.socketpair()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._terminal: asyncio.Task[None] | None = None
        self._size_changed = asyncio.Event()

    def end(self, over: SessionOver) -> None:
        """End the console session of this caller, for the reason in `over`."""
        self._over = self._over or over
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.feed_eof()

    async def close(self) -> None:
        """Close what this caller has opened, after the end of its session."""
        if self._terminal is not None:
            self._terminal.cancel()
            [failure] = await asyncio.gather(self._terminal, return_exceptions=True)
            if isinstance(failure, Exception):
                log.error("browser_terminal_failed", exc_info=failure)
        if self._writer is not None:
            # The connections close the sockets that they were given.
            self._writer.close()
        else:
            for each in (self._client_end, self._session_end):
                each.close()

    async def connected(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(sock=self._session_end)
        # Not awaited: the login needs the bytes that the session passes on from now on.
        self._terminal = asyncio.create_task(self._use_terminal())

    async def receive(self) -> bytes:
        assert self._reader is not None, "connected() must be called first"
        data = b"" if self._over else await self._reader.read(MAX_MESSAGE)
        if not data:
            raise self._reason()
        return data

    def has_input(self, data: bytes) -> bool:
        typed, self._typed = self._typed, False
        return typed

    async def send(self, data: bytes) -> None:
        assert self._writer is not None, "connected() must be called first"
        if self._over is not None:
            raise self._over
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            raise self._reason() from None

    def _reason(self) -> SessionOver:
        return self._over or SessionOver("ssh_login_failed", "the SSH connection to the slice has ended")

    async def verify(self) -> None:
        await self._authorisation.verify()

    async def _use_terminal(self) -> None:
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                connection, flow = await self._log_in()
            async with connection:
                async with asyncio.timeout(LOGIN_SECONDS):
                    shell = await connection.create_process(
                        term_type=_TERM, term_size=self._size.permitted, encoding=None, window=_WINDOW
                    )
                if has_small_packets(shell.channel):
                    message = f"the SSH server of the slice accepts only packets smaller than {LEAST_PACKET} bytes; configure at least {LEAST_PACKET}"
                    self.end(SessionOver("ssh_login_failed", message))
                    return
                await self._browser.send('{"state": "connected"}')
                self.end(await self._pass_on(shell, flow))
        except TimeoutError:
            message = f"the SSH server of the slice did not open a shell within {LOGIN_SECONDS:.0f} s"
            self.end(SessionOver("ssh_login_failed", message))
        except asyncssh.PermissionDenied:
            message = f"the SSH server of the slice did not accept the key of the gateway for user {self._login.user}"
            self.end(SessionOver("ssh_login_refused", message))
        except ConnectionClosed:
            self.end(_closed())
        except (asyncssh.Error, OSError, ValueError) as error:
            message = f"the SSH server of the slice ended the login: {_printable(error)}"
            self.end(SessionOver("ssh_login_failed", message))
        finally:
            # Changes nothing unless an error was not expected.
            self.end(
                SessionOver("internal_error", "the terminal failed; the log of the gateway has the cause")
            )

    async def _log_in(self) -> tuple[asyncssh.SSHClientConnection, Flow]:
        key, client = asyncssh.import_private_key(_pem(self._login.key)), _Client()
        connection = await asyncssh.connect(
            "slice",  # not resolved: the socket is connected
            sock=self._client_end,
            username=self._login.user,
            client_keys=[key],
            preferred_auth="publickey",
            known_hosts=None,
            server_host_key_algs=_HOST_KEYS,
            config=None,
            agent_path=None,
            gss_host=None,
            compression_algs=["none"],
            client_version="Sliceplane",
            client_factory=lambda: client,
        )
        return connection, client.flow

    async def _pass_on(self, shell: asyncssh.SSHClientProcess[bytes], flow: Flow) -> SessionOver:
        """Pass input, sizes and output on until one side ends, and return the reason."""
        coroutines = self._pass_input(shell, flow), self._pass_sizes(shell, flow), self._pass_output(shell)
        parts = [asyncio.ensure_future(each) for each in coroutines]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async def _pass_input(self, shell: asyncssh.SSHClientProcess[bytes], flow: Flow) -> SessionOver:
        with suppress(ConnectionClosed):
            async for message in self._browser:
                if isinstance(message, bytes):
                    self._typed = True
                    shell.stdin.write(message)
                    await shell.stdin.drain()
                    await flow.wait()
                    continue
                try:
                    self._size = decoded(message, Size)
                except InvalidMessage:
                    return SessionOver(
                        "invalid_message", "the browser sent a text message that is not a terminal size"
                    )
                self._size_changed.set()
        return _closed()

    async def _pass_sizes(self, shell: asyncssh.SSHClientProcess[bytes], flow: Flow) -> NoReturn:
        """Send the newest size of the terminal to the slice, at most once per `_SIZE_SECONDS`. Sizes in between are
        dropped.
        """
        while True:
            await self._size_changed.wait()
            await flow.wait()
            self._size_changed.clear()
            shell.change_terminal_size(*self._size.permitted)
            await asyncio.sleep(_SIZE_SECONDS)

    async def _pass_output(self, shell: asyncssh.SSHClientProcess[bytes]) -> SessionOver:
        try:
            while data := await shell.stdout.read(MAX_MESSAGE):
                await self._browser.send(data)
        except ConnectionClosed:
            return _closed()
        await shell.wait_closed()
        status = shell.exit_status
        how = "has ended" if status is None else f"has ended with exit status {status}"
        return SessionOver("shell_ended", f"the shell {how}")


def _closed() -> SessionOver:
    return SessionOver("closed_by_caller", "the caller closed the connection")


def _printable(error: Exception) -> str:
    """Return the text of an error as one line. It may contain what the slice has sent."""
    return "".join(each if each.isprintable() else "?" for each in str(error))[:200]


def _pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
