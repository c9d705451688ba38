"""Messages of the viewer of a display (RFB protocol, RFC 6143 sections 7.1 to 7.5), read to find the input of a person.

A viewer requests updates of the display all the time, also while no person uses it. Only keys, pointer movements and
texts of the clipboard are input. The reader follows the messages of the protocol and of the extensions that QEMU
supports. It keeps at most the header of one message, and skips the content that follows; the messages themselves are
passed on unchanged.
"""

import struct
from collections.abc import Generator
from typing import Final

MOST_CLIPBOARD: Final = 1024 * 1024
"""Maximum size of a text of the clipboard in bytes, which is also QEMU's."""
_VERSION_BYTES: Final = 12
_ASK_NO_SECURITY_TYPE: Final = (b"RFB 003.003\n", b"RFB 003.004\n", b"RFB 003.005\n")
_ASK_SECURITY_TYPE: Final = (b"RFB 003.007\n", b"RFB 003.008\n")
_NO_AUTHENTICATION: Final = b"\1"


class InvalidViewerMessage(Exception):
    """The viewer sent bytes that are not a message of the protocol."""


class ViewerMessages:
    """Reader of the bytes that a viewer sends, from the first byte of its session on."""

    def __init__(self) -> None:
        self._header, self._skipped, self._is_input = b"", 0, False
        self._messages = self._read()
        self._needed = next(self._messages)

    def has_input(self, data: bytes) -> bool:
        """Take the next bytes, and return whether they contain input of a person. Raises `InvalidViewerMessage`, after
        which the reader cannot be used.
        """
        self._is_input = False
        rest = memoryview(data)
        while rest:
            skipped = min(self._skipped, len(rest))
            self._skipped -= skipped
            part = rest[skipped : skipped + self._needed - len(self._header)]
            self._header += part
            rest = rest[skipped + len(part) :]
            if len(self._header) == self._needed:
                header, self._header = self._header, b""
                self._needed = self._messages.send(header)
        return self._is_input

    # The generators yield the size of the header that is read next, and receive this header.
    def _read(self) -> Generator[int, bytes, None]:
        version = yield _VERSION_BYTES
        if version not in _ASK_NO_SECURITY_TYPE + _ASK_SECURITY_TYPE:
            raise InvalidViewerMessage(f"the viewer began with {version!r}, which is not a version of RFB")
        if version in _ASK_SECURITY_TYPE and (chosen := (yield 1)) != _NO_AUTHENTICATION:
            raise InvalidViewerMessage(
                f"the viewer chose security type {ord(chosen)}; the display has type 1 (none)"
            )
        yield 1  # ClientInit
        while True:
            yield from self._read_message()

    def _read_message(self) -> Generator[int, bytes, None]:
        match kind := ord((yield 1)):
            case 0:  # SetPixelFormat
                yield 19
            case 2:  # SetEncodings
                [number] = struct.unpack(">xH", (yield 3))
                self._skipped = 4 * number
            case 3:  # FramebufferUpdateRequest
                yield 9
            case 4:  # KeyEvent
                yield 7
                self._is_input = True
            case 5:  # PointerEvent
                yield 5
                self._is_input = True
            case 6:  # ClientCutText
                self._take_clipboard(*struct.unpack(">xxxi", (yield 7)))
            case 250:  # xvp: shut down, reboot, reset
                yield 3
                self._is_input = True
            case 251:  # SetDesktopSize
                [number] = struct.unpack(">xxxxxBx", (yield 7))
                self._skipped = 16 * number
            case 255:
                yield from self._read_qemu_message()
            case _:
                raise InvalidViewerMessage(
                    f"the viewer sent a message of type {kind}, which is not supported"
                )

    def _take_clipboard(self, length: int) -> None:
        # A negative length is an extended message, with which a viewer also answers the display on its own.
        if abs(length) > MOST_CLIPBOARD:
            raise InvalidViewerMessage(
                f"the viewer sent {abs(length)} bytes for the clipboard; the limit is {MOST_CLIPBOARD} bytes"
            )
        self._skipped, self._is_input = abs(length), self._is_input or length >= 0

    def _read_qemu_message(self) -> Generator[int, bytes, None]:
        match kind := ord((yield 1)):
            case 0:  # extended key event
                yield 10
                self._is_input = True
            case 1:  # audio: off, on, or its format
                [operation] = struct.unpack(">H", (yield 2))
                if operation == 2:  # noqa: PLR2004 (set format)
                    yield 6
            case _:
                raise InvalidViewerMessage(
                    f"the viewer sent a message of type 255.{kind}, which is not supported"
                )
