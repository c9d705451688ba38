"""`./dev lock`: pyproject.toml's requirements resolved into requirements/*.lock, every file by its hash.

    ./dev lock               keeps the present versions where they still satisfy
    ./dev lock NAME ...      raises the named packages
    ./dev lock --upgrade     raises everything

The locks are for Python 3.11 on x86-64 Linux and name no index: where packages come from is the installer's
configuration (pip's when installing; uv's own, UV_*, here). The second lock is held to the first.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from deploy.setup.repository import ENVIRONMENT, ROOT

_BASE: Final = ("--extra", "embedded", "--extra", "bench", "--extra", "dev")
# Relative: uv notes the paths it was given beside each package.
_FOLDER: Final = "requirements"
_NODE: Final = (*_BASE, "--extra", "node", "--constraint", f"{_FOLDER}/base.lock")


def main(arguments: Sequence[str]) -> int:
    """Writes both locks; returns uv's exit code when it refuses."""
    raised = [word for name in arguments for word in _upgrade(name)]
    for lock, extras in (("base.lock", _BASE), ("node.lock", _NODE)):
        command = [
            str(ENVIRONMENT / "bin" / "uv"), "pip", "compile", "--quiet", "--generate-hashes", "--no-header",
            "--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_36",
            *extras, *raised, "pyproject.toml", "--output-file", f"{_FOLDER}/{lock}",
        ]  # fmt: skip
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if code != 0:
            return code
    return 0


def _upgrade(name: str) -> tuple[str, ...]:
    return ("--upgrade",) if name == "--upgrade" else ("--upgrade-package", name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
