"""Exports of usage are valid CSV (RFC 4180), and no spreadsheet evaluates a cell of them as a formula."""

import csv
import io
import json
from datetime import timedelta

import pytest

from control_plane.billing import csv_export, focus
from control_plane.billing.focus import Issuer
from read_models.usage.amounts import EntryKind
from tests.billing.entries import ENTRY, LABELS, START

ISSUER = Issuer("=HYPERLINK()", "@account", "EUR")


def rows(header: tuple[str, ...], lines: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(csv_export.line(header) + lines, newline=""), strict=True)]


def test_csv_line_has_the_exact_amounts_and_the_events_of_its_entry() -> None:
    written = csv_export.lines([ENTRY, ENTRY])
    found = rows(csv_export.COLUMNS, written)
    assert found[0] == found[1]
    assert json.loads(found[0].pop("labels")) == LABELS
    assert found[0] == {
        "entry_id": ENTRY.id,
        "kind": "reversal",
        "billing_period": "2026-12",
        "service_period": "2026-11",
        "corrects": ENTRY.corrects,
        "project": "vision",
        "allocation_id": "alc-1",
        "sku": "h200.one",
        "sku_version": "3",
        "slot_count": "2",
        "starts_at": "2026-11-01T00:00:00Z",
        "ends_at": "2026-11-01T01:00:00.000001Z",
        "running": "false",
        "slot_seconds": "-7200.000002",
        "price_per_hour": "3.2",
        "price": "-6.400000",
        "events": "3 7",
    }
    assert written.count("\r\n") == 2
    assert written.replace("\r\n", "").count("\n") == 0


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_text_that_a_spreadsheet_would_evaluate_is_marked_as_text(value: str) -> None:
    assert csv_export.text(value) == f"'{value}"
    assert csv_export.text(f"x{value}") == f"x{value}"


def test_focus_export_has_the_reversal_of_a_usage_entry_as_a_correction_with_negative_costs() -> None:
    period = (START, START + timedelta(days=30))
    [found] = rows(focus.COLUMNS, focus.lines([ENTRY], ISSUER, period))
    assert (found["ChargeCategory"], found["ChargeClass"]) == ("Usage", "Correction")
    costs = {found[each] for each in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")}
    assert costs == {"-6.400000"}
    assert (found["ConsumedQuantity"], found["PricingQuantity"]) == ("-7200.000002", "-2.000000000556")
    assert (found["BillingPeriodStart"], found["BillingPeriodEnd"]) == (
        "2026-11-01T00:00:00Z",
        "2026-12-01T00:00:00Z",
    )
    assert (found["ProviderName"], found["BillingAccountId"]) == ("'=HYPERLINK()", "'@account")
    assert found["BillingCurrency"] == "EUR"
    [metered] = rows(focus.COLUMNS, focus.lines([ENTRY._replace(kind=EntryKind.METERED)], ISSUER, period))
    assert metered["ChargeClass"] == ""
