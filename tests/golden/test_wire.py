"""The talk with nodes keeps its shape: one golden JSON for each version of each task, result and report."""

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


def text_of(task: object) -> bytes:
    return json.dumps(task).encode()


def test_every_version_of_every_task_has_its_golden_json_and_every_operation_its_result() -> None:
    announced = {type_.announced: type_ for type_ in TYPES}
    assert set(ORDERS) >= {name for name, type_ in announced.items() if is_order(type_.kind)}
    assert set(OPERATIONS) >= {name for name, type_ in announced.items() if not is_order(type_.kind)}
    assert RESULTS.keys() == OPERATIONS.keys()
    assert {name.partition("/")[0] for name in TASKS} == CATALOGUE.keys()


def test_every_report_has_its_golden_json() -> None:
    assert {name.partition("/")[0] for name in REPORTS} == {
        body.model_fields["kind"].default for body in _BODIES
    }


@pytest.mark.parametrize("name", TASKS)
def test_a_golden_task_reads_as_its_type_and_writes_back_the_same(name: str) -> None:
    task: Task = read_task(text_of(TASKS[name]))
    assert isinstance(task, Order if name in ORDERS else Operation)
    assert task.body.kind == name.partition("/")[0]
    assert json.loads(task.model_dump_json()) == TASKS[name]


@pytest.mark.parametrize("name", RESULTS)
def test_a_golden_result_is_one_that_its_type_declares_and_writes_back_the_same(name: str) -> None:
    result = _RESULT.validate_python(RESULTS[name])
    assert isinstance(result, CATALOGUE[name.partition("/")[0]].results)
    assert json.loads(result.model_dump_json()) == RESULTS[name]


@pytest.mark.parametrize("kind", REPORTS)
def test_a_golden_report_reads_and_writes_back_the_same(kind: str) -> None:
    assert json.loads(Report.model_validate(REPORTS[kind]).model_dump_json()) == REPORTS[kind]


@pytest.mark.parametrize("kind", [kind for kind in REPORTS if "reason" in REPORTS[kind]["body"]])
def test_the_reason_of_a_golden_report_is_one_that_the_catalogue_declares(kind: str) -> None:
    declared = {*REFUSALS, "machine_not_running"}.union(*(type_.failures for type_ in TYPES))
    assert REPORTS[kind]["body"]["reason"]["code"] in declared


def test_golden_progress_reads_and_writes_back_the_same() -> None:
    assert json.loads(ProgressBatch.model_validate(PROGRESS).model_dump_json()) == PROGRESS


@pytest.mark.parametrize("name", TASKS)
def test_a_task_with_an_unknown_field_is_refused(name: str) -> None:
    golden = TASKS[name]
    for altered in (
        golden | {"shell": "rm -rf /"},
        golden | {"body": golden["body"] | {"shell": "rm -rf /"}},
    ):
        with pytest.raises(TaskRefused, match="shell: Extra inputs") as refused:
            read_task(text_of(altered))
        assert refused.value.code == "malformed"


@pytest.mark.parametrize("name", TASKS)
def test_a_task_of_a_version_that_is_not_spoken_is_unsupported(name: str) -> None:
    golden = TASKS[name]
    newer = golden | {"schema_version": 2, "field_of_tomorrow": 1}
    with pytest.raises(TaskRefused) as refused:
        read_task(text_of(newer))
    assert refused.value.code == "unsupported"


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_newer_version_of_an_operation_alone_is_unsupported_too(name: str) -> None:
    golden = OPERATIONS[name]
    with pytest.raises(TaskRefused) as refused:
        read_task(text_of(golden | {"body": golden["body"] | {"version": 2}}))
    assert refused.value.code == "unsupported"


@pytest.mark.parametrize("name", TASKS)
def test_a_task_past_the_bound_of_its_type_is_oversized_though_it_would_read(name: str) -> None:
    golden, bound = text_of(TASKS[name]), CATALOGUE[name.partition("/")[0]].bounds.payload_bytes
    read_task(golden + b" " * (bound - len(golden)))
    with pytest.raises(TaskRefused) as refused:
        read_task(golden + b" " * (bound - len(golden) + 1))
    assert refused.value.code == "oversized"


def test_every_reason_for_a_refusal_is_given() -> None:
    golden = OPERATIONS["drift.report/1"]
    with pytest.raises(TaskRefused) as refused:
        read_task(text_of(golden | {"node_id": "LAB", "task_id": 5}))
    assert {"node_id", "task_id"} <= {reason.partition(":")[0] for reason in refused.value.why.split("; ")}


def test_a_wish_inside_an_operation_is_read_as_strictly_as_an_order() -> None:
    golden = OPERATIONS["port.reconcile/1"]
    wish = ORDERS["slice.apply/1"] | {"shell": "rm -rf /"}
    with pytest.raises(TaskRefused, match=r"wish\.shell"):
        read_task(text_of(golden | {"body": golden["body"] | {"wish": wish}}))


def test_the_digest_of_an_order_speaks_of_what_it_wants_and_of_nothing_else() -> None:
    order = Order.model_validate(ORDERS["slice.apply/1"])
    later = order.model_copy(update={"issued_at": order.issued_at.replace(year=2031), "trace_context": "x"})
    assert later.content_digest() == order.content_digest()
    other = order.model_copy(
        update={"body": TypeAdapter(RemoveSlice).validate_python({"network": order.body.network})}
    )
    assert other.content_digest() != order.content_digest()


def test_the_digest_of_the_golden_order_is_for_ever() -> None:
    digest = "a9fc45d177a6db19925e1261e06962808982b7c31d82bc97c2c85af451faa87b"
    assert Order.model_validate(ORDERS["slice.apply/1"]).content_digest() == digest


def test_another_kind_of_input_is_refused() -> None:
    with pytest.raises(ValidationError):
        Operation.model_validate(ORDERS["slice.apply/1"])
