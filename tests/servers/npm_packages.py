"""Node.js and npm packages for tests, installed from lock files.

Both are installed once (`deploy.setup.npm`), into the folder that is kept between sessions. The name of the folder is a
hash of the lock files. It is built beside its final place and then renamed, so that a crash leaves only a `making-*`
folder, which the next installation removes. One process installs at a time.
"""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.setup.npm import digest_of, install

_INSTALL_SECONDS: Final = 300.0


class NotInstalled(Exception):
    """Node.js or npm packages could not be installed; the message has the reason."""


def ensure_installed(files: Path, folder: Path) -> Path:
    """Return the folder below `folder` with Node.js and the npm packages that the lock files in `files` list; install
    them first if they are missing. Raises `NotInstalled`.
    """
    installed = folder / digest_of(files)[:16]
    if installed.is_dir():
        return installed
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.is_dir():
            for left in folder.glob("making-*"):
                shutil.rmtree(left)
            work = folder / f"making-{installed.name}"
            install(sys.executable, files, work, _run)
            work.rename(installed)
    return installed


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{' '.join(command[:4])} did not end in {_INSTALL_SECONDS:.0f} s") from None
    if done.returncode:
        raise NotInstalled(f"{' '.join(command[:4])}: {done.stderr.strip()[-300:]}")
