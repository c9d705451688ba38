"""One SSH connection to the gateway: authentication with a key or an SSH certificate, and channels to the SSH ports of
slices.

The user name of the connection is the id of an allocation. A client can open one kind of channel, `direct-tcpip` (RFC
4254 section 7.2), to port 22 of a slice, which is named `slice` or `slice-N`. Everything else is refused.
"""

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, Final, NoReturn, Protocol
from uuid import UUID

import asyncssh
import structlog
from asyncssh.public_key import SSHOpenSSHCertificate

from control_plane.api.audit.sources import network_of
from control_plane.api.consoles.callers import SessionOver
from control_plane.api.consoles.joining import CallerEnd
from control_plane.commands.consoles.session_commands import begin_ssh
from control_plane.decisions.refusals import Refused
from control_plane.identity.sealing import OrderKeys
from control_plane.origin import Origin
from control_plane.outage import DATABASE_UNAVAILABLE
from control_plane.ssh_gateway.authorisation import Authorisation
from control_plane.ssh_gateway.certificates import against, key_id_of, offering_certificates, serial_of
from control_plane.ssh_gateway.channel import WINDOW, ChannelCaller
from control_plane.ssh_gateway.flow import LEAST_PACKET, Flow, has_small_packets
from control_plane.ssh_gateway.limits import MOST_OF_ALLOCATION, MOST_OPENINGS, Limits, TooManyOpenings
from control_plane.wiring import Plane
from events.facts import Reason
from events.values import InvalidValue, allocation_id, console_id, new_uuid
from tasks.streams import SSH_PORT

log = structlog.get_logger()
MOST_KEYS: Final = 16
"""Maximum number of keys that a client can offer without success."""
MOST_REFUSALS: Final = 50
"""Number of refused requests after which a connection is closed."""
UNUSED_SECONDS: Final = 30.0
"""Time after which a connection without a channel is closed."""
_SLICE: Final = re.compile(r"slice(?:-([0-9]{1,2}))?")
_USAGE: Final = (
    f"this gateway only leads to port {SSH_PORT} of `slice` or `slice-N`: ssh -J ALLOCATION@GATEWAY slice"
)
_BY_PEERS: Final = ("closed_by_caller", "closed_by_node")
_PROHIBITED: Final = asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED


class Sessions(Protocol):
    """Interface to what all SSH connections of a gateway process share: its connections to the servers, its keys and
    limits, and the open channels and connections.
    """

    plane: Plane
    keys: OrderKeys
    limits: Limits
    callers: set[ChannelCaller]
    connections: set["Connection"]

    def start(self, run: Coroutine[Any, Any, Reason]) -> asyncio.Task[Reason]:
        """Run a session in a new task. The gateway waits for this task when it stops."""
        ...


class Connection(asyncssh.SSHServer):
    """One SSH connection of a client to the gateway."""

    def __init__(self, gateway: Sessions) -> None:
        self._gateway = gateway
        self._callers: set[ChannelCaller] = set()
        self._source, self._user, self._refused_keys = "", "", 0
        self._authorisation: Authorisation | None = None
        self._key: asyncssh.SSHKey | None = None
        """Key of the caller, or the one with which its certificate is signed."""
        self._certificate: SSHOpenSSHCertificate | None = None
        """Certificate that the client offered last; None: it offered a key."""
        self._is_authenticated, self._is_lost, self._refusals = False, False, 0
        self._unused: asyncio.TimerHandle | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection, self._flow = conn, Flow(conn)
        offering_certificates(conn, self._offered)
        self._gateway.connections.add(self)
        self._source = network_of(str(conn.get_extra_info("peername")[0]))
        if not self._gateway.limits.connect(self._source):
            log.warning("ssh_connection_refused", source=self._source)
            conn.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gateway.connections.discard(self)
        self._flow.close()
        self._gateway.limits.disconnect(self._source)
        self._is_lost = True
        if self._is_authenticated:
            self._gateway.limits.leave(self._user)
        # Refused keys were counted before. A connection without a user name, such as a health check, is not an attempt.
        if self._user and not self._is_authenticated and not self._refused_keys:
            self._gateway.limits.failed(*self._subjects)
        if self._unused is not None:
            self._unused.cancel()
        for caller in self._callers:
            caller.end(SessionOver("closed_by_caller", "the caller closed the connection"))

    @property
    def _subjects(self) -> tuple[str, ...]:
        """Subjects for which a failed attempt to authenticate counts: the source address, and the allocation if the
        user name is an allocation id.
        """
        return (self._source, self._user) if self._authorisation else (self._source,)

    async def begin_auth(self, username: str) -> bool:
        self._user, self._authorisation, self._key = username, None, None
        try:
            self._authorisation = Authorisation(self._gateway.plane.engine, allocation_id(username))
        except InvalidValue:
            # Without keys, authentication fails as for an id that no allocation has.
            log.info("ssh_user_is_not_an_allocation", source=self._source)
        if seconds := self._gateway.limits.blocked_seconds(*self._subjects):
            raise _disconnected(f"too many failed attempts; try again in {seconds} s")
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def _offered(self, certificate: SSHOpenSSHCertificate | None) -> None:
        self._certificate = certificate

    async def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        if self._authorisation is not None and await _answered(self._authorisation.accepts(key.public_data)):
            self._key = key
            return True
        log.info(
            "ssh_key_refused", source=self._source, user=username[:64], fingerprint=key.get_fingerprint()
        )
        return self._refuse_key()

    async def validate_ca_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        assert self._certificate is not None, "asyncssh must have read the certificate of the client"
        reason, authorisation = against(self._certificate, username), self._authorisation
        if reason is None and authorisation is not None:
            if await _answered(authorisation.accepts_certificates_of(key.public_data)):
                self._key = key
                return True
            reason = "the gateway key of the allocation has not signed the certificate, or the allocation is not active"
        fingerprint = self._certificate.key.get_fingerprint()
        log.info(
            "ssh_certificate_refused",
            source=self._source,
            user=username[:64],
            fingerprint=fingerprint,
            reason=reason,
        )
        return self._refuse_key()

    def _refuse_key(self) -> bool:
        """Count a refused key or certificate, and return False. Disconnects the client after too many attempts."""
        self._refused_keys += 1
        self._gateway.limits.failed(*self._subjects)
        seconds = self._gateway.limits.blocked_seconds(*self._subjects)
        if seconds or self._refused_keys >= MOST_KEYS:
            raise _disconnected(f"too many failed attempts; try again in {seconds or 1} s")
        return False

    def auth_completed(self) -> None:
        self._is_authenticated = True
        if not self._gateway.limits.enter(self._user):
            self.disconnect(
                f"the allocation has {MOST_OF_ALLOCATION} open connections to this gateway; close one"
            )
        self._close_if_unused(is_new=True)

    def _close_if_unused(self, *, is_new: bool = False) -> None:
        if is_new or self._callers:
            loop = asyncio.get_running_loop()
            self._unused = loop.call_later(UNUSED_SECONDS, self._close_if_unused)
        else:
            self.disconnect(f"the connection had no channel for {UNUSED_SECONDS:.0f} s")

    def disconnect(self, message: str) -> None:
        """Close the connection with a message that the client shows."""
        # `SSHConnection.disconnect` closes the channels first, and a client without channels ends without the message.
        self._connection.create_task(_raise(_disconnected(message)))

    # Requests of an authenticated client.
    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> tuple[asyncssh.SSHTCPChannel[bytes], Coroutine[Any, Any, ChannelCaller]]:
        named = _SLICE.fullmatch(dest_host)
        if named is None or dest_port != SSH_PORT:
            self._refuse(f"connection to {dest_host[:64]} port {dest_port}")
        channel = self._connection.create_tcp_channel(window=WINDOW)
        return channel, self._open(channel, int(named[1] or 0))

    def session_requested(self) -> NoReturn:
        self._refuse("session")

    def unix_connection_requested(self, dest_path: str) -> NoReturn:
        self._refuse("connection to a socket")

    def tun_requested(self, unit: int | None) -> NoReturn:
        self._refuse("tunnel")

    def tap_requested(self, unit: int | None) -> NoReturn:
        self._refuse("tunnel")

    def server_requested(self, listen_host: str, listen_port: int) -> bool:
        return self._refuse_listener()

    def unix_server_requested(self, listen_path: str) -> bool:
        return self._refuse_listener()

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await self._connection.wait_closed()

    def _refuse(self, what: str) -> NoReturn:
        self._count_refusal(what)
        raise asyncssh.ChannelOpenError(_PROHIBITED, f"{what} refused: {_USAGE}")

    def _refuse_listener(self) -> bool:
        self._count_refusal("listener")
        # The protocol has no reason in the answer.
        self._connection.send_debug(f"remote forwarding refused: {_USAGE}", always_display=True)
        return False

    def _count_refusal(self, what: str) -> None:
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            log.info("ssh_request_refused", source=self._source, user=self._user, request=what)
        if self._refusals == MOST_REFUSALS:
            self.disconnect(f"{MOST_REFUSALS} requests were refused")

    async def _open(self, channel: asyncssh.SSHTCPChannel[bytes], number: int) -> ChannelCaller:
        """Open a session to the slice in slot `number`, and return the session of `channel` as soon as the node has
        connected to the slice. Raises `asyncssh.ChannelOpenError`.
        """
        if has_small_packets(channel):
            message = f"the maximum packet size of the channel is less than {LEAST_PACKET} bytes; choose at least {LEAST_PACKET}"
            raise asyncssh.ChannelOpenError(_PROHIBITED, message)
        assert self._authorisation is not None, "the client must be authenticated"
        assert self._key is not None, "the client must be authenticated"
        actor, reason = f"ssh-key:{self._key.get_fingerprint()}", "connection to the SSH gateway"
        if self._certificate is not None:
            if over := against(self._certificate, self._authorisation.allocation):
                message = f"the SSH certificate is no longer accepted: {over}; connect with a new one"
                raise asyncssh.ChannelOpenError(_PROHIBITED, message)
            actor = key_id_of(self._certificate)
            reason = f"{reason} with SSH certificate {serial_of(self._certificate)}"
        plane, caller = self._gateway.plane, ChannelCaller(actor, self._authorisation, self._flow)
        limits, allocation = self._gateway.limits, self._authorisation.allocation
        origin = Origin(caller.actor, reason, new_uuid())
        try:
            async with limits.opening(allocation):
                if seconds := limits.open_session(allocation):
                    message = (
                        f"too many connections to the slices of the allocation; try again in {seconds} s"
                    )
                    raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, message)
                answer = await plane.handle(begin_ssh(allocation, number, origin))
        except TooManyOpenings:
            message = f"{MOST_OPENINGS} connections to the slices of the allocation are being opened; try again later"
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, message) from None
        except Refused as refused:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, str(refused)) from None
        except DATABASE_UNAVAILABLE:
            message = "the control plane does not answer; try again later"
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_RESOURCE_SHORTAGE, message) from None
        name, _, stream = answer.partition(" ")
        end = CallerEnd(plane, self._gateway.keys, caller, console_id(name), UUID(stream))
        self._callers.add(caller)
        if self._is_lost:
            # asyncssh goes on opening a channel after the connection is lost. The session records its end.
            caller.end(SessionOver("closed_by_caller", "the caller closed the connection"))
        self._gateway.callers.add(caller)
        session = self._gateway.start(end.run())
        session.add_done_callback(lambda task: self._ended(caller, task))
        opened = asyncio.ensure_future(caller.opened.wait())
        try:
            await asyncio.wait((session, opened), return_when=asyncio.FIRST_COMPLETED)
        finally:
            opened.cancel()
        if not caller.opened.is_set():
            message = "the session failed" if session.exception() else session.result().message
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, message)
        return caller

    def _ended(self, caller: ChannelCaller, session: asyncio.Task[Reason]) -> None:
        self._callers.discard(caller)
        self._gateway.callers.discard(caller)
        reason = None if session.cancelled() or session.exception() else session.result()
        if reason is None or reason.code in _BY_PEERS or self._callers or not caller.opened.is_set():
            caller.close()
            return
        log.info("ssh_session_ended", user=self._user, actor=caller.actor, code=reason.code)
        self.disconnect(f"the session ended: {reason.message}")


async def _answered(accepted: Coroutine[Any, Any, bool]) -> bool:
    """Return an answer of the control plane, or disconnect the client."""
    try:
        return await accepted
    except DATABASE_UNAVAILABLE:
        raise _disconnected("the control plane does not answer; try again later") from None


async def _raise(error: asyncssh.DisconnectError) -> None:
    raise error


def _disconnected(message: str) -> asyncssh.DisconnectError:
    return asyncssh.DisconnectError(asyncssh.DISC_BY_APPLICATION, message)
