"""Checks that nothing is lost or duplicated in ledger, queues and hosts after every allocation was released.

Each check returns its faults. Each fault names what is lost or duplicated, so that a failed run shows where to look.
Effects on hosts are counted by the hosts themselves, independent of the program that caused them.
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

from bench.fleet.nodes import NodeState
from control_plane.work.tables import OPEN, parked, task
from events.allocations import AllocationPlaced, AllocationReplaced
from events.catalog import name_of
from events.ledger.replay import replay
from events.values import NodeId, Position
from read_models.slots import slot
from tasks.scripts import QueueKeys, namespace_of

TIMELINE: Final = (
    "allocation.requested",
    "allocation.specified",
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
"""The events of each allocation with a slice that runs without a fault."""
_MILESTONES: Final = (TIMELINE[0], TIMELINE[1], TIMELINE[5], TIMELINE[7], TIMELINE[10])
"""Events with a fixed order; reports of a node between them may arrive in a different order."""
ONCE_PER_SLICE: Final = (
    *("link.add", "port.add", "lease.reserve"),
    *("port.delete", "link.delete", "lease.withdraw"),
)
"""Effects that occur exactly once per slice for a slot of a host."""
_END: Final = Position(2**62)
_UNFINISHED: Final[Mapping[str, sa.Select[Any]]] = {
    "slot": sa.select(slot.c.slot_id, slot.c.state).where(slot.c.state != "free"),
    "order": sa.select(task.c.order_id, task.c.node_id, task.c.state).where(
        task.c.state.in_((*OPEN, "waiting"))
    ),
    "stream": sa.select(parked.c.stream_id, parked.c.error),
}


class Timelines(msgspec.Struct, frozen=True):
    """Timelines of allocations: for each allocation id, its event types in order and its slot."""

    by_allocation: dict[str, tuple[list[str], str]]

    def slots(self) -> Counter[str]:
        """Return how many allocations each slot carried."""
        return Counter(slot_id for _types, slot_id in self.by_allocation.values())


async def read_timelines(conn: psycopg.AsyncConnection) -> Timelines:
    """Read the timelines of all allocations from the ledger, with the product's own reader."""
    types, places = defaultdict[str, list[str]](list), defaultdict[str, str](lambda: "nowhere")
    async with aclosing(replay(conn, Position(0), _END)) as batches:
        async for batch in batches:
            for recorded in batch:
                kind, _, name = recorded.stream.partition("-")
                if kind == "allocation":
                    types[name].append(name_of(recorded.fact))
                if isinstance(recorded.fact, AllocationPlaced | AllocationReplaced):
                    places[name] = recorded.fact.slots[0].slot_id
    return Timelines({name: (events, places[name]) for name, events in types.items()})


def timeline_faults(found: Timelines, created: Iterable[str]) -> Iterator[str]:
    """Check that the ledger has exactly these allocations, each with its complete timeline. Yield the faults."""
    requested = set(created)
    yield from (f"allocation {name} is not in the ledger" for name in requested - found.by_allocation.keys())
    yield from (
        f"allocation {name} is in the ledger, but was not requested"
        for name in found.by_allocation.keys() - requested
    )
    for name, (types, place) in found.by_allocation.items():
        if odd := (Counter(types) - Counter(TIMELINE)) + (Counter(TIMELINE) - Counter(types)):
            yield f"allocation {name} on {place}: lost or duplicated events {', '.join(sorted(odd))}"
        elif [each for each in types if each in _MILESTONES] != [*_MILESTONES]:
            yield f"allocation {name} on {place}: events out of order: {', '.join(types)}"


async def ledger_faults(conn: AsyncConnection) -> list[str]:
    """Return unfinished work in the database: slots in use, orders, event streams set aside with errors."""
    found: list[str] = []
    for what, query in _UNFINISHED.items():
        found += [f"{what} {' '.join(map(str, row))}" for row in await conn.execute(query)]
    return found


async def queue_faults(redis: Redis, nodes: Sequence[str]) -> list[str]:
    """Return the nodes with entries left in their queues."""
    found: list[str] = []
    for start in range(0, len(nodes), 500):
        names = nodes[start : start + 500]
        async with redis.pipeline(transaction=False) as pipeline:
            for name in names:
                keys = QueueKeys.of(namespace_of(NodeId(name)))
                pipeline.llen(keys.waiting)
                pipeline.hlen(keys.messages)
                pipeline.exists(keys.held)
            answers = iter(await pipeline.execute())
        for name in names:
            waiting, messages, held = next(answers), next(answers), next(answers)
            if waiting or messages or held:
                some = "some" if held else "no"
                found.append(
                    f"queue of node {name} not empty: {waiting} waiting ids, {messages} messages, {some} fetched tasks"
                )
    return found


def host_faults(carried: Mapping[str, int], node: NodeState) -> Iterator[str]:
    """Check that a node's host was changed once per slice in each expected way, and nothing is left. Yield the faults.

    `carried` is the number of slices by slot.
    """
    expected: defaultdict[str, int] = defaultdict(int)
    for name, times in carried.items():
        node_name, _, index = name.partition("/")
        if node_name == node.name:
            expected[f"slice{index}"] += times
    for effect in ONCE_PER_SLICE:
        for place, times in expected.items():
            done = node.effects.get(f"{effect} {place}", 0)
            if done != times:
                yield f"node {node.name}: host change {effect} {place} was made {done} times, expected {times}"
    yield from _machine_faults(node, sum(expected.values()))
    yield from (f"node {node.name}: the host still has {each}" for each in node.left)
    if node.spooled:
        yield f"node {node.name}: {node.spooled} reports were not delivered"


def _machine_faults(node: NodeState, slices: int) -> Iterator[str]:
    for effect in ("machine.start", "machine.destroy"):
        times = {name: done for name, done in node.effects.items() if name.partition(" ")[0] == effect}
        yield from (
            f"node {node.name}: host change {name} was made {done} times instead of once"
            for name, done in times.items()
            if done != 1
        )
        if len(times) != slices:
            yield f"node {node.name}: host change {effect} was made on {len(times)} machines instead of {slices}"


def by_node(slots: Mapping[str, int]) -> defaultdict[str, dict[str, int]]:
    """Return how often each slot was used, by node."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, times in slots.items():
        found[name.partition("/")[0]][name] = times
    return found
