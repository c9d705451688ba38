"""Template process of `program_copies`: it has imported the product's programs, and forks itself for each copy of a
program.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Final

import setproctitle

from deploy.setup.repository import ROOT

PRODUCT: Final = ("sliceplane-agent", "sliceplane-server")
OF_TESTS: Final = {"reporting-child": "tests.agent.reporting_child:program"}
"""Programs of tests, which run the product's modules in a process that can be killed."""
PROGRAMS: Final = (*PRODUCT, *OF_TESTS)
READY: Final = b"ready"
LARGEST_MESSAGE: Final = 2**17
_LATE_IMPORTS: Final = (
    "control_plane.api.server",
    "control_plane.dispatcher.dispatcher_program",
    "control_plane.projector.program",
    "control_plane.server",
    "node_agent.lab.simulated.host",
)
"""Modules that a program imports only after it has read its arguments or its configuration."""
_LOWEST_UNUSED: Final = 3
_MOST_DESCRIPTORS: Final = 65_536
_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None, use_errno=True)


def call_prctl(option: int, value: int) -> None:
    """Call prctl(2). Raises `OSError` if the call fails."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def serve() -> int:
    """Fork a copy for each request on standard input, until the pytest process closes its end of the socket.

    Returns the exit code of this process. In a copy, it is that of the copied program.
    """
    # The first call finds the command line in memory, which fails after `_run` has replaced the environment.
    setproctitle.getproctitle()
    gc.disable()
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    started_at = {**{name: scripts[name] for name in PRODUCT}, **OF_TESTS}
    programs = {name: EntryPoint(name, value, "console_scripts") for name, value in started_at.items()}
    for name in (*(program.module for program in programs.values()), *_LATE_IMPORTS):
        importlib.import_module(name)
    gc.freeze()  # Copies share the memory of all imported modules as long as no collection writes to it.
    requests = socket.socket(fileno=os.dup(0))
    requests.send(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST_MESSAGE, 2)
        if not message:
            return 0
        parent, argv, environment = json.loads(message)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            child = os.getpid()
            if copy := os.fork():
                os.write(writing, str(copy).encode())
                os._exit(0)
            requests.detach()
            output, errors = descriptors
            return _run(programs[Path(argv[0]).name], argv, environment, (output, errors), (child, parent))
        # After the end of the child, the copy is a child of the pytest process.
        os.waitpid(child, 0)
        requests.send(os.read(reading, LARGEST_MESSAGE))
        for descriptor in (reading, writing, *descriptors):
            os.close(descriptor)


def _run(
    program: EntryPoint,
    argv: Sequence[str],
    environment: Mapping[str, str],
    outputs: tuple[int, int],
    parents: tuple[int, int],
) -> int:
    """Prepare this copy as `start_process` prepares a new process, run the program and return its exit code.

    `outputs` are the descriptors of its standard output and standard error. `parents` are the ids of the process that
    forked the copy and of the pytest process. The program begins once the pytest process has become the copy's parent.
    """
    first, last = parents
    while os.getppid() == first:
        time.sleep(0.0005)
    # The kernel sends this signal at each change of the parent, so it is requested after the expected change.
    call_prctl(_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != last:
        return 1
    os.setsid()
    for target, source in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs)):
        os.dup2(source, target)
    os.closerange(_LOWEST_UNUSED, _MOST_DESCRIPTORS)
    os.environ.clear()
    os.environ.update(environment)
    setproctitle.setproctitle(" ".join(argv))
    sys.argv = [*argv]
    main: Callable[[], int | None] = program.load()
    return main() or 0


if __name__ == "__main__":
    sys.exit(serve())
