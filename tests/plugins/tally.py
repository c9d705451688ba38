"""What a run planned of each promise, what of it ran, and what was skipped: told at the end of the run.

Cases of a matrix say what was planned (`tests.matrix`). A run of whole promises (`./dev torture`) plans every test of
theirs, and fails when fewer ran than were planned: a fault that was skipped is no fault that was survived.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from tests.matrix import SEED, is_full

_PROPERTY: Final = "matrix"
PATHS: Final = pytest.StashKey[Mapping[str, Sequence[str]]]()
"""The tests of each promise that the run is of, by their paths."""


@dataclass
class Tally:
    """Of one promise. `planned` and `of` are by test: cases to run, and cases that there are."""

    planned: dict[str, int] = field(default_factory=dict)
    of: dict[str, int] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    seed: int | None = None

    @property
    def run(self) -> int:
        return self.outcomes["passed"] + self.outcomes["failed"]

    @property
    def is_short(self) -> bool:
        return self.run < sum(self.planned.values())

    def line(self, promise: str) -> str:
        planned, every = sum(self.planned.values()), sum(self.of.values())
        of = f" of {every}" if every != planned else ""
        seed = f", {SEED}={self.seed}" if of else ""
        told = f"planned {planned}{of}, run {self.run}, skipped {self.outcomes['skipped']}"
        return f"{promise}: {told}, failed {self.outcomes['failed']}{seed}"


_tallies: Final = pytest.StashKey[dict[str, Tally]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = config.stash.get(PATHS, {})
    if asked:
        others = [
            item
            for item in items
            if (mark := item.get_closest_marker("matrix")) and mark.kwargs["promise"] not in asked
        ]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)
    tallies = config.stash.setdefault(_tallies, {})
    for item in items:
        mark = item.get_closest_marker("matrix")
        of_paths = [name for name, paths in asked.items() if item.nodeid.startswith(tuple(paths))]
        promises = [mark.kwargs["promise"]] if mark else of_paths
        told = {
            "test": item.nodeid.partition("[")[0],
            **(mark.kwargs if mark else {"planned": 0, "of": 0, "seed": 0}),
        }
        for promise in promises:
            _plan(tallies.setdefault(promise, Tally()), told)
        if promises:
            item.user_properties.append((_PROPERTY, json.dumps({**told, "promises": promises})))


def _plan(tally: Tally, told: dict[str, Any]) -> None:
    """By what a case says of its matrix, or else one by one."""
    test = told["test"]
    if told["of"]:
        tally.planned[test], tally.of[test], tally.seed = told["planned"], told["of"], told["seed"]
    else:
        tally.planned[test] = tally.of[test] = tally.planned.get(test, 0) + 1


class Counting:
    """Where reports come together: in the run itself, or with whoever shared it out among workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.tallies = config.stash.setdefault(_tallies, {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown" and not report.failed:
            return
        if report.when == "setup" and report.passed:
            return
        for name, value in report.user_properties:
            if name == _PROPERTY and isinstance(value, str):
                self._count(json.loads(value), "failed" if report.failed else report.outcome)

    def _count(self, told: dict[str, Any], outcome: str) -> None:
        for promise in told["promises"]:
            tally = self.tallies.setdefault(promise, Tally())
            tally.outcomes[outcome] += 1
            if told["of"]:
                _plan(tally, told)  # a worker planned it, elsewhere

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.tallies:
            terminalreporter.section("promises")
        for promise, tally in sorted(self.tallies.items()):
            terminalreporter.line(tally.line(promise))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        short = [name for name, tally in self.tallies.items() if tally.is_short]
        if is_full() and short and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Counting(config), "tally-counting")
