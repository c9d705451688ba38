"""Generated pages of docs/: write them from the code, or compare them with the code.

If a page differs from the code, the check prints the difference and fails. Comparing and writing both fail
if the code lacks an explanation that the page needs.
"""

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.catalogue.page import Unexplained


def differences(generated: str, path: Path) -> list[str]:
    """Return the changes that would make the page equal to `generated`, as the lines of a unified diff."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = found.splitlines(), generated.splitlines()
    return list(difflib.unified_diff(*lines, path.name, f"{path.name} (generated)", lineterm=""))


def check_or_write(path: Path, text: Callable[[], str], verb: str, arguments: Sequence[str]) -> int:
    """Compare the page at `path` with `text()`, or write it if `arguments` is `--write`. Return the exit code.

    The exit code is 1 if the page differs from the code or an explanation is missing in the code, and 2 for an unknown
    argument. `verb` is the verb of `./dev` that writes this page.
    """
    if arguments not in ([], ["--write"]):
        sys.stderr.write(f"usage: ./dev {verb}, or ./dev check {verb}\n")
        return 2
    try:
        generated = text()
    except Unexplained as gaps:
        sys.stderr.write(f"{gaps}\n")
        return 1
    if arguments:
        path.write_text(generated, encoding="utf-8")
        return 0
    if found := differences(generated, path):
        sys.stderr.write(
            "\n".join([*found, "", f"{path.name} is out of date; regenerate it with ./dev {verb}"]) + "\n"
        )
    return 1 if found else 0
