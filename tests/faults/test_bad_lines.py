"""P4 and P6 over a bad line: both ends are well, and the way from one to the other is slow, held up or cut again and
again.

From the control plane or the node to Redis, and from the node to the API, while an allocation is active and another is
asked for. Nothing is lost or done twice, and what was asked for is there within 30 seconds of the line's recovery; over
a line that is merely slow, without it.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

import pytest

from tests import matrix
from tests.faults.slow_line import SlowLine, slow_line
from tests.faults.system import CONVERGED_SECONDS, System, running_system
from tests.waiting import last, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
Line = Literal["control plane to redis", "node to redis", "node to api"]
FAULT_SECONDS: Final = 6.0
"""Longer than anybody waits for Redis, or a node for the API."""
DELAY_SECONDS: Final = 0.3
"""Each way: less than the control plane waits for an answer, and far more than it should have to."""


def delayed(line: SlowLine) -> None:
    """It is already, and stays so to the end."""
    assert line.delay == DELAY_SECONDS


def held_up(line: SlowLine) -> None:
    line.held_up = True
    last(FAULT_SECONDS)
    line.heal()


def cut_again_and_again(line: SlowLine) -> None:
    line.heal()
    last(FAULT_SECONDS, line.reset)


def slow_and_cut(line: SlowLine) -> None:
    """An answer takes longer than a connection lasts."""
    line.delay = 2 * DELAY_SECONDS
    last(FAULT_SECONDS, line.reset)
    line.heal()


FAULTS: Final[dict[str, Callable[[SlowLine], None]]] = {
    each.__name__: each for each in (delayed, held_up, cut_again_and_again, slow_and_cut)
}
TO_REDIS: Final[tuple[Line, ...]] = ("control plane to redis", "node to redis")
TO_API: Final[tuple[Line, ...]] = ("node to api",)


@dataclass(frozen=True)
class Case:
    fault: str
    line: Line

    def __str__(self) -> str:
        return f"{self.fault}-{self.line}"


@dataclass(frozen=True)
class Lines:
    """A system, and what lies between its parts."""

    system: System
    of: Mapping[Line, SlowLine]

    def lay(self) -> None:
        """Start every program anew, behind its line."""
        url = self.system.stack.redis_url
        redirected = url.replace(f":{urlsplit(url).port}/", f":{self.of['control plane to redis'].port}/")
        for child in self.system.stack.programs.values():
            child.stop()
            child.environment = {
                **child.environment,
                "SLICEPLANE_REDIS_URL": redirected,
                "SLICEPLANE_QUEUE_PORT": str(self.of["node to redis"].port),
            }
            child.start()
        self.system.call("GET", "/nodes")
        self.system.node.agent.stop()
        self._redirect_to_api()
        self.system.node.agent.start()
        until(lambda: min(line.passed for line in self.of.values()) > 0, "all lines are used")

    def _redirect_to_api(self) -> None:
        configuration = self.system.node.folder / "agent.json"
        told = json.loads(configuration.read_bytes())
        port = urlsplit(told["api_url"]).port
        told["api_url"] = told["api_url"].replace(f":{port}", f":{self.of['node to api'].port}")
        configuration.write_text(json.dumps(told))


@pytest.fixture(scope="module")
def lines() -> Iterator[Lines]:
    with ExitStack() as open_:
        system = open_.enter_context(running_system())
        redis, api = (urlsplit(url).port for url in (system.stack.redis_url, system.stack.node_api_url))
        assert redis is not None
        assert api is not None
        targets = {**dict.fromkeys(TO_REDIS, redis), **dict.fromkeys(TO_API, api)}
        made = Lines(
            system, {line: open_.enter_context(slow_line(target)) for line, target in targets.items()}
        )
        made.lay()
        yield made


@matrix.cases("P6", [Case(*each) for each in itertools.product(FAULTS, TO_REDIS)], few=1)
def test_nothing_is_lost_over_a_bad_line_to_redis(lines: Lines, case: Case) -> None:
    hold(lines, case)


@matrix.cases("P4", [Case(*each) for each in itertools.product(FAULTS, TO_API)], few=1)
def test_nothing_is_lost_over_a_bad_line_to_the_api(lines: Lines, case: Case) -> None:
    hold(lines, case)


def hold(lines: Lines, case: Case) -> None:
    """Ask for an allocation over a line that goes bad, beside one that is active. Raises `AssertionError`."""
    system, line = lines.system, lines.of[case.line]
    until(system.is_settled, "the node is settled")
    untouched, made = system.snapshot(), sum(system.node.state().starts.values())
    allocations = [system.create()]
    try:
        until(lambda: system.is_active(allocations[0]), "the first allocation is active")
        passed = line.passed
        line.delay = DELAY_SECONDS
        allocations.append(system.create())
        FAULTS[case.fault](line)
        began = time.monotonic()
        until(lambda: system.is_active(allocations[1]), "what was asked for is active", CONVERGED_SECONDS)
        print(f"{case}: converged in {time.monotonic() - began:.1f} s")
        assert line.passed > passed, "the line carried something"
        system.give_back(*allocations)
    finally:
        line.heal()
        system.give_back(*allocations)
    assert sum(system.node.state().starts.values()) == made + 2
    assert system.leaks(untouched) == []
    assert system.verified() == []
