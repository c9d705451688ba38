"""The control plane's side of the queue of `lab-a`."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from redis.asyncio import Redis

from control_plane import redis_nodes
from control_plane.relay import Enqueued, Relay
from tasks.reading import Task, id_of
from tasks.wire import OrderMessage, encode_order
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.orders import NODE
from tests.agent.sealing import sealed
from tests.servers.redis import Depth, queue_depth


def let_in(url: str) -> Callable[[redis_nodes.NodeLogin], None]:
    """Tells a queue of each session that the control plane grants, in the thread that grants it."""

    async def tell(login: redis_nodes.NodeLogin) -> None:
        async with Redis.from_url(url) as client:
            await redis_nodes.ensure_node_users(client, [login])
            await redis_nodes.end_connections(client, [login.node_id])

    return lambda login: asyncio.run(tell(login))


async def enrolled(plane: FakeControlPlane) -> None:
    """Return as soon as the node is."""
    await eventually_async(lambda: plane.session is not None, 40)


async def send(
    control: Redis,
    task: Task,
    *,
    actor: str | None = None,
    payload: str | None = None,
    relay: Relay | None = None,
) -> None:
    message = OrderMessage(id_of(task), actor or task.body.kind, payload or sealed(task))
    data = encode_order(message, sent_at=datetime.now(UTC))
    outcome = await (relay or Relay(control)).enqueue(NODE, id_of(task), data)
    assert relay or isinstance(outcome, Enqueued), outcome


async def drained(control: Redis) -> None:
    async def empty() -> bool:
        return await queue_depth(control, NODE) == Depth(0, 0)

    await eventually_async(empty)
