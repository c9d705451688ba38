"""The points of a history: equally spaced times in a range, at most `MOST_POINTS`."""

import math
from datetime import datetime, timedelta
from typing import Final

from control_plane.decisions.refusals import Malformed, Objection

MOST_POINTS: Final = 200
_USUAL_STEPS: Final = 48


def points_of(begin: datetime, end: datetime, step_seconds: int | None) -> list[datetime]:
    """Return the times from `begin` up to and including `end` at steps of `step_seconds`; None: of whole seconds, for
    at most 49 points. Raises `Malformed`.
    """
    if begin > end:
        reason = f"'from' is {begin.isoformat()}, which is after {end.isoformat()} of 'until'; swap them"
        raise Malformed(Objection("range_reversed", reason, parameter="from"))
    seconds = (end - begin).total_seconds()
    step = max(1, math.ceil(seconds / _USUAL_STEPS)) if step_seconds is None else step_seconds
    count = math.floor(seconds / step) + 1
    if count > MOST_POINTS:
        least = math.ceil(seconds / (MOST_POINTS - 1))
        reason = f"the range has {count} points, but at most {MOST_POINTS} are possible; use a step of at least {least}"
        raise Malformed(Objection("out_of_range", reason, parameter="step"))
    return [begin + timedelta(seconds=step * number) for number in range(count)]
