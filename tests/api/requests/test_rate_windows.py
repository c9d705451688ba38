"""Tests of the counters of the rate limits: in memory, and in a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits.aio.storage.redis.bridge import RedisBridge
from redis.asyncio import Redis

from control_plane.api.requests.rate_windows import (
    Charge,
    LocalWindows,
    MemoryWindows,
    Quota,
    SharedWindows,
    Turns,
    Window,
    is_admitted,
)
from deploy.embedded.redis import RedisServer, running_redis
from tests.servers.redis import server_folder

TICK = 0.001


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


@pytest.fixture
async def own_redis() -> AsyncIterator[Redis]:
    """Client of a Redis server that no other test uses."""
    with server_folder() as folder, running_redis(folder) as server:
        client = Redis.from_url(server.url)
        yield client
        await client.aclose()


def charge(limit: int, seconds: int = 60, name: str = "principal") -> Charge:
    """Return the charge of one request to a quota of `limit` requests in `seconds`. No other test uses its subject."""
    return Charge(Quota(name, limit, seconds), uuid4().hex)


@given(
    limit=st.integers(1, 50),
    previous=st.integers(0, 60),
    current=st.integers(0, 60),
    left=st.floats(0.01, 10, allow_nan=False),
)
def test_exhausted_quota_admits_a_request_after_the_announced_time_and_not_before(
    limit: int, previous: int, current: int, left: float
) -> None:
    quota, window = Quota("principal", limit, 10), Window(previous, current, left)
    wait = window.regained_in(quota)
    assert 0 <= wait <= left
    if wait > 2 * TICK:
        before = window._replace(left=left - wait + TICK)
        assert before.remaining(quota) == window.remaining(quota)
    after = (
        window._replace(left=left - wait - TICK)
        if wait + TICK < left
        else Window(current, 0, quota.seconds - TICK)
    )
    if window.remaining(quota) < limit and previous <= limit >= current:
        assert after.remaining(quota) > window.remaining(quota)


@given(
    limit=st.integers(1, 20),
    steps=st.lists(st.floats(0, 15, allow_nan=False), min_size=1, max_size=200),
)
def test_request_counter_in_memory_never_admits_more_than_its_limit_within_one_window(
    limit: int, steps: list[float]
) -> None:
    windows, one = LocalWindows(10, clock := Clock()), charge(limit, seconds=10)
    admitted: dict[float, int] = {}
    for step in steps:
        clock.now += step
        spent = windows.spend(one)
        if spent.admitted:
            end = round(clock.now + spent.window.left, 3)
            admitted[end] = admitted.get(end, 0) + 1
        else:
            assert spent.window.remaining(one.quota) == 0
    assert max(admitted.values()) <= limit


def test_requests_of_the_previous_window_count_by_the_part_that_the_sliding_window_covers() -> None:
    windows, one = LocalWindows(10, clock := Clock()), charge(10, seconds=10)
    assert [windows.spend(one).admitted for _ in range(11)] == [True] * 10 + [False]
    clock.now += 12.5  # three quarters of the previous window still count
    assert windows.read(one) == Window(previous=10, current=0, left=7.5)
    assert [windows.spend(one).admitted for _ in range(4)] == [True] * 3 + [False]


def test_request_counters_at_their_maximum_number_drop_the_counter_that_was_not_used_for_the_longest_time() -> (
    None
):
    windows, (first, second, third) = LocalWindows(2, Clock()), (charge(1), charge(1), charge(1))
    for each in (first, second, first, third):
        windows.spend(each)
    assert [each in windows for each in (first, second, third)] == [True, False, True]


def test_requests_beyond_the_burst_that_is_admitted_at_once_are_admitted_in_their_order_at_regular_intervals() -> (
    None
):
    turns, one, other = Turns(10, 50, 3, clock := Clock()), charge(100), charge(100)
    assert [turns.take(one) for _ in range(5)] == pytest.approx([0, 0, 0, 0.02, 0.04])
    assert turns.take(other) == 0
    clock.now += 0.04
    assert turns.take(one) == pytest.approx(0.02)
    clock.now += 10
    assert [turns.take(one) for _ in range(4)] == pytest.approx([0, 0, 0, 0.02])


def test_requests_of_a_quota_faster_than_the_pacing_rate_wait_for_half_of_the_interval_of_the_quota() -> None:
    turns, one = Turns(10, 50, 3, Clock()), charge(1200, seconds=12)
    assert [turns.take(one) for _ in range(5)] == pytest.approx([0, 0, 0, 0.005, 0.01])


def test_request_pacing_at_its_maximum_number_of_callers_drops_the_caller_that_was_idle_for_the_longest_time() -> (
    None
):
    turns, (first, second, third) = Turns(2, 50, 1, Clock()), (charge(1), charge(1), charge(1))
    for each in (first, second, first, third):
        turns.take(each)
    assert [turns.take(each) > 0 for each in (third, first, second)] == [True, True, False]


@pytest.mark.parametrize("limit", [1, 7, 150])
async def test_request_counter_in_redis_admits_exactly_the_limit_of_concurrent_requests_of_two_processes(
    redis: Redis, limit: int
) -> None:
    processes, one = [SharedWindows(redis), SharedWindows(redis)], charge(limit)
    spent = await asyncio.gather(*(each.spend([one]) for each in processes for _ in range(200)))
    assert sum(map(is_admitted, spent)) == limit


async def test_request_counter_in_memory_admits_exactly_the_limit_of_concurrent_requests() -> None:
    windows, one = MemoryWindows(), charge(20, seconds=3600)
    spent = await asyncio.gather(*(windows.spend([one]) for _ in range(100)))
    assert sum(map(is_admitted, spent)) == 20


async def test_request_counter_in_redis_has_the_same_state_after_each_request_as_the_request_counter_in_memory(
    redis: Redis,
) -> None:
    shared, local, one = SharedWindows(redis), LocalWindows(10), charge(3)
    for _ in range(5):
        [in_redis], in_memory = await shared.spend([one]), local.spend(one)
        assert in_redis.admitted == in_memory.admitted
        assert in_redis.window[:2] == in_memory.window[:2]
        assert in_redis.window.left == pytest.approx(in_memory.window.left, abs=5)


@pytest.mark.parametrize("refusing", ["principal", "project"])
async def test_request_that_one_of_its_two_quotas_refuses_does_not_count_in_the_other_quota(
    redis: Redis, refusing: str
) -> None:
    shared = SharedWindows(redis)
    charges = [charge(1 if name == refusing else 100, name=name) for name in ("principal", "project")]
    spent = [await shared.spend(charges) for _ in range(3)]
    assert [is_admitted(each) for each in spent] == [True, False, False]
    assert [[each.window.current for each in one] for one in spent] == [[1, 1]] * 3


async def test_request_is_counted_once_although_redis_has_lost_scripts(own_redis: Redis) -> None:
    shared, one = SharedWindows(own_redis), charge(10)
    await shared.spend([one])
    await own_redis.script_flush()
    [without_scripts] = await shared.spend([one])
    await own_redis.script_flush()
    await own_redis.script_load(RedisBridge.SCRIPT_ACQUIRE_SLIDING_WINDOW.decode())
    [without_one_script] = await shared.spend([one])
    assert [each.window.current for each in (without_scripts, without_one_script)] == [2, 3]
