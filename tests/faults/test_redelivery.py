"""P7 on a whole system: an agent killed inside a task has it again within a heartbeat and five seconds; one that it
dies of each time is reported, and not repeated for ever.
"""

import time
from collections.abc import Iterator
from typing import Final

import pytest

from control_plane.relay import WORKER_TIMEOUT
from tests import matrix
from tests.faults.system import System, running_system
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
BOUND_SECONDS: Final = WORKER_TIMEOUT + 5.0
BEFORE_IT_IS_KEPT: Final = ("queue.fetched", "agent.fence.before")
"""While the order is with the queue alone. Later it is on the node's disk too, and its next start goes on at once."""


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with running_system() as running:
        yield running


@matrix.cases("P7", BEFORE_IT_IS_KEPT, few=1)
def test_an_order_whose_agent_died_is_there_again_within_a_heartbeat_and_five_seconds(
    system: System, case: str
) -> None:
    until(system.is_settled, "the node is settled")
    system.away(system.node.agent)
    asked = system.create()
    system.arm("agent", case)
    system.await_death()
    assert system.died_at is not None
    until(
        lambda: "allocation.slice_starting" in system.story(asked) or system.state(asked) == "active",
        "it has begun",
    )
    seconds = time.monotonic() - system.died_at
    print(f"redelivered after {case} in {seconds:.1f} s")
    system.give_back(asked)
    assert seconds <= BOUND_SECONDS


@matrix.cases("P7", ["agent.fence.before"], few=0)
def test_an_order_that_its_agent_dies_of_each_time_is_reported_as_poison(system: System, case: str) -> None:
    asked = system.create()
    deaths = 0

    def ended() -> bool:
        nonlocal deaths
        if system.armed is None:
            system.arm("agent", case)
        system.tend()
        deaths += system.armed is None
        return system.state(asked) == "failed"

    until(ended, "the allocation failed", 200)
    system.disarm()
    refused = [
        each["data"]
        for each in system.call("GET", "/events?limit=500")["items"]
        if each["type"] == "order.refused"
    ]
    print(f"poisoned after {deaths} deaths")
    assert refused[-1]["reason"]["code"] == "poisoned"
    system.give_back(asked)
