"""Start the product's programs as copies of a process that has already imported their modules.

A new Python process needs up to a second of processor time to import a program; a copy starts in milliseconds. A copy
is a separate process with its own arguments, environment, log file and signals, and its parent is the pytest process
that started it, as for a new process. Each pytest process starts one template process when a test first needs a copy.

The template process forks twice, and the first child exits at once. The kernel then makes the pytest process the parent
of the second child, the copy, because the pytest process is a subreaper at that moment (prctl(2)). Therefore the pytest
process can wait for the copy.
"""

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from deploy.embedded.children import REPOSITORY, Child, Process, start_process
from tests.servers import program_template
from tests.servers.program_template import LARGEST_MESSAGE, PROGRAMS, READY, call_prctl

_SET_CHILD_SUBREAPER: Final = 36
_SECONDS: Final = 60.0


def start_copy(argv: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Process:
    """Start a program of the product as a copy (a fork of the template process), and any other program as
    `start_process` does.

    A program with LD_PRELOAD in its environment is not copied, because the preloaded library takes effect only when a
    program is executed (execve(2)).
    """
    if Path(argv[0]).name not in PROGRAMS or "LD_PRELOAD" in environment:
        return start_process(argv, environment, log)
    return _template().copy(argv, {**os.environ, **environment}, log, log)


def run_copy(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program of the product as a copy, with exactly this environment, until it exits.

    If it does not exit within 60 seconds, kill it and raise `subprocess.TimeoutExpired`.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        copy = _template().copy(argv, environment, output, errors)
        try:
            status = copy.wait(_SECONDS)
        finally:
            copy.kill()
            copy.wait()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(argv, status, output.read().decode(), errors.read().decode())


@dataclass
class Copy:
    """Process that runs a copy of a program. Its methods are those of `subprocess.Popen`."""

    args: Sequence[str]
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while the process runs."""
        return self._exit_status(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return its exit status. Raises `subprocess.TimeoutExpired` if the process
        runs for more than `timeout` seconds.
        """
        if timeout is not None and self.returncode is None and not _has_ended(self.pid, timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        status = self._exit_status(0)
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _exit_status(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class Template:
    """Template process of this pytest process, from which the copies are forked."""

    def __init__(self) -> None:
        self._requests, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with requests:
            command = (sys.executable, "-m", program_template.__name__)
            self._process = subprocess.Popen(command, cwd=REPOSITORY, stdin=requests.fileno())
        assert self._requests.recv(LARGEST_MESSAGE) == READY, "the template process has imported the programs"

    def copy(
        self, argv: Sequence[str], environment: Mapping[str, str], output: IO[bytes], errors: IO[bytes]
    ) -> Copy:
        """Start a copy of a program. `argv` is its command line, `environment` its complete environment, and `output`
        and `errors` are its standard output and standard error.
        """
        request = json.dumps([os.getpid(), argv, dict(environment)]).encode()
        call_prctl(_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._requests, [request], [output.fileno(), errors.fileno()])
            answer = self._requests.recv(LARGEST_MESSAGE)
        finally:
            call_prctl(_SET_CHILD_SUBREAPER, 0)
        return Copy(argv, int(answer))

    def end(self) -> None:
        self._requests.close()
        self._process.wait()


@functools.cache
def _template() -> Template:
    return Template()


def pytest_sessionstart() -> None:
    """Let this pytest process start each `Child` by `start_copy`: the product's programs are forks of the template."""
    Child.starter = staticmethod(start_copy)


def pytest_sessionfinish() -> None:
    if _template.cache_info().currsize:
        _template().end()


def _has_ended(pid: int, seconds: float) -> bool:
    """Wait for the end of a child process for at most `seconds`. Return whether it has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
