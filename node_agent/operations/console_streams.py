"""Open consoles of this node. Each has two threads: one for the output of the machine, one for the input of the caller.

A console ends when its machine ends, when the control plane closes the stream, and when the agent stops. No console
survives its agent: the threads end with the process, and libvirt closes the consoles of a client that is gone.
"""

import threading
from typing import Final

import structlog

from node_agent.host.host import SerialConsole
from node_agent.transport.stream_socket import StreamSocket
from tasks.streams import StreamRequest

MOST: Final = 16
"""Maximum number of open consoles of a node."""
log = structlog.get_logger(__name__)


class OpenConsoles:
    """The open consoles of a node. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[SerialConsole, StreamSocket] = {}
        self._closing = False

    @property
    def has_room(self) -> bool:
        with self._lock:
            return len(self._open) < MOST and not self._closing

    def serve(self, request: StreamRequest, console: SerialConsole, socket: StreamSocket) -> None:
        """Pass input and output on, in threads of their own, until one side ends; then close both sides."""
        with self._lock:
            self._open[console] = socket
        threading.Thread(
            target=self._output, args=(console, socket), name="console-output", daemon=True
        ).start()
        threading.Thread(
            target=self._input, args=(request, console, socket), name="console-input", daemon=True
        ).start()

    def close(self) -> None:
        """Close all consoles, and accept no more."""
        with self._lock:
            self._closing, every = True, list(self._open.items())
        for console, socket in every:
            console.close()
            socket.close()

    def _output(self, console: SerialConsole, socket: StreamSocket) -> None:
        try:
            while data := console.read():
                if not socket.send(data):
                    break
        finally:
            # This ends the other thread.
            socket.close()

    def _input(self, request: StreamRequest, console: SerialConsole, socket: StreamSocket) -> None:
        try:
            while (data := socket.receive()) is not None:
                console.write(data)
        finally:
            # This ends the other thread.
            console.close()
            with self._lock:
                self._open.pop(console, None)
            log.info("console_closed", stream_id=str(request.stream_id), slot_id=request.slot_id)
