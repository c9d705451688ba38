"""The result of one run of the command line."""

import json
from typing import NamedTuple


class Outcome(NamedTuple):
    """Exit code, standard output and standard error of one `sliceplane` command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> object:
        return json.loads(self.out)
