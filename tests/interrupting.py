"""A Ctrl-C that comes at an exact moment of a program's start, without a clock."""

import os
import subprocess
from pathlib import Path

from tests.checks.files import ROOT


def interrupted(folder: Path, module: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the repository until it imports this module: in its place lies one, in `folder`, that sends
    SIGINT as a terminal does, to the whole process group.
    """
    (folder / f"{module}.py").write_text("import os, signal\nos.killpg(0, signal.SIGINT)\n")
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        check=False,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=60,
    )
