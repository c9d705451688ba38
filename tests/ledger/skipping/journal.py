"""What a writer knows of its own appends, kept where `kill -9` cannot take it: one short line before or after each
step.

    append 3        it asks for three events
    drew 17 18 19   it was given these positions
    refused         it was given none
    undone 17       rolled back, alone or to a savepoint
    committing      from here to the next line only the ledger knows
    committed
    lost            the connection went away

A journal that ends in the middle is that of a killed writer: as if `lost` stood there.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


class Journal:
    """The writing side. Each line is with the kernel before the next step is taken."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, word: str, numbers: Iterable[int] = ()) -> None:
        os.write(self._file, (" ".join([word, *map(str, numbers)]) + "\n").encode())


@dataclass
class Account:
    """What all journals together say. Positions in none of the sets were drawn by a call that never returned."""

    committed: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)
    unanswered: int = 0
    commands: int = 0
    refused: int = 0
    lost: int = 0

    def add(self, journal: Path) -> None:
        drawn: set[int] = set()
        asked, committing = 0, False
        for line in [*journal.read_text().splitlines(), "lost"]:
            word, *numbers = line.split()
            positions = set(map(int, numbers))
            match word:
                case "append":
                    asked = int(numbers[0])
                    self.commands += 1
                case "drew":
                    drawn, asked = drawn | positions, 0
                case "refused":
                    self.refused += 1
                    asked = 0
                case "undone":
                    self.undone |= positions
                    drawn -= positions
                case "committing":
                    committing = True
                case "committed":
                    self.committed |= drawn
                    drawn, committing = set(), False
                case "lost":
                    self.lost += bool(drawn or asked)
                    self.unanswered += asked
                    (self.unsure if committing else self.undone).update(drawn)
                    drawn, asked, committing = set(), 0, False
                case _:
                    raise AssertionError(f"{journal}: {line}")
