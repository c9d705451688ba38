"""Tests of pip during the set-up: an interrupted run leaves no temporary files, and the log shows the progress."""

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from deploy.setup.pip import progress_of
from tests.checks.files import ROOT
from tests.waiting import until

SETUP = "import pathlib, time\npathlib.Path({marker!r}).touch()\ntime.sleep(600)\n"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "build-has-begun"


@pytest.fixture
def lock(tmp_path: Path, marker: Path) -> Path:
    """pip lock file with one source package. The build of this package never ends."""
    source = tmp_path / "endless-1"
    source.mkdir()
    (source / "setup.py").write_text(SETUP.format(marker=str(marker)))
    archive = tmp_path / "endless-1.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(source, arcname="endless-1")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    made = tmp_path / "endless.lock"
    made.write_text(f"endless @ file://{archive} --hash=sha256:{digest}\n")
    return made


def test_interrupted_pip_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, lock: Path, marker: Path
) -> None:
    environment, temporary = tmp_path / "environment", tmp_path / "temporary"
    for folder in (environment / "bin", temporary):
        folder.mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    program = "import sys; from pathlib import Path; from deploy.setup import pip; pip.install(*map(Path, sys.argv[1:]))"
    installing = subprocess.Popen(
        [sys.executable, "-c", program, environment, lock, tmp_path / "setup.log"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        until(marker.exists, "pip builds the package")
        installing.send_signal(signal.SIGINT)
        _, error = installing.communicate(timeout=60)
    finally:
        installing.kill()
    assert "stopping ..." in error
    assert list(temporary.iterdir()) == []
    assert list(environment.iterdir()) == [environment / "bin"]


def test_progress_of_pip_counts_the_packages_that_it_has_fetched(tmp_path: Path) -> None:
    lock, log = tmp_path / "base.lock", tmp_path / "setup.log"
    lock.write_text(
        "alembic==1.2 \\\n    --hash=sha256:00\nsqlalchemy[asyncio]==2.0 \\\n    --hash=sha256:11\n"
    )
    log.write_text("Collecting something that an earlier step installed\n")
    progress = progress_of(lock, log)
    assert progress() == "0 of 2 packages fetched"
    with log.open("a") as file:
        file.write("Collecting alembic==1.2 (from -r base.lock (line 1))\n")
    assert progress() == "1 of 2 packages fetched"
    with log.open("a") as file:
        file.write("Collecting sqlalchemy==2.0\nInstalling collected packages: alembic, sqlalchemy\n")
    assert progress() == "installing 2 packages"
