"""The display of a simulated machine: a small server of the RFB protocol (RFC 6143, version 3.8, encoding Raw).

It shows one colour, which changes with each key. An invalid message of a viewer ends the session of this viewer only.
"""

import struct
import threading
from collections.abc import Generator
from queue import Empty, Full, Queue
from typing import Final

WIDTH, HEIGHT = 160, 100
_VERSION: Final = b"RFB 003.008\n"
_FORMAT: Final = struct.pack(">BBBBHHHBBBxxx", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
"""Pixel format: 32 bits, of which 24 are used; little endian; red, green and blue in this order from the top."""
COLOURS: Final = (0x1D4ED8, 0x15803D, 0xB45309, 0x7E22CE)
_MOST_QUEUED: Final = 16
_WAIT_SECONDS: Final = 0.2
_MOST_SHIFTED: Final = 31
_MOST_CUT_TEXT: Final = 1024 * 1024


class _Malformed(Exception):
    """The viewer of a simulated display sent a message that is not valid in the RFB protocol."""


class SimulatedDisplay:
    """Open display of a simulated machine: an implementation of `node_agent.host.host.Console` for one viewer. While
    the viewer does not read the output, the display does not read the viewer's input.
    """

    def __init__(self, name: str) -> None:
        self._name = name.encode()
        self._output = Queue[bytes](_MOST_QUEUED)
        self._closed = threading.Event()
        self._input = b""
        self._colour, self._format, self._shown, self._waits = 0, _FORMAT, -1, False
        self._dialogue = self._run()
        self._needed = next(self._dialogue)

    def read(self) -> bytes:
        while not self._closed.is_set():
            try:
                return self._output.get(timeout=_WAIT_SECONDS)
            except Empty:
                continue
        return b""

    def write(self, data: bytes) -> None:
        self._input += data
        try:
            while len(self._input) >= self._needed:
                part, self._input = self._input[: self._needed], self._input[self._needed :]
                self._needed = self._dialogue.send(part)
        except (_Malformed, StopIteration):
            self.close()

    def close(self) -> None:
        self._closed.set()

    def _send(self, data: bytes) -> None:
        while not self._closed.is_set():
            try:
                self._output.put(data, timeout=_WAIT_SECONDS)
            except Full:
                continue
            return

    # The generators yield the number of bytes that are read next, and receive these bytes.
    def _run(self) -> Generator[int, bytes, None]:
        yield from self._shake_hands()
        while True:
            yield from self._take_message()

    def _shake_hands(self) -> Generator[int, bytes, None]:
        self._send(_VERSION)
        if (yield len(_VERSION)) != _VERSION:
            raise _Malformed
        self._send(b"\1\1")  # one security type: none
        if (yield 1) != b"\1":
            raise _Malformed
        self._send(bytes(4))  # the security handshake succeeded
        yield 1  # whether other viewers stay connected: they do
        self._send(
            struct.pack(">HH", WIDTH, HEIGHT) + _FORMAT + struct.pack(">I", len(self._name)) + self._name
        )

    def _take_message(self) -> Generator[int, bytes, None]:
        match ord((yield 1)):
            case 0:
                self._set_format((yield 19)[3:])
            case 2:
                yield 4 * struct.unpack(">xH", (yield 3))[0]
            case 3:
                self._update(is_incremental=bool((yield 9)[0]))
            case 4:
                self._press(is_down=bool((yield 7)[0]))
            case 5:
                yield 5
            case 6:
                [length] = struct.unpack(">xxxI", (yield 7))
                if length > _MOST_CUT_TEXT:
                    raise _Malformed
                yield length
            case _:
                raise _Malformed

    def _set_format(self, wanted: bytes) -> None:
        if wanted[0] not in (8, 16, 32) or not wanted[3] or max(wanted[10:13]) > _MOST_SHIFTED:
            raise _Malformed
        self._format, self._shown = wanted, -1

    def _press(self, *, is_down: bool) -> None:
        if is_down:
            self._colour = (self._colour + 1) % len(COLOURS)
        if self._waits:
            self._update(is_incremental=True)

    def _update(self, *, is_incremental: bool) -> None:
        self._waits = is_incremental and self._shown == self._colour
        if self._waits:
            return
        self._shown = self._colour
        head = struct.pack(">BxHHHHHi", 0, 1, 0, 0, WIDTH, HEIGHT, 0)
        self._send(head + self._pixel() * (WIDTH * HEIGHT))

    def _pixel(self) -> bytes:
        """Return the display's colour as bytes in the pixel format that the viewer requested."""
        fields: tuple[int, ...] = struct.unpack(">BBBBHHHBBBxxx", self._format)
        bits, is_big, most, shifts = fields[0], fields[2], fields[4:7], fields[7:]
        colour = COLOURS[self._colour]
        parts = (colour >> 16 & 255, colour >> 8 & 255, colour & 255)
        value = sum(
            part * limit // 255 << shift for part, limit, shift in zip(parts, most, shifts, strict=True)
        )
        return (value & ((1 << bits) - 1)).to_bytes(bits // 8, "big" if is_big else "little")
