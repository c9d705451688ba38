"""The control plane's side of the queue of `lab-a`."""

from datetime import UTC, datetime

from redis.asyncio import Redis

from control_plane import redis_nodes
from control_plane.relay import Depth, Relay
from tasks.orders import Order
from tasks.wire import OrderMessage, encode_order
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.orders import NODE


async def admit(plane: FakeControlPlane, control: Redis) -> None:
    await eventually_async(lambda: bool(plane.enrolments), 40)
    login = redis_nodes.NodeLogin(NODE, plane.enrolments[-1].queue_password_sha256)
    await redis_nodes.ensure_node_user(control, login)


async def send(
    control: Redis,
    order: Order,
    *,
    actor: str | None = None,
    payload: str | None = None,
    relay: Relay | None = None,
) -> None:
    message = OrderMessage(order.order_id, actor or order.body.kind, payload or order.model_dump_json())
    data = encode_order(message, sent_at=datetime.now(UTC))
    await (relay or Relay(control)).enqueue(NODE, order.order_id, data)


async def drained(control: Redis) -> None:
    relay = Relay(control)

    async def empty() -> bool:
        return await relay.queue_depth(NODE) == Depth(0, 0)

    await eventually_async(empty)
