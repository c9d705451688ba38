"""The talk with nodes keeps its shape: one golden JSON for each order and each report."""

import json
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from tasks.orders import ApplySlice, Order, RemoveSlice
from tasks.reports import Report, ReportBody

FOLDER: Final = Path(__file__).parent
ORDERS: Final[dict[str, Any]] = json.loads((FOLDER / "orders.json").read_text())
REPORTS: Final[dict[str, Any]] = json.loads((FOLDER / "reports.json").read_text())
_BODIES: Final = get_args(get_args(ReportBody)[0])


def test_every_order_and_every_report_has_its_golden_json() -> None:
    assert ORDERS.keys() == {body.model_fields["kind"].default for body in (ApplySlice, RemoveSlice)}
    assert REPORTS.keys() == {body.model_fields["kind"].default for body in _BODIES}


@pytest.mark.parametrize("kind", ORDERS)
def test_a_golden_order_reads_and_writes_back_the_same(kind: str) -> None:
    assert json.loads(Order.model_validate(ORDERS[kind]).model_dump_json()) == ORDERS[kind]


@pytest.mark.parametrize("kind", REPORTS)
def test_a_golden_report_reads_and_writes_back_the_same(kind: str) -> None:
    assert json.loads(Report.model_validate(REPORTS[kind]).model_dump_json()) == REPORTS[kind]


@pytest.mark.parametrize("kind", ORDERS)
def test_an_order_with_an_unknown_field_is_refused(kind: str) -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Order.model_validate(ORDERS[kind] | {"shell": "rm -rf /"})
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Order.model_validate(ORDERS[kind] | {"body": ORDERS[kind]["body"] | {"shell": "rm -rf /"}})


def test_the_digest_of_an_order_speaks_of_what_it_wants_and_of_nothing_else() -> None:
    order = Order.model_validate(ORDERS["slice.apply"])
    later = order.model_copy(update={"issued_at": order.issued_at.replace(year=2031), "trace_context": "x"})
    assert later.content_digest() == order.content_digest()
    other = order.model_copy(
        update={"body": TypeAdapter(RemoveSlice).validate_python({"network": order.body.network})}
    )
    assert other.content_digest() != order.content_digest()


def test_the_digest_of_the_golden_order_is_for_ever() -> None:
    digest = "a9fc45d177a6db19925e1261e06962808982b7c31d82bc97c2c85af451faa87b"
    assert Order.model_validate(ORDERS["slice.apply"]).content_digest() == digest
