"""`resync`: all agents restart at once over 10,000 bindings (slices on their slots); how long until all is known to
be as wanted.

A node's agent starts over the disk and the host of the one before: it renews its session, reads its fences, compares
them with the control plane by digests, looks at its whole host, and says so. The clock goes from the first start to
the last node that the control plane knows to have compared and to have told all (`work.node_seen`).

- `unchanged`: nothing happened meanwhile. No host may have been touched.
- `one_percent`: while the agents were away, one slice of a hundred was released, and another one of a hundred lost
  its switch port by hand. The clock goes on until all are released and repaired, and nothing else may have been
  touched.

Slots are put on as few nodes as can have them, because a binding is what is measured here: what a node costs by itself
(its session, its heartbeats) is in `fleet`. The control plane is the fleet's, two processes of each program.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from bench.fleet_callers import Callers, Watch, watching
from bench.fleet_site import Site, site
from bench.hosted import Hosting
from bench.lines import Told, told
from bench.measure import Bench, Measurement, Progress, Round, TakeRound, middle, say
from bench.resync_nodes import Admit, Damage, Done, Look, Start, Stop, Word
from bench.servers import bench_folder, memory_folder

ROUNDS: Final = 5
PROCESSES: Final = 2
AT_ONCE: Final = 12
TOGETHER: Final = 8
"""Slots of an allocation, as many as a usual node has; what is told of one is decided on the whole allocation's
story.
"""
_LOGIN: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV bench"
_LOOK_SECONDS: Final = 0.02
_PATIENCE: Final = 300.0
_LEASE_SECONDS: Final = 24 * 3600
_TOLD: Final = {"SLICEPLANE_SLICE_NETWORKS": "10.64.0.0/10"}


class Shape(NamedTuple):
    """Nodes, and slots of each."""

    nodes: int
    slots: int

    @property
    def share(self) -> int:
        """One binding of a hundred."""
        return max(1, self.nodes * self.slots // 100)


SHAPE: Final = Shape(160, 63)


class Touched(Exception):
    """The round shows nothing: a host was touched that should not have been, or not touched as it should."""


@dataclass
class Restarting:
    """The nodes, with a slice in each slot: in allocations of several, and in the rest of the slots of one."""

    shape: Shape
    made: Site
    hosts: Sequence[Told]
    callers: Callers
    watch: Watch
    conn: psycopg.AsyncConnection
    alone: dict[str, dict[int, str]] = field(default_factory=dict)
    """By node, the allocations of one slot, by its index."""

    @property
    def names(self) -> list[str]:
        return [f"n{number:04d}" for number in range(self.shape.nodes)]

    async def fill(self) -> None:
        shares = [self.names[number :: len(self.hosts)] for number in range(len(self.hosts))]
        await asyncio.gather(*(self._admit(*each) for each in zip(self.hosts, shares, strict=True)))
        await self._all(self._has_compared)
        say(f"resync: {self.shape.nodes} nodes are up\n")
        together, alone = divmod(self.shape.slots, TOGETHER)
        await self.callers.each(range(together * self.shape.nodes), lambda _number: self._create(TOGETHER))
        await self._create_alone(alone * self.shape.nodes)
        say(f"resync: {self.shape.nodes * self.shape.slots} slices are active\n")

    async def unchanged(self) -> float:
        await self._stop()
        seconds = await self._start()
        await self.check({})
        return seconds

    async def one_percent(self) -> float:
        """Leaves everything as it was."""
        await self._stop()
        # The last slot that stands alone, and the first of all: never the same one.
        alone = [self.alone[name] for name in self.names[: self.shape.share]]
        leaving = [each.pop(max(each)) for each in alone]
        await self.callers.each(leaving, self._release)
        await self._damage()
        seconds = await self._start(self._is_released, self._is_repaired)
        await self.check(
            {
                "machine.destroy": len(leaving),
                "link.delete": len(leaving),
                "port.add": self.shape.share,
            }
        )
        await self._create_alone(len(leaving))
        return seconds

    async def _admit(self, host: Told, names: Sequence[str]) -> None:
        for start in range(0, len(names), AT_ONCE):
            batch = names[start : start + AT_ONCE]
            await self._tell(host, Admit(await self.callers.each(batch, self.callers.expect)))
            await self.callers.each(batch, lambda name: self.callers.approve(name, self.shape.slots))

    async def _create_alone(self, count: int) -> None:
        for node, index, allocation in await self.callers.each(range(count), lambda _n: self._create(1)):
            self.alone.setdefault(node, {})[index] = allocation

    async def _create(self, slots: int) -> tuple[str, int, str]:
        """Its node, its first slot and its id, once it is active."""
        body = {
            "sku": "lab.small",
            "ssh_authorized_keys": [_LOGIN],
            "lease_seconds": _LEASE_SECONDS,
            "slot_count": slots,
        }
        made = (await self.callers.ask("POST", "/allocations", body)).json()
        await self.watch.until(made["id"], "allocation.activated")
        first = made["slots"][0]
        return first["node_id"], first["slot_index"], made["id"]

    async def _release(self, allocation: str) -> None:
        await self.callers.ask("DELETE", f"/allocations/{allocation}")

    async def _damage(self) -> None:
        """The first slot of so many nodes as are one of a hundred slots."""
        slots = [(name, 0) for name in self.names[: self.shape.share]]
        for number, host in enumerate(self.hosts):
            mine = {*self.names[number :: len(self.hosts)]}
            await self._tell(host, Damage([each for each in slots if each[0] in mine]))

    async def _stop(self) -> None:
        await asyncio.gather(*(self._tell(host, Stop()) for host in self.hosts))
        await self.conn.execute("update work.node_seen set resynced = false")

    async def _start(self, *conditions: Callable[[], Awaitable[bool]]) -> float:
        """Seconds from here until all agents have compared, and all of this is so."""
        began = time.monotonic()
        await asyncio.gather(*(self._tell(host, Start()) for host in self.hosts))
        await self._all(self._has_compared, *conditions)
        return time.monotonic() - began

    async def _all(self, *conditions: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(_PATIENCE):
            while True:
                if all([await condition() for condition in conditions]):
                    return
                await asyncio.sleep(_LOOK_SECONDS)

    async def _has_compared(self) -> bool:
        return (
            await self._count("select count(*) from work.node_seen where resynced and spooled_reports = 0")
            == self.shape.nodes
        )

    async def _is_released(self) -> bool:
        return await self._count("select count(*) from work.task where state in ('due', 'sent')") == 0

    async def _is_repaired(self) -> bool:
        return (await self._effects())["port.add"] == self.shape.share

    async def _count(self, query: str) -> int:
        row = await (await self.conn.execute(query)).fetchone()
        assert row is not None
        return int(row[0])

    async def _effects(self) -> Counter[str]:
        found = await asyncio.gather(*(self._tell(host, Look()) for host in self.hosts))
        return sum((Counter(each.effects) for each in found), Counter[str]())

    async def check(self, expected: dict[str, int]) -> None:
        """That the agents did just this to their hosts, and started nothing, since they were stopped.

        Raises `Touched`, and `ProgramEnded`.
        """
        self.made.see_to_it()
        effects = await self._effects()
        if not expected and effects:
            raise Touched(f"nothing was to be done, and this was: {effects}")
        wrong = {kind: effects[kind] for kind, count in expected.items() if effects[kind] != count}
        if wrong or effects["machine.start"]:
            raise Touched(f"{expected} was to be done, and this was: {effects}")

    async def _tell(self, host: Told, word: Word) -> Done:
        done = await host.ask(word, Done, _PATIENCE)
        if done.faults:
            raise Touched("; ".join(done.faults[:20]))
        return done


@asynccontextmanager
async def restarting(shape: Shape) -> AsyncIterator[Restarting]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        disks = opened.enter_context(memory_folder())
        made = await opened.enter_async_context(site(folder, _TOLD))
        clients = [await opened.enter_async_context(client) for client in made.clients()]
        hosts = [
            await opened.enter_async_context(_host(made, number, disks, shape)) for number in range(PROCESSES)
        ]
        conn = await opened.enter_async_context(
            await psycopg.AsyncConnection.connect(made.postgres.admin_dsn, autocommit=True)
        )
        watch = await opened.enter_async_context(watching(clients[0]))
        yield Restarting(shape, made, hosts, Callers(clients, watch, AT_ONCE), watch, conn)


@asynccontextmanager
async def _host(made: Site, number: int, disks: Path, shape: Shape) -> AsyncIterator[Told]:
    async with told("bench.resync_nodes") as process:
        api = made.apis[number % len(made.apis)]
        log = str(disks / f"nodes-{number}.log")
        await process.ask(Hosting(api, str(disks), log, shape.slots), Done)
        yield process


def resync(shape: Shape) -> Bench:
    """The bench over so many nodes and slots."""

    @asynccontextmanager
    async def running() -> AsyncIterator[TakeRound]:
        async with restarting(shape) as made:
            await made.fill()

            async def take(_number: int, progress: Progress) -> Round:
                unchanged = await made.unchanged()
                progress(0.4)
                return {"unchanged": [unchanged], "one_percent": [await made.one_percent()]}

            yield take

    return Bench(
        name="resync",
        explanation="all agents restart over 10,000 bindings, unchanged and with one of a hundred changed",
        shape=f"resync of {shape.nodes} nodes of {shape.slots} slots, agents in {PROCESSES} processes",
        rounds=ROUNDS,
        running=running,
        results=_results,
    )


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        middle("resync.unchanged_s", rounds, "unchanged", "s"),
        middle("resync.one_percent_s", rounds, "one_percent", "s"),
    )


BENCH: Final = resync(SHAPE)
