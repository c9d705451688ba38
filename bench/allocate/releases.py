"""The releases of the allocate benchmark: one process that keeps the fleet filled to a share of its slots.

It records what a release and the report of its node record, for many allocations in one append: the processor time of
the reports of nodes is not that of creations, and a node reports over another route.
"""

import asyncio
import sys
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple

import msgspec
import sqlalchemy as sa
import uvloop
from pydantic import SecretStr

from bench.placement.fleet import HOLDER
from control_plane.decisions.fleet.slots import begin_release, free
from control_plane.handle import Decision, Transaction
from control_plane.origin import Origin
from control_plane.settings import Settings
from control_plane.wiring import Plane, plane
from events.allocations import AllocationReleased, AllocationReleasing, SliceRemoved
from events.facts import Reason
from events.ledger.append import Change
from events.slot_states import Releasing
from events.values import AllocationId, SlotId, correlation_of, stream_of_allocation, stream_of_slot
from read_models import slots

PAUSE_SECONDS: Final = 0.25
"""Pause between two appends. At 300 creations per second, an append releases 75 allocations: the benchmark measures
creations, so the process must not use the processors for many small appends.
"""
MOST: Final = 250
"""Largest number of allocations that are released by one append."""
_REASON: Final = Reason("released_by_caller", "a release was requested by the benchmark")
_CREATED: Final = 3
"""Version of an allocation's stream after its creation: requested, specified, placed."""
_ABSENT: Final = ("port", "lease", "flow", "translation", "firewall", "domain", "disk")
_ALL: Final = sa.text("select count(*) from read.slot")
# The projector counts the slots of each node for placement. These numbers may be a moment old, and cost less than a
# count of all free slots.
_FREE: Final = sa.text("select sum(free)::integer from work.slot_counts")
_OLDEST: Final = sa.text(
    "select slot_id, allocation_id from read.slot where state = 'claimed' and allocation_id <> :holder"
    " order by allocation_id limit :count"
)


class Releases(msgspec.Struct):
    """SQLAlchemy URL of the database, URL of Redis, and the share of slots to keep in use: the first line of standard
    input. The process releases allocations until its standard input is closed.
    """

    database: str
    redis: str
    share: float


class _Held(NamedTuple):
    slot_id: SlotId
    allocation_id: AllocationId


async def _release(made: Plane, held: list[_Held]) -> None:
    async def command(transaction: Transaction) -> Decision:
        rows = await slots.locked(transaction.conn, [each.slot_id for each in held])
        changes = chain.from_iterable(_changes(each, rows[each.slot_id]) for each in held)
        origin = Origin(
            actor="key:bench", reason="release", correlation_id=correlation_of(held[0].allocation_id)
        )
        return Decision(tuple(changes), origin.at(transaction.now))

    await made.handle(command)


def _changes(held: _Held, row: slots.SlotRow) -> tuple[Change, Change]:
    by, slot = held.allocation_id, held.slot_id
    own = (AllocationReleasing(by, _REASON), SliceRemoved(by, slot), AllocationReleased(by))
    of_slot = (*begin_release(slot, row.state, by), *free(slot, Releasing(by), by, _ABSENT, row.use))
    return (
        Change(stream_of_allocation(by), _CREATED, own),
        Change(stream_of_slot(slot), row.version, of_slot),
    )


async def _run(releases: Releases) -> None:
    settings = Settings(database_url=SecretStr(releases.database), redis_url=SecretStr(releases.redis))
    async with plane(settings, pool=1) as made:
        async with made.engine.connect() as conn:
            kept_free = round((await conn.scalar(_ALL) or 0) * (1 - releases.share))
        while True:
            async with made.engine.connect() as conn:
                count = min(MOST, max(0, kept_free - (await conn.scalar(_FREE) or 0)))
                found = (
                    [_Held(*each) for each in await conn.execute(_OLDEST, {"count": count, "holder": HOLDER})]
                    if count
                    else []
                )
            if found:
                await _release(made, found)
            if len(found) < MOST:
                await asyncio.sleep(PAUSE_SECONDS)


async def _main() -> None:
    releases = msgspec.json.decode(sys.stdin.readline(), type=Releases)
    running = asyncio.create_task(_run(releases))
    closed = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    await asyncio.wait({running, closed}, return_when=asyncio.FIRST_COMPLETED)
    if running.done():
        running.result()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


if __name__ == "__main__":
    uvloop.run(_main())
