"""Filter of lists by a part of the id: its beginning, or its beginning and its end, as lists shorten ids.

A beginning is a range of the index of the ids. Ids of allocations begin with the time of the request: many have the
same beginning, and differ in their end. The end is compared only with those of the newest `MOST_COMPARED` ids of
the range, so that the time of a request is bounded.
"""

import re
from dataclasses import dataclass
from typing import Final

from control_plane.decisions.refusals import Malformed, Objection
from events.values import InvalidValue

MOST_COMPARED: Final = 100_000
MOST_FOUND: Final = 200
_ELLIPSIS: Final = re.compile(r"…|\.\.\.")


@dataclass(frozen=True, slots=True)
class ShortId:
    """A part of an id: `first` and `last` are the lowest and the highest id with its beginning, and `end` is its end,
    which may be empty.
    """

    first: str
    last: str
    end: str


def short_id(raw: str, kind: str, pattern: re.Pattern[str], lowest: str, highest: str) -> ShortId:
    """Return the part of an id that a request names: `BEGINNING` or `BEGINNING…END`, with `...` for `…`. `pattern` is
    that of a valid beginning; `lowest` and `highest` are the lowest and the highest id. Raises `Malformed`.
    """
    begin, *ends = _ELLIPSIS.split(raw)
    end = "".join(ends[:1])
    if (
        len(ends) > 1
        or not pattern.fullmatch(begin)
        or not pattern.fullmatch(lowest[: len(lowest) - len(end)] + end)
    ):
        invalid = InvalidValue(
            kind, raw[:64], "use its beginning, or its beginning and its end with '…' between them"
        )
        raise Malformed(Objection("invalid_value", str(invalid), parameter="id"))
    return ShortId(begin + lowest[len(begin) :], begin + highest[len(begin) :], end)
