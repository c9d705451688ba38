"""Promises P4 and P6 over a bad connection: both ends work, and the connection between them is slow, held up or cut
repeatedly.

The connections are those from the control plane or the node to Redis, and from the node to the API. One allocation is
active and another is created meanwhile. No order is lost or executed twice, and the new allocation becomes active
within 30 seconds of the connection's recovery. A connection that is only slow (`delayed`) remains slow during these 30
seconds.
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
from tests.faults.slow_proxy import SlowProxy, slow_proxy
from tests.faults.system import CONVERGED_SECONDS, System, running_system
from tests.waiting import last, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
Connection = Literal["control plane to redis", "node to redis", "node to api"]
FAULT_SECONDS: Final = 6.0
"""Duration of a fault in seconds: longer than the timeout of every client of Redis, and of a node's requests to the
API.
"""
DELAY_SECONDS: Final = 0.3
"""Delay in seconds in each direction of a slow connection: less than the control plane's timeout, and far more than a
usual delay.
"""


def delayed(proxy: SlowProxy) -> None:
    """Change nothing: the connection keeps the delay that `run_case` has set until the end of the case."""
    assert proxy.delay == DELAY_SECONDS


def held_up(proxy: SlowProxy) -> None:
    proxy.held_up = True
    last(FAULT_SECONDS)
    proxy.heal()


def cut_repeatedly(proxy: SlowProxy) -> None:
    proxy.heal()
    last(FAULT_SECONDS, proxy.reset)


def slow_and_cut(proxy: SlowProxy) -> None:
    """Delay each answer for longer than the connection lasts, and cut the connection repeatedly."""
    proxy.delay = 2 * DELAY_SECONDS
    last(FAULT_SECONDS, proxy.reset)
    proxy.heal()


FAULTS: Final[dict[str, Callable[[SlowProxy], None]]] = {
    each.__name__: each for each in (delayed, held_up, cut_repeatedly, slow_and_cut)
}
TO_REDIS: Final[tuple[Connection, ...]] = ("control plane to redis", "node to redis")
TO_API: Final[tuple[Connection, ...]] = ("node to api",)


@dataclass(frozen=True)
class Case:
    fault: str
    proxy: Connection

    def __str__(self) -> str:
        return f"{self.fault}-{self.proxy}"


OVER_REDIS: Final = [Case(*each) for each in itertools.product(FAULTS, TO_REDIS)]
OVER_API: Final = [Case(*each) for each in itertools.product(FAULTS, TO_API)]
FEW: Final = matrix.chosen("P4, P6", [*OVER_REDIS, *OVER_API], few=1)
"""The only case that the usual test run executes; `./dev torture` executes all. `test_bad_links` and `test_redis_lost`
also run a case of these promises.
"""


@dataclass(frozen=True)
class Connections:
    """System under test, and the proxies in the connections between its programs."""

    system: System
    of: Mapping[Connection, SlowProxy]

    def install_proxies(self) -> None:
        """Restart every program so that it connects through its proxy."""
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
        until(lambda: min(proxy.passed for proxy in self.of.values()) > 0, "all proxies are used")

    def _redirect_to_api(self) -> None:
        configuration = self.system.node.folder / "agent.json"
        configured = json.loads(configuration.read_bytes())
        port = urlsplit(configured["api_url"]).port
        configured["api_url"] = configured["api_url"].replace(f":{port}", f":{self.of['node to api'].port}")
        configuration.write_text(json.dumps(configured))


@pytest.fixture(scope="module")
def connections() -> Iterator[Connections]:
    with ExitStack() as open_:
        system = open_.enter_context(running_system())
        redis, api = (urlsplit(url).port for url in (system.stack.redis_url, system.stack.node_api_url))
        assert redis is not None
        assert api is not None
        targets = {**dict.fromkeys(TO_REDIS, redis), **dict.fromkeys(TO_API, api)}
        made = Connections(
            system, {proxy: open_.enter_context(slow_proxy(target)) for proxy, target in targets.items()}
        )
        made.install_proxies()
        yield made


@matrix.cases("P6", OVER_REDIS, few=1, among=[case for case in FEW if case in OVER_REDIS])
def test_allocation_becomes_active_and_no_order_is_lost_over_a_faulty_connection_to_redis(
    connections: Connections, case: Case
) -> None:
    run_case(connections, case)


@matrix.cases("P4", OVER_API, few=1, among=[case for case in FEW if case in OVER_API])
def test_allocation_becomes_active_and_no_report_is_lost_over_a_faulty_connection_to_the_api(
    connections: Connections, case: Case
) -> None:
    run_case(connections, case)


def run_case(connections: Connections, case: Case) -> None:
    """Create an allocation while another is active and a connection fails, and check the result. Raises
    `AssertionError` if a check fails.
    """
    system, proxy = connections.system, connections.of[case.proxy]
    until(system.is_settled, "the node is settled")
    untouched, made = system.snapshot(), sum(system.node.state().starts.values())
    allocations = [system.create()]
    try:
        until(lambda: system.is_active(allocations[0]), "the first allocation is active")
        passed = proxy.passed
        proxy.delay = DELAY_SECONDS
        allocations.append(system.create())
        FAULTS[case.fault](proxy)
        began = time.monotonic()
        until(lambda: system.is_active(allocations[1]), "the new allocations are active", CONVERGED_SECONDS)
        print(f"{case}: converged in {time.monotonic() - began:.1f} s")
        assert proxy.passed > passed, "the proxy forwarded no bytes"
        system.release_all(*allocations)
    finally:
        proxy.heal()
        system.release_all(*allocations)
    assert sum(system.node.state().starts.values()) == made + 2
    assert system.leaks(untouched) == []
    assert system.verified() == []
