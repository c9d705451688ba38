"""State diagram of the rows of `work.task`, and the states in which an order may be cancelled or retried."""

import re
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Final, get_args

import pytest

from control_plane.decisions import task_states, tasks
from control_plane.decisions.task_states import (
    APPLY,
    REMOVE,
    STOP,
    EndState,
    OpenState,
    OrderRow,
    TaskState,
    against_cancelling,
    against_retrying,
)
from control_plane.dispatcher import outbox, task_sender
from control_plane.queues.relay import Rejected
from events.values import new_uuid, node_id
from tests.decisions.histories import ID, A

OPEN: Final[tuple[str, ...]] = get_args(OpenState)
ENDS: Final[tuple[str, ...]] = get_args(EndState)
GROUPS: Final = {"open": OPEN, "ended": tuple(each for each in ENDS if each != "superseded")}
PRODUCT: Final = Path(task_states.__file__).parents[1]
NOW: Final = datetime(2026, 3, 1, tzinfo=UTC)
Transitions = set[tuple[str, str]]


def drawn() -> Transitions:
    """Return the transitions in the state diagram of task rows, with each group of states replaced by its members."""
    arrows = re.findall(r"^ +(\S+) --> (\w+): \S", task_states.__doc__ or "", re.MULTILINE)
    return {
        pair
        for begin, end in arrows
        for pair in product(GROUPS.get(begin, (begin,)), GROUPS.get(end, (end,)))
    }


def written_by(statement: str) -> Transitions:
    """Return the state transitions of an SQL update of `work.task` that sets a constant state."""
    [state] = re.findall(r"set state = '(\w+)'", statement)
    if "t.state <> 'superseded'" in statement:
        return {(each, state) for each in (*OPEN, *ENDS) if each != "superseded"}
    assert "t.state in ('due', 'sent')" in statement
    return {(each, state) for each in OPEN}


def inserted() -> Transitions:
    [states] = re.findall(r"case when outdated then ('.*) end,", outbox._INSERT)
    return {("[*]", each) for each in re.findall(r"'(\w+)'", states)}


def corrected() -> Transitions:
    """Return the state transitions of a task row that was marked as sent although the queue rejected its message."""
    row = task_sender._Due(new_uuid(), node_id("lab-a"), APPLY, "", NOW, False, False, "due", None, 0)
    return {("sent", task_sender._corrected(row, Rejected("full"))[1])}


def test_state_diagram_of_task_rows_shows_exactly_the_transitions_that_the_code_allows() -> None:
    ended = set(product(OPEN, ENDS))  # each report, command and final state of a task ends open rows only
    updates = (outbox._SUPERSEDE, outbox._SUPERSEDE_TRIES, task_sender._DUE)
    allowed = inserted().union(ended, corrected(), *map(written_by, updates))
    assert drawn() == {(begin, end) for begin, end in allowed if begin != end}


def test_every_sql_statement_that_writes_task_rows_is_covered_by_the_test_of_the_state_diagram() -> None:
    pattern = re.compile(r"(?:update|insert into) work\.task\b|sa\.(?:update|insert)\((?:tables\.)?task\)")
    found = {
        str(path.relative_to(PRODUCT)): len(pattern.findall(path.read_text()))
        for path in PRODUCT.rglob("*.py")
    }
    assert {name: count for name, count in found.items() if count} == {
        "dispatcher/outbox.py": 5,  # one of them the due time only
        "dispatcher/task_sender.py": 3,  # one of them the due time only
        "work/task_rows.py": 3,  # one of them the reason only, and one the content of ended orders only
    }


def row(kind: str, state: TaskState) -> OrderRow:
    return OrderRow(new_uuid(), kind, state, A, ID)


@pytest.mark.parametrize(
    ("kind", "state", "codes"),
    [
        (APPLY, "due", []),
        (APPLY, "sent", []),
        (APPLY, "done", ["task_finished"]),
        (STOP, "sent", ["stop_not_cancellable"]),
        (REMOVE, "sent", ["removal_not_cancellable"]),
        (REMOVE, "superseded", ["removal_not_cancellable", "task_finished"]),
    ],
)
def test_only_an_unfinished_apply_order_can_be_cancelled(
    kind: str, state: TaskState, codes: list[str]
) -> None:
    assert [each.code for each in against_cancelling(row(kind, state))] == codes


@pytest.mark.parametrize(
    ("kind", "state", "codes"),
    [
        (REMOVE, "failed", []),
        (REMOVE, "poisoned", []),
        (REMOVE, "sent", ["task_in_progress"]),
        (REMOVE, "done", ["task_succeeded"]),
        (REMOVE, "superseded", ["task_superseded"]),
        (APPLY, "failed", ["not_retriable"]),
        (APPLY, "sent", ["task_in_progress", "not_retriable"]),
        (APPLY, "done", ["task_succeeded"]),
        (STOP, "done", ["task_succeeded"]),
        (STOP, "superseded", ["task_superseded"]),
        (STOP, "failed", ["stop_not_cancellable"]),
    ],
)
def test_only_a_failed_or_poisoned_removal_order_can_be_retried(
    kind: str, state: TaskState, codes: list[str]
) -> None:
    assert [each.code for each in against_retrying(row(kind, state))] == codes


def test_orders_and_requested_tasks_in_the_same_state_are_refused_a_retry_and_a_cancellation_for_the_same_reasons() -> (
    None
):
    assert [*against_retrying(row(REMOVE, "done"))] == tasks.against_retrying("done")
    assert [*against_cancelling(row(APPLY, "done"))] == tasks.against_cancelling("done")
    [order], [task] = against_retrying(row(REMOVE, "sent")), tasks.against_retrying("trying")
    assert order.message.replace("sent", "trying") == task.message
