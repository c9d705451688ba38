"""How many orders a second go from the log to Redis: two dispatchers, a thousand nodes, all that a deployment does.

A round records allocations as the API does (requested, placed, and the slot's claim), a slot each, over all nodes,
while no dispatcher runs. Then both are told to run. The clock goes from there until the last order is seen to be on
its node's queue, signed, its row saying so. A round in which anything is missing or twice, or whose orders cannot be
verified, fails.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import psycopg
from joserfc.jwk import OKPKey
from redis.asyncio import Redis

from bench.dispatcher import Dispatching, Done, dispatcher
from bench.lines import Told
from bench.measure import Progress
from bench.placements import placement
from bench.servers import migrated_postgres, signing_key, sqlalchemy_url
from deploy.embedded.redis import running_redis
from events.append_many import LIMIT, append_many
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
_LOOK_SECONDS: Final = 0.02
PATIENCE: Final = 60.0

# Rows say `sent` from the start, and stand in `unsent` until whoever sent them has committed that.
_SENT: Final = """
select count(*) - (select count(*) from work.unsent), extract(epoch from statement_timestamp())
from work.task where state = 'sent' and sends = 1
"""
_NOW: Final = "select extract(epoch from clock_timestamp())"
_END: Final = (
    "update work.task set state = 'done', ended_at = clock_timestamp() where state in ('due', 'sent')"
)


class Lost(Exception):
    """The round's orders are not what was recorded."""


class Relaying:
    """Two dispatchers and what they stand between."""

    def __init__(
        self,
        dsn: str,
        conn: psycopg.AsyncConnection,
        redis: Redis,
        dispatchers: Sequence[Told],
        signer: Signer,
    ) -> None:
        self._dsn, self._conn, self._redis = dsn, conn, redis
        self._dispatchers, self._signer = dispatchers, signer
        self._round = 0

    async def rate(self, progress: Progress, *, slots: int = SLOTS) -> float:
        """Orders a second of one round."""
        self._round += 1
        names = [NodeId(f"r{self._round}-n{number}") for number in range(NODES)]
        await self._record(names, slots)
        progress(0.6)
        began = await self._number(_NOW)
        await asyncio.gather(*(each.ask("run", Done) for each in self._dispatchers))
        async with asyncio.timeout(PATIENCE):
            ended = await self._all_sent(names[-1], slots)
        await asyncio.gather(*(each.ask("stop", Done) for each in self._dispatchers))
        await self._check(names, slots)
        await self._forget(names)
        return NODES * slots / (ended - began)

    async def _record(self, names: Sequence[NodeId], slots: int) -> None:
        """Placements on each slot of each node, node after node, slot by slot."""
        commands = iter(
            [
                placement(allocation_of(new_uuid()), slot_of(name, SlotIndex(index)))
                for index in range(slots)
                for name in names
            ]
        )

        async def write() -> None:
            async with await psycopg.AsyncConnection.connect(self._dsn) as conn:
                while batch := [command for _, command in zip(range(LIMIT), commands, strict=False)]:
                    await append_many(conn, batch)
                    await conn.commit()

        await asyncio.gather(*(write() for _ in range(WRITERS)))

    async def _all_sent(self, last: NodeId, slots: int) -> float:
        """When all were seen to be sent, by the database's clock. Rows are counted once the last node has its own."""
        queue = QueueKeys.of(namespace_of(last)).waiting
        while True:
            if await self._redis.llen(queue) == slots:
                row = await (await self._conn.execute(_SENT)).fetchone()
                assert row is not None
                if row[0] == NODES * slots:
                    return float(row[1])
            await asyncio.sleep(_LOOK_SECONDS)

    async def _check(self, names: Sequence[NodeId], slots: int) -> None:
        keys = {self._signer.kid: self._signer.key}
        for name in names:
            queue = QueueKeys.of(namespace_of(name))
            waiting = await self._redis.lrange(queue.waiting, 0, -1)
            messages = await self._redis.hgetall(queue.messages)
            told = sorted(_slot_of_message(data, keys) for data in messages.values())
            if sorted(waiting) != sorted(messages) or told != sorted(
                slot_of(name, SlotIndex(index)) for index in range(slots)
            ):
                raise Lost(f"{name} has {len(waiting)} orders and messages for {told}, not one for each slot")

    async def _forget(self, names: Sequence[NodeId]) -> None:
        await self._conn.execute(_END)
        await self._redis.delete(*(key for name in names for key in QueueKeys.of(namespace_of(name)).all()))

    async def _number(self, query: str) -> float:
        row = await (await self._conn.execute(query)).fetchone()
        assert row is not None
        return float(row[0])


def _slot_of_message(data: bytes | str, keys: Mapping[str, OKPKey]) -> SlotId:
    """Whose signature holds. Raises what each step of reading it raises."""
    assert isinstance(data, bytes)
    return Order.model_validate_json(unseal(order_of(decode_message(data)).order, keys).task).slot_id


@asynccontextmanager
async def relaying(folder: Path) -> AsyncIterator[Relaying]:
    """Servers of its own: nobody else's orders, and nobody else's log."""
    async with AsyncExitStack() as opened:
        postgres = opened.enter_context(migrated_postgres(folder))
        redis = opened.enter_context(running_redis(folder / "redis"))
        key, signer = signing_key(folder)
        given = Dispatching(sqlalchemy_url(postgres), redis.url, str(key))
        dispatchers = [await opened.enter_async_context(dispatcher(given)) for _ in range(DISPATCHERS)]
        conn = await opened.enter_async_context(
            await psycopg.AsyncConnection.connect(postgres.app_dsn, autocommit=True)
        )
        client = await opened.enter_async_context(Redis.from_url(redis.url))
        yield Relaying(postgres.app_dsn, conn, client, dispatchers, signer)
