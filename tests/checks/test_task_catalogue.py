"""docs/tasks.md tells every task from the catalogue, and the catalogue says nothing that nobody keeps to."""

import ast
from dataclasses import replace
from typing import Literal, get_args

import pytest
from pydantic import Field

from deploy.catalogue.page import Unexplained
from deploy.catalogue.tasks_frame import CODES
from deploy.catalogue.tasks_page import TasksPage, tasks_page
from deploy.setup.repository import ROOT
from tasks.catalogue import ANNOUNCED, CATALOGUE, REFUSALS, TYPES, is_order
from tasks.fields import Wire
from tasks.operations import OperationBody, OperationResult
from tasks.orders import ApplySlice, Order, RemoveSlice, StopSlice
from tasks.reasons import OperationFailureCode, SliceFailureCode, codes


class Unsaid(Wire):
    kind: Literal["node.unsaid"] = "node.unsaid"
    ratio: float = Field(ge=0)


def section(name: str, text: str) -> str:
    return text.partition(f"### `{name}`\n")[2].partition("\n##")[0]


def test_every_task_has_its_section_and_its_bounds() -> None:
    text = tasks_page().text()
    assert [line[5:-1] for line in text.splitlines() if line.startswith("### `")] == list(CATALOGUE)
    assert (
        "| [`readiness.poll`](#readinesspoll) | 1 h 5 min | never | 5 min | 67,584 | 8 operations |" in text
    )


def test_a_section_tells_fields_with_their_limits_results_and_codes() -> None:
    told = section("address.report", tasks_page().text())
    assert "Version 1, `AddressReport`. Serves TSK-2: report VM IP and endpoint." in told
    assert "| `wish` | [order](#order) |" in told
    assert "| `endpoint_port` | whole number or null, at least 1, at most 65535 |" in told
    assert "Ends well as `AddressReported`." in told
    assert "`not_wanted`" in told


def test_what_the_types_leave_unsaid_is_named_all_at_once() -> None:
    unsaid = replace(CATALOGUE["node.verify"], body=Unsaid, failures=("because",))
    with pytest.raises(Unexplained) as refused:
        TasksPage((*TYPES, unsaid), CODES).text()
    assert [each.partition(":")[0] for each in refused.value.objections] == [
        "node.unsaid",
        "node.unsaid",
        "node.unsaid",
        "the code because and its meaning do not go together",
    ]


def test_the_catalogue_holds_every_task_that_the_wire_can_carry_and_every_result() -> None:
    bodies = {ApplySlice, StopSlice, RemoveSlice, *get_args(get_args(OperationBody)[0])}
    assert {type_.body for type_ in TYPES} == bodies
    results = {result for type_ in TYPES if not is_order(type_.kind) for result in type_.results}
    assert results == set(get_args(get_args(OperationResult)[0]))


def test_every_code_that_the_agent_can_give_is_declared_by_a_task_and_no_other_is() -> None:
    declared = {code for type_ in TYPES for code in type_.failures}
    assert declared == {*codes(SliceFailureCode), *codes(OperationFailureCode)}
    assert not declared & set(REFUSALS)


def test_the_version_that_is_announced_is_the_one_that_the_type_has() -> None:
    orders = Order.model_fields["schema_version"]
    for type_ in TYPES:
        spoken = orders if is_order(type_.kind) else type_.body.model_fields["version"]
        assert get_args(spoken.annotation) == (type_.version,)
    assert "drift.report/1" in ANNOUNCED
    assert len(set(ANNOUNCED)) == len(TYPES) + 2


def test_tasks_of_one_lane_are_bounded_together_and_a_cancel_by_itself() -> None:
    assert {type_.kind for type_ in TYPES if type_.bounds.lane == "cancels"} == {"operation.cancel"}
    assert {type_.kind for type_ in TYPES if is_order(type_.kind)} == {
        "slice.apply",
        "slice.stop",
        "slice.remove",
    }


def test_the_agent_gives_no_code_but_by_a_name_that_mypy_checks() -> None:
    """`Reason` takes any code, for a reader's sake; the agent makes one of a variable whose type lists the codes."""
    constants = [
        f"{path.name}:{call.lineno}"
        for path in sorted((ROOT / "node_agent").rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Reason"
        for word in call.keywords
        if word.arg == "code" and isinstance(word.value, ast.Constant)
    ]
    assert constants == []
