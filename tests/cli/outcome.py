"""What a command left behind."""

import json
from typing import NamedTuple


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> object:
        return json.loads(self.out)
