"""`sliceplane-agent CONFIG`: the agent as a program. Ends on SIGTERM or SIGINT within seconds; slices run on.

Exit codes (sysexits.h): 0 stopped by a signal, 64 usage, 70 internal error, 74 the state folder cannot be used, 75
another agent holds it, 77 enrolment refused, 78 configuration refused. 70 and 75 may pass by themselves; the others
want a person.
"""

import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import structlog

from node_agent.enrol import EnrolmentRefused
from node_agent.halt import Halt, Halted
from node_agent.logs import configure_logs
from node_agent.settings import Settings, SettingsRefused, read_settings
from node_agent.sole import AnotherAgent
from node_agent.version import agent_version
from node_agent.wiring import run
from tasks.failpoints import UnknownFailpoint, arm_from

log = structlog.get_logger(__name__)

USAGE: Final = 64
BROKEN: Final = 70
MISCONFIGURED: Final = 78
_PAGE: Final = "docs/node.md has an example"
HELP: Final = f"""\
Usage: sliceplane-agent CONFIG

Run the agent of one node in the foreground. CONFIG is its JSON configuration file; {_PAGE}.
The agent needs root, except with a simulated host. SIGTERM ends it within seconds; slices keep running.

Options:
  -h, --help  print this text and exit
  --version   print the version and exit

Exit codes: 0 stopped by a signal, 64 wrong usage, 70 internal error, 74 the state folder cannot be used,
75 another agent uses the state folder, 77 enrolment refused, 78 configuration refused.
"""
_ENDS: Final[dict[type[Exception], int]] = {
    OSError: 74,
    AnotherAgent: 75,
    EnrolmentRefused: 77,
    SettingsRefused: MISCONFIGURED,
}


def main() -> None:
    code = _main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: it would wait for threads, and one of them may hang in a driver's C call for its whole deadline.
    os._exit(code)


def _main(arguments: list[str]) -> int:
    match arguments:
        case ["-h" | "--help"]:
            sys.stdout.write(HELP)
            return 0
        case ["--version"]:
            sys.stdout.write(f"sliceplane-agent {agent_version()}\n")
            return 0
        case [config] if not config.startswith("-"):
            return _start(Path(config))
        case []:
            wrong = "no configuration file given"
        case [first, *_] if first.startswith("-"):
            wrong = f"unknown option {first!r}"
        case _:
            wrong = f"{len(arguments)} configuration files given, expected one"
    sys.stderr.write(
        f"sliceplane-agent: {wrong}; usage: sliceplane-agent CONFIG (see sliceplane-agent --help)\n"
    )
    return USAGE


def _start(config: Path) -> int:
    try:
        arm_from(os.environ.get("SLICEPLANE_FAILPOINTS", ""))
        settings = read_settings(config)
    except (SettingsRefused, UnknownFailpoint) as refused:
        sys.stderr.write(f"sliceplane-agent: {refused}; correct it, then start the agent again ({_PAGE})\n")
        return MISCONFIGURED
    configure_logs(settings.log, settings.node_id)
    return _be_the_agent(settings)


def _be_the_agent(settings: Settings) -> int:
    halt = _halt_on_signals()
    broken = halt_on_broken_threads(halt)
    try:
        run(settings, halt)
    except Halted:
        return BROKEN if broken.is_set() else 0
    except tuple(_ENDS) as end:
        code = next(code for kind, code in _ENDS.items() if isinstance(end, kind))
        log.critical("agent_cannot_run", why=type(end).__name__, reason=str(end))
        return code
    return BROKEN if broken.is_set() else 0


def halt_on_broken_threads(halt: Halt) -> threading.Event:
    """End the agent when one of its threads does by an error; gives what is set then.

    Half an agent looks alive: it would beat, and never survey or report again. A new one goes on from the disk.
    """
    broken = threading.Event()

    def broke(how: threading.ExceptHookArgs) -> None:
        thread = how.thread.name if how.thread else "unknown"
        log.critical("thread_broke", thread=thread, exc_info=how.exc_value)
        # What breaks while all is being taken down has nothing left to do.
        if not halt.asked:
            broken.set()
            halt.ask()

    threading.excepthook = broke
    return broken


def _halt_on_signals() -> Halt:
    """Asked by SIGTERM or SIGINT. The handler only puts: `SimpleQueue.put` is reentrant, an event's lock is not."""
    halt, signals = Halt(), queue.SimpleQueue[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: signals.put(received))

    def wait() -> None:
        signals.get()
        halt.ask()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    return halt


if __name__ == "__main__":
    main()
