"""Promise P7 on a whole system: a task of a killed agent is redelivered within a heartbeat and five seconds. A task
that kills its agent each time is reported, and not repeated permanently.

The task is an operation, because a restarted agent gets an operation only from the queue. It would also get an order
from its own disk, or with the slot's desired state at its start.
"""

import time
from collections.abc import Iterator
from typing import Final, get_args

import pytest

from node_agent.transport.broker.node_broker import POISON_AFTER
from tasks.scripts import WORKER_TIMEOUT
from tasks.workflows import Operating
from tests import matrix
from tests.faults.system import NODE, System
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BOUND_SECONDS: Final = WORKER_TIMEOUT + 5.0
ENDED: Final = get_args(Operating)[0]
INSIDE: Final = ("queue.fetched", ENDED)
"""Failpoints at which the agent has the task in flight and has not reported its end."""
POISONED: Final = "poisoned"
FEW: Final = matrix.chosen("P7", [*INSIDE, POISONED], few=1)
"""Case that the usual test run executes: a redelivery at one of the failpoints, or the task that is poisoned. `./dev
torture` executes all cases.
"""


@pytest.fixture
def system(system: System) -> Iterator[System]:
    """Shared system with no task in flight. After the test, every program runs without failpoints."""
    until(system.is_settled, "the node is settled")
    until(lambda: system.tasks_in_flight() == 0, "no task is in flight")
    yield system
    system.disarm()
    system.node.agent.ensure()


def queued_task(system: System) -> str:
    """Stop the node's agent and queue a task for the node. Return the task's id."""
    system.take_down(system.node.agent)
    task = str(system.call("POST", "/tasks", {"kind": "node.verify", "node_id": NODE})["id"])
    until(lambda: system.in_queue() == 1, "the task is in the queue")
    return task


def has_ended(system: System, task: str) -> bool:
    system.supervise()
    return bool(system.call("GET", f"/tasks/{task}")["ended_at"] is not None)


@matrix.cases("P7", INSIDE, few=1, among=[case for case in FEW if case in INSIDE])
def test_task_of_a_killed_agent_is_redelivered_within_a_heartbeat_and_five_seconds(
    system: System, case: str
) -> None:
    task = queued_task(system)
    system.arm("agent", case)
    system.await_death()
    assert system.died_at is not None
    until(lambda: has_ended(system, task), "the task is finished", BOUND_SECONDS + 10)
    seconds = time.monotonic() - system.died_at
    print(f"done {seconds:.1f} s after a death at {case}")
    shown = system.call("GET", f"/tasks/{task}")
    assert (shown["state"], shown["sends"]) == ("done", 2)
    assert seconds > WORKER_TIMEOUT - 2, "redelivered too early: the task came by another path"
    assert seconds <= BOUND_SECONDS


@matrix.cases("P7", [ENDED], few=1, among=[ENDED] if POISONED in FEW else [])
def test_task_that_kills_its_agent_each_time_is_reported_as_poisoned(system: System, case: str) -> None:
    task = queued_task(system)
    for _ in range(POISON_AFTER):
        system.arm("agent", case)
        system.await_death_without_restart()
    began = time.monotonic()
    system.arm("agent", case)
    until(lambda: has_ended(system, task), "the end of the task is reported", BOUND_SECONDS + 10)
    print(f"reported {time.monotonic() - began:.1f} s after death {POISON_AFTER}")
    assert system.died_at is None, "the task was started again"
    shown = system.call("GET", f"/tasks/{task}")
    assert (shown["state"], shown["reason"]["code"]) == ("poisoned", "poisoned")
