"""The CSV export of usage entries (RFC 4180), with one line for each entry.

A spreadsheet evaluates a cell that begins with certain characters as a formula. Text that begins with one of them gets
an apostrophe in front, which spreadsheets take for the mark of a text. Numbers keep their sign.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from read_models.usage.entries import Entry
from read_models.usage.periods import Bill
from read_models.usage.unused import KIND, Unused

COLUMNS: Final = (
    "entry_id", "kind", "billing_period", "service_period", "corrects", "project", "allocation_id", "sku", "sku_version",
    "slot_count", "starts_at", "ends_at", "running", "slot_seconds", "price_per_hour", "price", "labels", "events",
)  # fmt: skip
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def line(cells: Sequence[str]) -> str:
    """Return one line of a CSV file with its line end. Cells with commas, quotes or line ends are quoted."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\r\n").writerow(cells)
    return written.getvalue()


def text(value: str | None) -> str:
    """Return the cell of a text, which no spreadsheet evaluates as a formula; None is an empty cell."""
    if value is None:
        return ""
    return f"'{value}" if value.startswith(_FORMULA) else value


def labels(entry: Entry) -> str:
    """Return the cell of the labels, a JSON object."""
    return text(json.dumps(entry.labels, ensure_ascii=False, sort_keys=True))


def time(moment: datetime) -> str:
    """Return a time in UTC (RFC 3339)."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def positions(entry: Entry) -> str:
    """Return the cell of the positions of the events that an entry follows from."""
    return " ".join(str(each.position) for each in entry.events)


def lines(entries: Iterable[Entry]) -> str:
    """Return the lines of entries, in the order of `COLUMNS`."""
    return "".join(line(_cells(each)) for each in entries)


def unused_lines(parts: Iterable[Unused], bill: Bill) -> str:
    """Return the lines of the unused parts of reservations, which cost nothing, in the order of `COLUMNS`."""
    return "".join(line(_unused_cells(each, bill)) for each in parts)


def _unused_cells(part: Unused, bill: Bill) -> Sequence[str]:
    return (
        "", KIND, text(bill.period), text(bill.period), "", text(part.project), "", text(part.sku), "", str(part.slots),
        time(part.starts_at), time(part.ends_at), "false", f"{part.slot_seconds:.6f}", "0", "0.000000", "",
        " ".join(str(each) for each in (part.reserved_by, part.held_by) if each is not None),
    )  # fmt: skip


def _cells(entry: Entry) -> Sequence[str]:
    return (
        text(entry.id), entry.kind.value, text(entry.billing_period), text(entry.service_period), text(entry.corrects),
        text(entry.project), text(entry.allocation_id), text(entry.sku), str(entry.sku_version), str(entry.slot_count),
        time(entry.starts_at), time(entry.ends_at), "true" if entry.running else "false",
        f"{entry.amount.slot_seconds:f}", f"{entry.price_per_hour:f}", f"{entry.amount.price:f}", labels(entry),
        positions(entry),
    )  # fmt: skip
