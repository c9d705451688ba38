"""The agent restart benchmark at its smallest size runs and rejects unexpected effects on a host."""

import pytest

from bench.fleet.resync import Shape, UnexpectedEffects, restartable_nodes


async def test_restarted_agents_reconcile_changed_slots_and_modify_no_others() -> None:
    async with restartable_nodes(Shape(nodes=2, slots=2)) as made:
        await made.fill()
        assert await made.unchanged() > 0
        assert await made.one_percent() > 0
        with pytest.raises(UnexpectedEffects, match="expected no changes of hosts"):
            await made.check({})
