"""Interruption of a program at an exact moment of its start, without a timer."""

import os
import subprocess
from pathlib import Path

from tests.checks.files import ROOT


def interrupted(folder: Path, module: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the repository, and interrupt it by SIGINT when it imports the module `module`. A replacement of
    this module in `folder` sends the signal to the whole process group, as Ctrl-C in a terminal does.
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
