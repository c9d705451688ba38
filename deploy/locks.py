"""`./dev lock`: resolve the requirements in pyproject.toml into requirements/*.lock, with a hash for every file.

    ./dev lock               keeps the locked versions that still satisfy the requirements
    ./dev lock NAME ...      upgrades the named packages
    ./dev lock --upgrade     upgrades all packages

The locks are for Python 3.11 on x86-64 Linux. They name no package index: the installer's configuration selects it
(pip's configuration during installation; uv's UV_* variables here). The versions in base.lock constrain node.lock. The
two locks of focus-validator are for an environment of its own, without the packages of this project.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from deploy.setup.repository import ENVIRONMENT, ROOT

_BASE: Final = ("--extra", "embedded", "--extra", "bench", "--extra", "dev")
# Relative, because uv writes the path of each input file beside the packages that come from it.
_FOLDER: Final = "requirements"
_NODE: Final = (*_BASE, "--extra", "node", "--constraint", f"{_FOLDER}/base.lock")
_LOCKS: Final = (
    ("base.lock", (*_BASE, "pyproject.toml")),
    ("node.lock", (*_NODE, "pyproject.toml")),
    ("focus-build.lock", ("--group", "focus-build")),
    ("focus.lock", ("--group", "focus", "--constraint", f"{_FOLDER}/focus-build.lock")),
)


def main(arguments: Sequence[str]) -> int:
    """Write all locks. Return 0, or uv's exit code if uv cannot resolve the requirements."""
    upgrades = [word for name in arguments for word in _upgrade(name)]
    for lock, source in _LOCKS:
        command = [
            str(ENVIRONMENT / "bin" / "uv"), "pip", "compile", "--quiet", "--generate-hashes", "--no-header",
            "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_36",
            *source, *upgrades, "--output-file", f"{_FOLDER}/{lock}",
        ]  # fmt: skip
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code != 0:
            return code
    return 0


def _upgrade(name: str) -> tuple[str, ...]:
    return ("--upgrade",) if name == "--upgrade" else ("--upgrade-package", name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
