"""P1, of the works to which the load of the matrix brings no program: each has a way of its own to its failpoints."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Final, get_args

import pytest
import redis

from deploy.embedded.redis import RedisServer
from tasks.scripts import WORKER_TIMEOUT, QueueKeys
from tasks.workflows import Commanding, Joining, PuttingBack, Withdrawing
from tests import matrix
from tests.checks.files import ROOT
from tests.faults.system import CONVERGED_SECONDS, System, running_system
from tests.queue.leaving import ORDERS
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
JOINING: Final = get_args(Joining)
WITHDRAWING: Final = get_args(Withdrawing)
EXPIRING: Final = get_args(Commanding)


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with running_system() as running:
        yield running


@matrix.cases("P1", JOINING, few=1)
def test_an_agent_killed_while_it_joins_becomes_known_once(system: System, case: str) -> None:
    name = f"lab-{JOINING.index(case) + 1}"
    node = system.add_node(name, failpoints=case)
    try:
        until(lambda: node.agent.status == -signal.SIGKILL, "it died there")
        node.agent.environment = {}
        until(lambda: system.is_settled(name), "it is known", CONVERGED_SECONDS)
        assert system.enrolments(name) == 1
    finally:
        system.away(node.agent)
        del system.nodes[name]


@matrix.cases("P1", WITHDRAWING, few=0)
def test_a_dispatcher_killed_around_a_withdrawal_leaves_no_order_behind(system: System, case: str) -> None:
    untouched, agent, allocation = system.snapshot(), system.node.agent, ""
    system.arm("agent", "queue.fetched")
    try:
        allocation = system.create()
        system.die_and_stay_away()
        # The order is with a worker that is dead, and wanted by nobody any more.
        system.arm("dispatcher", case)
        system.release(allocation)
        system.await_death(WORKER_TIMEOUT + 30)
        system.converge(lambda: not system.held(), "nobody holds an order")
    finally:
        system.disarm()
        agent.ensure()
        system.give_back(allocation)
    assert system.leaks(untouched) == []
    assert system.verified() == []


@matrix.cases("P1", EXPIRING, few=0)
def test_a_dispatcher_killed_as_a_lease_ends_ends_it_once(system: System, case: str) -> None:
    untouched = system.snapshot()
    allocation = system.create(lease_seconds=60)
    try:
        until(lambda: system.is_active(allocation), "it is active")
        system.arm("dispatcher", case)
        system.await_death(90)
        system.converge(lambda: system.state(allocation) == "released", "it is released")
        assert system.story(allocation).count("allocation.lease_expired") == 1
    finally:
        system.disarm()
        system.give_back(allocation)
    assert system.leaks(untouched) == []
    assert system.verified() == []


@pytest.mark.parametrize("point", get_args(PuttingBack))
def test_a_worker_killed_as_it_puts_orders_back_loses_none(redis_server: RedisServer, point: str) -> None:
    namespace = f"ctl:leaving-{point.rpartition('.')[2]}"
    given = [redis_server.address, str(redis_server.port), namespace]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.queue.leaving", *given],
        input=redis_server.url, text=True, check=False, capture_output=True, timeout=60,
        cwd=ROOT, env={**os.environ, "SLICEPLANE_FAILPOINTS": point},
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    keys = QueueKeys.of(namespace)
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as admin:
        # With a worker or waiting: the sweeper asks for those of a worker that is dead.
        kept = [*admin.lrange(keys.waiting, 0, -1), *admin.hkeys(keys.held)]
        admin.delete(*keys.all())
    assert sorted(kept) == sorted(ORDERS)
