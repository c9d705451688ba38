"""A pass over the waiting requests also places those that fit on a node that it has released (ALC-13)."""

from datetime import timedelta

from control_plane.commands.placement_request import WaitOptions
from events.values import NodeId
from tests.projections.fleet import living
from tests.servers.postgres import Database

HOUR = 3600
FIRST, SECOND = NodeId("node-a"), NodeId("node-b")


async def test_waiting_request_that_fits_on_a_node_that_is_no_longer_kept_is_placed_in_the_same_pass(
    database: Database,
) -> None:
    usual, urgent = (WaitOptions(priority, timedelta(hours=9), 10) for priority in (0, 1))
    async with living(database) as fleet:
        for node in (FIRST, SECOND):
            await fleet.bring_up(node, 2)
        assert await fleet.create(1, "red", node=FIRST)
        assert await fleet.create(2, "red", node=SECOND)
        large = await fleet.create(2, "red", node=FIRST, wait=usual)
        await fleet.place_queued()
        # The free slot is kept for the large request, because this lease ends after the large one can start.
        small = await fleet.create(1, "blue", lease_seconds=8 * HOUR, wait=usual)
        await fleet.place_queued()
        assert fleet.queued == [large, small]
        # Of the requests for a SKU, only the first one that does not fit has a kept node.
        first = await fleet.create(2, "red", node=SECOND, wait=urgent)
        await fleet.place_queued()
        assert fleet.queued == [large, first]
        assert small in fleet.placed
