"""Programs with a wall clock that really differs: ahead, behind, or jumping while they run.

Only calls of libc are affected, which are all those of our programs and of OpenSSL. The kernel is not: a wait until a
moment of the wall clock would end at the true one. Python and our programs wait by the monotonic clock.
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
    """Build the library to load first. Skips, or fails where CI=true, without a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        missing_server("a C compiler")
    library = folder / "shifted_clock.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)]
    subprocess.run(command, check=True, timeout=_BUILD_SECONDS)
    return library


@dataclass(frozen=True)
class ShiftedClock:
    """A clock for any number of programs: start them with its `environment`."""

    library: Path
    file: Path

    def step(self, seconds: int) -> None:
        """Set the clock so many seconds ahead of the true one, or behind it if negative."""
        # Written in place: the programs have the file mapped, and would not see another file under its name.
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "SHIFTED_CLOCK": str(self.file)}
