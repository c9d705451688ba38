"""Tests of timeouts inside a transaction: a call to a hanging Redis times out before Postgres ends the transaction
around the call, and a command runs again if Postgres ended its transaction.
"""

import secrets
import signal
import time
from ipaddress import IPv4Network
from typing import Final

import pytest
import sqlalchemy as sa
from psycopg.errors import DeadlockDetected

from control_plane.commands.nodes import register_node
from control_plane.handle import Decision, RetryWithoutLocks, Transaction
from control_plane.origin import Origin
from control_plane.queues.redis_nodes import RedisUnavailable, answers
from control_plane.wiring import Plane
from deploy.embedded import redis as embedded
from events.values import NodeId, new_uuid
from tests.dispatch.given import Given
from tests.projections.eventually import eventually

ORIGIN: Final = Origin("key:admin", "a test", new_uuid())


async def test_two_calls_to_a_hanging_redis_time_out_before_the_idle_transaction_timeout(
    made: Plane, given: Given, redis_server: embedded.RedisServer
) -> None:
    """The task sender makes two Redis calls in one transaction: the first finds orders, the second withdraws them."""
    [(idle,)] = given.rows(
        "select substring(each from '=(.*)s')::int from pg_roles, unnest(rolconfig) as each"
        " where rolname = 'sliceplane_app' and each like 'idle_in_transaction%%'"
    )
    redis_server.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(RedisUnavailable):
            await answers(made.redis, [("PING",)])
        waited = time.monotonic() - began
    finally:
        redis_server.process.send_signal(signal.SIGCONT)
    assert 2 * waited < idle


async def test_command_runs_again_after_postgres_ended_its_idle_transaction(
    made: Plane, given: Given
) -> None:
    """Postgres ends the transaction of a process that was stopped, or paused with its machine, for too long."""
    runs = 0
    admit = register_node(NodeId("idle"), secrets.token_hex(16), ORIGIN, IPv4Network("10.200.0.0/16"))

    async def idle_at_first(transaction: Transaction) -> Decision:
        nonlocal runs
        runs += 1
        if runs == 1:
            conn = transaction.conn
            server = await conn.scalar(sa.select(sa.func.pg_backend_pid()))
            await conn.execute(sa.text("set local idle_in_transaction_session_timeout = '10ms'"))
            await eventually(
                lambda: not given.rows(f"select from pg_stat_activity where pid = {server}"),
                "the server process has ended",
            )
        return await admit(transaction)

    await made.handle(idle_at_first)
    assert runs == 2
    assert given.rows("select count(*) from ledger.event where type = 'node.registered'") == [(1,)]


async def test_command_that_is_run_again_to_wait_for_locked_rows_waits_for_them_in_every_later_run(
    made: Plane,
) -> None:
    """The command runs three times. The second run ends by a deadlock, after which the third run must not skip locked
    rows again.
    """
    waits: list[bool] = []
    admit = register_node(NodeId("waits"), secrets.token_hex(16), ORIGIN, IPv4Network("10.200.0.0/16"))

    async def retried_twice(transaction: Transaction) -> Decision:
        waits.append(transaction.wait_for_locked)
        match len(waits):
            case 1:
                raise RetryWithoutLocks
            case 2:
                raise DeadlockDetected
            case _:
                return await admit(transaction)

    await made.handle(retried_twice)
    assert waits == [False, True, True]
