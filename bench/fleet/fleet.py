"""`fleet`: thousands of simulated nodes with own queues and credentials; a slice in every slot, created and released.

A round is a fleet of one size with its own control plane. The nodes are registered and enrol through the API, each with
a one-time token and a key pair. Then callers create a slice in every slot, so that all are active at the same time, and
release all of them; a small fleet repeats this. At the end nothing may be lost or duplicated (`bench.fleet.checks`);
the hosts count their changes too. Otherwise the run fails and names the faults. The measurements of finished sizes are
stored, and `--resume` continues after them.

*Cost* is the processor time of the whole system per allocation, from the first request to the last proof. It includes
agents and servers, with their heartbeats, sessions and surveys, but not the callers. It is meaningful on an idle
machine only: on an overloaded machine, orders and reports are sent repeatedly, which costs time too. `fleet.scaling` is
the cost in the largest fleet divided by that in the smallest.
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

from bench.fleet import checks
from bench.fleet.callers import Callers, running_watch
from bench.fleet.hosted import HostingSettings
from bench.fleet.nodes import Faults, FinalState
from bench.fleet.results import details, results
from bench.fleet.site import FleetSite, site
from bench.harness.bench_process import BenchProcess, bench_process
from bench.harness.measure import Bench, Progress, Round, TakeRound, show
from bench.harness.processes import usage_of
from bench.harness.rounds import KeptRounds, kept_file, take_rounds
from bench.harness.servers import bench_folder, memory_folder
from events.ledger.connection import ledger_connection

SLOTS: Final = 8
AT_ONCE: Final = 48
"""Number of allocations that are in progress at the same time."""
NODES_OF_A_PROCESS: Final = 1_152
ADMITTED_AT_ONCE: Final = 32
SURVEY_SECONDS: Final = 600.0
HEARTBEAT_SECONDS: Final = 60.0
"""The control plane sets the heartbeat interval. At five seconds, 4,608 nodes would send 921 heartbeats per second."""
IDLE_SECONDS: Final = 15.0
SURVEY_TIMEOUT_SECONDS: Final = 600.0
DOWN_SECONDS: Final = 900.0
_POLL_SECONDS: Final = 0.5
_SETTINGS: Final = {
    "SLICEPLANE_HEARTBEAT_SECONDS": str(HEARTBEAT_SECONDS),
    "SLICEPLANE_SLICE_NETWORKS": "10.64.0.0/10",
}
_ADMITTING: Final = 0.25
"""Approximate fraction of a round in which the nodes enrol."""
_FAULTS_SHOWN: Final = 20
_LOG_LINES: Final = 8
"""Lines of each log that are shown if a round fails."""


class Size(NamedTuple):
    """Size of a fleet: the number of nodes, and the number of times that each slot is used."""

    nodes: int
    cycles: int


FLEETS: Final = (Size(64, 8), Size(4_608, 1))


class LostOrDuplicated(Exception):
    """The final state contradicts the API's responses, so the run is invalid. The message names each fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        more = f"\nand {len(faults) - _FAULTS_SHOWN} more" if len(faults) > _FAULTS_SHOWN else ""
        super().__init__(f"{len(faults)} faults:\n" + "\n".join(faults[:_FAULTS_SHOWN]) + more)


class _Cycle(NamedTuple):
    """Measurements of one cycle, in which every slot of the fleet gets a slice that is then released.

    `active` and `released` are seconds by allocation, `creating` is the seconds until all allocations were active, and
    `memory` is the bytes in use by each program at that moment.
    """

    active: dict[str, float]
    released: dict[str, float]
    creating: float
    memory: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Fleet:
    """A fleet and its control plane, for one round."""

    size: Size
    slots: int
    made: FleetSite
    hosts: Sequence[BenchProcess]
    callers: Callers

    @property
    def names(self) -> list[str]:
        return [f"n{number:04d}" for number in range(self.size.nodes)]

    async def admit(self, progress: Progress) -> None:
        """Register, enrol and approve all nodes of the fleet; each hosting process runs a share of them."""
        shares = [self.names[number :: len(self.hosts)] for number in range(len(self.hosts))]
        admitted = 0

        def add(count: int) -> None:
            nonlocal admitted
            admitted += count
            progress(admitted / self.size.nodes)

        await asyncio.gather(*(self._admit(*each, add) for each in zip(self.hosts, shares, strict=True)))
        async with asyncio.timeout(SURVEY_TIMEOUT_SECONDS):
            await self._await_surveys()

    async def _admit(self, host: BenchProcess, names: Sequence[str], add: Callable[[int], None]) -> None:
        for start in range(0, len(names), ADMITTED_AT_ONCE):
            batch = names[start : start + ADMITTED_AT_ONCE]
            faults = await host.request(await self.callers.each(batch, self.callers.register), Faults)
            if faults.found:
                raise LostOrDuplicated(faults.found)
            await self.callers.each(batch, lambda name: self.callers.approve(name, self.slots))
            add(len(batch))

    async def _await_surveys(self) -> None:
        """Wait until every node has compared its slots with the desired state and has sent all reports."""
        cursor = ""
        while True:
            page = (await self.callers.request("GET", f"/nodes?limit=500{cursor}")).json()
            if any(node["state"] != "enrolled" for node in page["items"]):
                await asyncio.sleep(_POLL_SECONDS)
            elif page["next_cursor"] is None:
                return
            else:
                cursor = f"&cursor={page['next_cursor']}"

    def cpu(self) -> dict[str, float]:
        return {**self.made.cpu(), "agents": sum(usage_of(host.pid).cpu for host in self.hosts)}

    def memory(self) -> dict[str, float]:
        return {**self.made.memory(), "agents": float(sum(usage_of(host.pid).memory for host in self.hosts))}

    async def run_cycles(self, progress: Progress) -> Round:
        """Create and release a slice in every slot, `size.cycles` times. Raises `LostOrDuplicated`."""
        before, began = self.cpu(), time.monotonic()
        taken = [
            await self._cycle(_part(progress, number / self.size.cycles, 1 / self.size.cycles))
            for number in range(self.size.cycles)
        ]
        wall, cpu = time.monotonic() - began, _difference(self.cpu(), before)
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

    async def _cycle(self, progress: Progress) -> _Cycle:
        count, began = self.size.nodes * self.slots, time.monotonic()
        active = await self.callers.create(count, lambda done: progress(done / count / 2))
        creating, memory = time.monotonic() - began, self.memory()
        released = await self.callers.release([*active], lambda done: progress(0.5 + done / count / 2))
        return _Cycle(active, released, creating, memory)

    async def idle(self) -> Round:
        """Measure how many processors the idle fleet uses, in total and by program, while there are no requests."""
        before, began = self.cpu(), time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        spent_by, seconds = _difference(self.cpu(), before), time.monotonic() - began
        return {
            "idle": [sum(spent_by.values()) / seconds],
            **{f"idle.{name}": [each / seconds] for name, each in spent_by.items()},
        }

    async def _check(self, created: Sequence[str]) -> None:
        """Check ledger, queues and hosts after all allocations were released. Raises `LostOrDuplicated`."""
        self.made.check_programs_run()
        faults = await self._verified()
        downs = await asyncio.gather(*(host.request(None, FinalState, DOWN_SECONDS) for host in self.hosts))
        async with self.made.database() as conn:
            found = await checks.read_timelines(await ledger_connection(conn))
            faults += [*checks.timeline_faults(found, created), *await checks.ledger_faults(conn)]
        async with Redis.from_url(self.made.redis.url) as redis:
            faults += await checks.queue_faults(redis, self.names)
        carried = checks.by_node(found.slots())
        for down in downs:
            faults += down.faults
            for node in down.nodes:
                faults += checks.host_faults(carried[node.name], node)
        if faults:
            raise LostOrDuplicated(faults)

    async def _verified(self) -> list[str]:
        """Let the control plane verify its read models against the ledger. Return the differences."""
        requested = (await self.callers.request("POST", "/verifications")).json()["id"]
        while True:
            view = (await self.callers.request("GET", f"/verifications/{requested}")).json()
            if view["ended_at"] is not None:
                break
            await asyncio.sleep(_POLL_SECONDS)
        if view["stopped"]:
            return [f"verification stopped: {view['stopped']}"]
        return [f"verification: {each}" for each in view["differences"]]


def _part(progress: Progress, first: float, share: float) -> Progress:
    """Return a callback for the progress of one part of a round, from `first` to `first + share` of the whole round."""
    return lambda done: progress(first + share * done)


def _difference(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {name: number - before[name] for name, number in now.items()}


@asynccontextmanager
async def _fleet(size: Size, slots: int) -> AsyncIterator[_Fleet]:
    async with AsyncExitStack() as opened:
        folder = opened.enter_context(bench_folder())
        disks = opened.enter_context(memory_folder())
        made = await opened.enter_async_context(site(folder, _SETTINGS))
        clients = [await opened.enter_async_context(client) for client in made.clients()]
        hosts = [
            await opened.enter_async_context(_host(made, number, disks, slots))
            for number in range(-(-size.nodes // NODES_OF_A_PROCESS))
        ]
        watch = await opened.enter_async_context(running_watch(clients[0]))
        try:
            yield _Fleet(size, slots, made, hosts, Callers(clients, watch, AT_ONCE))
        except Exception:
            # Show the ends of the logs now: their folders are deleted at the end of the round.
            for path in sorted([*folder.glob("*.log"), *disks.glob("*.log")]):
                last = path.read_text(errors="replace").splitlines()[-_LOG_LINES:]
                show("\n".join([f"--- {path.name}", *last, ""]))
            raise


@asynccontextmanager
async def _host(made: FleetSite, number: int, disks: Path, slots: int) -> AsyncIterator[BenchProcess]:
    async with bench_process("bench.fleet.nodes") as process:
        api = made.apis[number % len(made.apis)]
        log = str(disks / f"nodes-{number}.log")
        await process.request(HostingSettings(api, str(disks), log, slots, SURVEY_SECONDS), Faults)
        yield process


def fleet(sizes: Sequence[Size], slots: int = SLOTS) -> Bench:
    """Return the benchmark for fleets of these sizes."""

    @asynccontextmanager
    async def running() -> AsyncIterator[TakeRound]:
        async def take(number: int, progress: Progress) -> Round:
            async with _fleet(sizes[number], slots) as made:
                began = time.monotonic()
                await made.admit(_part(progress, 0.0, _ADMITTING))
                show(f"fleet: {sizes[number].nodes} nodes are up ({time.monotonic() - began:.0f} s)\n")
                idle = await made.idle()
                return {**idle, **await made.run_cycles(_part(progress, _ADMITTING, 1 - _ADMITTING))}

        yield take

    counts = ", ".join(f"{size.nodes} nodes x {size.cycles} cycles" for size in sizes)
    shape = f"fleets of {counts}, {slots} slots per node"
    return Bench(
        name="fleet",
        explanation="thousands of simulated nodes: a slice in every slot is created, becomes active, and is released",
        shape=f"{shape}, {AT_ONCE} allocations in progress, a heartbeat every {HEARTBEAT_SECONDS} s",
        rounds=len(sizes),
        running=running,
        results=results,
    )


BENCH: Final = fleet(FLEETS)


def main(arguments: Sequence[str]) -> None:
    """`python -m bench.fleet.fleet 64x4 256 [--slots 8]`: run fleets of these sizes and print all their measurements.

    `64x4` is a fleet of 64 nodes in which each slot is used 4 times; in a fleet without `x`, it is used once.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.fleet.fleet")
    parser.add_argument("sizes", nargs="+", metavar="NODES[xCYCLES]")
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument(
        "--resume", action="store_true", help="continue after the finished sizes of an interrupted run"
    )
    options = parser.parse_args(arguments)
    bench = fleet([_size(each) for each in options.sizes], options.slots)
    kept = KeptRounds(kept_file("fleet-sizes"), bench.shape)
    for each in asyncio.run(take_rounds(bench, kept, resume=options.resume, show=show)):
        for measurement in (*results([each]), *details(each)):
            show(
                f"{int(each['nodes'][0])} nodes: {measurement.metric} {measurement.value:g} {measurement.unit}\n"
            )


def _size(word: str) -> Size:
    nodes, _, cycles = word.partition("x")
    return Size(int(nodes), int(cycles or 1))


if __name__ == "__main__":
    main(sys.argv[1:])
