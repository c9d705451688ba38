"""`./dev check [NAME ...] [--without NAME ...]`: run all checks of the repository, or some of them.

All selected checks run even if one fails, so that one run shows every problem. The exit code is 1 if a check failed,
and 2 if a name is unknown.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Final

from deploy.setup.repository import ENVIRONMENT, ROOT

_PROGRAMS: Final = ENVIRONMENT / "bin"
_AT_ONCE: Final = 2

CHECKS: Final = {
    "types": ("mypy", "--no-error-summary"),
    "layout": ("python", "-m", "pytest", "-q", "--no-header", "tests/checks"),
    "package": ("python", "-m", "deploy.checks.package"),
    "language": ("python", "-m", "deploy.checks.language"),
    "migrations": ("python", "-m", "deploy.checks.migrations"),
    "names": ("python", "-m", "deploy.checks.names"),
    "format": ("ruff", "format", "--check", "--quiet"),
    "lint": ("ruff", "check", "--quiet"),
    "imports": ("lint-imports", "--no-logo"),
    "events": ("python", "-m", "deploy.checks.event_catalogue"),
    "tasks": ("python", "-m", "deploy.checks.task_catalogue"),
    "drift": ("python", "-m", "deploy.checks.drift_catalogue"),
    "openapi": ("python", "-m", "deploy.checks.openapi"),
}
"""The command line of each check. The longest checks come first: two checks run at a time, and a long one at the end
would run alone.
"""


class _CheckFailed(Exception):
    """A check failed; the message is the output of its program."""


def main(arguments: Sequence[str]) -> int:
    """Run the selected checks, two at a time, print the result of each and return the exit code."""
    options = _parser().parse_args(arguments)
    names = [name for name in options.names or CHECKS if name not in options.without]
    unknown = [name for name in (*options.names, *options.without) if name not in CHECKS]
    if unknown:
        sys.stderr.write(f"unknown check {', '.join(unknown)}; choose from {', '.join(CHECKS)}\n")
        return 2
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        running = {pool.submit(_check, name): name for name in names}
        failed = [running[each] for each in as_completed(running) if not _passed(running[each], each)]
    sys.stderr.write(f"\nfailed: {', '.join(failed)}\n" if failed else "\nall checks passed\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev check", description=f"The checks are {', '.join(CHECKS)}.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="run only the checks with these names")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="leave these checks out")
    return parser


def _passed(name: str, running: Future[float]) -> bool:
    try:
        sys.stderr.write(f" ok  check {name} ({running.result():.1f} s)\n")
    except _CheckFailed as failure:
        sys.stderr.write(f"FAIL check {name}\n{failure}\n")
        return False
    return True


def _check(name: str) -> float:
    """Run a check and return its duration in seconds. Raises `_CheckFailed`."""
    program, *arguments = CHECKS[name]
    began = time.monotonic()
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
    return time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
