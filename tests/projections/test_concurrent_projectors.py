"""Tests of two projectors that lead at the same time, and of a projector that read an outdated end of the ledger: no
event is projected twice.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from control_plane.dispatcher.dispatcher_program import ledger_dsn
from control_plane.outage import DATABASE_UNAVAILABLE
from control_plane.projector.advance import Advance
from control_plane.projector.rebuild import Rebuild
from control_plane.wiring import Plane, plane
from events.ledger.tail import Tail
from events.values import NodeId, Position
from read_models.checkpoints import CheckpointSuperseded
from read_models.generations import IDLE
from read_models.projections import PROJECTIONS
from tests.projections.fleet import living
from tests.projections.plane_requests import caught_up, create_history, show, verify
from tests.servers.plane import RunningPlane
from tests.servers.postgres import Database


class HeldBackTail(Tail):
    """Ledger reader that returns 0 as the final position, as a real one does while an appender hangs."""

    async def final(self) -> Position:
        return Position(0)


async def test_projector_with_an_outdated_final_position_does_not_move_a_checkpoint_back(
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


async def test_two_concurrent_rebuilds_of_one_read_model_lose_no_event(running_plane: RunningPlane) -> None:
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


class InterruptedTail(Tail):
    """Ledger reader that runs the function `meanwhile` before it returns its first result, as if its process was
    suspended at this moment.
    """

    def __init__(self, dsn: str, meanwhile: Callable[[], Awaitable[None]]) -> None:
        super().__init__(dsn)
        self._meanwhile: Callable[[], Awaitable[None]] | None = meanwhile

    async def final(self) -> Position:
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().final()


async def test_requested_rebuild_of_a_read_model_ends_although_a_newer_rebuild_is_requested_meanwhile(
    database: Database,
) -> None:
    async with living(database) as fleet:
        await fleet.bring_up(NodeId("node-a"), slots=3)

        async def another_rebuild() -> None:
            await Rebuild(fleet.handle, fleet.tail)([PROJECTIONS["slots"]])
            await fleet.order_rebuild("slots")

        await fleet.order_rebuild("slots")
        suspended = InterruptedTail(database.app_dsn, another_rebuild)
        async with asyncio.timeout(20):
            with pytest.raises(CheckpointSuperseded):
                await Rebuild(fleet.handle, suspended)([PROJECTIONS["slots"]])
        await suspended.close()
        await Rebuild(fleet.handle, fleet.tail)([PROJECTIONS["slots"]])
        assert await fleet.verify() == ()


async def _rebuild(made: Plane) -> None:
    """Rebuild the read model `holdings`, as a second projector beside the projector of the control plane would."""
    tail = Tail(ledger_dsn(made))
    try:
        await Rebuild(made.handle, tail)([PROJECTIONS["holdings"]])
    finally:
        await tail.close()
