"""Tests that QEMU processes are found by the guest that they run, and are ended only if they are still the processes
that were found.

The tests use real processes of a program that only has QEMU's name, and read what /proc shows about them.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from node_agent.aspects.machine_plans import FoundProcess
from node_agent.drivers.machines.qemu import QemuProcesses, continue_process, end_process
from tests.waiting import until

GUEST: Final = f"test{os.getpid()}"


@contextmanager
def running(program: str = "qemu-system-x86_64", guest: str = GUEST) -> Iterator[subprocess.Popen[bytes]]:
    words = [program, "-c", "input()", "-name", f"guest={guest},debug-threads=on", "-S"]
    with subprocess.Popen(words, executable=sys.executable, stdin=subprocess.PIPE) as process:
        try:
            # Popen returns when the program is replaced, and the kernel shows its arguments a moment later.
            until(
                lambda: bool(Path(f"/proc/{process.pid}/cmdline").read_bytes()),
                "the arguments of the process are shown",
            )
            yield process
        finally:
            process.kill()


def found() -> list[FoundProcess]:
    return [process for process in QemuProcesses().all() if process.name == GUEST]


def test_qemu_process_is_found_by_the_name_of_its_guest() -> None:
    with running() as process:
        assert [(each.name, each.pid) for each in found()] == [(GUEST, process.pid)]


def test_process_of_another_program_with_qemus_arguments_is_not_found_as_a_qemu_process() -> None:
    with running(program="less"):
        assert found() == []


def test_qemu_process_that_was_found_is_ended() -> None:
    with running() as process:
        end_process(found()[0])
        assert process.wait() == -signal.SIGKILL
        assert found() == []


def test_ending_a_qemu_process_that_has_exited_raises_no_error() -> None:
    with running() as process:
        seen = found()[0]
        process.kill()
        process.wait()
        end_process(seen)


def test_later_process_with_the_pid_of_an_exited_qemu_process_is_not_ended() -> None:
    with running() as process:
        end_process(replace(found()[0], started=1))
        assert process.poll() is None


def test_qemu_process_stopped_by_a_signal_is_found_as_frozen_and_is_continued() -> None:
    processes = QemuProcesses()
    with running() as process:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: of_guest(processes).frozen, "it is stopped")
        continue_process(of_guest(processes))
        until(lambda: not of_guest(processes).frozen, "it runs")
        assert process.poll() is None


def test_later_process_with_the_pid_of_an_exited_qemu_process_is_not_continued() -> None:
    processes = QemuProcesses()
    with running() as process:
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: of_guest(processes).frozen, "it is stopped")
        continue_process(replace(of_guest(processes), started=1))
        assert of_guest(processes).frozen


def of_guest(processes: QemuProcesses) -> FoundProcess:
    process = processes.of_guest(GUEST, "tap0")
    assert process is not None
    return process


LISTENING: Final = "import socket; own = socket.create_server(('127.0.0.1', 0)); print(own.getsockname()[1], flush=True); input()"
DATAGRAMS: Final = LISTENING.replace(
    "socket.create_server(('127.0.0.1', 0))",
    "socket.socket(type=socket.SOCK_DGRAM); own.bind(('127.0.0.1', 0))",
)
LOCAL: Final = "import socket; own = socket.socketpair(); print(0, flush=True); input()"


@pytest.mark.parametrize(
    ("program", "found"),
    [(LISTENING, "a TCP socket on port {port}"), (DATAGRAMS, "a UDP socket on port {port}"), (LOCAL, None)],
    ids=["TCP", "UDP", "unix"],
)
def test_internet_socket_of_a_qemu_process_is_foreign_and_a_unix_socket_is_not(
    program: str, found: str | None
) -> None:
    words = ["qemu-system-x86_64", "-c", program, "-name", f"guest={GUEST}"]
    with subprocess.Popen(
        words, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            expected = () if found is None else (found.format(port=port),)
            assert of_guest(QemuProcesses()).foreign == expected
        finally:
            process.kill()


def test_internet_socket_that_a_qemu_process_opens_after_the_first_read_is_found() -> None:
    late = "input(); " + LISTENING
    words = ["qemu-system-x86_64", "-c", late, "-name", f"guest={GUEST}"]
    processes = QemuProcesses()
    with subprocess.Popen(
        words, executable=sys.executable, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            until(
                lambda: bool(Path(f"/proc/{process.pid}/cmdline").read_bytes()),
                "the arguments of the process are shown",
            )
            until(lambda: of_guest(processes).foreign == (), "the process has no socket")
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            assert len(of_guest(processes).foreign) == 1
        finally:
            process.kill()
