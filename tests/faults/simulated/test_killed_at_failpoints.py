"""Promise P1: a program that is killed at any of its failpoints, with orders in flight, causes only a delay.

The cases are generated from the registry of failpoints: each failpoint of each program that reaches it. The usual run
takes a few of them by the run's seed; `./dev torture --only P1` takes all. Machine starts are counted in the file of
the simulated host, not by the programs that start machines.
"""

import pytest

from tasks.workflows import FAILPOINTS
from tests import matrix
from tests.faults import situations
from tests.faults.situations import Case, Load
from tests.faults.system import System
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
CASES = situations.cases()


def bring_agent_to(system: System, case: Case, load: Load) -> None:
    """Queue orders of each kind, then start the agent so that it dies at the case's failpoint."""
    situation = case.situation
    situations.end_old_allocation(system, load)
    if situation.ask is not None:
        situation.ask(system, load)
    until(lambda: situations.orders_in_flight(system, load), "orders are in the queue")
    if situation.disturb is not None:
        disturb = situation.disturb
        system.node.disturb(lambda state: disturb(system, load, state))
    system.arm("agent", case.point)
    system.await_death()


def bring_control_plane_to(system: System, case: Case, load: Load) -> None:
    """Start a control plane program so that it dies at the case's failpoint. One order waits in the queue at its start,
    and another one is created while it runs.
    """
    situation = case.situation
    system.arm(case.process, case.point)
    situations.end_old_allocation(system, load)
    if situation.reports:
        system.node.agent.start()
    if situation.provoke is not None:
        situation.provoke(system, load)
    system.await_death()
    orders = system.tasks_in_flight()
    assert orders, "no load: no order was in flight when the program died"
    print(f"{case}: died with {orders} orders in flight")
    system.node.agent.ensure()


@matrix.cases("P1", CASES, few=1)
def test_orders_in_flight_complete_without_repetition_after_a_program_is_killed_at_a_failpoint(
    system: System, case: Case
) -> None:
    untouched, made = system.snapshot(), dict(system.node.state().starts)
    load = Load(kept=case.situation.keep, off=case.situation.stop)
    try:
        situations.begin(system, load, case.situation)
        bring_to = bring_agent_to if case.process == "agent" else bring_control_plane_to
        bring_to(system, case, load)
        seconds = system.converge(
            lambda: situations.has_settled(system, load), f"the system has converged after {case}"
        )
        print(f"{case}: converged in {seconds:.1f} s")
        assert machines_started_since(system, made) == 2 + case.situation.starts
        assert system.timeline(load.new).count("allocation.activated") == 1
        assert "allocation.failed" not in system.timeline(load.old) + system.timeline(load.new)
    finally:
        system.disarm()
        system.node.agent.ensure()
        system.release_all(load.old, load.new)
    assert system.leaks(untouched) == []
    assert system.verified() == []


def machines_started_since(system: System, before: dict[str, int]) -> int:
    """Return the number of virtual machines that the simulated host has started since the counts in `before`."""
    return sum(system.node.state().starts.values()) - sum(before.values())


def test_every_failpoint_is_covered_by_the_kill_matrix_or_by_a_separate_test() -> None:
    elsewhere = {each.name for each in FAILPOINTS.values() if each.work in situations.SEPARATELY_TESTED}
    assert {case.point for case in CASES} | elsewhere == FAILPOINTS.keys()


def test_every_kind_of_work_in_the_table_of_kill_situations_has_a_failpoint() -> None:
    assert {work for work, _ in situations.SITUATIONS} <= {each.work for each in FAILPOINTS.values()}
