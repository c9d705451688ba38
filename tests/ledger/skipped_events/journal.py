"""Journal of one writer process: a file that records the writer's appends and survives `kill -9`, with one line before
or after each step.

    append 3        it calls append with three events
    drew 17 18 19   append returned these positions
    refused         append rejected the command
    undone 17       it rolled the transaction back, completely or to a savepoint
    committing      until the next line, only the ledger shows whether the commit succeeded
    committed       the commit succeeded
    lost            the connection was closed

Every journal is read as if its last line were `lost`, because a killed writer cannot write this line.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path


class Journal:
    """Append-only journal file of a writer process. Each line is passed to the kernel before the writer's next step
    begins.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, word: str, numbers: Iterable[int] = ()) -> None:
        os.write(self._file, (" ".join([word, *map(str, numbers)]) + "\n").encode())


@dataclass
class Account:
    """Positions that all writer processes drew from the ledger, according to their journals: those of events that were
    committed (`committed`), that were rolled back (`undone`), and that may or may not be committed, because the writer
    was killed or lost its connection during the commit (`unsure`).

    The positions of an `append` that never returned are unknown; `unanswered` is the number of events in such calls.
    """

    committed: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    undone: set[int] = field(default_factory=set)
    unanswered: int = 0
    commands: int = 0
    refused: int = 0
    lost: int = 0

    def add(self, journal: Path) -> None:
        drawn: set[int] = set()
        requested, committing = 0, False
        for line in [*journal.read_text().splitlines(), "lost"]:
            word, *numbers = line.split()
            positions = set(map(int, numbers))
            match word:
                case "append":
                    requested = int(numbers[0])
                    self.commands += 1
                case "drew":
                    drawn, requested = drawn | positions, 0
                case "refused":
                    self.refused += 1
                    requested = 0
                case "undone":
                    self.undone |= positions
                    drawn -= positions
                case "committing":
                    committing = True
                case "committed":
                    self.committed |= drawn
                    drawn, committing = set(), False
                case "lost":
                    self.lost += bool(drawn or requested)
                    self.unanswered += requested
                    (self.unsure if committing else self.undone).update(drawn)
                    drawn, requested, committing = set(), 0, False
                case _:
                    raise AssertionError(f"{journal}: {line}")
