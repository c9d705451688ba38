"""The probe against real listeners on loopback."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

import pytest

from events.values import Ipv4Address
from node_agent.host import Answered, NotYet
from node_agent.readiness import BannerProbe

HOME: Final = Ipv4Address("127.0.0.1")


@contextmanager
def listener(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that treats one caller with `answer`; gives its port."""
    with socket.create_server((HOME, 0)) as server:
        thread = threading.Thread(target=lambda: answer(server.accept()[0]))
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def says(line: bytes) -> Callable[[socket.socket], object]:
    def answer(caller: socket.socket) -> None:
        with caller:
            caller.sendall(line)

    return answer


def test_a_banner_that_begins_as_wanted_is_an_answer() -> None:
    with listener(says(b"SSH-2.0-dropbear_2022.83\r\n")) as port:
        assert BannerProbe()(HOME, port, "SSH-") == Answered("SSH-2.0-dropbear_2022.83")


def test_lines_before_the_version_are_passed_over() -> None:
    with listener(says(b"Welcome\r\nSSH-2.0-OpenSSH_9.2\r\n")) as port:
        assert BannerProbe()(HOME, port, "SSH-") == Answered("SSH-2.0-OpenSSH_9.2")


def test_a_port_that_answers_otherwise_is_not_ready() -> None:
    with listener(says(b"HTTP/1.1 400 Bad Request\r\n")) as port:
        heard = BannerProbe()(HOME, port, "SSH-")
    assert heard == NotYet("the port answered 'HTTP/1.1 400 Bad Request', not 'SSH-'")


def test_a_banner_cut_short_is_no_answer() -> None:
    with listener(says(b"SSH-2.0-drop")) as port:
        assert isinstance(BannerProbe()(HOME, port, "SSH-"), NotYet)


def test_what_the_guest_chose_to_say_is_made_fit_for_a_terminal() -> None:
    with listener(says(b"SSH-2.0-\x1b[2Jevil\xff\r\n")) as port:
        assert BannerProbe()(HOME, port, "SSH-") == Answered("SSH-2.0-?[2Jevil?")


def test_without_a_banner_an_open_port_is_enough() -> None:
    with listener(says(b"")) as port:
        assert BannerProbe()(HOME, port, "") == Answered("")


def test_a_closed_port_says_so() -> None:
    with socket.create_server((HOME, 0)) as server:
        port = server.getsockname()[1]
    assert BannerProbe()(HOME, port, "SSH-") == NotYet(f"port {port}: Connection refused")


def silent(caller: socket.socket) -> None:
    with caller:
        caller.recv(1)


def dribbling(caller: socket.socket) -> None:
    """A byte now and then, for as long as the other side is there."""
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
def test_a_try_ends_in_time_however_the_guest_behaves(answer: Callable[[socket.socket], object]) -> None:
    began = monotonic()
    with listener(answer) as port:
        assert BannerProbe(seconds=0.3)(HOME, port, "SSH-") == NotYet(
            f"port {port} did not answer within 0.3 s"
        )
    assert monotonic() - began < 2
