"""`./dev`: set up what is missing, then replace this process with the program of the verb.

The set-up has three steps; each runs only if it is needed. The first installs Debian packages (as root on Debian 12
only; elsewhere Postgres and Redis come from Python packages, and nodes are simulated). The second creates the Python
environment, the third installs the packages that the web console serves to browsers. After Ctrl-C or SIGTERM no process
keeps running; the module of each step states what remains on disk.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from deploy.setup import browser_packages, debian, environment, focus
from deploy.setup.commands import SetupFailed
from deploy.setup.interrupts import INTERRUPTED, end_at_once, raise_interrupts
from deploy.setup.progress import step
from deploy.setup.repository import ENVIRONMENTS, LOG, ROOT
from deploy.setup.verbs import VERBS, command, usage

_TERMINATING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_USAGE_ERROR = 2
_SETUP_FAILED = 3


def main(arguments: Sequence[str]) -> int:
    """Run one verb. Return an exit code only if there is no verb to run or the set-up failed."""
    if not arguments or arguments[0] in {"help", "-h", "--help"}:
        sys.stdout.write(usage())
        return 0
    if arguments[0] not in VERBS:
        sys.stderr.write(f"unknown verb {arguments[0]!r}; choose one of the following.\n\n{usage()}")
        return _USAGE_ERROR
    for number in _TERMINATING_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        raise_interrupts()
        set_up(with_browser=VERBS[arguments[0]].opens_pages)
        if arguments[0] == "test":
            focus.ensure()
        end_at_once()
    except SetupFailed as failed:
        sys.stderr.write(f"\nThe set-up failed. {failed}\n")
        return _SETUP_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted. The next run of ./dev continues the set-up.\n")
        return INTERRUPTED
    for number in _TERMINATING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    return _exec_verb(arguments[0], arguments[1:])


def set_up(*, with_browser: bool) -> None:
    """Install what this machine lacks, so that every verb can run; the browser only if it is requested. Raises
    `SetupFailed`.
    """
    extent = environment.Extent.BASE
    if debian.can_install():
        extent = environment.Extent.NODE
        _install_packages(with_browser=with_browser)
    if not environment.is_ready(extent):
        environment.ensure(extent)
    environment.write_programs()
    browser_packages.ensure()


def _install_packages(*, with_browser: bool) -> None:
    missing = debian.missing_packages(with_browser=with_browser)
    if not missing and not debian.was_interrupted(ENVIRONMENTS):
        return
    ENVIRONMENTS.mkdir(exist_ok=True)
    what = f"{len(missing)} missing" if missing else "completing an interrupted installation"
    with step(f"installing Debian packages ({what}; no service starts, no kernel)"):
        debian.install(missing, ENVIRONMENTS, LOG)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _exec_verb(verb: str, arguments: Sequence[str]) -> NoReturn:
    if VERBS[verb].runs_in_root:
        os.chdir(ROOT)
    line = command(verb, arguments)
    os.execv(line[0], line)
