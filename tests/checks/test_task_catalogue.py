"""docs/tasks.md describes every task of the catalogue, and the catalogue matches the task and result types."""

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


class Undocumented(Wire):
    kind: Literal["node.undocumented"] = "node.undocumented"
    ratio: float = Field(ge=0)


def section(name: str, text: str) -> str:
    return text.partition(f"### `{name}`\n")[2].partition("\n##")[0]


def test_docs_page_of_the_tasks_has_a_section_and_a_row_with_limits_for_every_task() -> None:
    text = tasks_page().text()
    assert [line[5:-1] for line in text.splitlines() if line.startswith("### `")] == list(CATALOGUE)
    assert (
        "| [`readiness.poll`](#readinesspoll) | 1 h 5 min | never | 5 min | 67,584 | 8 operations |" in text
    )


def test_section_of_a_task_in_the_docs_lists_its_fields_with_limits_its_results_and_its_codes() -> None:
    text = section("address.report", tasks_page().text())
    assert "Version 1, `AddressReport`. Implements requirement TSK-2: report VM IP and endpoint." in text
    assert "| `order` | [order](#order) |" in text
    assert "| `endpoint_port` | whole number or null, at least 1, at most 65535 |" in text
    assert "Success is reported as `AddressReported`." in text
    assert "`not_wanted`" in text


def test_docs_page_of_tasks_without_explanations_is_refused_with_all_missing_explanations() -> None:
    undocumented = replace(CATALOGUE["node.verify"], body=Undocumented, failures=("because",))
    with pytest.raises(Unexplained) as refused:
        TasksPage((*TYPES, undocumented), CODES).text()
    assert [each.partition(":")[0] for each in refused.value.objections] == [
        "node.undocumented",
        "node.undocumented",
        "node.undocumented",
        "the code because is missing or superfluous in the descriptions of deploy.catalogue.tasks_frame",
    ]


def test_task_catalogue_lists_exactly_the_tasks_and_results_of_the_wire_format() -> None:
    bodies = {ApplySlice, StopSlice, RemoveSlice, *get_args(get_args(OperationBody)[0])}
    assert {type_.body for type_ in TYPES} == bodies
    results = {result for type_ in TYPES if not is_order(type_.kind) for result in type_.results}
    assert results == set(get_args(get_args(OperationResult)[0]))


def test_tasks_declare_exactly_the_failure_codes_that_the_agent_can_return() -> None:
    declared = {code for type_ in TYPES for code in type_.failures}
    assert declared == {*codes(SliceFailureCode), *codes(OperationFailureCode)}
    assert not declared & set(REFUSALS)


def test_task_versions_that_an_agent_announces_are_the_versions_of_the_task_types() -> None:
    orders = Order.model_fields["schema_version"]
    for type_ in TYPES:
        supported = orders if is_order(type_.kind) else type_.body.model_fields["version"]
        assert get_args(supported.annotation) == (type_.version,)
    assert "drift.report/1" in ANNOUNCED
    assert len(set(ANNOUNCED)) == len(TYPES) + 7


def test_operation_cancel_shares_its_credit_lane_with_no_other_task() -> None:
    assert {type_.kind for type_ in TYPES if type_.bounds.lane == "cancels"} == {"operation.cancel"}
    assert {type_.kind for type_ in TYPES if is_order(type_.kind)} == {
        "slice.apply",
        "slice.stop",
        "slice.remove",
    }


def test_agent_constructs_no_reason_from_a_literal_code() -> None:
    """The class `Reason` accepts any code, because a program may read the codes of a newer release. The agent
    passes the code as a variable, with a type that lists the permitted codes, so that the type checker refuses others.
    """
    constants = [
        f"{path.name}:{call.lineno}"
        for path in sorted((ROOT / "node_agent").rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Reason"
        for word in call.keywords
        if word.arg == "code" and isinstance(word.value, ast.Constant)
    ]
    assert constants == []
