"""P1: a program killed at any of its failpoints, with orders in flight, costs nothing but time.

The cases are made of the registry: each failpoint of each program that comes by it. The usual run takes a few of them
by the run's seed, `./dev torture --only P1` takes all. What was done to the host is counted there, in the simulated
host's own file, and not by those who did it.
"""

from collections.abc import Iterator

import pytest

from tasks.workflows import FAILPOINTS
from tests import matrix
from tests.faults import situations
from tests.faults.situations import Case, Load
from tests.faults.system import System, running_system
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
CASES = situations.cases()


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with running_system() as running:
        yield running


def begin(system: System, case: Case) -> Load:
    """Everything under way, and the program dead."""
    situation = case.situation
    load = situations.begin(system, situation)
    if case.process == "agent":
        system.away(system.node.agent)
        situations.change(system, load)
        if situation.ask is not None:
            situation.ask(system)
        until(lambda: situations.orders_under_way(system, load), "orders are in the queue")
        if situation.disturb is not None:
            disturb = situation.disturb
            system.node.disturb(lambda state: disturb(system, load, state))
        system.arm("agent", case.point)
    else:
        if situation.away:
            system.away(system.node.agent)
        system.arm(case.process, case.point)
        situations.change(system, load)
        if situation.provoke is not None:
            situation.provoke(system, load)
    system.await_death()
    if situation.away:
        system.node.agent.start()
    return load


@matrix.cases("P1", CASES, few=6)
def test_killed_at_a_failpoint_everything_goes_on_and_nothing_is_done_twice(
    system: System, case: Case
) -> None:
    untouched, made = system.snapshot(), dict(system.node.state().starts)
    load = Load("")
    try:
        load = begin(system, case)
        seconds = system.converge(lambda: situations.has_settled(system, load), f"all is well after {case}")
        print(f"{case}: converged in {seconds:.1f} s")
        assert made_since(system, made) == 2 + case.situation.starts
        assert system.story(load.new).count("allocation.activated") == 1
        assert "allocation.failed" not in system.story(load.old) + system.story(load.new)
    finally:
        system.disarm()
        system.give_back(load.old, load.new)
    assert system.leaks(untouched) == []
    assert system.verified() == []


def made_since(system: System, before: dict[str, int]) -> int:
    """Machines that the host has started since."""
    return sum(system.node.state().starts.values()) - sum(before.values())


def test_every_failpoint_is_in_the_matrix_or_in_a_test_of_its_own() -> None:
    elsewhere = {each.name for each in FAILPOINTS.values() if each.work in situations.OTHERWISE}
    assert {case.point for case in CASES} | elsewhere == FAILPOINTS.keys()
