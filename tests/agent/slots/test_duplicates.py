"""P5: task messages delivered twice, in parallel, in reverse order or an hour late have at most one effect each.

Effects are counted as steps on a toy host.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tasks.catalogue import CATALOGUE
from tasks.operations import IngressApply, IngressRemove, LeaseApply, Operation, PortReconcile, VnicAttach
from tasks.orders import Order
from tasks.reports import OrderRefused
from tests.agent.entrance import Copy, Entrance, copy_of
from tests.agent.operations import INSPECTIONS, cancel, on_slot, verify
from tests.agent.orders import apply, remove, stop
from tests.agent.toy_host import STEPS, Toy

LIFE: list[Order | Operation] = [
    apply(7),
    *(
        on_slot(kind, apply(7))
        for kind in (VnicAttach, LeaseApply, PortReconcile, IngressApply, *INSPECTIONS)
    ),
    verify(),
    cancel(verify()),
    stop(8),
    remove(9),
    on_slot(IngressRemove, remove(9)),
]
"""The whole life of a slot, from the creation of its slice to the removal, with every type of task."""
WITHOUT_STOP = Counter(step for steps in STEPS.values() for step in steps)
"""Expected number of executions of each step when a slice is created and removed once, without a stop order."""
ONCE = WITHOUT_STOP - Counter(["machine.destroy"]) + Counter(["machine.shut_down"])
"""Expected number of executions of each step when a slice is created, stopped and removed once: its guest shuts down
instead of being destroyed.
"""


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def node(tmp_path: Path, toy: Toy) -> Entrance:
    return Entrance(tmp_path, host=toy.host())


@pytest.fixture
def recorded(node: Entrance) -> list[Copy]:
    """Undelivered queue messages of all tasks in the lifecycle of a slot."""
    return [copy_of(task, node.clock.now()) for task in LIFE]


def test_recorded_task_sequence_of_a_slot_contains_every_task_type() -> None:
    assert {task.body.kind for task in LIFE} == set(CATALOGUE)


def test_each_task_of_a_slot_delivered_twice_in_a_row_has_one_effect(
    node: Entrance, toy: Toy, recorded: list[Copy]
) -> None:
    for copy in recorded:
        node.deliver(copy)
        node.deliver(copy)
    node.settle_slots()
    assert toy.counts() == ONCE
    assert toy.objects == {}


def test_whole_task_sequence_of_a_slot_delivered_twice_has_one_effect(
    node: Entrance, toy: Toy, recorded: list[Copy]
) -> None:
    for copy in [*recorded, *recorded]:
        node.deliver(copy)
    node.settle_slots()
    assert toy.counts() == ONCE
    assert toy.objects == {}


def test_each_task_of_a_slot_delivered_ten_times_in_parallel_has_one_effect(
    node: Entrance, toy: Toy, recorded: list[Copy]
) -> None:
    with ThreadPoolExecutor(10) as pool:
        for copy in recorded:
            list(pool.map(node.deliver, [copy] * 10))
    node.settle_slots()
    assert toy.counts() == ONCE
    assert toy.objects == {}


@pytest.mark.parametrize("kind", [VnicAttach, LeaseApply, PortReconcile, IngressApply])
def test_repair_operation_delivered_ten_times_in_parallel_executes_its_step_once(
    node: Entrance, toy: Toy, kind: type
) -> None:
    node.do(apply(7))
    toy.done.clear()
    toy.objects.clear()
    copy = copy_of(on_slot(kind, apply(7)))
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(node.deliver, [copy] * 10))
    assert len(toy.done) == 1
    assert {end.kind for end in node.final_reports()} == {"operation.done"}


def test_tasks_of_a_removed_slice_delivered_newest_first_change_nothing_on_the_host(
    node: Entrance, toy: Toy, recorded: list[Copy]
) -> None:
    for copy in recorded[::-1]:
        node.deliver(copy)
    node.settle_slots()
    assert toy.objects == {}
    assert toy.done == [], "the removal came first and found an empty slot, so every other order is stale"


def test_tasks_delivered_an_hour_late_are_refused_as_expired(
    node: Entrance, toy: Toy, recorded: list[Copy]
) -> None:
    node.advance(timedelta(hours=1, seconds=1))
    for copy in recorded:
        node.deliver(copy)
    assert toy.done == []
    refused = [body.reason.code for body in node.reports() if isinstance(body, OrderRefused)]
    assert refused == ["expired"] * len(recorded)
    assert next(iter(node.acceptance.slots)).held is None


def test_task_sequence_of_a_slot_delivered_again_an_hour_later_has_no_further_effect(
    node: Entrance, toy: Toy, recorded: list[Copy]
) -> None:
    for copy in recorded:
        node.deliver(copy)
    node.advance(timedelta(hours=1, seconds=1))
    for copy in recorded:
        node.deliver(copy)
    assert toy.counts() == ONCE
    assert toy.objects == {}


def test_old_order_sent_again_with_a_fresh_signature_is_refused_as_stale(node: Entrance, toy: Toy) -> None:
    node.do(apply(7), remove(9))
    node.advance(timedelta(hours=5))
    node.deliver(copy_of(apply(7), node.clock.now()))
    last = node.reports()[-1]
    assert isinstance(last, OrderRefused)
    assert last.reason.code == "stale_token"
    assert toy.counts() == WITHOUT_STOP
