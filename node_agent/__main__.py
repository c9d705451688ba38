"""`sliceplane-agent CONFIG`: the agent as a program. Ends on SIGTERM or SIGINT within seconds; slices run on.

Exit codes (sysexits.h): 0 stopped as asked, 64 usage, 70 a part of it broke, 74 the state folder cannot be used, 75
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
from node_agent.wiring import run
from tasks.failpoints import UnknownFailpoint, arm_from

log = structlog.get_logger(__name__)

USAGE: Final = 64
BROKEN: Final = 70
MISCONFIGURED: Final = 78
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
    if len(arguments) != 1:
        sys.stderr.write("usage: sliceplane-agent CONFIG\n")
        return USAGE
    try:
        arm_from(os.environ.get("SLICEPLANE_FAILPOINTS", ""))
        settings = read_settings(Path(arguments[0]))
    except (SettingsRefused, UnknownFailpoint) as refused:
        sys.stderr.write(f"sliceplane-agent: {refused}\n")
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
