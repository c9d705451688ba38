"""The bench of restarts at its smallest: it runs, and a host that was touched without need does not pass."""

import pytest

from bench.resync import Shape, Touched, restarting


async def test_agents_restart_over_what_they_left_and_what_was_changed_is_made_good() -> None:
    async with restarting(Shape(nodes=2, slots=2)) as made:
        await made.fill()
        assert await made.unchanged() > 0
        assert await made.one_percent() > 0
        with pytest.raises(Touched, match="nothing was to be done"):
            await made.check({})
