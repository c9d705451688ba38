"""The environment of focus-validator, in which a test validates exports of usage: `.venv/focus`.

It is part of the environment in use and is removed with it. It is created before tests run, because tests need no
internet access. After a crash before its stamp file is written, the next run creates it again.
"""

import hashlib
import shutil
import venv
from typing import Final

from deploy.setup import pip
from deploy.setup.progress import step
from deploy.setup.repository import ENVIRONMENT, LOCKS, LOG

FOLDER: Final = ENVIRONMENT / "focus"
_STAMP: Final = FOLDER / "complete"
_BY_LOCK: Final = (
    "focus-build.lock",
    "focus.lock",
)  # this order, because the second builds with packages of the first


def is_ready() -> bool:
    """Return whether the environment is complete and has the locked packages."""
    return _STAMP.exists() and _STAMP.read_text() == _key()


def ensure() -> None:
    """Create the environment unless it is ready. Raises `SetupFailed`."""
    if is_ready():
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    with step("making the Python environment of focus-validator"):
        venv.create(FOLDER, symlinks=True, with_pip=False)
        pip.put_into(FOLDER, LOG)
    for name in _BY_LOCK:
        with step(f"installing Python packages ({name})", pip.progress_of(LOCKS / name, LOG)):
            pip.install(FOLDER, LOCKS / name, LOG)
    _STAMP.write_text(_key())


def _key() -> str:
    return hashlib.sha256(b"".join((LOCKS / name).read_bytes() for name in _BY_LOCK)).hexdigest()
