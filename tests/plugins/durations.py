"""Pytest plugin that records the duration of each test and of each shared fixture in .pytest_cache, for `--affected`.

pytest includes the start of a shared fixture (a server, a lab) in the duration of the first test that uses it. The
record keeps both durations apart, because a run starts a shared fixture only once.
"""

import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

_CACHE: Final = "sliceplane/durations"
_OWN_SECONDS: Final = 0.3
_SLOW_SECONDS: Final = 20.0
_SHARED_SECONDS: Final = 2.0
_SHARED: Final = "shared_fixtures"


@dataclass
class Durations:
    """Durations of tests and fixtures in earlier runs, in seconds. `tests` excludes the setup of shared fixtures, which
    is in `fixtures`.
    """

    tests: dict[str, float] = field(default_factory=dict)
    fixtures: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, config: pytest.Config) -> "Durations":
        """Return the durations that earlier runs recorded. The result is empty without such a run or without a pytest
        cache.
        """
        cache = _cache(config)
        kept: dict[str, dict[str, float]] = cache.get(_CACHE, {}) if cache else {}
        return cls(kept.get("tests", {}), kept.get("fixtures", {}))

    def own(self, item: pytest.Item) -> float:
        """Return the seconds of a test without the setup of its shared fixtures, or an estimate if no run has recorded
        the test.
        """
        return self.tests.get(item.nodeid) or (
            _SLOW_SECONDS if item.get_closest_marker("slow") else _OWN_SECONDS
        )

    def shared(self, key: str) -> float:
        return self.fixtures.get(key, _SHARED_SECONDS)


def _cache(config: pytest.Config) -> pytest.Cache | None:
    return getattr(config, "cache", None)  # missing with `-p no:cacheprovider`


def shared_fixtures(item: pytest.Item) -> dict[str, str]:
    """Return the shared fixtures of a test: each key identifies one instance of a fixture, each value is the fixture's
    key in `Durations`.
    """
    definitions: dict[str, Any] = item._fixtureinfo.name2fixturedefs if hasattr(item, "_fixtureinfo") else {}
    keys = [fixture_key(found[-1]) for found in definitions.values() if found[-1].scope != "function"]
    file = item.nodeid.partition("::")[0]
    return {key if key.startswith("session ") else f"{file} {key}": key for key in keys}


def fixture_key(definition: pytest.FixtureDef[Any]) -> str:
    return f"{definition.scope} {definition.baseid} {definition.argname}"


class Recorder:
    """Recorder of durations: it measures shared fixtures in the workers, and collects all durations in the process that
    receives the test reports.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._measured = Durations()
        self._nested = [0.0]
        self._of_test: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        began = time.monotonic()
        self._nested.append(0.0)
        try:
            return (yield)
        finally:
            nested = self._nested.pop()
            if fixturedef.scope != "function":
                elapsed = time.monotonic() - began
                self._of_test[fixture_key(fixturedef)] = elapsed - nested
                self._nested[-1] += elapsed
            else:
                self._nested[-1] += nested

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report = yield
        setattr(report, _SHARED, self._of_test)
        self._of_test = {}
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        shared: dict[str, float] = getattr(report, _SHARED, {})
        self._measured.fixtures.update(shared)
        own = report.duration - sum(shared.values())
        tests = self._measured.tests
        tests[report.nodeid] = own if report.when == "setup" else tests.get(report.nodeid, 0.0) + own

    def pytest_sessionfinish(self) -> None:
        cache = _cache(self._config)
        if cache is None or hasattr(self._config, "workerinput") or not self._measured.tests:
            return
        kept = Durations.of(self._config)
        value = {
            "tests": kept.tests | {test: round(took, 3) for test, took in self._measured.tests.items()},
            "fixtures": kept.fixtures
            | {key: round(took, 3) for key, took in self._measured.fixtures.items()},
        }
        cache.set(_CACHE, value)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config), "durations-recorder")
