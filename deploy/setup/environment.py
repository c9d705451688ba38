"""The Python environment in `.venv`: check whether it is complete, and create it.

Order: create a virtual environment in a folder named after a hash of what determines its contents (`Extent.key`),
install the locked packages, write the stamp file, point the link `.venv` at the folder, and remove other environments.
After a crash before the stamp file is written, the folder is unused and the next run replaces it. The previous
environment is removed only after the link has changed. A lock file serializes concurrent set-ups.

Every start of `./dev` also writes the programs that pyproject.toml lists and `.venv/bin` lacks, so that a new program
does not require a new environment.
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
# Increase this number when `_fill` changes: existing environments are then replaced.
_RECIPE: Final = "1"
_OTHER_OWNER: Final = (
    f"{ENVIRONMENTS} belongs to another user, and the environment in it is out of date. "
    "Run ./dev as that user, or in your own clone of the repository."
)


class Extent(Enum):
    """Set of Python packages that an environment contains. NODE includes all packages of BASE."""

    BASE = ("base.lock",)
    NODE = ("base.lock", "node.lock")  # this order, because node.lock builds with setuptools from base.lock

    def key(self) -> str:
        """Return a hash of what determines an environment: lock files, Python version, and checkout path."""
        parts = [_RECIPE, sys.version, str(ROOT), *(_digest(LOCKS / name) for name in self.value)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_ready(extent: Extent) -> bool:
    """Return whether `.venv` is complete and includes at least `extent`."""
    try:
        stamp = (ENVIRONMENT / _STAMP).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stamp in {extent.key(), Extent.NODE.key()}


def ensure(extent: Extent) -> None:
    """Create the environment of `extent` and point `.venv` at it, unless it is ready. Raises `SetupFailed`."""
    with locked():
        if is_ready(extent):
            return
        folder = ENVIRONMENTS / extent.key()
        shutil.rmtree(folder, ignore_errors=True)
        _fill(folder, extent)
        (folder / _STAMP).write_text(extent.key())
        _point_at(folder)
        _remove_others(folder)


@contextmanager
def locked() -> Iterator[None]:
    """Hold the lock that serializes concurrent set-ups. Raises `SetupFailed`."""
    try:
        ENVIRONMENTS.mkdir(exist_ok=True)
        lock = (ENVIRONMENTS / "lock").open("w")
    except PermissionError:
        raise SetupFailed(_OTHER_OWNER) from None
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
    _add_repository(folder)


def _add_repository(folder: Path) -> None:
    """Add the repository to the environment's import path.

    Together with `write_programs`, this is an editable install without a build.
    """
    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "sliceplane.pth").write_text(f"{ROOT}\n")


def write_programs() -> None:
    """Write the programs that pyproject.toml lists into `.venv/bin`, unless they are complete. Raises `SetupFailed`."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name, entry in scripts.items():
        module, function = entry.split(":")
        script = ENVIRONMENT / "bin" / name
        text = f"#!{ENVIRONMENT}/bin/python\nimport sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        if script.exists() and script.read_text() == text:
            continue
        draft = script.with_name(f"{name}-{os.getpid()}.new")
        try:
            draft.write_text(text)
            draft.chmod(0o755)
            draft.rename(script)
        except PermissionError:
            raise SetupFailed(_OTHER_OWNER) from None


def _point_at(folder: Path) -> None:
    if ENVIRONMENT.is_dir() and not ENVIRONMENT.is_symlink():
        # Not created by this set-up. A link cannot replace a folder atomically.
        ENVIRONMENT.rename(ENVIRONMENTS / f"replaced-{os.getpid()}")
    link = ENVIRONMENTS / "next"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.relative_to(ROOT))
    link.rename(ENVIRONMENT)


def _remove_others(folder: Path) -> None:
    for other in ENVIRONMENTS.iterdir():
        if other != folder and other.is_dir() and not other.is_symlink():
            shutil.rmtree(other, ignore_errors=True)
