"""Fixtures: one minimal Debian per test run, and a fresh copy of this Debian for each test machine."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.checks.files import ROOT, repository_files
from tests.clean_machine.machine import CleanMachine, debootstrap
from tests.plugins.requirements import missing_server

MakeMachine = Callable[[str], CleanMachine]


@pytest.fixture(scope="session")
def debian() -> Iterator[Path]:
    if shutil.which("debootstrap") is None:
        missing_server("debootstrap (apt-get install debootstrap)")
    with tempfile.TemporaryDirectory(prefix="clean-debian-") as folder:
        debootstrap(Path(folder))
        yield Path(folder)


@pytest.fixture(scope="session")
def new_machine(debian: Path) -> Iterator[MakeMachine]:
    with ExitStack() as machines:

        def make(user: str) -> CleanMachine:
            folder = Path(machines.enter_context(tempfile.TemporaryDirectory(prefix=f"clean-{user}-")))
            subprocess.run(["cp", "-a", f"{debian}/.", folder], check=True)
            machine = CleanMachine(folder, user)
            machine.put(ROOT, repository_files())
            return machine

        yield make
