"""The result of one command."""

import json
from typing import NamedTuple


class Outcome(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> object:
        return json.loads(self.out)
