"""Packages that the web console serves to browsers: xterm.js (MIT) and noVNC (MPL-2.0), with their licences.

They come from npm, pinned by the locks in `requirements/browser`, and are installed into a temporary folder
(`deploy.setup.npm`). The files that browsers load are then copied into the folder that the console serves, and the
temporary folder is removed. A crash before that leaves the temporary folder, which the next run replaces. The wheel has
the files too, so nothing is downloaded at run time.
"""

import shutil
from pathlib import Path
from typing import Final

from deploy.setup import npm
from deploy.setup.commands import SetupFailed, run
from deploy.setup.environment import locked
from deploy.setup.progress import step
from deploy.setup.repository import BROWSER_PACKAGES, ENVIRONMENT, ENVIRONMENTS, LOCKS, LOG

_FILES: Final = LOCKS / "browser"
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
    npm.install(
        str(ENVIRONMENT / "bin/python"), _FILES, work, lambda command: run(command, LOG, advice=_ADVICE)
    )
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
    return npm.digest_of(_FILES, repr(_SERVED))
