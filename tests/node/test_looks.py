"""Within one look a question is asked of the host once; outside of any, every time."""

import threading
from collections.abc import Callable
from typing import NoReturn

import pytest

from node_agent.looks import look, look_again, look_ahead, one_look
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


class Begun:
    """An answer that was begun, `fails` when it comes; it tells whether it was ended before."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails, self.ended = fails, False

    def answer(self) -> int:
        if self.fails:
            raise HostUnreadable("no answer within 5 s")
        return 7

    def end(self) -> None:
        self.ended = True


def never() -> NoReturn:
    raise AssertionError("it was begun already")


def test_what_is_read_ahead_is_not_asked_again() -> None:
    begun = Begun()
    with one_look():
        look_ahead(PORTS, lambda: begun)
        look_ahead(PORTS, never)
        assert [look(PORTS, never), look(PORTS, never)] == [7, 7]
    assert not begun.ended


def test_what_is_read_ahead_and_never_asked_for_is_ended() -> None:
    begun = Begun()
    with one_look():
        look_ahead(PORTS, lambda: begun)
    assert begun.ended


def test_what_was_begun_before_a_change_is_no_answer_after_it() -> None:
    begun = Begun()
    with one_look():
        look_ahead(PORTS, lambda: begun)
        look_again("switch")
        assert begun.ended
        assert look(PORTS, counting()) == 0


def test_what_is_read_ahead_in_vain_is_told_to_whoever_asks() -> None:
    with one_look():
        look_ahead(PORTS, lambda: Begun(fails=True))
        for _ in range(2):
            with pytest.raises(HostUnreadable):
                look(PORTS, never)


def test_nothing_is_begun_outside_of_any_look() -> None:
    look_ahead(PORTS, never)


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
