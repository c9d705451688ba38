"""Pages of docs/ that are made from the code: written, or compared with what stands there.

A difference is a failure, and is printed. What the sources leave unexplained is a failure too, whether a page is to be
compared or written.
"""

import difflib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.catalogue.page import Unexplained


def differences(wanted: str, path: Path) -> list[str]:
    """What would change in the page, as the lines of a unified diff."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = found.splitlines(), wanted.splitlines()
    return list(difflib.unified_diff(*lines, path.name, "made from the code", lineterm=""))


def check_or_write(path: Path, text: Callable[[], str], verb: str, arguments: Sequence[str]) -> int:
    """`--write` writes. 1 when the page is behind the code or the code does not explain itself, 2 for an unknown
    argument.

    `verb` is what of `./dev` writes this page.
    """
    if arguments not in ([], ["--write"]):
        sys.stderr.write(f"usage: ./dev {verb}, or ./dev check {verb}\n")
        return 2
    try:
        wanted = text()
    except Unexplained as gaps:
        sys.stderr.write(f"{gaps}\n")
        return 1
    if arguments:
        path.write_text(wanted, encoding="utf-8")
        return 0
    if found := differences(wanted, path):
        sys.stderr.write("\n".join([*found, "", f"write it anew with ./dev {verb}"]) + "\n")
    return 1 if found else 0
