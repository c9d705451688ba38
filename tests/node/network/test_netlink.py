"""Tests of reading the kernel's netlink responses (netlink(7)), from a socket that sends the same bytes as a kernel."""

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from node_agent.drivers.network.netlink import Netlink, Refused, framed

KIND, QUESTION = 18, b"which?"
INTERRUPTED, ERROR, DONE = 0x10, 2, 3


def ended(kind: int = DONE, flags: int = 0, number: int = 0) -> bytes:
    return framed(struct.pack("=i", -number), kind, flags)


@contextmanager
def answering(*chunks: bytes, seconds: float = 30.0) -> Iterator[tuple[Netlink, socket.socket]]:
    """Yield a netlink connection that receives these messages, and the other end of its socket."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with near, far:
        for chunk in chunks:
            far.send(chunk)
        yield Netlink(near, monotonic() + seconds), far


def test_netlink_listing_in_several_messages_ends_with_the_kernels_done_message() -> None:
    pieces = framed(b"odd", 16) + b"\0" + framed(b"four", 16), framed(b"last", 16), ended()
    with answering(*pieces) as (netlink, _):
        assert netlink.listed(KIND, QUESTION) == ((16, b"odd"), (16, b"four"), (16, b"last"))


@pytest.mark.parametrize(
    "torn",
    [
        pytest.param(framed(b"then", 16, INTERRUPTED) + ended(), id="marked in a message"),
        pytest.param(ended(flags=INTERRUPTED), id="marked at the end"),
    ],
)
def test_netlink_listing_that_the_kernel_marks_as_interrupted_is_repeated(torn: bytes) -> None:
    with answering(framed(b"then", 16), torn, framed(b"now!", 16) + ended()) as (netlink, kernel):
        assert netlink.listed(KIND, QUESTION) == ((16, b"now!"),)
        assert [kernel.recv(64), kernel.recv(64)] == [framed(QUESTION, KIND, 0x301)] * 2


def test_netlink_refusal_contains_the_kernels_error_text() -> None:
    refused = ended(ERROR, number=errno.EPERM)
    with answering(refused) as (netlink, _), pytest.raises(Refused, match="not permitted"):
        netlink.listed(KIND, QUESTION)


def test_netlink_request_that_the_kernel_does_not_answer_times_out_at_the_deadline() -> None:
    with answering(seconds=0.05) as (netlink, _), pytest.raises(TimeoutError):
        netlink.listed(KIND, QUESTION)


def test_netlink_error_that_the_caller_ignores_counts_as_success() -> None:
    with answering(ended(ERROR, number=errno.ENOENT)) as (netlink, _):
        netlink.execute(KIND, QUESTION, ignored_error=errno.ENOENT)
