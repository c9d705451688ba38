"""Tests of a node that floods its own queue: the queue is deleted, and the node's orders are sent again."""

import redis
from structlog.testing import capture_logs

from control_plane.dispatcher.task_sender import TIDY_ROUND, TaskSender
from control_plane.queues.relay import MAX_DEPTH
from tests.dispatch.given import Given, a_task


async def test_queue_flooded_by_its_node_is_deleted_and_its_orders_are_sent_again(
    task_sender: TaskSender, given: Given, admin: redis.Redis
) -> None:
    [order] = await given.tasks(a_task("n1"))
    given.heartbeat("n1")
    given.rows(
        """insert into read.node (node_id, version, state, subnet, l2_domain, token_sha256, token_expires_at, key_thumbprint)
        values ('n1', 1, 'enrolled', '', '', '', clock_timestamp(), 'some key') returning 1"""
    )
    await task_sender.send_due()
    admin.hset("ctl:n1:slices.held", mapping={f"junk-{number}": "absent" for number in range(MAX_DEPTH + 1)})
    with capture_logs() as lines:
        for turn in range(TIDY_ROUND):
            await task_sender.withdraw_stranded(turn)
    assert [(each["event"], each["nodes"]) for each in lines] == [("flooded_task_queues_deleted", ("n1",))]
    assert admin.keys("ctl:n1:*") == []
    given.overdue()
    await task_sender.send_due()
    assert admin.lrange("ctl:n1:slices", 0, -1) == [str(order)]
