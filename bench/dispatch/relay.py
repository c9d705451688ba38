"""Orders per second from the ledger to Redis: two dispatchers and a thousand nodes, with all the work of a deployment.

A round records allocations as the API does (requested, placed, and the slot's claim), with one slot each on all nodes,
while no dispatcher runs. Then both dispatchers start. The clock runs from there until the last signed order is in its
node's queue and its row is committed as sent. A round fails if an order is missing or duplicated, or if its signature
cannot be verified.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Final

import psycopg
from joserfc.jwk import OKPKey
from redis.asyncio import Redis

from bench.dispatch.dispatcher import DispatcherSettings, Done, dispatcher
from bench.dispatch.placements import placement
from bench.harness.bench_process import BenchProcess
from bench.harness.measure import Progress
from bench.harness.servers import migrated_postgres, signing_key, sqlalchemy_url
from deploy.embedded.redis import running_redis
from events.ledger.append import append
from events.values import NodeId, SlotId, SlotIndex, allocation_of, new_uuid, slot_of
from tasks.orders import Order
from tasks.scripts import QueueKeys, namespace_of
from tasks.sealed import unseal
from tasks.signing import Signer
from tasks.wire import decode_message, order_of

NODES: Final = 1_000
SLOTS: Final = 16
DISPATCHERS: Final = 2
WRITERS: Final = 4
_COMMANDS_PER_COMMIT: Final = 50
_POLL_SECONDS: Final = 0.02
TIMEOUT_SECONDS: Final = 60.0

# Rows have the state `sent` from the start, and are in `unsent` until the sender has committed the sending.
_SENT: Final = """
select count(*) - (select count(*) from work.unsent), extract(epoch from statement_timestamp())
from work.task where state = 'sent' and sends = 1
"""
_NOW: Final = "select extract(epoch from clock_timestamp())"
_END: Final = (
    "update work.task set state = 'done', ended_at = clock_timestamp() where state in ('due', 'sent')"
)


class OrdersMismatch(Exception):
    """The queues of the nodes do not match the recorded allocations."""


class Relay:
    """Two dispatcher processes under test, with their Postgres database and Redis."""

    def __init__(
        self,
        dsn: str,
        conn: psycopg.AsyncConnection,
        redis: Redis,
        dispatchers: Sequence[BenchProcess],
        signer: Signer,
    ) -> None:
        self._dsn, self._conn, self._redis = dsn, conn, redis
        self._dispatchers, self._signer = dispatchers, signer
        self._round = 0

    async def rate(self, progress: Progress, *, slots: int = SLOTS) -> float:
        """Run one round of the benchmark `relay`. Return the orders per second that the dispatchers sent."""
        self._round += 1
        names = [NodeId(f"r{self._round}-n{number}") for number in range(NODES)]
        await self._record(names, slots)
        progress(0.6)
        began = await self._number(_NOW)
        await asyncio.gather(*(each.request("run", Done) for each in self._dispatchers))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            ended = await self._all_sent(names[-1], slots)
        await asyncio.gather(*(each.request("stop", Done) for each in self._dispatchers))
        await self._check(names, slots)
        await self._clean_up(names)
        return NODES * slots / (ended - began)

    async def _record(self, names: Sequence[NodeId], slots: int) -> None:
        """Record one placement for each slot of each node: the first slot of every node, then the second, and so on."""
        commands = iter(
            [
                placement(allocation_of(new_uuid()), slot_of(name, SlotIndex(index)))
                for index in range(slots)
                for name in names
            ]
        )

        async def write() -> None:
            async with await psycopg.AsyncConnection.connect(self._dsn) as conn:
                while batch := list(islice(commands, _COMMANDS_PER_COMMIT)):
                    for command in batch:
                        await append(conn, command.changes, command.cause)
                    await conn.commit()

        await asyncio.gather(*(write() for _ in range(WRITERS)))

    async def _all_sent(self, last: NodeId, slots: int) -> float:
        """Wait until all orders are sent, and return the time of the last one by the database's clock.

        The function queries the database only after the queue of the node `last`, which is filled last, is complete.
        """
        queue = QueueKeys.of(namespace_of(last)).waiting
        while True:
            if await self._redis.llen(queue) == slots:
                row = await (await self._conn.execute(_SENT)).fetchone()
                assert row is not None
                if row[0] == NODES * slots:
                    return float(row[1])
            await asyncio.sleep(_POLL_SECONDS)

    async def _check(self, names: Sequence[NodeId], slots: int) -> None:
        keys = {self._signer.kid: self._signer.key}
        for name in names:
            queue = QueueKeys.of(namespace_of(name))
            waiting = await self._redis.lrange(queue.waiting, 0, -1)
            messages = await self._redis.hgetall(queue.messages)
            found = sorted(_slot_of_message(data, keys) for data in messages.values())
            if sorted(waiting) != sorted(messages) or found != sorted(
                slot_of(name, SlotIndex(index)) for index in range(slots)
            ):
                raise OrdersMismatch(
                    f"the queue of node {name} has {len(waiting)} entries, and messages for the slots {found}; "
                    "expected one for each slot"
                )

    async def _clean_up(self, names: Sequence[NodeId]) -> None:
        await self._conn.execute(_END)
        await self._redis.delete(*(key for name in names for key in QueueKeys.of(namespace_of(name)).all()))

    async def _number(self, query: str) -> float:
        row = await (await self._conn.execute(query)).fetchone()
        assert row is not None
        return float(row[0])


def _slot_of_message(data: bytes | str, keys: Mapping[str, OKPKey]) -> SlotId:
    """Verify the signature of a queued order and return its slot. Raises the errors of decoding and verification."""
    assert isinstance(data, bytes)
    return Order.model_validate_json(unseal(order_of(decode_message(data)).order, keys).task).slot_id


@asynccontextmanager
async def running_relay(folder: Path) -> AsyncIterator[Relay]:
    """Start two dispatchers with their own Postgres and Redis, so that no other orders or events interfere."""
    async with AsyncExitStack() as opened:
        postgres = opened.enter_context(migrated_postgres(folder))
        redis = opened.enter_context(running_redis(folder / "redis"))
        key, signer = signing_key(folder)
        given = DispatcherSettings(sqlalchemy_url(postgres), redis.url, str(key))
        dispatchers = [await opened.enter_async_context(dispatcher(given)) for _ in range(DISPATCHERS)]
        conn = await opened.enter_async_context(
            await psycopg.AsyncConnection.connect(postgres.app_dsn, autocommit=True)
        )
        client = await opened.enter_async_context(Redis.from_url(redis.url))
        yield Relay(postgres.app_dsn, conn, client, dispatchers, signer)
