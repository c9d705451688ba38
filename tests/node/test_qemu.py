"""QEMU processes are found by the guest they run for, and ended only if they are still the ones that were found.

The processes are real, of a program that only bears QEMU's name: what is looked at is what /proc says of it.
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

from node_agent.drivers.qemu import end_process, qemu_processes
from node_agent.machine_plans import FoundProcess
from tests.waiting import until

GUEST: Final = f"test{os.getpid()}"


@contextmanager
def running(program: str = "qemu-system-x86_64", guest: str = GUEST) -> Iterator[subprocess.Popen[bytes]]:
    words = [program, "-c", "input()", "-name", f"guest={guest},debug-threads=on", "-S"]
    with subprocess.Popen(words, executable=sys.executable, stdin=subprocess.PIPE) as process:
        try:
            # Popen returns when the program is exchanged, and the kernel shows its words a moment later.
            until(lambda: bool(Path(f"/proc/{process.pid}/cmdline").read_bytes()), "its words are shown")
            yield process
        finally:
            process.kill()


def found() -> list[FoundProcess]:
    return [process for process in qemu_processes() if process.name == GUEST]


def test_a_process_is_found_by_the_name_of_its_guest() -> None:
    with running() as process:
        assert [(each.name, each.pid) for each in found()] == [(GUEST, process.pid)]


def test_another_program_is_no_qemu_whatever_its_arguments_say() -> None:
    with running(program="less"):
        assert found() == []


def test_a_found_process_is_ended() -> None:
    with running() as process:
        end_process(found()[0])
        assert process.wait() == -signal.SIGKILL
        assert found() == []


def test_a_process_that_is_gone_already_is_no_error() -> None:
    with running() as process:
        seen = found()[0]
        process.kill()
        process.wait()
        end_process(seen)


def test_a_later_process_with_the_same_number_is_left_alone() -> None:
    with running() as process:
        end_process(replace(found()[0], started=1))
        assert process.poll() is None
