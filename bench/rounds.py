"""Taking a bench's rounds one after the other, and keeping those that are done.

Each finished round is a line in the bench's file before the next begins. Ctrl-C or a crash leaves the file, and
`--resume` goes on behind its last whole line; a run that reaches its end removes it. Servers and tables are new in
every run, which costs a resumed run nothing but its warm-up: rounds are compared within themselves.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from bench.measure import Bench, Round

Say = Callable[[str], None]
_QUIET_SECONDS: Final = 30.0
_BAR: Final = 20


class _Kept(msgspec.Struct, frozen=True):
    """A line of the file."""

    shape: str
    round: dict[str, list[float]]


def kept_file(name: str) -> Path:
    """Where the finished rounds of a bench lie."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "sliceplane" / "bench" / f"{name}.rounds"


class KeptRounds:
    """The rounds of a bench that are done, in its file."""

    def __init__(self, path: Path, shape: str) -> None:
        self._path, self._shape = path, shape

    def load(self) -> list[Round]:
        """The rounds of this shape; a line that a crash cut off ends them."""
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
        """Have the file hold exactly these."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(b"".join(self._line(each) for each in rounds))

    def add(self, done: Round) -> None:
        with self._path.open("ab") as file:
            file.write(self._line(done))

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)

    def _line(self, done: Round) -> bytes:
        numbers = {series: list(found) for series, found in done.items()}
        return msgspec.json.encode(_Kept(self._shape, numbers)) + b"\n"


async def take_rounds(bench: Bench, kept: KeptRounds, *, resume: bool, say: Say) -> list[Round]:
    """All rounds of the bench, those kept from before among them."""
    done = kept.load()[: bench.rounds] if resume else []
    kept.begin(done)
    if resume:
        say(f"{bench.name}: {len(done)} of {bench.rounds} rounds were kept\n")
    if len(done) < bench.rounds:
        say(f"{bench.name}: starting servers\n")
        async with bench.running() as take:
            for number in range(len(done), bench.rounds):
                drawn = _Drawn(f"{bench.name}: round {number + 1} of {bench.rounds}", say)
                done.append(await take(number, drawn))
                kept.add(done[-1])
                drawn.end()
    kept.forget()
    return done


class _Drawn:
    """A round's progress: a bar that fills on a terminal; elsewhere a line now and then, and one at its end."""

    def __init__(self, what: str, say: Say) -> None:
        self._what, self._say = what, say
        self._began = self._said = time.monotonic()
        self._draws = sys.stderr.isatty()
        self(0.0)

    def __call__(self, done: float) -> None:
        if self._draws:
            filled = round(done * _BAR)
            self._say(f"\r{self._what} [{'#' * filled}{'.' * (_BAR - filled)}]")
        elif (now := time.monotonic()) - self._said > _QUIET_SECONDS:
            self._said = now
            self._say(f"{self._what}: {done:.0%} after {now - self._began:.0f} s\n")

    def end(self) -> None:
        seconds = time.monotonic() - self._began
        self._say(
            f"{chr(13) if self._draws else ''}{self._what} ({seconds:.1f} s){' ' * _BAR}".rstrip() + "\n"
        )
