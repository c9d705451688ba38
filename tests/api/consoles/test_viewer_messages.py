"""Tests of the parser of messages from a VNC viewer, which detects the input of a person (keys, pointer, clipboard)."""

import random
import struct
import time
from typing import Final

import pytest

from control_plane.api.consoles.viewer_messages import MOST_CLIPBOARD, InvalidViewerMessage, ViewerMessages
from tests.torture import count, seed

BEGIN: Final = b"RFB 003.008\n\1\1"
UPDATE: Final = struct.pack(">BBHHHH", 3, 1, 0, 0, 640, 480)
WITHOUT_INPUT: Final = {
    "format": b"\0" + bytes(19),
    "encodings": struct.pack(">BxH3i", 2, 3, 0, -239, -258),
    "no-encodings": struct.pack(">BxH", 2, 0),
    "update": UPDATE,
    "extended-clipboard": struct.pack(">Bxxxi", 6, -4) + b"caps",
    "size": struct.pack(">BxHHBx", 251, 640, 480, 1) + bytes(16),
    "audio-off": b"\xff\1\0\1",
    "audio-format": b"\xff\1\0\2" + bytes(6),
}
WITH_INPUT: Final = {
    "key": struct.pack(">BBxxI", 4, 1, 0x61),
    "qemu-key": struct.pack(">BBHII", 255, 0, 1, 0x61, 30),
    "pointer": struct.pack(">BBHH", 5, 0, 10, 10),
    "clipboard": struct.pack(">BxxxI", 6, 5) + b"hello",
    "empty-clipboard": struct.pack(">BxxxI", 6, 0),
    "power": b"\xfa\0\1\2",
}


def begun() -> ViewerMessages:
    messages = ViewerMessages()
    assert not messages.has_input(BEGIN)
    return messages


@pytest.mark.parametrize("name", WITHOUT_INPUT)
def test_message_that_a_viewer_sends_without_an_action_of_a_person_is_not_input(name: str) -> None:
    messages = begun()
    assert not messages.has_input(WITHOUT_INPUT[name] * 3)
    # The reader is at the beginning of a message again.
    assert messages.has_input(WITH_INPUT["key"])


@pytest.mark.parametrize("name", WITH_INPUT)
def test_key_pointer_or_clipboard_message_of_a_viewer_is_input_also_between_other_messages(name: str) -> None:
    messages = begun()
    assert messages.has_input(WITH_INPUT[name])
    assert messages.has_input(UPDATE + WITH_INPUT[name] + UPDATE)
    assert not messages.has_input(UPDATE)


def test_input_of_a_viewer_is_detected_however_the_bytes_of_its_messages_are_divided() -> None:
    number = random.Random(seed())
    parts = [*WITHOUT_INPUT.values(), *WITH_INPUT.values()]
    for _ in range(count(300)):
        chosen = [number.choice(parts) for _ in range(20)]
        sent, found, messages = BEGIN + b"".join(chosen), 0, ViewerMessages()
        while sent:
            size = number.randint(1, 9)
            found += messages.has_input(sent[:size])
            sent = sent[size:]
        expected = any(each in WITH_INPUT.values() for each in chosen)
        assert (found > 0) == expected
        assert messages.has_input(WITH_INPUT["key"])


@pytest.mark.parametrize("version", [3, 4, 5])
def test_messages_of_a_viewer_with_an_older_rfb_version_are_read_without_a_security_type(
    version: int,
) -> None:
    messages = ViewerMessages()
    assert not messages.has_input(b"RFB 003.%03d\n\1" % version)
    assert messages.has_input(WITH_INPUT["key"])


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"GET / HTTP/1", "not a version of RFB"),
        (b"RFB 004.000\n", "not a version of RFB"),
        (b"RFB 003.008\n\2", "security type 2"),
        (BEGIN + b"\x07", "type 7"),
        (BEGIN + b"\xff\2", r"type 255\.2"),
        (BEGIN + struct.pack(">BxxxI", 6, MOST_CLIPBOARD + 1), f"limit is {MOST_CLIPBOARD} bytes"),
        (BEGIN + struct.pack(">BxxxI", 6, 2**31), f"limit is {MOST_CLIPBOARD} bytes"),
        (BEGIN + struct.pack(">BxxxI", 6, 2**32 - MOST_CLIPBOARD - 1), f"limit is {MOST_CLIPBOARD} bytes"),
    ],
    ids=["http", "version", "security", "unknown", "qemu", "clipboard", "longest", "extended"],
)
def test_bytes_of_a_viewer_that_are_not_an_rfb_message_are_refused_with_the_reason(
    sent: bytes, message: str
) -> None:
    with pytest.raises(InvalidViewerMessage, match=message):
        ViewerMessages().has_input(sent)


def test_random_bytes_of_a_viewer_are_refused_or_skipped_and_at_most_a_message_header_is_kept() -> None:
    number = random.Random(seed())
    for _ in range(count(2_000)):
        messages = begun()
        try:
            while True:
                messages.has_input(number.randbytes(number.randint(1, 200)))
                assert len(messages._header) < 20
        except InvalidViewerMessage:
            continue


def test_long_clipboard_text_of_a_viewer_is_skipped_and_the_next_message_is_recognized() -> None:
    messages, part = begun(), bytes(16 * 1024)
    assert messages.has_input(struct.pack(">BxxxI", 6, MOST_CLIPBOARD))
    for _ in range(MOST_CLIPBOARD // len(part)):
        assert not messages.has_input(part)
    assert messages.has_input(WITH_INPUT["key"])


def test_mebibyte_of_short_viewer_messages_is_read_within_a_second() -> None:
    messages, sent = begun(), WITH_INPUT["pointer"] * 2730
    began = time.process_time()
    for _ in range(64):
        messages.has_input(sent)
    assert time.process_time() - began < 1
