"""P7 on a whole system: an agent killed inside a task has it again within a heartbeat and five seconds; one that it
dies of each time is reported, and not repeated for ever.

The task is an operation, since only the queue gives it out again: an order of a slot would be on the agent's disk, or
come with what the slot should carry, as soon as it starts.
"""

import time
from collections.abc import Iterator
from typing import Final, get_args

import pytest

from tasks.broker.node_broker import POISON_AFTER
from tasks.scripts import WORKER_TIMEOUT
from tasks.workflows import Operating
from tests import matrix
from tests.faults.system import NODE, System, running_system
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BOUND_SECONDS: Final = WORKER_TIMEOUT + 5.0
ENDED: Final = get_args(Operating)[0]
INSIDE: Final = ("queue.fetched", ENDED)
"""Where the agent has the task in hand, and nobody was told its end."""


@pytest.fixture(scope="module")
def running() -> Iterator[System]:
    with running_system() as system:
        yield system


@pytest.fixture
def system(running: System) -> Iterator[System]:
    """With nothing under way; at the end everybody runs and nobody dies."""
    until(running.is_settled, "the node is settled")
    until(lambda: running.tasks_under_way() == 0, "nothing is under way")
    yield running
    running.disarm()
    running.node.agent.ensure()


def asked(system: System) -> str:
    """A task in the node's queue, with nobody there to take it."""
    system.away(system.node.agent)
    task = str(system.call("POST", "/tasks", {"kind": "node.verify", "node_id": NODE})["id"])
    until(lambda: system.in_queue() == 1, "it is in the queue")
    return task


def has_ended(system: System, task: str) -> bool:
    system.tend()
    return bool(system.call("GET", f"/tasks/{task}")["ended_at"] is not None)


@matrix.cases("P7", INSIDE, few=1)
def test_a_task_whose_agent_died_is_there_again_within_a_heartbeat_and_five_seconds(
    system: System, case: str
) -> None:
    task = asked(system)
    system.arm("agent", case)
    system.await_death()
    assert system.died_at is not None
    until(lambda: has_ended(system, task), "it is done", BOUND_SECONDS + 10)
    seconds = time.monotonic() - system.died_at
    print(f"done {seconds:.1f} s after a death at {case}")
    shown = system.call("GET", f"/tasks/{task}")
    assert (shown["state"], shown["sends"]) == ("done", 2)
    assert seconds > WORKER_TIMEOUT - 2, "sooner, and it came by another road"
    assert seconds <= BOUND_SECONDS


@matrix.cases("P7", [ENDED], few=1)
def test_a_task_that_its_agent_dies_of_each_time_is_reported_as_poison(system: System, case: str) -> None:
    task = asked(system)
    for _ in range(POISON_AFTER):
        system.arm("agent", case)
        system.die_and_stay_away()
    began = time.monotonic()
    system.arm("agent", case)
    until(lambda: has_ended(system, task), "its end is told", BOUND_SECONDS + 10)
    print(f"reported {time.monotonic() - began:.1f} s after death {POISON_AFTER}")
    assert system.died_at is None, "it was not begun again"
    shown = system.call("GET", f"/tasks/{task}")
    assert (shown["state"], shown["reason"]["code"]) == ("poisoned", "poisoned")
