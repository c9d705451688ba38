"""The Python environment: which packages, whether it is there, and how it comes to be.

Order: make a virtual environment under the key of its contents, install the locks, write our own entry points,
stamp it, point `.venv` at it, remove the others. A crash before the stamp leaves a folder that nobody uses and
the next run replaces; a running product keeps the environment it started from until the link changes.
Two set-ups at once take turns by the lock file.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

from deploy.setup import pip
from deploy.setup.commands import SetupFailed
from deploy.setup.progress import step
from deploy.setup.repository import ENVIRONMENT, ENVIRONMENTS, LOCKS, LOG, ROOT

_STAMP: Final = "complete"
# Raise it when what `_fill` does changes: environments made the old way are then made anew.
_RECIPE: Final = "1"


class Extent(Enum):
    """How much is installed. NODE holds everything that BASE does."""

    BASE = ("base.lock",)
    NODE = ("base.lock", "node.lock")  # in this order: the second builds with the first's setuptools

    def key(self) -> str:
        """Names an environment's contents: the locks, Python, and the path that its scripts begin with."""
        parts = [_RECIPE, sys.version, str(ROOT), *(_digest(LOCKS / name) for name in self.value)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_ready(extent: Extent) -> bool:
    """Whether `.venv` is complete and holds at least `extent`."""
    try:
        stamp = (ENVIRONMENT / _STAMP).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stamp in {extent.key(), Extent.NODE.key()}


def ensure(extent: Extent) -> None:
    """Makes `.venv` an environment of `extent`. Raises SetupFailed."""
    with _turn():
        if is_ready(extent):
            return
        folder = ENVIRONMENTS / extent.key()
        shutil.rmtree(folder, ignore_errors=True)
        _fill(folder, extent)
        (folder / _STAMP).write_text(extent.key())
        _point_at(folder)
        _remove_others(folder)


@contextmanager
def _turn() -> Iterator[None]:
    try:
        ENVIRONMENTS.mkdir(exist_ok=True)
        lock = (ENVIRONMENTS / "lock").open("w")
    except PermissionError:
        raise SetupFailed(
            f"{ENVIRONMENTS} belongs to another user and what it holds is not up to date. "
            "Run ./dev as that user, or in a clone of your own."
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fill(folder: Path, extent: Extent) -> None:
    with step("making a Python environment"):
        venv.create(folder, symlinks=True, with_pip=False)
        pip.put_into(folder, LOG)
    for name in extent.value:
        with step(f"installing Python packages ({name})", pip.progress_of(LOCKS / name, LOG)):
            pip.install(folder, LOCKS / name, LOG)
    _add_ourselves(folder)


def _add_ourselves(folder: Path) -> None:
    """The repository on the path and its programs, as an editable install does, without a build."""
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "sliceplane.pth").write_text(f"{ROOT}\n")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in scripts.items():
        module, function = entry.split(":")
        script = folder / "bin" / name
        script.write_text(
            f"#!{ENVIRONMENT}/bin/python\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        )
        script.chmod(0o755)


def _point_at(folder: Path) -> None:
    if ENVIRONMENT.is_dir() and not ENVIRONMENT.is_symlink():
        # Made by other means than ours; a link cannot replace a folder in one step.
        ENVIRONMENT.rename(ENVIRONMENTS / f"replaced-{os.getpid()}")
    link = ENVIRONMENTS / "next"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.relative_to(ROOT))
    link.rename(ENVIRONMENT)


def _remove_others(folder: Path) -> None:
    for other in ENVIRONMENTS.iterdir():
        if other != folder and other.is_dir() and not other.is_symlink():
            shutil.rmtree(other, ignore_errors=True)
