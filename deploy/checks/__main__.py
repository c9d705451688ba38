"""`./dev check [NAME ...]`: run all checks of the repository, or only the named ones.

All selected checks run even if one fails, so that one run shows every problem. The exit code is 1 if a check failed.
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
    "names": ("python", "-m", "deploy.checks.names"),
    "language": ("python", "-m", "deploy.checks.language"),
    "package": ("python", "-m", "deploy.checks.package"),
}


class _CheckFailed(Exception):
    """A check failed; the message is the output of its program."""


def main(names: Sequence[str]) -> int:
    """Run the named checks, or all of them. Return 1 if a check failed, 2 if a name is unknown."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        sys.stderr.write(f"unknown check {', '.join(unknown)}; choose from {', '.join(CHECKS)}\n")
        return 2
    failed = [name for name in names or CHECKS if not _passes(name)]
    sys.stderr.write(f"\nfailed: {', '.join(failed)}\n" if failed else "\nall checks passed\n")
    return 1 if failed else 0


def _passes(name: str) -> bool:
    try:
        with step(f"check {name}"):
            _check(name)
    except _CheckFailed as failure:
        sys.stderr.write(f"FAIL check {name}\n{failure}\n")
        return False
    return True


def _check(name: str) -> None:
    program, *arguments = CHECKS[name]
    completed = subprocess.run(
        [_PROGRAMS / program, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
    )
    if completed.returncode != 0:
        raise _CheckFailed(completed.stdout.rstrip())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
