"""Clock for test programs that differs from the true time: it is ahead, behind, or jumps while the programs run.

Only calls of libc are affected; Sliceplane's programs and OpenSSL use no others. The kernel is not affected: a wait
until a wall clock time would end at the true time. Python and Sliceplane's programs wait by the monotonic clock.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.plugins.requirements import missing_server

_SOURCE: Final = Path(__file__).with_suffix(".c")
_BUILD_SECONDS: Final = 60


def build_library(folder: Path) -> Path:
    """Build the shared library that shifts the clock of a program by LD_PRELOAD. Without a C compiler, skip the test,
    or fail it if CI=true.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        missing_server("a C compiler")
    library = folder / "shifted_clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)]
    subprocess.run(command, check=True, timeout=_BUILD_SECONDS)
    return library


@dataclass(frozen=True)
class ShiftedClock:
    """Shifted wall clock for any number of programs. A program uses it if it is started with the environment variables
    `environment`.
    """

    library: Path
    file: Path

    def step(self, seconds: int) -> None:
        """Set the shifted clock `seconds` ahead of the true time, or behind it if `seconds` is negative."""
        # Written in place: the programs have the file mapped, and would not see another file under its name.
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "SHIFTED_CLOCK": str(self.file)}
