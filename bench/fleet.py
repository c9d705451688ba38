"""`fleet`: thousands of simulated nodes with their own queues and credentials, a slice in every slot, in and out.

A round is a fleet of one size, on a control plane of its own. Its nodes are admitted and enrol by the API, each
with a one-time token and a key pair. Then callers create a slice for every slot, so that all are active at once, and
release them all; a small fleet does so several times. At the end nothing may be lost or doubled (`fleet_checks`),
counted at the hosts too, or the run fails and names it. Sizes that are done are kept; `--resume` goes on behind them.

*Cost* is the processors' time of the whole system, agents and servers included and callers not, from the first
request to the last proof, by allocation. It holds all that goes on beside: heartbeats, sessions, surveys. It says
something on a quiet machine only: an overloaded one sends orders and reports again, and that is work too.
`fleet.scaling` is the cost in the largest fleet over that in the smallest.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from redis.asyncio import Redis

from bench import fleet_checks as checks
from bench.fleet_callers import Callers, watching
from bench.fleet_nodes import Down, Faults
from bench.fleet_results import details, results
from bench.fleet_site import Site, site
from bench.hosted import Hosting
from bench.lines import Told, told
from bench.measure import Bench, Progress, Round, TakeRound, say
from bench.processes import spent
from bench.rounds import KeptRounds, kept_file, take_rounds
from bench.servers import bench_folder, memory_folder
from events.connection import ledger_connection

SLOTS: Final = 8
AT_ONCE: Final = 48
"""Allocations under way."""
NODES_OF_A_PROCESS: Final = 1_152
ADMITTED_AT_ONCE: Final = 32
SURVEY_SECONDS: Final = 600.0
HEARTBEAT_SECONDS: Final = 60.0
"""4,608 nodes every five would be 921 beats a second. How often is the control plane's to say."""
IDLE_SECONDS: Final = 15.0
SETTLE_SECONDS: Final = 600.0
DOWN_SECONDS: Final = 900.0
_LOOK_SECONDS: Final = 0.5
_TOLD: Final = {
    "SLICEPLANE_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
    "SLICEPLANE_SLICE_NETWORKS": "10.64.0.0/10",
}
_ADMITTING: Final = 0.25
"""The part of a round, more or less, in which the nodes are admitted."""
_FAULTS: Final = 20
_LAST: Final = 8
"""Lines of each log that a failed round shows."""


class Size(NamedTuple):
    """A fleet's nodes, and how often each of their slots is used."""

    nodes: int
    cycles: int


FLEETS: Final = (Size(64, 8), Size(4_608, 1))


class LostOrDoubled(Exception):
    """The run shows nothing: something is not as the callers were told. The message names it."""

    def __init__(self, faults: Sequence[str]) -> None:
        more = f"\nand {len(faults) - _FAULTS} more" if len(faults) > _FAULTS else ""
        super().__init__(f"{len(faults)} faults:\n" + "\n".join(faults[:_FAULTS]) + more)


class _Life(NamedTuple):
    """A slice in every slot: seconds to active and to released by allocation, seconds until all were active, and the
    memory in use then."""

    active: dict[str, float]
    released: dict[str, float]
    creating: float
    memory: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Fleet:
    """A fleet and its control plane, for one round."""

    size: Size
    slots: int
    made: Site
    hosts: Sequence[Told]
    callers: Callers

    @property
    def names(self) -> list[str]:
        return [f"n{number:04d}" for number in range(self.size.nodes)]

    async def admit(self, progress: Progress) -> None:
        """All nodes, each process its own."""
        shares = [self.names[number :: len(self.hosts)] for number in range(len(self.hosts))]
        admitted = 0

        def more(count: int) -> None:
            nonlocal admitted
            admitted += count
            progress(admitted / self.size.nodes)

        await asyncio.gather(*(self._admit(*each, more) for each in zip(self.hosts, shares, strict=True)))
        async with asyncio.timeout(SETTLE_SECONDS):
            await self._settled()

    async def _admit(self, host: Told, names: Sequence[str], more: Callable[[int], None]) -> None:
        for start in range(0, len(names), ADMITTED_AT_ONCE):
            batch = names[start : start + ADMITTED_AT_ONCE]
            faults = await host.ask(await self.callers.each(batch, self.callers.expect), Faults)
            if faults.found:
                raise LostOrDoubled(faults.found)
            await self.callers.each(batch, lambda name: self.callers.approve(name, self.slots))
            more(len(batch))

    async def _settled(self) -> None:
        """Until every node has compared its slots and told all that it found."""
        cursor = ""
        while True:
            page = (await self.callers.ask("GET", f"/nodes?limit=500{cursor}")).json()
            if any(node["state"] != "enrolled" for node in page["items"]):
                await asyncio.sleep(_LOOK_SECONDS)
            elif page["next_cursor"] is None:
                return
            else:
                cursor = f"&cursor={page['next_cursor']}"

    def cpu(self) -> dict[str, float]:
        return {**self.made.cpu(), "agents": sum(spent(host.pid).cpu for host in self.hosts)}

    def memory(self) -> dict[str, float]:
        return {**self.made.memory(), "agents": float(sum(spent(host.pid).memory for host in self.hosts))}

    async def lives(self, progress: Progress) -> Round:
        """A slice in every slot, and out again; so often as the size says. Raises `LostOrDoubled`."""
        before, began = self.cpu(), time.monotonic()
        taken = [
            await self._life(_part(progress, number / self.size.cycles, 1 / self.size.cycles))
            for number in range(self.size.cycles)
        ]
        wall, cpu = time.monotonic() - began, _less(self.cpu(), before)
        created = [name for each in taken for name in each.active]
        await self._check(created)
        count = len(created)
        return {
            "nodes": [float(self.size.nodes)],
            "completed": [float(count)],
            "active": [seconds for each in taken for seconds in each.active.values()],
            "released": [seconds for each in taken for seconds in each.released.values()],
            "creating": [each.creating for each in taken],
            "wall": [wall / count],
            "cost": [sum(cpu.values()) / count],
            **{f"cost.{name}": [each / count] for name, each in cpu.items()},
            **{f"memory.{name}": [each] for name, each in taken[-1].memory.items()},
        }

    async def _life(self, progress: Progress) -> _Life:
        count, began = self.size.nodes * self.slots, time.monotonic()
        active = await self.callers.create(count, lambda done: progress(done / count / 2))
        creating, memory = time.monotonic() - began, self.memory()
        released = await self.callers.release([*active], lambda done: progress(0.5 + done / count / 2))
        return _Life(active, released, creating, memory)

    async def idle(self) -> Round:
        """Processors in use while nothing is asked for."""
        before, began = self.cpu(), time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        spent_by, seconds = _less(self.cpu(), before), time.monotonic() - began
        return {
            "idle": [sum(spent_by.values()) / seconds],
            **{f"idle.{name}": [each / seconds] for name, each in spent_by.items()},
        }

    async def _check(self, created: Sequence[str]) -> None:
        """Raises `LostOrDoubled`."""
        self.made.see_to_it()
        faults = await self._verified()
        downs = await asyncio.gather(*(host.ask(None, Down, DOWN_SECONDS) for host in self.hosts))
        async with self.made.database() as conn:
            found = await checks.stories(await ledger_connection(conn))
            faults += [*checks.told_faults(found, created), *await checks.ledger_faults(conn)]
        async with Redis.from_url(self.made.redis.url) as redis:
            faults += await checks.queue_faults(redis, self.names)
        carried = checks.by_node(found.slots())
        for down in downs:
            faults += down.faults
            for holding in down.nodes:
                faults += checks.host_faults(carried[holding.name], holding)
        if faults:
            raise LostOrDoubled(faults)

    async def _verified(self) -> list[str]:
        """What the read models hold otherwise than the log says."""
        asked = (await self.callers.ask("POST", "/verifications")).json()["id"]
        while True:
            view = (await self.callers.ask("GET", f"/verifications/{asked}")).json()
            if view["ended_at"] is not None:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        if view["stopped"]:
            return [f"verification stopped: {view['stopped']}"]
        return [f"verification: {each}" for each in view["differences"]]


def _part(progress: Progress, first: float, share: float) -> Progress:
    """Progress of a part, as progress of the whole."""
    return lambda done: progress(first + share * done)


def _less(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: number - before[name] for name, number in now.items()}


@asynccontextmanager
async def _fleet(size: Size, slots: int) -> AsyncIterator[_Fleet]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        disks = opened.enter_context(memory_folder())
        made = await opened.enter_async_context(site(folder, _TOLD))
        clients = [await opened.enter_async_context(client) for client in made.clients()]
        hosts = [
            await opened.enter_async_context(_host(made, number, disks, slots))
            for number in range(-(-size.nodes // NODES_OF_A_PROCESS))
        ]
        watch = await opened.enter_async_context(watching(clients[0]))
        try:
            yield _Fleet(size, slots, made, hosts, Callers(clients, watch, AT_ONCE))
        except Exception:
            # Folders go with the round, and the reason may be in them.
            for path in sorted([*folder.glob("*.log"), *disks.glob("*.log")]):
                last = path.read_text(errors="replace").splitlines()[-_LAST:]
                say("\n".join([f"--- {path.name}", *last, ""]))
            raise


@asynccontextmanager
async def _host(made: Site, number: int, disks: Path, slots: int) -> AsyncIterator[Told]:
    async with told("bench.fleet_nodes") as process:
        api = made.apis[number % len(made.apis)]
        log = str(disks / f"nodes-{number}.log")
        await process.ask(Hosting(api, str(disks), log, slots, SURVEY_SECONDS), Faults)
        yield process


def fleet(sizes: Sequence[Size], slots: int = SLOTS) -> Bench:
    """The bench of fleets of these sizes."""

    @asynccontextmanager
    async def running() -> AsyncIterator[TakeRound]:
        async def take(number: int, progress: Progress) -> Round:
            async with _fleet(sizes[number], slots) as made:
                began = time.monotonic()
                await made.admit(_part(progress, 0.0, _ADMITTING))
                say(f"fleet: {sizes[number].nodes} nodes are up ({time.monotonic() - began:.0f} s)\n")
                idle = await made.idle()
                return {**idle, **await made.lives(_part(progress, _ADMITTING, 1 - _ADMITTING))}

        yield take

    shape = f"fleets of {', '.join(f'{size.nodes} x {size.cycles}' for size in sizes)} nodes, {slots} slots"
    return Bench(
        name="fleet",
        explanation="a slice in every slot of thousands of simulated nodes, created, active, released",
        shape=f"{shape}, {AT_ONCE} under way, a heartbeat every {HEARTBEAT_SECONDS} s",
        rounds=len(sizes),
        running=running,
        results=results,
    )


BENCH: Final = fleet(FLEETS)


def main(arguments: Sequence[str]) -> None:
    """`python -m bench.fleet 64x4 256 [--slots 8]`: fleets of these sizes, with everything that was counted."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet")
    parser.add_argument("sizes", nargs="+", metavar="NODES[xCYCLES]")
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--resume", action="store_true", help="go on with the sizes of an interrupted run")
    asked = parser.parse_args(arguments)
    bench = fleet([_size(each) for each in asked.sizes], asked.slots)
    kept = KeptRounds(kept_file("fleet-sizes"), bench.shape)
    for each in asyncio.run(take_rounds(bench, kept, resume=asked.resume, say=say)):
        for measurement in (*results([each]), *details(each)):
            say(
                f"{int(each['nodes'][0])} nodes: {measurement.metric} {measurement.value:g} {measurement.unit}\n"
            )


def _size(word: str) -> Size:
    nodes, _, cycles = word.partition("x")
    return Size(int(nodes), int(cycles or 1))


if __name__ == "__main__":
    main(sys.argv[1:])
