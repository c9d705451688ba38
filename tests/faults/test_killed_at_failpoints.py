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


def bring_agent_to(system: System, case: Case, load: Load) -> None:
    """Orders of each kind wait for it when it starts."""
    situation = case.situation
    situations.give_up(system, load)
    if situation.ask is not None:
        situation.ask(system, load)
    until(lambda: situations.orders_under_way(system, load), "orders are in the queue")
    if situation.disturb is not None:
        disturb = situation.disturb
        system.node.disturb(lambda state: disturb(system, load, state))
    system.arm("agent", case.point)
    system.await_death()


def bring_control_plane_to(system: System, case: Case, load: Load) -> None:
    """One order waits in the queue, and another comes to be while it runs."""
    situation = case.situation
    system.arm(case.process, case.point)
    situations.give_up(system, load)
    if situation.reports:
        system.node.agent.start()
    if situation.provoke is not None:
        situation.provoke(system, load)
    system.await_death()
    orders = system.tasks_under_way()
    assert orders, "no load: no order was under way when it died"
    print(f"{case}: died with {orders} orders under way")
    system.node.agent.ensure()


@matrix.cases("P1", CASES, few=6)
def test_killed_at_a_failpoint_everything_goes_on_and_nothing_is_done_twice(
    system: System, case: Case
) -> None:
    untouched, made = system.snapshot(), dict(system.node.state().starts)
    load = Load(kept=case.situation.keep, off=case.situation.stop)
    try:
        situations.begin(system, load, case.situation)
        bring_to = bring_agent_to if case.process == "agent" else bring_control_plane_to
        bring_to(system, case, load)
        seconds = system.converge(lambda: situations.has_settled(system, load), f"all is well after {case}")
        print(f"{case}: converged in {seconds:.1f} s")
        assert made_since(system, made) == 2 + case.situation.starts
        assert system.story(load.new).count("allocation.activated") == 1
        assert "allocation.failed" not in system.story(load.old) + system.story(load.new)
    finally:
        system.disarm()
        system.node.agent.ensure()
        system.give_back(load.old, load.new)
    assert system.leaks(untouched) == []
    assert system.verified() == []


def made_since(system: System, before: dict[str, int]) -> int:
    """Machines that the host has started since."""
    return sum(system.node.state().starts.values()) - sum(before.values())


def test_every_failpoint_is_in_the_matrix_or_in_a_test_of_its_own() -> None:
    elsewhere = {each.name for each in FAILPOINTS.values() if each.work in situations.OTHERWISE}
    assert {case.point for case in CASES} | elsewhere == FAILPOINTS.keys()
