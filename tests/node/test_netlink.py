"""Answers of the kernel over netlink (netlink(7)), by a far end that sends what a kernel would."""

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from node_agent.drivers.netlink import Netlink, Refused, framed

KIND, QUESTION = 18, b"which?"
INTERRUPTED, ERROR, DONE = 0x10, 2, 3


def ended(kind: int = DONE, flags: int = 0, number: int = 0) -> bytes:
    return framed(struct.pack("=i", -number), kind, flags)


@contextmanager
def answering(*chunks: bytes, seconds: float = 30.0) -> Iterator[tuple[Netlink, socket.socket]]:
    """A conversation in which this is received, and the far end of it."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        for chunk in chunks:
            far.send(chunk)
        yield Netlink(near, monotonic() + seconds), far


def test_what_is_listed_comes_in_several_pieces_and_ends_when_the_kernel_says_so() -> None:
    pieces = framed(b"odd", 16) + b"\0" + framed(b"four", 16), framed(b"last", 16), ended()
    with answering(*pieces) as (netlink, _):
        assert netlink.listed(KIND, QUESTION) == ((16, b"odd"), (16, b"four"), (16, b"last"))


@pytest.mark.parametrize(
    "torn",
    [
        pytest.param(framed(b"then", 16, INTERRUPTED) + ended(), id="said by a message"),
        pytest.param(ended(flags=INTERRUPTED), id="said at the end"),
    ],
)
def test_what_changed_while_it_was_listed_is_listed_anew(torn: bytes) -> None:
    with answering(framed(b"then", 16), torn, framed(b"now!", 16) + ended()) as (netlink, kernel):
        assert netlink.listed(KIND, QUESTION) == ((16, b"now!"),)
        assert [kernel.recv(64), kernel.recv(64)] == [framed(QUESTION, KIND, 0x301)] * 2


def test_a_refusal_is_in_the_kernels_words() -> None:
    refused = ended(ERROR, number=errno.EPERM)
    with answering(refused) as (netlink, _), pytest.raises(Refused, match="not permitted"):
        netlink.listed(KIND, QUESTION)


def test_a_kernel_that_does_not_answer_is_waited_for_until_the_deadline() -> None:
    with answering(seconds=0.05) as (netlink, _), pytest.raises(TimeoutError):
        netlink.listed(KIND, QUESTION)


def test_an_error_that_is_fine_counts_as_done() -> None:
    with answering(ended(ERROR, number=errno.ENOENT)) as (netlink, _):
        netlink.tell(KIND, QUESTION, fine=errno.ENOENT)
