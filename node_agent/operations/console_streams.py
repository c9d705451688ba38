"""Open consoles of this node, and open connections to the SSH ports of its slices. Each has two threads: one for the
output of the machine, one for the input of the caller.

A console ends when its machine ends, when the control plane closes the stream, and when the agent stops. No console
survives its agent: the threads end with the process, and libvirt closes the consoles of a client that is gone.
"""

import threading
from typing import Final
from uuid import UUID

import structlog

from node_agent.host.host import Console
from node_agent.transport.stream_socket import StreamSocket
from tasks.streams import StreamRequest

MOST: Final = 16
"""Maximum number of open consoles of a node."""
MOST_SSH: Final = 64
"""Maximum number of open SSH connections of a node. SSH connections are counted separately from consoles, so that
callers cannot use up the consoles that admins need.
"""
CLOSING_SECONDS: Final = 2.0
"""Maximum time in seconds that a request for a console waits until another console is closed. The control plane records
the end of a session before the node has closed its console, and a caller may open the next session in between.
"""
log = structlog.get_logger(__name__)


class OpenConsoles:
    """The open consoles of a node. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[UUID, tuple[StreamRequest, Console | None, StreamSocket | None]] = {}
        self._closing = False

    def reserve(self, request: StreamRequest) -> str | None:
        """Reserve a place for a console, and return None; or return the reason why the console cannot be opened now.

        Waits up to `CLOSING_SECONDS` for the place of a console, but not for that of an SSH connection: many waiting
        requests of callers would occupy the threads that open consoles.
        """
        with self._changed:
            if request.kind != "ssh":
                self._changed.wait_for(
                    lambda: self._closing or self._obstacle(request) is None, timeout=CLOSING_SECONDS
                )
            if self._closing:
                return "the agent of the node is stopping"
            if (obstacle := self._obstacle(request)) is None:
                self._open[request.stream_id] = request, None, None
            return obstacle

    def _obstacle(self, request: StreamRequest) -> str | None:
        """Return the reason why the requested console cannot be opened now, or None if it can."""
        is_ssh, most = request.kind == "ssh", MOST_SSH if request.kind == "ssh" else MOST
        if sum((each.kind == "ssh") == is_ssh for each, _, _ in self._open.values()) >= most:
            noun = "SSH connections" if is_ssh else "consoles"
            return f"the node has {most} open {noun}, which is the maximum"
        if is_ssh or request.shared:
            return None
        of_slot = {each.kind for each, _, _ in self._open.values() if each.slot_id == request.slot_id}
        match request.kind:
            case "graphics" if "graphics" in of_slot:
                return "the display is open in another session; open it as shared to watch it as well"
            case "serial_console" if "serial_console" in of_slot:
                return "the serial port is open in another session"
            case _:
                return None

    def free(self, request: StreamRequest) -> None:
        """Free the place that was reserved for a console."""
        with self._changed:
            self._open.pop(request.stream_id, None)
            self._changed.notify_all()

    def serve(self, request: StreamRequest, console: Console, socket: StreamSocket) -> None:
        """Pass bytes between a console and the stream of its caller, in two threads, until one of them ends; then close
        both. The place of the console must be reserved. If the agent is stopping, close both at once.
        """
        with self._changed:
            self._open[request.stream_id] = request, console, socket
            closing = self._closing
        if closing:
            console.close()
            socket.close()
            return
        threading.Thread(
            target=self._output, args=(console, socket), name="console-output", daemon=True
        ).start()
        threading.Thread(
            target=self._input, args=(request, console, socket), name="console-input", daemon=True
        ).start()

    def close(self) -> None:
        """Close all consoles, and accept no more."""
        with self._changed:
            self._closing, every = True, list(self._open.values())
            self._changed.notify_all()
        for _, console, socket in every:
            if console is not None:
                console.close()
            if socket is not None:
                socket.close()

    def _output(self, console: Console, socket: StreamSocket) -> None:
        try:
            while data := console.read():
                if not socket.send(data):
                    break
        finally:
            # This ends the other thread.
            socket.close()

    def _input(self, request: StreamRequest, console: Console, socket: StreamSocket) -> None:
        try:
            while (data := socket.receive()) is not None:
                console.write(data)
        finally:
            # This ends the other thread.
            console.close()
            self.free(request)
            log.info("console_closed", stream_id=str(request.stream_id), slot_id=request.slot_id)
