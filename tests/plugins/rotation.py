"""Pytest plugin for runs with a share of the slow tests: `--slow-share 10` runs one tenth of them, chosen by the seed
of the run, and every other test. A test that is repeated on the packaged PostgreSQL counts as slow there.

`./dev test` and `.ci/run` use it for the whole suite, so that they end in minutes; consecutive runs choose other tests.
`./dev test --all` runs every test, and so does a run of named tests. Of each folder and of each promise
(docs/promises.md), at least one test runs. A case of a fault matrix (`tests.matrix`) is not chosen again, because the
matrix is already a sample.

`tests/slow_tests.txt` lists the slow test functions. `python -m tests.plugins.rotation` writes it from the durations
of the last complete run.
"""

import json
import math
import random
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests import matrix
from tests.plugins.distribution import ON_PACKAGED_POSTGRES
from tests.torture import PROMISES

LIST: Final = Path("tests/slow_tests.txt")
SLOW_SECONDS: Final = 3.0
"""A test function is slow if its cases together take at least this many seconds in a run of all tests."""
_DURATIONS: Final = Path(".pytest_cache/v/sliceplane/durations")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-share",
        type=int,
        default=1,
        metavar="N",
        help=f"run one in N of the slow tests, which {LIST} lists; {matrix.SEED} repeats the choice of another run",
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    share = config.getoption("slow_share")
    if share == 1:
        return None
    return f"slow tests: one in {share} (./dev test --all runs all); {matrix.SEED}={matrix.seed()} repeats the choice"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the slow tests that this run does not choose."""
    share = config.getoption("slow_share")
    if share == 1:
        return
    slow = set((config.rootpath / LIST).read_text().split())
    sampled = {item.nodeid for item in items if item.get_closest_marker("matrix")}
    left_out = not_chosen([item.nodeid for item in items], slow, sampled, share, matrix.seed())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
    items[:] = [item for item in items if item.nodeid not in left_out]


def function_of(test: str) -> str:
    """Return the id of a test without the parameters of its case."""
    return test.partition("[")[0]


def not_chosen(
    tests: Sequence[str], slow: Collection[str], sampled: Collection[str], share: int, seed: int
) -> set[str]:
    """Return the slow tests that a run leaves out. A test in `sampled` is never left out: it is already part of a
    sample.
    """
    chance = random.Random(f"slow tests {seed}")
    by_folder = defaultdict[str, list[str]](list)
    for each in sorted(tests):
        is_slow = function_of(each) in slow or ON_PACKAGED_POSTGRES in each
        if is_slow and each not in sampled:
            by_folder[each.partition("::")[0].rpartition("/")[0]].append(each)
    left_out: set[str] = set()
    for _, found in sorted(by_folder.items()):
        chosen = chance.sample(found, math.ceil(len(found) / share))
        left_out |= {*found} - {*chosen}
    for _, paths in sorted(PROMISES.items()):
        own = [each for each in sorted(tests) if each.startswith(tuple(paths))]
        if own and left_out.issuperset(own):
            left_out.remove(chance.choice(own))
    return left_out


def slow_functions(durations: Mapping[str, float]) -> list[str]:
    """Return the test functions with cases that together take `SLOW_SECONDS`. `durations` has the seconds of each
    test.
    """
    seconds = defaultdict[str, float](float)
    for test, took in durations.items():
        seconds[function_of(test)] += took
    return sorted(name for name, total in seconds.items() if total >= SLOW_SECONDS)


if __name__ == "__main__":
    if not _DURATIONS.exists():
        sys.exit(f"{_DURATIONS} does not exist; run ./dev test --all first")
    found = slow_functions(json.loads(_DURATIONS.read_text())["tests"])
    LIST.write_text("".join(f"{each}\n" for each in found))
    print(f"{LIST}: {len(found)} slow test functions")
