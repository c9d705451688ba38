"""Within one look a question is asked of the host once; outside of any, every time."""

import threading
from collections.abc import Callable

import pytest

from node_agent.looks import look, look_again, one_look
from node_agent.slices import HostUnreadable

PORTS, FLOWS, LEASES = ("switch", "ports"), ("switch", "flows"), ("dhcp", "leases")


def counting() -> Callable[[], int]:
    answers = iter(range(100))
    return lambda: next(answers)


def test_without_a_look_every_read_is_fresh() -> None:
    read = counting()
    assert [look(PORTS, read), look(PORTS, read)] == [0, 1]


def test_within_a_look_the_first_answer_holds_for_that_question() -> None:
    read = counting()
    with one_look():
        assert [look(PORTS, read), look(PORTS, read), look(FLOWS, read)] == [0, 0, 1]
    assert look(PORTS, read) == 2


def test_whoever_changes_the_host_looks_again() -> None:
    read = counting()
    with one_look():
        look(PORTS, read)
        look_again()
        assert look(PORTS, read) == 1


def test_what_changed_in_one_driver_alone_is_asked_of_that_one_again() -> None:
    read = counting()
    with one_look():
        seen = [look(question, read) for question in (PORTS, FLOWS, LEASES)]
        look_again("switch")
        assert (seen, [look(question, read) for question in (LEASES, FLOWS, PORTS)]) == ([0, 1, 2], [2, 3, 4])


def test_what_could_not_be_read_is_not_asked_again_within_a_look() -> None:
    asked = list[str]()

    def hangs() -> None:
        asked.append("ports")
        raise HostUnreadable("no answer within 5 s")

    with one_look():
        for _ in range(2):
            with pytest.raises(HostUnreadable):
                look(PORTS, hangs)
    assert asked == ["ports"]


def test_a_look_is_not_shared_with_other_threads() -> None:
    read, elsewhere = counting(), list[int]()
    with one_look():
        look(PORTS, read)
        thread = threading.Thread(target=lambda: elsewhere.append(look(PORTS, read)))
        thread.start()
        thread.join()
    assert elsewhere == [1]
