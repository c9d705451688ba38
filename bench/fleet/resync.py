"""`resync`: time until all nodes are reconciled after all agents restart over 10,000 bindings (slices on slots).

Each agent starts on the disk and host of its predecessor: it renews its session, reads the orders on its disk, compares
their digests with the control plane, surveys its host, and reports. The clock runs from the first start until the
control plane records that the last node has compared its slots and delivered all reports (`work.node_seen`).

- `unchanged`: nothing changed while the agents were stopped. No host may be modified.
- `one_percent`: while the agents were stopped, one slice of a hundred was released, and another one of a hundred lost
  its switch port. The clock runs until all are released and repaired, and nothing else may be modified.

The slots are on as few nodes as possible, because the benchmark measures bindings: the cost of a node itself (session,
heartbeats) is measured by `fleet`. The control plane is that of `fleet`, with two processes of each program.
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

from bench.fleet.callers import Callers, Watch, running_watch
from bench.fleet.hosted import HostingSettings
from bench.fleet.resync_nodes import Admit, CountEffects, Damage, Done, Instruction, Start, Stop
from bench.fleet.site import FleetSite, site
from bench.harness.bench_process import BenchProcess, bench_process
from bench.harness.measure import Bench, Measurement, Progress, Round, TakeRound, pooled_median, show
from bench.harness.servers import bench_folder, memory_folder

ROUNDS: Final = 5
PROCESSES: Final = 2
AT_ONCE: Final = 12
SLOTS_OF_ALLOCATION: Final = 8
"""Slots of an allocation, as many as a usual node has. A decision about one slot reads the timeline of its whole
allocation.
"""
_LOGIN: Final = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV bench"
_POLL_SECONDS: Final = 0.02
_TIMEOUT_SECONDS: Final = 300.0
_LEASE_SECONDS: Final = 24 * 3600
_SETTINGS: Final = {"SLICEPLANE_SLICE_NETWORKS": "10.64.0.0/10"}


class Shape(NamedTuple):
    """Size of the benchmark's fleet: the number of nodes, and of slots on each node."""

    nodes: int
    slots: int

    @property
    def share(self) -> int:
        """One percent of the bindings (slices on slots), at least one."""
        return max(1, self.nodes * self.slots // 100)


SHAPE: Final = Shape(160, 63)


class UnexpectedEffects(Exception):
    """The effects of the agents on hosts differ from the expected effects, so the round is invalid."""


@dataclass
class RestartableNodes:
    """Simulated nodes with restartable agents and a slice in every slot.

    On each node, as many slots as possible belong to allocations of several slots, the others to allocations of one.
    """

    shape: Shape
    made: FleetSite
    hosts: Sequence[BenchProcess]
    callers: Callers
    watch: Watch
    conn: psycopg.AsyncConnection
    single: dict[str, dict[int, str]] = field(default_factory=dict)
    """Allocations of one slot, by node and slot index."""

    @property
    def names(self) -> list[str]:
        return [f"n{number:04d}" for number in range(self.shape.nodes)]

    async def fill(self) -> None:
        """Start the nodes and create a slice in every slot."""
        shares = [self.names[number :: len(self.hosts)] for number in range(len(self.hosts))]
        await asyncio.gather(*(self._admit(*each) for each in zip(self.hosts, shares, strict=True)))
        await self._await_conditions(self._has_compared)
        show(f"resync: {self.shape.nodes} nodes are up\n")
        together, single = divmod(self.shape.slots, SLOTS_OF_ALLOCATION)
        await self.callers.each(
            range(together * self.shape.nodes), lambda _number: self._create(SLOTS_OF_ALLOCATION)
        )
        await self._create_alone(single * self.shape.nodes)
        show(f"resync: {self.shape.nodes * self.shape.slots} slices are active\n")

    async def unchanged(self) -> float:
        """Restart all agents without changing anything. Return the seconds until every agent has compared its slots."""
        await self._stop()
        seconds = await self._start()
        await self.check({})
        return seconds

    async def one_percent(self) -> float:
        """Restart all agents after one percent of the slices was released and another percent lost its switch port.

        Return the seconds until all are released and repaired. Afterwards, create the released slices again.
        """
        await self._stop()
        # Release the last single-slot allocation and damage the first slot, so that they are never the same slot.
        single = [self.single[name] for name in self.names[: self.shape.share]]
        leaving = [each.pop(max(each)) for each in single]
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

    async def _admit(self, host: BenchProcess, names: Sequence[str]) -> None:
        for start in range(0, len(names), AT_ONCE):
            batch = names[start : start + AT_ONCE]
            await self._instruct(host, Admit(await self.callers.each(batch, self.callers.register)))
            await self.callers.each(batch, lambda name: self.callers.approve(name, self.shape.slots))

    async def _create_alone(self, count: int) -> None:
        for node, index, allocation in await self.callers.each(range(count), lambda _n: self._create(1)):
            self.single.setdefault(node, {})[index] = allocation

    async def _create(self, slots: int) -> tuple[str, int, str]:
        """Create an allocation and wait until it is active. Return its node, its first slot index and its id."""
        body = {
            "sku": "lab.small",
            "ssh_authorized_keys": [_LOGIN],
            "lease_seconds": _LEASE_SECONDS,
            "slot_count": slots,
        }
        made = (await self.callers.request("POST", "/allocations", body)).json()
        await self.watch.until(made["id"], "allocation.activated")
        first = made["slots"][0]
        return first["node_id"], first["slot_index"], made["id"]

    async def _release(self, allocation: str) -> None:
        await self.callers.request("DELETE", f"/allocations/{allocation}")

    async def _damage(self) -> None:
        """Remove the switch port of the first slot on as many nodes as make up one percent of all slots."""
        slots = [(name, 0) for name in self.names[: self.shape.share]]
        for number, host in enumerate(self.hosts):
            mine = {*self.names[number :: len(self.hosts)]}
            await self._instruct(host, Damage([each for each in slots if each[0] in mine]))

    async def _stop(self) -> None:
        await asyncio.gather(*(self._instruct(host, Stop()) for host in self.hosts))
        await self.conn.execute("update work.node_seen set resynced = false")

    async def _start(self, *conditions: Callable[[], Awaitable[bool]]) -> float:
        """Start all agents. Return the seconds until every agent has compared its slots with the desired state of the
        control plane and all `conditions` are true.
        """
        began = time.monotonic()
        await asyncio.gather(*(self._instruct(host, Start()) for host in self.hosts))
        await self._await_conditions(self._has_compared, *conditions)
        return time.monotonic() - began

    async def _await_conditions(self, *conditions: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while True:
                if all([await condition() for condition in conditions]):
                    return
                await asyncio.sleep(_POLL_SECONDS)

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
        found = await asyncio.gather(*(self._instruct(host, CountEffects()) for host in self.hosts))
        return sum((Counter(each.effects) for each in found), Counter[str]())

    async def check(self, expected: dict[str, int]) -> None:
        """Check that the agents had exactly these effects on their hosts since they stopped, and started no machine.

        Raises `UnexpectedEffects` and `ProgramEnded`.
        """
        self.made.check_programs_run()
        effects = await self._effects()
        if not expected and effects:
            raise UnexpectedEffects(f"expected no changes of hosts, but the agents made {effects}")
        wrong = {kind: effects[kind] for kind, count in expected.items() if effects[kind] != count}
        if wrong or effects["machine.start"]:
            raise UnexpectedEffects(
                f"expected the changes {expected} of hosts, but the agents made {effects}"
            )

    async def _instruct(self, host: BenchProcess, instruction: Instruction) -> Done:
        done = await host.request(instruction, Done, _TIMEOUT_SECONDS)
        if done.faults:
            raise UnexpectedEffects("; ".join(done.faults[:20]))
        return done


@asynccontextmanager
async def restartable_nodes(shape: Shape) -> AsyncIterator[RestartableNodes]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        disks = opened.enter_context(memory_folder())
        made = await opened.enter_async_context(site(folder, _SETTINGS))
        clients = [await opened.enter_async_context(client) for client in made.clients()]
        hosts = [
            await opened.enter_async_context(_host(made, number, disks, shape)) for number in range(PROCESSES)
        ]
        conn = await opened.enter_async_context(
            await psycopg.AsyncConnection.connect(made.postgres.admin_dsn, autocommit=True)
        )
        watch = await opened.enter_async_context(running_watch(clients[0]))
        yield RestartableNodes(shape, made, hosts, Callers(clients, watch, AT_ONCE), watch, conn)


@asynccontextmanager
async def _host(made: FleetSite, number: int, disks: Path, shape: Shape) -> AsyncIterator[BenchProcess]:
    async with bench_process("bench.fleet.resync_nodes") as process:
        api = made.apis[number % len(made.apis)]
        log = str(disks / f"nodes-{number}.log")
        await process.request(HostingSettings(api, str(disks), log, shape.slots), Done)
        yield process


def resync(shape: Shape) -> Bench:
    """Return the benchmark for the given number of nodes and slots."""

    @asynccontextmanager
    async def running() -> AsyncIterator[TakeRound]:
        async with restartable_nodes(shape) as made:
            await made.fill()

            async def take(_number: int, progress: Progress) -> Round:
                unchanged = await made.unchanged()
                progress(0.4)
                return {"unchanged": [unchanged], "one_percent": [await made.one_percent()]}

            yield take

    return Bench(
        name="resync",
        explanation="time until 10,000 slices are reconciled after all agents restart, with 0 or 1 % of them changed",
        shape=f"resync of {shape.nodes} nodes with {shape.slots} slots each, agents in {PROCESSES} processes",
        rounds=ROUNDS,
        running=running,
        results=_results,
    )


def _results(rounds: Sequence[Round]) -> tuple[Measurement, ...]:
    return (
        pooled_median("resync.unchanged_s", rounds, "unchanged", "s"),
        pooled_median("resync.one_percent_s", rounds, "one_percent", "s"),
    )


BENCH: Final = resync(SHAPE)
