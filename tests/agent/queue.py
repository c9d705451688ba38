"""Control plane side of the task queue of `lab-a`: send tasks and wait until they are processed."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from redis.asyncio import Redis

from control_plane.queues import redis_nodes
from control_plane.queues.relay import Enqueued, Relay
from tasks.reading import Task, id_of
from tasks.wire import OrderMessage, encode_order
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.orders import NODE
from tests.agent.task_signing import sealed
from tests.servers.redis import Depth, queue_depth


def create_session_users(url: str) -> Callable[[redis_nodes.NodeLogin], None]:
    """Return a callback that creates the Redis user of a granted session, in the thread that grants the session."""

    async def create_user(login: redis_nodes.NodeLogin) -> None:
        async with Redis.from_url(url) as client:
            await redis_nodes.ensure_node_users(client, [login])
            await redis_nodes.end_connections(client, [login.node_id])

    return lambda login: asyncio.run(create_user(login))


async def await_enrolment(plane: FakeControlPlane) -> None:
    """Return once the node has a session with the fake control plane."""
    await eventually_async(lambda: plane.session is not None, 40)


async def send(
    control: Redis,
    task: Task,
    *,
    actor: str | None = None,
    payload: str | None = None,
    relay: Relay | None = None,
) -> None:
    """Send a task to the queue of `lab-a`. `actor` and `payload` replace the message's actor name and signed text;
    `relay` replaces the default `Relay`, and then the task need not be enqueued.
    """
    message = OrderMessage(id_of(task), actor or task.body.kind, payload or sealed(task))
    data = encode_order(message, sent_at=datetime.now(UTC))
    outcome = await (relay or Relay(control)).enqueue(NODE, id_of(task), data)
    assert relay or isinstance(outcome, Enqueued), outcome


async def await_empty_queue(control: Redis) -> None:
    """Return once the task queue of `lab-a` is empty."""

    async def empty() -> bool:
        return await queue_depth(control, NODE) == Depth(0, 0)

    await eventually_async(empty)
