"""Tests of the guest readiness probe against real listeners on loopback."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

import pytest

from events.values import Ipv4Address
from node_agent.host.host import Answered, NotYet
from node_agent.slots.readiness import BannerProbe

HOME: Final = Ipv4Address("127.0.0.1")


@contextmanager
def listener(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Accept one TCP connection and pass it to `answer`. Yield the port."""
    with socket.create_server((HOME, 0)) as server:
        thread = threading.Thread(target=lambda: answer(server.accept()[0]))
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def sends(line: bytes) -> Callable[[socket.socket], object]:
    def answer(caller: socket.socket) -> None:
        with caller:
            caller.sendall(line)

    return answer


def test_banner_with_the_expected_prefix_counts_as_ready_in_the_readiness_probe() -> None:
    with listener(sends(b"SSH-2.0-dropbear_2022.83\r\n")) as port:
        assert BannerProbe()(HOME, port, "SSH-") == Answered("SSH-2.0-dropbear_2022.83")


def test_lines_before_the_ssh_version_are_skipped_by_the_readiness_probe() -> None:
    with listener(sends(b"Welcome\r\nSSH-2.0-OpenSSH_9.2\r\n")) as port:
        assert BannerProbe()(HOME, port, "SSH-") == Answered("SSH-2.0-OpenSSH_9.2")


def test_guest_port_with_an_unexpected_banner_is_not_ready() -> None:
    with listener(sends(b"HTTP/1.1 400 Bad Request\r\n")) as port:
        answered = BannerProbe()(HOME, port, "SSH-")
    assert answered == NotYet("the readiness port answered 'HTTP/1.1 400 Bad Request', not 'SSH-'")


def test_truncated_banner_does_not_count_as_ready_in_the_readiness_probe() -> None:
    with listener(sends(b"SSH-2.0-drop")) as port:
        assert isinstance(BannerProbe()(HOME, port, "SSH-"), NotYet)


def test_control_characters_in_a_guests_banner_are_replaced() -> None:
    with listener(sends(b"SSH-2.0-\x1b[2Jevil\xff\r\n")) as port:
        assert BannerProbe()(HOME, port, "SSH-") == Answered("SSH-2.0-?[2Jevil?")


def test_open_port_counts_as_ready_if_the_readiness_probe_expects_no_banner() -> None:
    with listener(sends(b"")) as port:
        assert BannerProbe()(HOME, port, "") == Answered("")


def test_closed_port_is_reported_by_the_readiness_probe_as_refused() -> None:
    with socket.create_server((HOME, 0)) as server:
        port = server.getsockname()[1]
    assert BannerProbe()(HOME, port, "SSH-") == NotYet(
        f"cannot connect to the readiness port {port}: Connection refused"
    )


def silent(caller: socket.socket) -> None:
    with caller:
        caller.recv(1)


def dribbling(caller: socket.socket) -> None:
    """Send single bytes on the connection until the other side closes it."""
    with caller:
        caller.settimeout(0.05)
        while True:
            try:
                caller.sendall(b"S")
                if not caller.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return


@pytest.mark.parametrize("answer", [silent, dribbling])
def test_readiness_probe_ends_at_its_deadline_if_the_guest_sends_nothing_or_too_slowly(
    answer: Callable[[socket.socket], object],
) -> None:
    began = monotonic()
    with listener(answer) as port:
        assert BannerProbe(seconds=0.3)(HOME, port, "SSH-") == NotYet(
            f"the readiness port {port} did not answer within 0.3 s"
        )
    assert monotonic() - began < 2
