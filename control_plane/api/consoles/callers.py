"""Interface between a console session and its caller, which has a WebSocket of the API, or a channel or a terminal of
the SSH gateway.
"""

from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from control_plane.api.consoles.viewer_messages import InvalidViewerMessage, ViewerMessages
from control_plane.api.requests.held_credential import HeldCredential
from control_plane.decisions.refusals import Unauthorised
from events.facts import Reason


class SessionOver(Exception):
    """A console session has to end. `reason` is recorded as the reason of its end."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.reason = Reason(code, message)


class ConnectedCaller(Protocol):
    """A caller that was authorised for a console session. A method raises `SessionOver` if the session has to end."""

    actor: str

    async def connected(self) -> None:
        """Notify the caller that the node has opened the console. Called once, before `receive` and `send`."""
        ...

    async def receive(self) -> bytes:
        """Wait for input of the caller and return it."""
        ...

    def has_input(self, data: bytes) -> bool:
        """Return whether these bytes, which `receive` has returned, contain input of a person."""
        ...

    async def send(self, data: bytes) -> None:
        """Send output to the caller. Waits while the caller does not read."""
        ...

    async def verify(self) -> None:
        """Verify that the caller is still authorised."""
        ...


class WebSocketCaller:
    """A caller with a WebSocket of the API. Its ticket was accepted together with the credential `credential`."""

    def __init__(self, socket: WebSocket, credential: HeldCredential, viewer: ViewerMessages | None) -> None:
        """`viewer` reads the messages of the viewer of a display; None: the caller uses a serial port."""
        self.actor = credential.principal.actor
        self._socket, self._credential, self._viewer = socket, credential, viewer

    async def connected(self) -> None:
        await self._socket.send_text('{"state": "connected"}')

    async def receive(self) -> bytes:
        try:
            return await self._socket.receive_bytes()
        except (WebSocketDisconnect, RuntimeError):
            raise SessionOver("closed_by_caller", "the caller closed the connection") from None
        except KeyError:
            message = "the caller sent a text message; input for the console must be a binary message"
            raise SessionOver("invalid_message", message) from None

    def has_input(self, data: bytes) -> bool:
        try:
            return self._viewer is None or self._viewer.has_input(data)
        except InvalidViewerMessage as error:
            raise SessionOver("invalid_message", str(error)) from None

    async def send(self, data: bytes) -> None:
        try:
            await self._socket.send_bytes(data)
        except (WebSocketDisconnect, RuntimeError, OSError):
            raise SessionOver("closed_by_caller", "the caller closed the connection") from None

    async def verify(self) -> None:
        try:
            self._credential = await self._credential.verify()
        except Unauthorised as refused:
            raise SessionOver("credential_ended", str(refused)) from None
