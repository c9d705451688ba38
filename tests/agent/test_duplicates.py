"""Recorded messages delivered again, at once, in reverse and an hour late: one effect each, counted at the host
(P5).
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tasks.catalogue import CATALOGUE
from tasks.operations import ExposureApply, ExposureRemove, LeaseApply, Operation, PortReconcile, VnicAttach
from tasks.orders import Order
from tasks.reports import OrderRefused
from tests.agent.entrance import Copy, Entrance, copy_of
from tests.agent.operations import LOOKS, cancel, on_slot, verify
from tests.agent.orders import apply, remove, stop
from tests.agent.toy_host import STEPS, Toy

LIFE: list[Order | Operation] = [
    apply(7),
    *(on_slot(kind, apply(7)) for kind in (VnicAttach, LeaseApply, PortReconcile, ExposureApply, *LOOKS)),
    verify(),
    cancel(verify()),
    stop(8),
    remove(9),
    on_slot(ExposureRemove, remove(9)),
]
"""All that happens to a slot, from its slice's making to its end, by every type of task that there is."""
WITHOUT_STOP = Counter(step for steps in STEPS.values() for step in steps)
"""Every step of making a slice and taking it away, each taken once."""
ONCE = WITHOUT_STOP - Counter(["machine.destroy"]) + Counter(["machine.shut_down"])
"""The same of a slice that was switched off before: its guest ended by itself."""


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def node(tmp_path: Path, toy: Toy) -> Entrance:
    return Entrance(tmp_path, host=toy.host())


@pytest.fixture
def recorded(node: Entrance) -> list[Copy]:
    """The messages of a whole life, as they stood in the queue; nothing of it was delivered yet."""
    return [copy_of(task, node.clock.now()) for task in LIFE]


def test_a_life_has_a_task_of_every_type() -> None:
    assert {task.body.kind for task in LIFE} == set(CATALOGUE)


def test_every_message_twice(node: Entrance, toy: Toy, recorded: list[Copy]) -> None:
    for copy in recorded:
        node.deliver(copy)
        node.deliver(copy)
    node.settle_slots()
    assert toy.counts() == ONCE
    assert toy.there == {}


def test_the_whole_life_twice(node: Entrance, toy: Toy, recorded: list[Copy]) -> None:
    for copy in [*recorded, *recorded]:
        node.deliver(copy)
    node.settle_slots()
    assert toy.counts() == ONCE
    assert toy.there == {}


def test_every_message_ten_times_at_once(node: Entrance, toy: Toy, recorded: list[Copy]) -> None:
    with ThreadPoolExecutor(10) as pool:
        for copy in recorded:
            list(pool.map(node.deliver, [copy] * 10))
    node.settle_slots()
    assert toy.counts() == ONCE
    assert toy.there == {}


@pytest.mark.parametrize("kind", [VnicAttach, LeaseApply, PortReconcile, ExposureApply])
def test_a_mend_that_has_something_to_do_ten_times_at_once(node: Entrance, toy: Toy, kind: type) -> None:
    node.do(apply(7))
    toy.done.clear()
    toy.there.clear()
    copy = copy_of(on_slot(kind, apply(7)))
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(node.deliver, [copy] * 10))
    assert len(toy.done) == 1
    assert {end.kind for end in node.ends()} == {"operation.done"}


def test_the_whole_life_in_reverse(node: Entrance, toy: Toy, recorded: list[Copy]) -> None:
    for copy in recorded[::-1]:
        node.deliver(copy)
    node.settle_slots()
    assert toy.there == {}
    assert toy.done == [], "the removal came first, and there was nothing: the rest is stale"


def test_everything_an_hour_late_is_not_begun(node: Entrance, toy: Toy, recorded: list[Copy]) -> None:
    node.later(timedelta(hours=1, seconds=1))
    for copy in recorded:
        node.deliver(copy)
    assert toy.done == []
    refused = [body.reason.code for body in node.told() if isinstance(body, OrderRefused)]
    assert refused == ["expired"] * len(recorded)
    assert next(iter(node.acceptance.slots)).held is None


def test_a_life_again_an_hour_after_it_ended(node: Entrance, toy: Toy, recorded: list[Copy]) -> None:
    for copy in recorded:
        node.deliver(copy)
    node.later(timedelta(hours=1, seconds=1))
    for copy in recorded:
        node.deliver(copy)
    assert toy.counts() == ONCE
    assert toy.there == {}


def test_a_fresh_copy_of_an_old_order_is_stale_however_late(node: Entrance, toy: Toy) -> None:
    node.do(apply(7), remove(9))
    node.later(timedelta(hours=5))
    node.deliver(copy_of(apply(7), node.clock.now()))
    last = node.told()[-1]
    assert isinstance(last, OrderRefused)
    assert last.reason.code == "stale_token"
    assert toy.counts() == WITHOUT_STOP
