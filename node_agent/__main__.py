"""`sliceplane-agent CONFIG`: entry point of the node agent. SIGTERM or SIGINT ends it within seconds; slices run on.

Exit codes (sysexits.h): 0 stopped by a signal, 64 usage, 70 internal error, 74 the state folder cannot be used, 75
another agent uses the state folder, 77 enrolment refused, 78 configuration refused. After 70 and 75 a restart may
succeed; after the others an operator must correct something first.
"""

import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import structlog

from node_agent.runtime.halt import Halt, Halted
from node_agent.runtime.logs import configure_logs
from node_agent.runtime.single_agent import StateFolderInUse
from node_agent.runtime.version import agent_version
from node_agent.settings import Settings, SettingsRefused, read_settings
from node_agent.transport.enrol import EnrolmentRefused
from node_agent.wiring import run
from tasks.core_dumps import disable_core_dumps
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
_EXIT_CODES: Final[dict[type[Exception], int]] = {
    OSError: 74,
    StateFolderInUse: 75,
    EnrolmentRefused: 77,
    SettingsRefused: MISCONFIGURED,
}


def main() -> None:
    """Run the node agent, and end the process with the agent's exit code."""
    code = _main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # sys.exit would wait for all threads, and one of them may hang in a driver's C call until that call's deadline.
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
            problem = "no configuration file given"
        case [first, *_] if first.startswith("-"):
            problem = f"unknown option {first!r}"
        case _:
            problem = f"{len(arguments)} configuration files given, expected one"
    sys.stderr.write(
        f"sliceplane-agent: {problem}; usage: sliceplane-agent CONFIG (see sliceplane-agent --help)\n"
    )
    return USAGE


def _start(config: Path) -> int:
    disable_core_dumps()
    try:
        arm_from(os.environ.get("SLICEPLANE_FAILPOINTS", ""))
        settings = read_settings(config)
    except (SettingsRefused, UnknownFailpoint) as refused:
        sys.stderr.write(f"sliceplane-agent: {refused}; correct it, then start the agent again ({_PAGE})\n")
        return MISCONFIGURED
    configure_logs(settings.log, settings.node_id)
    return _run_agent(settings)


def _run_agent(settings: Settings) -> int:
    halt = _halt_on_signals()
    broken = halt_on_broken_threads(halt)
    try:
        run(settings, halt)
    except Halted:
        return BROKEN if broken.is_set() else 0
    except tuple(_EXIT_CODES) as error:
        code = next(code for kind, code in _EXIT_CODES.items() if isinstance(error, kind))
        log.critical("agent_cannot_run", error=type(error).__name__, reason=str(error))
        return code
    return BROKEN if broken.is_set() else 0


def halt_on_broken_threads(halt: Halt) -> threading.Event:
    """Stop the agent when one of its threads ends with an unhandled exception. The returned event is set in that case.

    An agent that lost a thread would keep sending heartbeats without surveying or reporting. A restarted agent
    continues from the state on disk.
    """
    broken = threading.Event()

    def handle_exception(failure: threading.ExceptHookArgs) -> None:
        thread = failure.thread.name if failure.thread else "unknown"
        log.critical("agent_thread_failed", thread=thread, exc_info=failure.exc_value)
        # During shutdown the thread has no work left, so its failure does not change the exit code.
        if not halt.is_requested:
            broken.set()
            halt.request()

    threading.excepthook = handle_exception
    return broken


def _halt_on_signals() -> Halt:
    """Return a halt flag (`Halt`) that SIGTERM or SIGINT sets.

    The signal handler only puts into a queue: `SimpleQueue.put` is reentrant, and the lock of an event is not.
    """
    halt, signals = Halt(), queue.SimpleQueue[int]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: signals.put(received))

    def wait() -> None:
        signals.get()
        halt.request()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    return halt


if __name__ == "__main__":
    main()
