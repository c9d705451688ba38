"""Pytest plugin that counts the planned, run and skipped cases of each promise, and reports them at the end of the run.

Each case of a fault matrix states how many cases of its matrix are planned (`tests.matrix`). A run of complete promises
(`./dev torture`) plans every test of these promises, and fails if fewer cases ran than planned: a skipped fault proves
nothing.
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
"""Test paths of each promise of the run."""


@dataclass
class Tally:
    """Counts of the test cases of one promise. For each test, `planned` contains the number of cases that the run must
    execute, and `of` the number of all its cases.
    """

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
        counts = f"planned {planned}{of}, run {self.run}, skipped {self.outcomes['skipped']}"
        return f"{promise}: {counts}, failed {self.outcomes['failed']}{seed}"


_tallies: Final = pytest.StashKey[dict[str, Tally]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    requested = config.stash.get(PATHS, {})
    if requested:
        others = [
            item
            for item in items
            if (mark := item.get_closest_marker("matrix")) and mark.kwargs["promise"] not in requested
        ]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)
    tallies = config.stash.setdefault(_tallies, {})
    for item in items:
        mark = item.get_closest_marker("matrix")
        of_paths = [name for name, paths in requested.items() if item.nodeid.startswith(tuple(paths))]
        promises = [mark.kwargs["promise"]] if mark else of_paths
        plan = {
            "test": item.nodeid.partition("[")[0],
            **(mark.kwargs if mark else {"planned": 0, "of": 0, "seed": 0}),
        }
        for promise in promises:
            _plan(tallies.setdefault(promise, Tally()), plan)
        if promises:
            item.user_properties.append((_PROPERTY, json.dumps({**plan, "promises": promises})))


def _plan(tally: Tally, plan: dict[str, Any]) -> None:
    """Count a test case as planned. Each case of a fault matrix carries the number of all cases of its matrix, which
    becomes the count of its test; each case of another test increases the count by one.
    """
    test = plan["test"]
    if plan["of"]:
        tally.planned[test], tally.of[test], tally.seed = plan["planned"], plan["of"], plan["seed"]
    else:
        tally.planned[test] = tally.of[test] = tally.planned.get(test, 0) + 1


class Counting:
    """Counter of test reports, in the test process itself or, with xdist, in the controller of the workers."""

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

    def _count(self, plan: dict[str, Any], outcome: str) -> None:
        for promise in plan["promises"]:
            tally = self.tallies.setdefault(promise, Tally())
            tally.outcomes[outcome] += 1
            if plan["of"]:
                _plan(tally, plan)  # the worker's plan is not in this process

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
