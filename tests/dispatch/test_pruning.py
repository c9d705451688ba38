"""Rows go when they were kept for long enough, and no order is lost or sent anew by that (TSK-3, TSK-8)."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from control_plane import pruning
from control_plane.pruning import Kept, prune
from control_plane.sweeper import Sweeper
from tests.dispatch.given import Given, a_task

KEPT = Kept(well=timedelta(days=1), badly=timedelta(days=7))
SLOT = "n1/0"
BADLY = ("refused", "failed", "poisoned", "cancelled", "expired")
WELL = ("done", "superseded")


def _ended(given: Given, order: UUID, state: str, *, days_ago: float) -> None:
    given.rows(
        """update work.task set state = %(state)s, due_at = null,
          created_at = clock_timestamp() - %(ago)s, ended_at = clock_timestamp() - %(ago)s
        where order_id = %(order)s returning 1""",
        state=state,
        ago=timedelta(days=days_ago),
        order=order,
    )


def _left(given: Given) -> set[UUID]:
    return {order for (order,) in given.rows("select order_id from work.task")}


async def _older_and_newest(given: Given) -> tuple[UUID, UUID]:
    [older] = await given.tasks(a_task("n1", slot=SLOT, position=1))
    [newest] = await given.tasks(a_task("n1", slot=SLOT, position=2))
    return older, newest


@pytest.mark.parametrize("state", [*WELL, *BADLY])
async def test_a_task_is_kept_for_its_time_after_its_end(given: Given, state: str) -> None:
    older, newest = await _older_and_newest(given)
    days = 1 if state in WELL else 7
    _ended(given, older, state, days_ago=days - 0.1)
    assert await prune(given.made.engine, KEPT) == 0
    _ended(given, older, state, days_ago=days + 0.1)
    assert await prune(given.made.engine, KEPT) == 1
    assert _left(given) == {newest}


@pytest.mark.parametrize("state", [*WELL, *BADLY])
async def test_the_newest_order_of_a_slot_is_kept_for_ever(given: Given, state: str) -> None:
    _, newest = await _older_and_newest(given)
    _ended(given, newest, state, days_ago=1000)
    await prune(given.made.engine, KEPT)
    assert newest in _left(given)


@pytest.mark.parametrize("state", ["due", "sent", "waiting"])
async def test_what_is_not_at_its_end_is_kept_for_ever(given: Given, state: str) -> None:
    older, newest = await _older_and_newest(given)
    _ended(given, older, state, days_ago=1000)
    await prune(given.made.engine, KEPT)
    assert _left(given) == {older, newest}


async def test_an_operation_has_no_slot_to_be_the_newest_of(given: Given) -> None:
    operation = replace(a_task("n1"), slot_id=None, token=None, task_id=uuid4(), attempt=1)
    [order] = await given.tasks(operation)
    _ended(given, order, "failed", days_ago=8)
    assert await prune(given.made.engine, KEPT) == 1


async def test_an_order_that_was_pruned_and_is_derived_again_is_not_sent(
    sweeper: Sweeper, given: Given
) -> None:
    older, newest = a_task("n1", slot=SLOT, position=1), a_task("n1", slot=SLOT, position=2)
    await given.tasks(older)
    await given.tasks(newest)
    assert await sweeper.send_due() == 1
    _ended(given, older.order_id, "superseded", days_ago=2)
    assert await prune(given.made.engine, KEPT) == 1
    await given.tasks(older)
    assert await sweeper.send_due() == 0
    assert given.states("n1") == {("superseded", True): 1, ("sent", True): 1}


async def test_more_than_a_batch_goes_in_one_run(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "BATCH", 2)
    orders = await given.tasks(*(a_task("n1", slot=SLOT, position=each) for each in range(1, 7)))
    for order in orders:
        _ended(given, order, "done", days_ago=2)
    assert await prune(given.made.engine, KEPT) == 5


async def test_a_refusal_that_came_up_lately_is_kept(given: Given) -> None:
    for about, days in (("old", 8), ("new", 6)):
        given.rows(
            """insert into work.refusal values ('n1', %(about)s, 'forged', clock_timestamp() - %(long)s,
            clock_timestamp() - %(ago)s, 1) returning 1""",
            about=about,
            long=timedelta(days=100),
            ago=timedelta(days=days),
        )
    await prune(given.made.engine, KEPT)
    assert given.rows("select about from work.refusal") == [("new",)]
