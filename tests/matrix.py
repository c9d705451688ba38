"""Matrices of faults: every case in `./dev torture`, a few of them by the run's seed in the usual run.

The seed is one for a whole run, also where it is shared out among workers, who must all collect the same cases. The
same seed takes the same cases.
"""

import os
import random
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import pytest

FULL: Final = "SLICEPLANE_TORTURE"
SEED: Final = "SLICEPLANE_TORTURE_SEED"


def is_full() -> bool:
    """Whether promises are held at their full counts."""
    return os.environ.get(FULL) == "full"


@cache
def seed() -> int:
    """The seed asked for, or one that all workers of this run make of its id."""
    if given := os.environ.get(SEED):
        return int(given)
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return zlib.crc32(run.encode()) if run else random.randrange(2**32)


def chosen(promise: str, every: Sequence[Any], few: int) -> list[Any]:
    """All of them, or a few, in their order; of two promises with the same cases, not always the same."""
    if few >= len(every):
        return list(every)
    taken = random.Random(f"{promise} {seed()}").sample(range(len(every)), few)
    return [every[index] for index in sorted(taken)]


def cases(
    promise: str, every: Sequence[Any], few: int, among: Sequence[Any] | None = None
) -> Callable[[Any], Any]:
    """Parametrize a test by `case`: with all, or with `few` of them (`among`: of these). What was planned and run is
    told at the end of the run.

    Where none is taken there is no test: pytest would call it skipped, and nothing was.
    """
    taken = list(every) if is_full() else chosen(promise, every if among is None else among, few)
    mark = pytest.mark.matrix(promise=promise, planned=len(taken), of=len(every), seed=seed())

    def decorate(test: Any) -> Any:
        if not taken:
            return None
        return mark(pytest.mark.parametrize("case", taken, ids=str)(test))

    return decorate
