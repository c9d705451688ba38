"""Nothing lost and nothing doubled: what ledger, queues and hosts must hold once every allocation was released.

Each check gives the faults it found, each with the name of what is lost or doubled, so that a failed run says where to
look. Hosts are counted by themselves: what was done to them, whoever asked for it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
import psycopg
import sqlalchemy as sa
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncConnection

from bench.fleet_nodes import Holding
from control_plane.work import OPEN, parked, task
from events.allocations import AllocationPlaced, AllocationReplaced
from events.catalog import name_of
from events.replay import replay
from events.values import NodeId, Position
from read_models.slots import slot
from tasks.scripts import QueueKeys, namespace_of

STORY: Final = (
    "allocation.requested",
    "allocation.placed",
    "allocation.slice_starting",
    "allocation.slice_address_observed",
    "allocation.slice_ready",
    "allocation.activated",
    "allocation.lease_granted",
    "allocation.releasing",
    "allocation.lease_ended",
    "allocation.slice_removed",
    "allocation.released",
)
"""What the ledger tells of each allocation: the life of a slice to which nothing happened."""
_MILESTONES: Final = (STORY[0], STORY[1], STORY[5], STORY[7], STORY[10])
"""Those that have an order of their own; what a node tells of a slice between them may come in another."""
ONCE_IN_A_LIFE: Final = (
    *("link.add", "port.add", "lease.reserve"),
    *("port.delete", "link.delete", "lease.withdraw"),
)
"""Effects that a slot's place on the host sees once for each slice."""
_END: Final = Position(2**62)
_NOT_AT_THEIR_END: Final[Mapping[str, sa.Select[Any]]] = {
    "slot": sa.select(slot.c.slot_id, slot.c.state).where(slot.c.state != "free"),
    "order": sa.select(task.c.order_id, task.c.node_id, task.c.state).where(
        task.c.state.in_((*OPEN, "waiting"))
    ),
    "stream": sa.select(parked.c.stream_id, parked.c.error),
}


class Stories(msgspec.Struct, frozen=True):
    """Of each allocation, by id: its types of event in order, and its slot."""

    told: dict[str, tuple[list[str], str]]

    def slots(self) -> Counter[str]:
        """How many allocations each slot carried."""
        return Counter(place for _types, place in self.told.values())


async def stories(conn: psycopg.AsyncConnection) -> Stories:
    """What the ledger tells of allocations, as its own readers read it."""
    types, places = defaultdict[str, list[str]](list), defaultdict[str, str](lambda: "nowhere")
    async with aclosing(replay(conn, Position(0), _END)) as batches:
        async for batch in batches:
            for recorded in batch:
                kind, _, name = recorded.stream.partition("-")
                if kind == "allocation":
                    types[name].append(name_of(recorded.fact))
                if isinstance(recorded.fact, AllocationPlaced | AllocationReplaced):
                    places[name] = recorded.fact.slots[0].slot_id
    return Stories({name: (told, places[name]) for name, told in types.items()})


def told_faults(found: Stories, created: Iterable[str]) -> Iterator[str]:
    """Whether exactly these allocations are told of, and of each its whole life."""
    asked = set(created)
    yield from (f"{name} is not in the ledger" for name in asked - found.told.keys())
    yield from (f"{name} is in the ledger, and nobody asked for it" for name in found.told.keys() - asked)
    for name, (types, place) in found.told.items():
        if odd := (Counter(types) - Counter(STORY)) + (Counter(STORY) - Counter(types)):
            yield f"{name} on {place}: lost or doubled {', '.join(sorted(odd))}"
        elif [each for each in types if each in _MILESTONES] != [*_MILESTONES]:
            yield f"{name} on {place}: out of order {', '.join(types)}"


async def ledger_faults(conn: AsyncConnection) -> list[str]:
    """What is not at its end: slots that are not free, orders, and streams whose step failed."""
    found: list[str] = []
    for what, query in _NOT_AT_THEIR_END.items():
        found += [f"{what} {' '.join(map(str, row))}" for row in await conn.execute(query)]
    return found


async def queue_faults(redis: Redis, nodes: Sequence[str]) -> list[str]:
    """What is left in the nodes' queues."""
    found: list[str] = []
    for start in range(0, len(nodes), 500):
        names = nodes[start : start + 500]
        async with redis.pipeline(transaction=False) as asked:
            for name in names:
                keys = QueueKeys.of(namespace_of(NodeId(name)))
                asked.llen(keys.waiting)
                asked.hlen(keys.messages)
                asked.exists(keys.held)
            answers = iter(await asked.execute())
        for name in names:
            waiting, messages, held = next(answers), next(answers), next(answers)
            if waiting or messages or held:
                found.append(f"queue of {name}: {waiting} waiting, {messages} messages, held: {bool(held)}")
    return found


def host_faults(carried: Mapping[str, int], holding: Holding) -> Iterator[str]:
    """Whether a node's host was done to what its slots carried, once each, and nothing is left; `carried` by slot."""
    mine: defaultdict[str, int] = defaultdict(int)
    for name, times in carried.items():
        node, _, index = name.partition("/")
        if node == holding.name:
            mine[f"slice{index}"] += times
    for effect in ONCE_IN_A_LIFE:
        for place, times in mine.items():
            done = holding.effects.get(f"{effect} {place}", 0)
            if done != times:
                yield f"{holding.name}: {effect} {place} {done} times for {times} slices"
    yield from _machine_faults(holding, sum(mine.values()))
    yield from (f"{holding.name}: left {each}" for each in holding.left)
    if holding.spooled:
        yield f"{holding.name}: {holding.spooled} reports that nobody took"


def _machine_faults(holding: Holding, slices: int) -> Iterator[str]:
    for effect in ("machine.start", "machine.destroy"):
        times = {name: done for name, done in holding.effects.items() if name.partition(" ")[0] == effect}
        yield from (f"{holding.name}: {name} {done} times" for name, done in times.items() if done != 1)
        if len(times) != slices:
            yield f"{holding.name}: {effect} of {len(times)} machines for {slices} slices"


def by_node(slots: Mapping[str, int]) -> defaultdict[str, dict[str, int]]:
    """How often each slot was used, by node."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, times in slots.items():
        found[name.partition("/")[0]][name] = times
    return found
