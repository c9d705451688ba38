"""Promise P1 for failpoints that `test_killed_at_failpoints` does not cover: those of an enrolment, of the removal of
ended orders from a queue, of the end of an expired allocation lease, of the drain of a node, and of requeueing.
"""

import os
import signal
import subprocess
import sys
from typing import Final, get_args

import pytest
import redis

from deploy.embedded.redis import RedisServer
from tasks.scripts import WORKER_TIMEOUT, QueueKeys
from tasks.workflows import Commanding, Joining, Requeueing, Withdrawing
from tests import matrix
from tests.checks.files import ROOT
from tests.faults.system import CONVERGED_SECONDS, NODE, System
from tests.queue.requeueing_worker import ORDERS
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
JOINING: Final = get_args(Joining)
WITHDRAWING: Final = get_args(Withdrawing)
EXPIRING: Final = get_args(Commanding)


@matrix.cases("P1", JOINING, few=1)
def test_agent_killed_while_it_enrols_its_node_enrols_it_once(system: System, case: str) -> None:
    name = f"lab-{JOINING.index(case) + 1}"
    node = system.add_node(name, failpoints=case)
    try:
        until(lambda: node.agent.status == -signal.SIGKILL, "the agent died at the failpoint")
        node.agent.environment = {}
        until(lambda: system.is_settled(name), "the node is enrolled", CONVERGED_SECONDS)
        assert system.enrolments(name) == 1
    finally:
        system.take_down(node.agent)
        del system.nodes[name]


@matrix.cases("P1", WITHDRAWING, few=0)
def test_dispatcher_killed_while_it_withdraws_an_order_leaves_no_order_in_the_queue(
    system: System, case: str
) -> None:
    untouched, agent, allocation = system.snapshot(), system.node.agent, ""
    system.arm("agent", "queue.fetched")
    try:
        allocation = system.create()
        system.await_death_without_restart()
        # A dead worker holds the order, and the allocation no longer needs it.
        system.arm("dispatcher", case)
        system.release(allocation)
        system.await_death(WORKER_TIMEOUT + 30)
        system.converge(lambda: not system.held(), "no worker holds an order")
    finally:
        system.disarm()
        agent.ensure()
        system.release_all(allocation)
    assert system.leaks(untouched) == []
    assert system.verified() == []


@matrix.cases("P1", EXPIRING, few=0)
def test_dispatcher_killed_while_an_allocation_lease_expires_ends_the_lease_once(
    system: System, case: str
) -> None:
    untouched = system.snapshot()
    allocation = system.create(lease_seconds=60)
    try:
        until(lambda: system.is_active(allocation), "the allocation is active")
        system.arm("dispatcher", case)
        system.await_death(90)
        system.converge(lambda: system.state(allocation) == "released", "the allocation is released")
        assert system.timeline(allocation).count("allocation.lease_expired") == 1
    finally:
        system.disarm()
        system.release_all(allocation)
    assert system.leaks(untouched) == []
    assert system.verified() == []


@matrix.cases("P1", EXPIRING, few=0)
def test_dispatcher_killed_while_a_drain_releases_an_allocation_releases_it_once_and_empties_the_node(
    system: System, case: str
) -> None:
    untouched = system.snapshot()
    allocation = system.create()
    ends = len(system.facts("node.drain_ended"))
    try:
        until(lambda: system.is_active(allocation), "the allocation is active")
        system.arm("dispatcher", case)
        system.call("POST", f"/nodes/{NODE}/drain", {"reason": "update", "release_after_seconds": 0})
        system.await_death()
        system.converge(
            lambda: system.call("GET", f"/nodes/{NODE}")["drain"]["outcome"] == "empty", "it ended"
        )
        assert system.state(allocation) == "released"
        assert system.timeline(allocation).count("allocation.releasing") == 1
        assert len(system.facts("node.drain_ended")) == ends + 1
    finally:
        system.disarm()
        system.call("POST", f"/nodes/{NODE}/uncordon", {"reason": "updated"})
        system.release_all(allocation)
    assert system.leaks(untouched) == []
    assert system.verified() == []


@pytest.mark.parametrize("point", get_args(Requeueing))
def test_worker_killed_while_it_requeues_orders_loses_no_order(redis_server: RedisServer, point: str) -> None:
    namespace = f"ctl:leaving-{point.rpartition('.')[2]}"
    given = [redis_server.address, str(redis_server.port), namespace]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.queue.requeueing_worker", *given],
        input=redis_server.url, text=True, check=False, capture_output=True, timeout=60,
        cwd=ROOT, env={**os.environ, "SLICEPLANE_FAILPOINTS": point},
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    keys = QueueKeys.of(namespace)
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as admin:
        # Held by a worker or waiting: the task sender reclaims those of a dead worker.
        kept = [*admin.lrange(keys.waiting, 0, -1), *admin.hkeys(keys.held)]
        admin.delete(*keys.all())
    assert sorted(kept) == sorted(ORDERS)
