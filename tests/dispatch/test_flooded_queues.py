"""A node that writes without end into its own queue loses it, and nothing that was to be done."""

import redis
from structlog.testing import capture_logs

from control_plane.relay import MAX_DEPTH
from control_plane.sweeper import TIDY_ROUND, Sweeper
from tests.dispatch.given import Given, a_task


async def test_a_queue_that_its_node_flooded_is_taken_away_and_its_orders_are_sent_anew(
    sweeper: Sweeper, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    given.heard("n1")
    given.rows(
        """insert into read.node (node_id, version, state, subnet, l2_domain, token_sha256, token_expires_at, key_thumbprint)
        values ('n1', 1, 'enrolled', '', '', '', clock_timestamp(), 'some key') returning 1"""
    )
    await sweeper.send_due()
    admin.hset(
        "ctl:n1:slices.held", mapping={f"nonsense-{number}": "nobody" for number in range(MAX_DEPTH + 1)}
    )
    with capture_logs() as lines:
        for turn in range(TIDY_ROUND):
            await sweeper.withdraw_stranded(turn)
    assert [(each["event"], each["nodes"]) for each in lines] == [("queue_flooded", ("n1",))]
    assert admin.keys("ctl:n1:*") == []
    given.overdue()
    await sweeper.send_due()
    assert admin.lrange("ctl:n1:slices", 0, -1) == [str(order)]
