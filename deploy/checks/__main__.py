"""`./dev check [NAME ...]`: every gate of the repository, or the named ones.

All of them run even when one fails, so that one run shows everything; the exit code is 1 when any did.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from deploy.setup.progress import step
from deploy.setup.repository import ENVIRONMENT, ROOT

_PROGRAMS: Final = ENVIRONMENT / "bin"

CHECKS: Final = {
    "format": ("ruff", "format", "--check", "--quiet"),
    "lint": ("ruff", "check", "--quiet"),
    "types": ("mypy", "--no-error-summary"),
    "imports": ("lint-imports", "--no-logo"),
    "layout": ("python", "-m", "pytest", "-q", "--no-header", "tests/checks"),
    "migrations": ("python", "-m", "deploy.checks.migrations"),
    "events": ("python", "-m", "deploy.checks.event_catalogue"),
    "tasks": ("python", "-m", "deploy.checks.task_catalogue"),
    "drift": ("python", "-m", "deploy.checks.drift_catalogue"),
}


class _Refused(Exception):
    """A check found something; the message is what its program wrote."""


def main(names: Sequence[str]) -> int:
    """Runs the named checks, or all; 1 when any failed, 2 for an unknown name."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        sys.stderr.write(f"No check named {', '.join(unknown)}; there are {', '.join(CHECKS)}.\n")
        return 2
    failed = [name for name in names or CHECKS if not _passes(name)]
    sys.stderr.write(f"\nfailed: {', '.join(failed)}\n" if failed else "\nall checks passed\n")
    return 1 if failed else 0


def _passes(name: str) -> bool:
    try:
        with step(f"check {name}"):
            _check(name)
    except _Refused as refused:
        sys.stderr.write(f"FAIL check {name}\n{refused}\n")
        return False
    return True


def _check(name: str) -> None:
    program, *arguments = CHECKS[name]
    ended = subprocess.run(
        [_PROGRAMS / program, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
    )
    if ended.returncode != 0:
        raise _Refused(ended.stdout.rstrip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
