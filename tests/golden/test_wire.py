"""Tests that messages exchanged with nodes keep their format, by one golden JSON file per version of each task, result
and report.
"""

import json
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from tasks.agent_api import ProgressBatch
from tasks.catalogue import CATALOGUE, REFUSALS, TYPES, is_order
from tasks.operations import Operation, OperationResult
from tasks.orders import Order, RemoveSlice
from tasks.reading import Task, TaskRefused, read_task
from tasks.reasons import HeadCode, codes
from tasks.reports import Report, ReportBody

FOLDER: Final = Path(__file__).parent
ORDERS: Final[dict[str, Any]] = json.loads((FOLDER / "orders.json").read_text())
OPERATIONS: Final[dict[str, Any]] = json.loads((FOLDER / "operations.json").read_text())
RESULTS: Final[dict[str, Any]] = json.loads((FOLDER / "results.json").read_text())
REPORTS: Final[dict[str, Any]] = json.loads((FOLDER / "reports.json").read_text())
PROGRESS: Final[dict[str, Any]] = json.loads((FOLDER / "progress.json").read_text())
TASKS: Final = ORDERS | OPERATIONS
_BODIES: Final = get_args(get_args(ReportBody)[0])
_RESULT: Final[TypeAdapter[BaseModel]] = TypeAdapter(OperationResult)


def encoded(task: object) -> bytes:
    return json.dumps(task).encode()


def test_every_task_version_has_golden_json_and_every_operation_has_a_golden_result() -> None:
    announced = {type_.announced: type_ for type_ in TYPES}
    assert set(ORDERS) >= {name for name, type_ in announced.items() if is_order(type_.kind)}
    assert set(OPERATIONS) >= {name for name, type_ in announced.items() if not is_order(type_.kind)}
    assert RESULTS.keys() == OPERATIONS.keys()
    assert {name.partition("/")[0] for name in TASKS} == CATALOGUE.keys()


def test_every_report_kind_has_golden_json() -> None:
    assert {name.partition("/")[0] for name in REPORTS} == {
        body.model_fields["kind"].default for body in _BODIES
    }


@pytest.mark.parametrize("name", TASKS)
def test_golden_task_decodes_to_its_type_and_encodes_to_the_same_json(name: str) -> None:
    task: Task = read_task(encoded(TASKS[name]))
    assert isinstance(task, Order if name in ORDERS else Operation)
    assert task.body.kind == name.partition("/")[0]
    assert json.loads(task.model_dump_json()) == TASKS[name]


@pytest.mark.parametrize("name", RESULTS)
def test_golden_result_has_the_type_its_operation_declares_and_encodes_to_the_same_json(name: str) -> None:
    result = _RESULT.validate_python(RESULTS[name])
    assert isinstance(result, CATALOGUE[name.partition("/")[0]].results)
    assert json.loads(result.model_dump_json()) == RESULTS[name]


@pytest.mark.parametrize("kind", REPORTS)
def test_golden_report_decodes_and_encodes_to_the_same_json(kind: str) -> None:
    assert json.loads(Report.model_validate(REPORTS[kind]).model_dump_json()) == REPORTS[kind]


@pytest.mark.parametrize("kind", [kind for kind in REPORTS if "reason" in REPORTS[kind]["body"]])
def test_reason_code_of_golden_report_is_declared_in_the_task_catalogue(kind: str) -> None:
    declared = {*REFUSALS, *codes(HeadCode), "machine_not_running"}.union(
        *(type_.failures for type_ in TYPES)
    )
    assert REPORTS[kind]["body"]["reason"]["code"] in declared


def test_golden_progress_batch_decodes_and_encodes_to_the_same_json() -> None:
    assert json.loads(ProgressBatch.model_validate(PROGRESS).model_dump_json()) == PROGRESS


@pytest.mark.parametrize("name", TASKS)
def test_task_with_an_unknown_field_is_rejected_as_malformed(name: str) -> None:
    golden = TASKS[name]
    for altered in (
        golden | {"shell": "rm -rf /"},
        golden | {"body": golden["body"] | {"shell": "rm -rf /"}},
    ):
        with pytest.raises(TaskRefused, match="shell: Extra inputs") as refused:
            read_task(encoded(altered))
        assert refused.value.code == "malformed"


@pytest.mark.parametrize("name", TASKS)
def test_task_with_a_newer_schema_version_is_rejected_as_unsupported(name: str) -> None:
    golden = TASKS[name]
    newer = golden | {"schema_version": 2, "field_of_tomorrow": 1}
    with pytest.raises(TaskRefused) as refused:
        read_task(encoded(newer))
    assert refused.value.code == "unsupported"


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_with_a_newer_body_version_is_rejected_as_unsupported(name: str) -> None:
    golden = OPERATIONS[name]
    with pytest.raises(TaskRefused) as refused:
        read_task(encoded(golden | {"body": golden["body"] | {"version": 2}}))
    assert refused.value.code == "unsupported"


@pytest.mark.parametrize("name", TASKS)
def test_valid_task_one_byte_larger_than_its_type_allows_is_rejected_as_oversized(name: str) -> None:
    golden, bound = encoded(TASKS[name]), CATALOGUE[name.partition("/")[0]].bounds.payload_bytes
    read_task(golden + b" " * (bound - len(golden)))
    with pytest.raises(TaskRefused) as refused:
        read_task(golden + b" " * (bound - len(golden) + 1))
    assert refused.value.code == "oversized"


def test_task_with_two_invalid_fields_is_rejected_with_both_reasons() -> None:
    golden = OPERATIONS["drift.report/1"]
    with pytest.raises(TaskRefused) as refused:
        read_task(encoded(golden | {"node_id": "LAB", "task_id": 5}))
    assert {"node_id", "task_id"} <= {reason.partition(":")[0] for reason in refused.value.reason.split("; ")}


def test_operation_with_an_unknown_field_in_its_order_is_rejected() -> None:
    golden = OPERATIONS["port.reconcile/1"]
    order = ORDERS["slice.apply/1"] | {"shell": "rm -rf /"}
    with pytest.raises(TaskRefused, match=r"order\.shell"):
        read_task(encoded(golden | {"body": golden["body"] | {"order": order}}))


def test_order_content_digest_depends_on_the_body_and_not_on_issue_time_or_trace_context() -> None:
    order = Order.model_validate(ORDERS["slice.apply/1"])
    later = order.model_copy(update={"issued_at": order.issued_at.replace(year=2031), "trace_context": "x"})
    assert later.content_digest() == order.content_digest()
    other = order.model_copy(
        update={"body": TypeAdapter(RemoveSlice).validate_python({"network": order.body.network})}
    )
    assert other.content_digest() != order.content_digest()


def test_content_digest_of_the_golden_order_never_changes() -> None:
    digest = "a9fc45d177a6db19925e1261e06962808982b7c31d82bc97c2c85af451faa87b"
    assert Order.model_validate(ORDERS["slice.apply/1"]).content_digest() == digest


def test_order_decoded_as_an_operation_is_rejected() -> None:
    with pytest.raises(ValidationError):
        Operation.model_validate(ORDERS["slice.apply/1"])
