"""Two projectors that both believe they lead, and one whose view of the log's end is old: nothing is done twice."""

import asyncio

from control_plane.followers import ledger_dsn
from control_plane.outage import DATABASE_AWAY
from control_plane.projector.advance import Advance
from control_plane.projector.rebuild import Rebuild
from control_plane.wiring import Plane, plane
from events.tail import Tail
from events.values import Position
from read_models.checkpoints import Overtaken
from read_models.generations import IDLE
from read_models.projections import PROJECTIONS
from tests.projections.keeping import caught_up, show, some_life, verify
from tests.servers.plane import RunningPlane


class NothingKnown(Tail):
    """What a tail says while an appender hangs."""

    async def final(self) -> Position:
        return Position(0)


async def test_a_tail_that_knows_nothing_moves_no_checkpoint_back(running_plane: RunningPlane) -> None:
    await asyncio.to_thread(some_life, running_plane)
    stories = [PROJECTIONS["allocations"]]
    async with plane(running_plane.settings) as made:
        advance = Advance(made.engine, NothingKnown(ledger_dsn(made)), stories, IDLE, 100)
        await advance.begin()
        while await advance.step():
            pass
        reached = advance.position
        await advance.stream()

        assert advance.position == reached > 0
        assert not await advance.step()


async def test_two_rebuilds_at_once_swap_once_and_nothing_is_lost(running_plane: RunningPlane) -> None:
    await asyncio.to_thread(some_life, running_plane)
    await asyncio.to_thread(caught_up, running_plane)
    async with plane(running_plane.settings) as made:
        for _ in range(3):
            await asyncio.to_thread(running_plane.client().post, "/projections/holdings/rebuild")
            ended = await asyncio.gather(_rebuild(made), _rebuild(made), return_exceptions=True)
            assert all(each is None or isinstance(each, (Overtaken, *DATABASE_AWAY)) for each in ended), ended

    await asyncio.to_thread(caught_up, running_plane)
    assert show(running_plane, "holdings")["state"] in {"live", "rebuilding"}
    assert (await asyncio.to_thread(verify, running_plane))["state"] == "equal"


async def _rebuild(made: Plane) -> None:
    """As a projector does beside the one that runs in the control plane."""
    tail = Tail(ledger_dsn(made))
    try:
        await Rebuild(made.handle, tail)([PROJECTIONS["holdings"]])
    finally:
        await tail.close()
