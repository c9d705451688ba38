"""The FinOps project's validator accepts a FOCUS export of a bill with corrections (PLT-9)."""

import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from control_plane.billing import csv_export, focus
from control_plane.billing.focus import Issuer
from deploy.setup.focus import FOLDER, is_ready
from read_models.usage.amounts import Amount, EntryKind
from tests.billing.entries import ENTRY, START

pytestmark = pytest.mark.skipif(
    not is_ready(), reason="the environment of focus-validator is missing; ./dev test creates it"
)
PERIOD = (START, START + timedelta(days=30))
ISSUER = Issuer("Example GPU", "account-1", "EUR")


def verdict(file: Path) -> str:
    """Return the last line that focus-validator prints about a file. Its exit code does not depend on the verdict."""
    [packages] = FOLDER.glob("lib/python3*/site-packages")
    command = [str(FOLDER / "bin/focus-validator"), "--validate-version", "1.0", "--data-file", str(file)]
    # It reads its list of currencies by a path relative to its own packages.
    found = subprocess.run(command, cwd=packages, check=True, capture_output=True, text=True, timeout=120)
    return found.stdout.strip().splitlines()[-1]


def exported(entries: list[EntryKind], issuer: Issuer = ISSUER) -> str:
    found = []
    for kind in entries:
        sign = -1 if kind is EntryKind.REVERSAL else 1
        amount = Amount(abs(ENTRY.amount.slot_seconds) * sign, abs(ENTRY.amount.price) * sign)
        found.append(ENTRY._replace(kind=kind, amount=amount))
    return csv_export.line(focus.COLUMNS) + focus.lines(found, issuer, PERIOD)


@pytest.mark.timeout(120)  # The validator imports pandas, and is started four times.
def test_validator_accepts_exports_with_and_without_corrections_and_rejects_damaged_ones(
    tmp_path: Path,
) -> None:
    file = tmp_path / "bill.csv"
    for kinds in ([EntryKind.METERED], [*EntryKind]):
        file.write_text(exported(kinds), newline="")
        assert verdict(file) == "Validation succeeded.", kinds
    good = exported([*EntryKind])
    for damaged in (good.replace("Correction", "Repair"), good.replace(",EUR,", ",euro,")):
        assert damaged != good
        file.write_text(damaged, newline="")
        assert verdict(file) == "Validation failed!"
