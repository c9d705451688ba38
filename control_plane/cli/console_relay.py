"""The caller's end of a console session: a terminal for the serial port of a slice, or a local port for a viewer of its
display.

Bytes go from and to the WebSocket of the session (docs/api.md). One thread reads the local side; the main thread reads
the WebSocket, so that Ctrl-C ends the command.
"""

import contextlib
import json
import os
import socket
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from websockets.exceptions import ConnectionClosed, WebSocketException

from control_plane.cli.access import Access
from control_plane.cli.failures import Refused, Unreachable, WrongUsage
from control_plane.client.answers import ConsoleTicket
from control_plane.client.trust import trust
from control_plane.client.web_socket import WebSocket

LEAVE: Final = b"\x1d"
"""Byte that a terminal sends for Ctrl-], with which the user ends a console session."""
_READ_BYTES: Final = 16 * 1024
_OPEN_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 30.0


@contextmanager
def connected(access: Access, ticket: ConsoleTicket) -> Iterator[WebSocket]:
    """Use a ticket, and provide the WebSocket of the connected session. Raises `Refused` and `Unreachable`."""
    address = f"ws{access.url.removeprefix('http').rstrip('/')}{ticket.path}"
    try:
        opened = WebSocket(
            address,
            trusted=trust(access.url, access.ca) if address.startswith("wss:") else None,
            headers={"Authorization": f"Bearer {access.api_key}"},
            seconds=_OPEN_SECONDS,
        )
    except (OSError, TimeoutError, WebSocketException) as error:
        raise Unreachable(f"the console session could not be opened: {error}") from error
    with opened as stream:
        try:
            stream.send(json.dumps({"ticket": ticket.ticket}))
            first = json.loads(stream.receive(_ANSWER_SECONDS))
        except (ConnectionClosed, TimeoutError, ValueError) as error:
            raise Unreachable(f"the control plane did not open the console session: {error}") from error
        if first["state"] != "connected":
            reasons = first.get("reasons") or [first["reason"]]
            raise Refused("; ".join(each["message"] for each in reasons))
        yield stream


def refuse_without_terminal() -> None:
    """Raise `WrongUsage` unless standard input and output are a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongUsage("the serial console needs a terminal: run the command without pipes")


def run_in_terminal(stream: WebSocket) -> str:
    """Connect the terminal with a console session until the session ends, and return the reason; empty if the user
    ended it with Ctrl-].
    """
    left = threading.Event()

    def read() -> bytes:
        data = os.read(sys.stdin.fileno(), _READ_BYTES)
        if LEAVE in data:
            left.set()
            return b""
        return data

    def show(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        reason = _relay(stream, read, show)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
    return "" if left.is_set() else reason


@contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """Provide a socket that listens on `port` of this machine only; 0: on any free port. Raises `WrongUsage`."""
    try:
        server = socket.create_server(("127.0.0.1", port), backlog=1)
    except (OSError, OverflowError) as error:
        raise WrongUsage(f"cannot listen on port {port}: {error}") from error
    with server:
        yield server


def run_for_viewer(stream: WebSocket, viewer: socket.socket) -> str:
    """Connect a viewer with the session until one of them ends, and return the reason; empty if the viewer ended it."""
    left = threading.Event()

    def read() -> bytes:
        with contextlib.suppress(OSError):
            if data := viewer.recv(_READ_BYTES):
                return data
        left.set()
        return b""

    def show(data: bytes) -> None:
        with contextlib.suppress(OSError):
            viewer.sendall(data)

    reason = _relay(stream, read, show)
    return "" if left.is_set() else reason


def _relay(stream: WebSocket, read: Callable[[], bytes], show: Callable[[bytes], None]) -> str:
    def send() -> None:
        try:
            while data := read():
                stream.send(data)
        except ConnectionClosed:
            return
        stream.close()

    threading.Thread(target=send, name="console-input", daemon=True).start()
    try:
        for message in stream:
            if isinstance(message, str):
                return str(json.loads(message)["reason"]["message"])
            show(message)
    except ConnectionClosed as error:
        return f"the connection to the control plane is lost: {error}"
    return "the control plane closed the connection"
