"""Take the rounds of a benchmark one after the other, and keep finished rounds in a file.

Each finished round is written to the benchmark's file before the next begins. After Ctrl-C or a crash the file remains,
and `--resume` continues after its last complete line; a run that finishes removes it. Every run has new servers and
tables. A resumed run is still valid, because only numbers of the same round are compared; it repeats just the warm-up.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bench.harness.measure import Bench, Round

Show = Callable[[str], None]
_QUIET_SECONDS: Final = 30.0
_BAR: Final = 20


class _Kept(msgspec.Struct, frozen=True):
    """A finished round, stored as one line of the file from which `--resume` continues."""

    shape: str
    round: dict[str, list[float]]


def kept_file(name: str) -> Path:
    """Return the path of the file that holds the finished rounds of a benchmark."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "sliceplane" / "bench" / f"{name}.rounds"


class KeptRounds:
    """The finished rounds of a benchmark, stored in its file."""

    def __init__(self, path: Path, shape: str) -> None:
        self._path, self._shape = path, shape

    def load(self) -> list[Round]:
        """Return the rounds with the shape of this benchmark, up to the first incomplete line, which a crash left."""
        found: list[Round] = []
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            try:
                kept = msgspec.json.decode(line, type=_Kept)
            except msgspec.DecodeError:
                break
            if kept.shape == self._shape:
                found.append(kept.round)
        return found

    def begin(self, rounds: list[Round]) -> None:
        """Replace the content of the file of kept rounds with these rounds."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(b"".join(self._line(each) for each in rounds))

    def add(self, done: Round) -> None:
        with self._path.open("ab") as file:
            file.write(self._line(done))

    def delete(self) -> None:
        self._path.unlink(missing_ok=True)

    def _line(self, done: Round) -> bytes:
        numbers = {series: list(found) for series, found in done.items()}
        return msgspec.json.encode(_Kept(self._shape, numbers)) + b"\n"


async def take_rounds(bench: Bench, kept: KeptRounds, *, resume: bool, show: Show) -> list[Round]:
    """Return all rounds of the benchmark; with `resume`, take only the rounds that the file of kept rounds lacks."""
    done = kept.load()[: bench.rounds] if resume else []
    kept.begin(done)
    if resume:
        show(f"{bench.name}: continuing after {len(done)} of {bench.rounds} finished rounds\n")
    if len(done) < bench.rounds:
        show(f"{bench.name}: starting servers\n")
        async with bench.running() as take:
            for number in range(len(done), bench.rounds):
                display = _ProgressDisplay(f"{bench.name}: round {number + 1} of {bench.rounds}", show)
                done.append(await take(number, display))
                kept.add(done[-1])
                display.end()
    kept.delete()
    return done


class _ProgressDisplay:
    """Progress of a round: a bar on a terminal, elsewhere a line every 30 seconds and at the end."""

    def __init__(self, what: str, show: Show) -> None:
        self._what, self._show = what, show
        self._began = self._last_line = time.monotonic()
        self._is_terminal = sys.stderr.isatty()
        self(0.0)

    def __call__(self, done: float) -> None:
        if self._is_terminal:
            filled = round(done * _BAR)
            self._show(f"\r{self._what} [{'#' * filled}{'.' * (_BAR - filled)}]")
        elif (now := time.monotonic()) - self._last_line > _QUIET_SECONDS:
            self._last_line = now
            self._show(f"{self._what}: {done:.0%} after {now - self._began:.0f} s\n")

    def end(self) -> None:
        seconds = time.monotonic() - self._began
        start = "\r" if self._is_terminal else ""
        self._show(f"{start}{self._what} ({seconds:.1f} s){' ' * _BAR}".rstrip() + "\n")
