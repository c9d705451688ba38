"""`python -m deploy.checks.event_catalogue [--write]`: docs/events.md says what the code says.

It prints the difference, which is a failure; with `--write`, it writes the page instead. What the sources leave
unexplained is a failure either way.
"""

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.catalogue.page import Unexplained, page
from deploy.setup.repository import ROOT

PAGE: Final = ROOT / "docs" / "events.md"


def differences(wanted: str, path: Path) -> list[str]:
    """What would change in the page, as the lines of a unified diff."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = found.splitlines(), wanted.splitlines()
    return list(difflib.unified_diff(*lines, path.name, "made from the code", lineterm=""))


def main(arguments: Sequence[str]) -> int:
    """1 when the page is behind the code or the code does not explain itself, 2 for an unknown argument."""
    if arguments not in ([], ["--write"]):
        sys.stderr.write("usage: python -m deploy.checks.event_catalogue [--write]\n")
        return 2
    try:
        wanted = page().text()
    except Unexplained as gaps:
        sys.stderr.write(f"{gaps}\n")
        return 1
    if arguments:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if found := differences(wanted, PAGE):
        sys.stderr.write("\n".join([*found, "", "write it anew with ./dev events"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
