"""`./dev`: set up what is missing, then become the verb's program.

Set-up is two steps, each asked first whether it is needed: Debian's packages (root on Debian 12 only, elsewhere
Postgres and Redis come from Python packages and nodes are simulated) and the Python environment.
Ctrl-C or SIGTERM anywhere ends with nothing running; the modules of the two steps say what that leaves on disk.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from deploy.setup import debian, environment
from deploy.setup.commands import SetupFailed
from deploy.setup.interrupts import INTERRUPTED, end_at_once, raise_interrupts
from deploy.setup.progress import step
from deploy.setup.repository import ENVIRONMENTS, LOG, ROOT
from deploy.setup.verbs import VERBS, command, usage

_ENDINGS = (signal.SIGTERM, signal.SIGHUP)
_USAGE_ERROR = 2
_SETUP_FAILED = 3


def main(arguments: Sequence[str]) -> int:
    """Runs one verb; returns only when there is none to run, or the set-up failed."""
    if not arguments or arguments[0] in {"help", "-h", "--help"}:
        sys.stdout.write(usage())
        return 0
    if arguments[0] not in VERBS:
        sys.stderr.write(f"./dev has no verb {arguments[0]!r}.\n\n{usage()}")
        return _USAGE_ERROR
    for ending in _ENDINGS:
        signal.signal(ending, _interrupt)
    try:
        raise_interrupts()
        set_up()
        end_at_once()
    except SetupFailed as failed:
        sys.stderr.write(f"\nSet-up failed. {failed}\n")
        return _SETUP_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted; the next run takes up from here.\n")
        return INTERRUPTED
    for ending in _ENDINGS:
        signal.signal(ending, signal.SIG_DFL)
    return _become(arguments[0], arguments[1:])


def set_up() -> None:
    """Brings this machine to where every verb can run. Raises SetupFailed."""
    extent = environment.Extent.BASE
    if debian.can_install():
        extent = environment.Extent.NODE
        _install_packages()
    if not environment.is_ready(extent):
        environment.ensure(extent)


def _install_packages() -> None:
    missing = debian.missing_packages()
    if not missing and not debian.was_interrupted(ENVIRONMENTS):
        return
    ENVIRONMENTS.mkdir(exist_ok=True)
    what = f"{len(missing)} missing" if missing else "finishing what was interrupted"
    with step(f"installing Debian packages ({what}; no service starts, no kernel)"):
        debian.install(missing, ENVIRONMENTS, LOG)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _become(verb: str, arguments: Sequence[str]) -> NoReturn:
    if VERBS[verb].at_root:
        os.chdir(ROOT)
    line = command(verb, arguments)
    os.execv(line[0], line)
