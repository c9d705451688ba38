"""The SSH port of a simulated guest: it sends a version line (RFC 4253 section 4.2), and then returns all bytes that it
receives.
"""

import threading
from queue import Empty, Full, Queue
from typing import Final

GREETING: Final = b"SSH-2.0-simulated\r\n"
_MOST_QUEUED: Final = 16
_WAIT_SECONDS: Final = 0.2


class SimulatedSsh:
    """Open connection to the SSH port of a simulated machine: an implementation of `node_agent.host.host.Console`.
    While the caller does not read the output, the port does not read the caller's input.
    """

    def __init__(self) -> None:
        self._output = Queue[bytes](_MOST_QUEUED)
        self._closed = threading.Event()
        self._output.put(GREETING)

    def read(self) -> bytes:
        while not self._closed.is_set():
            try:
                return self._output.get(timeout=_WAIT_SECONDS)
            except Empty:
                continue
        return b""

    def write(self, data: bytes) -> None:
        while data and not self._closed.is_set():
            try:
                self._output.put(data, timeout=_WAIT_SECONDS)
            except Full:
                continue
            return

    def close(self) -> None:
        self._closed.set()
