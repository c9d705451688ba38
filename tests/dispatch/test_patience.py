"""A Redis that hangs is given up on before Postgres ends the transaction in which it was asked."""

import signal
import time

import pytest

from control_plane.redis_nodes import RedisAway, answers
from control_plane.wiring import Plane
from deploy.embedded import redis as embedded
from tests.dispatch.given import Given


async def test_two_questions_to_a_redis_that_hangs_fit_into_an_idle_transaction(
    made: Plane, given: Given, redis_server: embedded.RedisServer
) -> None:
    """The sweeper asks twice in one: where orders are, then to take them."""
    [(idle,)] = given.rows(
        "select substring(each from '=(.*)s')::int from pg_roles, unnest(rolconfig) as each"
        " where rolname = 'sliceplane_app' and each like 'idle_in_transaction%%'"
    )
    redis_server.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(RedisAway):
            await answers(made.redis, [("PING",)])
        waited = time.monotonic() - began
    finally:
        redis_server.process.send_signal(signal.SIGCONT)
    assert 2 * waited < idle
