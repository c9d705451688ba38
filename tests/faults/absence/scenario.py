"""Program that lets the control plane be away for an hour, with allocations in every situation, and then return.

The program is the host of the control plane: it runs the commands of the API and the dispatcher, with a clock that a
test shifts. The hour passes on the clock of the database server, which the program steps. The nodes are this program
too; each report has the time of its node's clock. The result has the situation of each allocation.
"""

import asyncio
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from pydantic import SecretStr

from control_plane.commands.placement_request import WaitOptions
from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher
from control_plane.settings import Settings
from deploy.embedded.stack import sqlalchemy_url
from events.values import AllocationId, NodeId, Position, SlotId, node_of
from tasks import reports
from tests.faults.shifted_clock import ShiftedClock
from tests.projections.fleet import Fleet, living_with

HOUR: Final = 3600
SLOTS_OF_A_NODE: Final = 8
UNREACHABLE_AFTER: Final = timedelta(seconds=20)
ROUND_SECONDS: Final = 25
"""Seconds between two rounds of timers after the return of the control plane: fewer than in a pause that counts as an
outage.
"""
ROUNDS: Final = 29
"""Number of rounds of timers after the return of the control plane. They last longer than the time until a release is
overdue.
"""
LATE_START, LATE_REMOVAL = 3, 20
"""Numbers of rounds after the return of the control plane until nodes report a late start (after one minute) and a late
removal (after eight minutes).
"""
_BATCH: Final = 500
_BEGINNING: Final = Position(0)
_FLEET_PROJECTS: Final = ("red", "blue")


class Situation(StrEnum):
    """Situation of an allocation while the control plane is away."""

    RUNS_ON = "active, and its lease ends later"
    EXPIRES = "active, and its lease ends meanwhile"
    STOPPED = "stopped, and its lease ends meanwhile"
    STOPS = "stopping, and its slices are off meanwhile"
    STARTS = "placed, and its slices are ready meanwhile"
    NOT_ORDERED = "placed, and its node starts the slices after the return"
    REMOVED = "releasing, and its slots are empty meanwhile"
    STILL_REMOVING = "releasing, and its slots are empty after the return"
    WAITS = "waiting for capacity, which is free after the return"
    WAIT_ENDS = "waiting for capacity, and its wait ends meanwhile"


WAITING: Final = (Situation.WAITS, Situation.WAIT_ENDS)
_ACTIVE: Final = (
    Situation.RUNS_ON,
    Situation.EXPIRES,
    Situation.STOPPED,
    Situation.STOPS,
    Situation.REMOVED,
    Situation.STILL_REMOVING,
)
_SHORT: Final = (Situation.EXPIRES, Situation.STOPPED)
_SPOOLED: Final = (Situation.STOPS, Situation.STARTS, Situation.REMOVED)


class Errors(msgspec.Struct, frozen=True):
    """Errors of a clock in seconds: before the return of the control plane, and after it."""

    before: int = 0
    after: int = 0


class Configuration(msgspec.Struct, frozen=True):
    """Arguments of the program. `library` is the shared library that shifts clocks. `database_clock` and `own_clock`
    are files with the seconds by which the clocks of the database server and of this program are shifted. `nodes` and
    `own` are the errors of the clocks of the nodes and of this program.
    """

    app_dsn: str
    library: str
    database_clock: str
    own_clock: str
    nodes: Errors
    own: Errors
    allocations: int
    seed: int


class Result(msgspec.Struct, frozen=True):
    """Situation of each allocation, the times by the database's clock at which the control plane stopped and returned,
    and the errors of this program's clock at both times in seconds. `differences` is the number of differences between
    the read models and a replay of the ledger.
    """

    situations: dict[AllocationId, Situation]
    left_at: datetime
    returned_at: datetime
    own_error_before: float
    own_error_after: float
    differences: int


@dataclass
class Absence:
    """The fleet of nodes, the situation of each allocation, and the dispatcher that runs at present."""

    fleet: Fleet
    configuration: Configuration
    dispatcher: Dispatcher
    situations: dict[AllocationId, Situation] = field(default_factory=dict)
    passed: int = 0
    returned: bool = False
    followed: Position = _BEGINNING

    def __post_init__(self) -> None:
        library = Path(self.configuration.library)
        self.random = Random(self.configuration.seed)
        self.database_clock = ShiftedClock(library, Path(self.configuration.database_clock))
        self.own_clock = ShiftedClock(library, Path(self.configuration.own_clock))

    async def now(self) -> datetime:
        async with self.fleet.handle.engine.connect() as conn:
            return await self.fleet.handle.clock(conn)

    def let_pass(self, seconds: int) -> None:
        """Let time pass: step the clock of the database, and that of this program with its error."""
        self.passed += seconds
        self.database_clock.step(self.passed)
        error = self.configuration.own
        self.own_clock.step(self.passed + (error.after if self.returned else error.before))

    async def follow(self) -> None:
        """Evaluate the new events of the ledger as the dispatcher does."""
        while True:
            batch = await self.fleet.tail.batch(self.followed, _BATCH)
            if batch.final == self.followed:
                return
            found = await self.dispatcher.evaluate(batch.events, batch.at)
            async with self.fleet.handle.engine.begin() as conn:
                await self.dispatcher.write(conn, found)
            self.followed = batch.final

    async def fire_timers(self) -> None:
        await self.follow()
        await self.dispatcher.fire_due_timers(self.fleet.handle.engine)
        await self.follow()

    def named(self, *situations: Situation) -> list[AllocationId]:
        return [name for name, each in self.situations.items() if each in situations]

    async def report(self, allocation: AllocationId, what: str) -> None:
        """Deliver a report about each slot of the allocation. Its time is that of the node's clock."""
        errors = self.configuration.nodes
        error = timedelta(seconds=errors.after if self.returned else errors.before)
        for slot in self.fleet.placed[allocation]:
            body = _report(what, slot, allocation)
            moment = await self.now() + error
            assert await self.fleet.report(node_of(slot), body, observed_at=moment)

    async def begin(self) -> None:
        """Create the allocations, and bring each of them into its situation."""
        situations = [*Situation]
        wanted = [situations[number % len(situations)] for number in range(self.configuration.allocations)]
        placed = [each for each in wanted if each not in WAITING]
        nodes = -(-len(placed) // SLOTS_OF_A_NODE)
        for number in range(nodes):
            slots = min(SLOTS_OF_A_NODE, len(placed) - number * SLOTS_OF_A_NODE)
            await self.fleet.bring_up(NodeId(f"node-{number}"), slots)
        for each in sorted(wanted, key=lambda each: each in WAITING):
            await self._create(each)
        for name in self.named(*_ACTIVE):
            await self.report(name, "ready")
        for name in self.named(Situation.STOPPED, Situation.STOPS):
            assert await self.fleet.stop(name)
        for name in self.named(Situation.STOPPED):
            await self.report(name, "stopped")
        await self.fire_timers()
        for name in self.named(Situation.REMOVED, Situation.STILL_REMOVING):
            assert await self.fleet.release(name)

    async def _create(self, situation: Situation) -> None:
        short = situation in _SHORT or situation is Situation.WAIT_ENDS
        seconds = self.random.randint(900, 3000) if short else self.random.randint(3 * HOUR, 48 * HOUR)
        waits = WaitOptions(0, timedelta(seconds=seconds), 10**6) if situation in WAITING else None
        made = await self.fleet.create(
            1, self.random.choice(_FLEET_PROJECTS), lease_seconds=seconds, wait=waits
        )
        assert made is not None, self.fleet.refused
        assert (made in self.fleet.queued) == (situation in WAITING)
        self.situations[made] = situation

    async def come_back(self) -> None:
        """Start a new dispatcher, and let the nodes deliver the reports of what they observed during the absence."""
        self.dispatcher = _dispatcher(self.fleet)
        spooled = defaultdict[NodeId, int](int)
        for name in self.named(*_SPOOLED):
            for slot in self.fleet.placed[name]:
                spooled[node_of(slot)] += 1
        await self.fleet.record_heartbeats(spooled)
        await self.fire_timers()
        for name in self.named(Situation.STOPS):
            await self.report(name, "stopped")
        for name in self.named(Situation.STARTS):
            await self.report(name, "ready")
        for name in self.named(Situation.REMOVED):
            await self.report(name, "removed")

    async def run_on(self) -> None:
        """Let the control plane run on after its return, for longer than any deadline."""
        for number in range(ROUNDS):
            await self.fleet.record_heartbeats()
            await self.fire_timers()
            if number == LATE_START:
                for name in self.named(Situation.NOT_ORDERED):
                    await self.report(name, "ready")
                for name in self.named(*_SHORT):
                    await self.report(name, "removed")
                await self.fleet.place_queued()
                for name in self.named(Situation.WAITS):
                    await self.report(name, "ready")
            if number == LATE_REMOVAL:
                for name in self.named(Situation.STILL_REMOVING):
                    await self.report(name, "removed")
            self.let_pass(ROUND_SECONDS)


def _dispatcher(fleet: Fleet) -> Dispatcher:
    return Dispatcher(fleet.handle, Timing(UNREACHABLE_AFTER))


def _report(what: str, slot: SlotId, allocation: AllocationId) -> reports.ReportBody:
    match what:
        case "ready":
            return reports.SliceReady(
                slot_id=slot, allocation_id=allocation, address="10.0.0.2", port=22, banner="SSH-2.0"
            )
        case "stopped":
            return reports.SliceStopped(slot_id=slot, allocation_id=allocation, forced=False)
        case _:
            return reports.SliceRemoved(slot_id=slot, allocation_id=allocation, absent=("port",))


async def run(configuration: Configuration) -> Result:
    url = sqlalchemy_url(configuration.app_dsn).render_as_string(hide_password=False)
    settings = Settings(
        database_url=SecretStr(url),
        redis_url="redis://127.0.0.1:1",
        place_on_simulated_nodes=True,
        log="console",
    )
    async with living_with(settings) as fleet:
        absence = Absence(fleet, configuration, _dispatcher(fleet))
        absence.let_pass(0)
        await absence.begin()
        left_at, own_left_at = await absence.now(), datetime.now(UTC)
        absence.returned = True
        absence.let_pass(HOUR)
        returned_at, own_returned_at = await absence.now(), datetime.now(UTC)
        await absence.come_back()
        await absence.run_on()
        await fleet.project(["usage", "allocations", "capacity", "billing"], _BATCH)
        differences = len(await fleet.verify())
        return Result(
            absence.situations,
            left_at,
            returned_at,
            (own_left_at - left_at).total_seconds(),
            (own_returned_at - returned_at).total_seconds(),
            differences,
        )


if __name__ == "__main__":
    made = asyncio.run(run(msgspec.json.decode(sys.argv[1], type=Configuration)))
    sys.stdout.write(msgspec.json.encode(made).decode())
