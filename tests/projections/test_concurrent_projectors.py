"""Two projectors that lead at the same time, and one with an outdated end of the ledger, project no event twice."""

import asyncio

from control_plane.dispatcher.dispatcher_program import ledger_dsn
from control_plane.outage import DATABASE_UNAVAILABLE
from control_plane.projector.advance import Advance
from control_plane.projector.rebuild import Rebuild
from control_plane.wiring import Plane, plane
from events.ledger.tail import Tail
from events.values import Position
from read_models.checkpoints import CheckpointSuperseded
from read_models.generations import IDLE
from read_models.projections import PROJECTIONS
from tests.projections.plane_requests import caught_up, create_history, show, verify
from tests.servers.plane import RunningPlane


class HeldBackTail(Tail):
    """A tail that returns position 0 as final, as while an appender hangs."""

    async def final(self) -> Position:
        return Position(0)


async def test_tail_with_an_outdated_final_position_does_not_move_a_checkpoint_back(
    running_plane: RunningPlane,
) -> None:
    await asyncio.to_thread(create_history, running_plane)
    projections = [PROJECTIONS["allocations"]]
    async with plane(running_plane.settings) as made:
        advance = Advance(made.engine, HeldBackTail(ledger_dsn(made)), projections, IDLE, 100)
        await advance.begin()
        while await advance.step():
            pass
        reached = advance.position
        await advance.stream()

        assert advance.position == reached > 0
        assert not await advance.step()


async def test_two_concurrent_rebuilds_of_one_projection_lose_no_event(running_plane: RunningPlane) -> None:
    await asyncio.to_thread(create_history, running_plane)
    await asyncio.to_thread(caught_up, running_plane)
    async with plane(running_plane.settings) as made:
        for _ in range(3):
            await asyncio.to_thread(running_plane.client().post, "/projections/holdings/rebuild")
            ended = await asyncio.gather(_rebuild(made), _rebuild(made), return_exceptions=True)
            assert all(
                each is None or isinstance(each, (CheckpointSuperseded, *DATABASE_UNAVAILABLE))
                for each in ended
            ), ended

    await asyncio.to_thread(caught_up, running_plane)
    assert show(running_plane, "holdings")["state"] in {"live", "rebuilding"}
    assert (await asyncio.to_thread(verify, running_plane))["state"] == "equal"


async def _rebuild(made: Plane) -> None:
    """Rebuild `holdings` as a second projector, beside the one that runs in the control plane."""
    tail = Tail(ledger_dsn(made))
    try:
        await Rebuild(made.handle, tail)([PROJECTIONS["holdings"]])
    finally:
        await tail.close()
