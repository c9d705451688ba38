"""A viewer of the RFB protocol (RFC 6143) for tests. It reads complete updates in the encoding Raw."""

import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

TIMEOUT_SECONDS: Final = 20.0


class Bytes(Protocol):
    """Connection to a display: `read` returns bytes that the display sent, and an empty result when the display has
    ended.
    """

    def read(self) -> bytes: ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


class Viewer:
    """A viewer that is connected to the display `display`."""

    def __init__(self, display: Bytes) -> None:
        self._display, self._found = display, b""
        self._reader = ThreadPoolExecutor(1)
        self.begun = (0, 0)
        """Width and height of the display in pixels, after `begin`."""

    def begin(self) -> tuple[int, int]:
        """Do the handshake, and return width and height of the display in pixels."""
        version = self._read(12)
        assert version.startswith(b"RFB 003."), version
        self._display.write(b"RFB 003.008\n")
        kinds = self._read(self._read(1)[0])
        assert 1 in kinds, "the display must need no password"
        self._display.write(b"\1")
        assert self._read(4) == bytes(4)
        self._display.write(b"\1")
        width, height, _format, length = struct.unpack(">HH16sI", self._read(24))
        self._read(length)
        pixels = struct.pack(">BBBBHHHBBBxxx", 32, 24, 0, 1, 255, 255, 255, 16, 8, 0)
        self._display.write(b"\0xxx" + pixels + struct.pack(">BxHi", 2, 1, 0))
        self.begun = width, height
        return width, height

    def pixels(self, width: int, height: int) -> list[int]:
        """Request the whole display, and return the values of the pixels in the first update. It may have fewer: a
        guest that is booting changes the size of its display.
        """
        self._display.write(struct.pack(">BBHHHH", 3, 0, 0, 0, width, height))
        kind, rectangles = struct.unpack(">BxH", self._read(4))
        assert kind == 0, f"message {kind} is no update"
        values = list[int]()
        for _ in range(rectangles):
            _x, _y, columns, rows, encoding = struct.unpack(">HHHHi", self._read(12))
            assert encoding == 0
            values += struct.unpack(f"<{columns * rows}I", self._read(4 * columns * rows))
        return values

    def press(self, key: str) -> None:
        """Press and release a key."""
        for is_down in (1, 0):
            self._display.write(struct.pack(">BBxxI", 4, is_down, ord(key)))

    def is_at_its_end(self) -> bool:
        """Read until the display ends, and return True. Raises `TimeoutError` if it does not end in time."""

        def read_all() -> bool:
            while self._display.read():
                pass
            return True

        return self._reader.submit(read_all).result(TIMEOUT_SECONDS)

    def close(self) -> None:
        self._display.close()

    def _read(self, number: int) -> bytes:
        while len(self._found) < number:
            part = self._reader.submit(self._display.read).result(TIMEOUT_SECONDS)
            assert part, "the display has ended"
            self._found += part
        found, self._found = self._found[:number], self._found[number:]
        return found
