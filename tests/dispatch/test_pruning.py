"""Tests of pruning: task rows are deleted after their retention time, without losing an order or sending an order again
(TSK-3, TSK-8).
"""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from control_plane.dispatcher import pruning
from control_plane.dispatcher.pruning import Kept, prune
from control_plane.dispatcher.task_sender import TaskSender
from tests.dispatch.given import Given, a_task

KEPT = Kept(well=timedelta(days=1), badly=timedelta(days=7))
SLOT = "n1/0"
UNSUCCESSFUL = ("refused", "failed", "poisoned", "cancelled", "expired")
SUCCESSFUL = ("done", "superseded")


def _ended(given: Given, order: UUID, state: str, *, days_ago: float) -> None:
    given.rows(
        """update work.task set state = %(state)s, due_at = null,
          created_at = clock_timestamp() - %(ago)s, ended_at = clock_timestamp() - %(ago)s
        where order_id = %(order)s returning 1""",
        state=state,
        ago=timedelta(days=days_ago),
        order=order,
    )


def _remaining(given: Given) -> set[UUID]:
    return {order for (order,) in given.rows("select order_id from work.task")}


async def _older_and_newest(given: Given) -> tuple[UUID, UUID]:
    [older] = await given.tasks(a_task("n1", slot=SLOT, position=1))
    [newest] = await given.tasks(a_task("n1", slot=SLOT, position=2))
    return older, newest


@pytest.mark.parametrize("state", [*SUCCESSFUL, *UNSUCCESSFUL])
async def test_ended_task_is_pruned_only_after_its_retention_time(given: Given, state: str) -> None:
    older, newest = await _older_and_newest(given)
    days = 1 if state in SUCCESSFUL else 7
    _ended(given, older, state, days_ago=days - 0.1)
    assert await prune(given.made.engine, KEPT) == 0
    _ended(given, older, state, days_ago=days + 0.1)
    assert await prune(given.made.engine, KEPT) == 1
    assert _remaining(given) == {newest}


@pytest.mark.parametrize("state", [*SUCCESSFUL, *UNSUCCESSFUL])
async def test_newest_order_of_a_slot_is_never_pruned(given: Given, state: str) -> None:
    _, newest = await _older_and_newest(given)
    _ended(given, newest, state, days_ago=1000)
    await prune(given.made.engine, KEPT)
    assert newest in _remaining(given)


@pytest.mark.parametrize("state", ["due", "sent", "waiting"])
async def test_unfinished_task_is_never_pruned(given: Given, state: str) -> None:
    older, newest = await _older_and_newest(given)
    _ended(given, older, state, days_ago=1000)
    await prune(given.made.engine, KEPT)
    assert _remaining(given) == {older, newest}


async def test_ended_operation_without_a_slot_is_pruned(given: Given) -> None:
    operation = replace(a_task("n1"), slot_id=None, token=None, task_id=uuid4(), attempt=1)
    [order] = await given.tasks(operation)
    _ended(given, order, "failed", days_ago=8)
    assert await prune(given.made.engine, KEPT) == 1


async def test_pruned_order_that_is_derived_from_the_ledger_again_is_not_sent(
    task_sender: TaskSender, given: Given
) -> None:
    older, newest = a_task("n1", slot=SLOT, position=1), a_task("n1", slot=SLOT, position=2)
    await given.tasks(older)
    await given.tasks(newest)
    assert await task_sender.send_due() == 1
    _ended(given, older.order_id, "superseded", days_ago=2)
    assert await prune(given.made.engine, KEPT) == 1
    await given.tasks(older)
    assert await task_sender.send_due() == 0
    assert given.states("n1") == {("superseded", True): 1, ("sent", True): 1}


async def test_one_pruning_run_deletes_more_than_one_batch_of_task_rows(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "BATCH", 2)
    orders = await given.tasks(*(a_task("n1", slot=SLOT, position=each) for each in range(1, 7)))
    for order in orders:
        _ended(given, order, "done", days_ago=2)
    assert await prune(given.made.engine, KEPT) == 5


async def test_refusal_by_a_node_that_occurred_recently_is_not_pruned(given: Given) -> None:
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
