"""Selection of fault cases: `./dev torture` runs every case; `./dev test` runs a few, chosen by the seed of the run.

All workers of a run use one seed, because they must collect the same cases. The same seed always selects the same
cases.
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
    """Return whether the tests of the product's promises (docs/promises.md) run with their full counts of cases."""
    return os.environ.get(FULL) == "full"


@cache
def seed() -> int:
    """Return the requested seed of the run, or a seed that all workers derive from the id of the run."""
    if given := os.environ.get(SEED):
        return int(given)
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return zlib.crc32(run.encode()) if run else random.randrange(2**32)


def chosen(promise: str, every: Sequence[Any], few: int) -> list[Any]:
    """Return all cases, or a random selection of `few` cases in their original order. The selection depends on the
    promise and the seed.
    """
    if few >= len(every):
        return list(every)
    taken = random.Random(f"{promise} {seed()}").sample(range(len(every)), few)
    return [every[index] for index in sorted(taken)]


def cases(
    promise: str, every: Sequence[Any], few: int, among: Sequence[Any] | None = None
) -> Callable[[Any], Any]:
    """Return a decorator that runs a test for each selected case, as its argument `case`. The full run selects `every`
    case, the usual run `few` cases of `among` (default: of `every`).

    If no case is selected, the test is not collected, because pytest would report it as skipped.
    """
    taken = list(every) if is_full() else chosen(promise, every if among is None else among, few)
    mark = pytest.mark.matrix(promise=promise, planned=len(taken), of=len(every), seed=seed())

    def decorate(test: Any) -> Any:
        if not taken:
            return None
        return mark(pytest.mark.parametrize("case", taken, ids=str)(test))

    return decorate
