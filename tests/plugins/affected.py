"""Pytest plugin of `./dev test --affected [BASE]`: it runs the tests that are nearest to a change, within a time
budget.

Nearly every test depends on nearly every module indirectly. Therefore the test files are ranked: first by their
distance from the changed files in imports, then by the words that their path shares with the changed path, then by
their duration, the fastest first. Tests are taken in this order while their durations in the last run fit the budget.
At its end, the run prints how many tests it left out and the command that runs them.
"""

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.plugins.durations import Durations, shared_fixtures
from tests.plugins.import_distance import UnknownBase, changed_files, dependents

_MOST_FILES: Final = 40
"""Maximum number of test files that a run with a time budget collects: to collect all takes longer than most budgets.
"""
_BUDGET: Final = 10.0
_LATENESS: Final = 1.3
"""Factor of the time budget: a test that would start later after the first test is skipped, because the machine is
slower than expected.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("affected")
    group.addoption(
        "--affected",
        nargs="?",
        const="",
        metavar="BASE",
        help="run the tests nearest to the files that differ from BASE (default: the merge base with main)",
    )
    group.addoption(
        "--affected-budget",
        type=float,
        default=_BUDGET,
        metavar="SECONDS",
        help=f"seconds of tests that --affected runs (default: {_BUDGET:.0f}); 0 runs everything that depends on the "
        "change",
    )


def pytest_configure(config: pytest.Config) -> None:
    base = config.getoption("affected")
    if base is None:
        return
    try:
        revision, changed = changed_files(config.rootpath, base)
    except UnknownBase as error:
        raise pytest.UsageError(f"--affected: {error}") from None
    ranking = rank(changed, dependents(config.rootpath).distances(changed))
    budget = float(config.getoption("affected_budget"))
    config.pluginmanager.register(Affected(config, revision, changed, ranking, budget), "affected-selection")


@dataclass(frozen=True, order=True)
class Rank:
    """Rank of a test file for `--affected`. A file with a smaller rank runs earlier."""

    distance: int
    fewer_shared_words: int


def rank(changed: Sequence[str], distances: dict[str, int]) -> dict[str, Rank]:
    """Return the rank of each test file that depends on the changed files, nearest file first. Keys are the paths of
    the test files.
    """
    words = {word for path in changed for word in _words(path.partition("/")[2])}
    found = {
        path: Rank(distance, -len(words & _words(path)))
        for module, distance in distances.items()
        if module.rpartition(".")[2].startswith("test_") and module.startswith("tests.")
        for path in [f"{module.replace('.', '/')}.py"]
    }
    return dict(sorted(found.items(), key=lambda entry: (entry[1], entry[0])))


def _words(path: str) -> set[str]:
    words = {word.rstrip("s") for word in re.split(r"[/_.]", path)}
    return words - {"", "py", "test", "init", "main"}


@dataclass(eq=False)  # pluggy needs a hash
class Affected:
    """Selection of tests for one `--affected` run, and its summary."""

    config: pytest.Config
    revision: str
    changed: Sequence[str]
    ranking: dict[str, Rank]
    budget: float
    _selected: int = field(default=0, init=False)
    _left_out: int = field(default=0, init=False)
    _began: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        ranked = list(self.ranking)
        self._files = frozenset(ranked[:_MOST_FILES] if self.budget else ranked)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        path = collection_path.relative_to(self.config.rootpath).as_posix()
        is_other_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
        return True if is_other_test and path not in self._files else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if not self.budget:
            self._selected = len(items)
            return
        taken = within(self.budget, self._ordered(items), Durations.of(self.config))
        others = list(set(items) - set(taken))
        self._selected, self._left_out = len(taken), len(others)
        self.config.hook.pytest_deselected(items=others)
        items[:] = taken

    def _ordered(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        durations, files = Durations.of(self.config), defaultdict(list)
        for item in items:
            files[item.nodeid.partition("::")[0]].append(item)
        seconds = {file: sum(durations.own(item) for item in of) for file, of in files.items()}
        order = sorted(files, key=lambda file: (self.ranking[file], seconds[file], file))
        return [item for file in order for item in files[file]]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._began = self._began or time.monotonic()
        if self.budget and time.monotonic() - self._began > self.budget * _LATENESS:
            pytest.skip(
                "not run: the tests before it took longer than in the last run, and the budget is spent"
            )

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("affected")
        for line in self.summary():
            terminalreporter.line(line)

    def summary(self) -> list[str]:
        """Return the lines that state which tests were selected and how many were left out."""
        lines = [f"{len(self.changed)} files differ from {self.revision}"]
        if not self.ranking:
            return [*lines, "no test depends on them"]
        further = len(self.ranking) - len(self._files)
        if not self.budget:
            return [*lines, f"all {len(self.ranking)} test files that depend on them were selected"]
        lines.append(f"selected: {self._selected} tests within {self.budget:.0f} s, the nearest first")
        if self._left_out or further:
            lines += [
                (
                    f"left out: {self._left_out} tests of the nearest {len(self._files)} files, and {further} further "
                    "test files that depend on the change only indirectly"
                ),
                f"run all of them: ./dev test --affected={self.revision} --affected-budget=0 -n 4 --dist loadfile",
            ]
        return lines


def within(budget: float, items: Iterable[pytest.Item], durations: Durations) -> list[pytest.Item]:
    """Return the tests that fit the time budget, chosen in the given order; only the shortest test if none fits. The
    setup of a shared fixture counts once.
    """
    taken: list[pytest.Item] = []
    started: set[str] = set()
    left = budget
    smallest: tuple[float, pytest.Item] | None = None
    for item in items:
        needed = shared_fixtures(item)
        cost = durations.own(item) + sum(
            durations.shared(key) for instance, key in needed.items() if instance not in started
        )
        if cost <= left:
            taken.append(item)
            started.update(needed)
            left -= cost
        elif smallest is None or cost < smallest[0]:
            smallest = (cost, item)
    return taken or ([smallest[1]] if smallest else [])
