"""Promise P6: after any failure of Redis, no due work is lost, and the Redis users and scripts are restored within 30
seconds.

Redis fails at the worst moments: with orders in the queue and no agent to fetch them, with an order held by a dead
worker, and with nothing in flight. One allocation is active meanwhile, and remains unaffected.
"""

import itertools
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import pytest
import redis

from tasks.scripts import ALL_SCRIPTS
from tests import matrix
from tests.faults.processes import signal_all
from tests.faults.system import CONVERGED_SECONDS, NODE, System
from tests.waiting import last, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
Moment = Literal["waiting", "held", "idle"]
SLOW_SECONDS: Final = 6.0
"""Duration in seconds for which Redis is slow: longer than the timeout of every client of Redis, and than a transaction
may idle meanwhile.
"""


def flushed(system: System) -> None:
    client = system.redis()
    client.flushall()
    client.script_flush()
    client.acl_deluser(f"node-{NODE}")


def killed(system: System) -> None:
    signal_all(system.stack.servers["redis"], signal.SIGKILL)


def restarted_empty(system: System) -> None:
    killed(system)
    for left in (system.layout.state / "redis").glob("appendonly*"):
        # A folder since Redis 7, one file before.
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink()


@contextmanager
def filled(system: System) -> Iterator[None]:
    """Fill the memory of Redis up to its limit with a foreign key, until the context ends."""
    client = system.redis()
    before = client.config_get("maxmemory")["maxmemory"] or "0"
    client.rpush("foreign", *["x" * 100_000] * 200)
    client.config_set("maxmemory", 10_000_000)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        client.set("foreign second", "x")
    try:
        yield
    finally:
        client.delete("foreign")
        client.config_set("maxmemory", before)


def full(system: System) -> None:
    with filled(system):
        if not system.in_queue() and not system.held():
            system.late.append(system.create())
        last(SLOW_SECONDS)


def hanging(system: System) -> None:
    signal_all(system.stack.servers["redis"], signal.SIGSTOP)
    last(SLOW_SECONDS)
    signal_all(system.stack.servers["redis"], signal.SIGCONT)


def stuttering(system: System) -> None:
    """Stop the Redis server for half of each second."""
    for _ in range(int(SLOW_SECONDS)):
        for number in (signal.SIGSTOP, signal.SIGCONT):
            signal_all(system.stack.servers["redis"], number)
            last(0.5)


FAULTS: Final[dict[str, Callable[[System], None]]] = {
    each.__name__: each for each in (flushed, killed, restarted_empty, full, hanging, stuttering)
}


@dataclass(frozen=True)
class Case:
    fault: str
    moment: Moment

    def __str__(self) -> str:
        return f"{self.fault}-{self.moment}"


MOMENTS: Final[tuple[Moment, ...]] = ("waiting", "held", "idle")
EVERY: Final = [Case(*each) for each in itertools.product(FAULTS, MOMENTS)]


def begin(system: System, moment: Moment) -> list[str]:
    """Create an allocation with an order that waits in the queue or is held by a dead worker at the moment of the
    fault; create none for the moment `idle`. Return the ids of the created allocations.
    """
    match moment:
        case "waiting":
            system.take_down(system.node.agent)
            asked = system.create()
            until(lambda: system.in_queue() == 1, "the order of the allocation is in the queue")
            return [asked]
        case "held":
            # An order that an agent of an earlier case held at its death stays until the dispatcher cleans up this
            # node.
            before = set(system.held())
            system.arm("agent", "queue.fetched")
            asked = system.create()
            system.await_death_without_restart()
            assert len(set(system.held()) - before) == 1
            return [asked]
        case "idle":
            return []


@matrix.cases("P6", EVERY, few=1)
def test_allocations_become_active_and_start_each_slice_once_after_a_failure_of_redis(
    system: System, case: Case
) -> None:
    untouched, system.late = system.snapshot(), []
    made = sum(system.node.state().starts.values())
    old, asked = system.create(), list[str]()
    try:
        until(lambda: system.is_active(old), "the first allocation is active")
        asked = begin(system, case.moment)
        FAULTS[case.fault](system)
        began = time.monotonic()
        system.supervise()
        system.node.agent.ensure()
        until(lambda: is_restored(system), "users and scripts are restored", CONVERGED_SECONDS)
        restored = time.monotonic() - began
        asked += system.late
        if not asked:
            asked.append(system.create())
        left = began + CONVERGED_SECONDS - time.monotonic()
        until(lambda: all(system.is_active(each) for each in asked), "the new allocations are active", left)
        print(f"{case}: restored in {restored:.1f} s, converged in {time.monotonic() - began:.1f} s")
        assert sum(system.node.state().starts.values()) == made + 1 + len(asked)
    finally:
        system.disarm()
        system.node.agent.ensure()
        system.release_all(old, *asked)
    assert system.leaks(untouched) == []
    assert system.verified() == []


def is_restored(system: System) -> bool:
    system.supervise()
    try:
        client = system.redis()
        known = all(client.script_exists(*(script.sha for script in ALL_SCRIPTS)))
        return known and f"node-{NODE}" in [str(user) for user in client.acl_users()]
    except redis.exceptions.RedisError:
        return False
