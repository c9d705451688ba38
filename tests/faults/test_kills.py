"""On real nodes, beside the matrices: news of a node whose API is dead, and orders that its slot must not carry out."""

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from redis.asyncio import Redis

from control_plane.relay import Relay
from events.values import NodeId, allocation_of, new_uuid
from tasks.orders import Order, Token
from tasks.sealed import seal
from tasks.signing import Signer
from tasks.wire import OrderMessage, encode_order
from tests.faults.programs import Lab
from tests.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]


def test_what_a_node_cannot_tell_its_dead_api_it_tells_the_next(lab: Lab) -> None:
    before, api = lab.lives(), lab.stack.programs["api"]
    allocation = lab.create()
    try:
        until(lambda: "slice0" in lab.machines(), "the machine was started")
        lab.signal("api", signal.SIGKILL)
        # Nobody starts it again before the node has news that it cannot deliver: it knows no other API.
        spool = lab.node.folder / "agent" / "spool" / "reports.jsonl"
        until(lambda: told_ready(spool, allocation), "readiness is spooled while the API is away", 60)
        assert api.status == -signal.SIGKILL
        assert not lab.is_active(allocation)
        lab.await_state(allocation, "active")
        assert (lab.machines(), lab.ports()) == (["slice0"], ["slice0"])
        assert lab.lives().since(before).starts == 1
    finally:
        lab.give_back(allocation)


def test_older_orders_and_changed_ones_are_refused(lab: Lab) -> None:
    allocation = lab.create()
    try:
        lab.await_state(allocation, "active")
        real = Order.model_validate_json(last_order(lab))
        older = real.model_copy(
            update={
                "order_id": new_uuid(),
                "allocation_id": allocation_of(new_uuid()),
                "token": Token(real.token.epoch, real.token.position - 1),
            }
        )
        changed = real.model_copy(
            update={"order_id": new_uuid(), "allocation_id": allocation_of(new_uuid())},
        )
        assert answer_to(lab, older) == "stale_token"
        assert answer_to(lab, changed) == "conflicting_content"
        assert lab.state(allocation) == "active"
        assert lab.machines() == ["slice0"]
    finally:
        lab.give_back(allocation)


def told_ready(spool: Path, allocation: str) -> bool:
    """Whether the node's spool holds the readiness of this allocation."""
    return any(allocation in line and "slice.ready" in line for line in spool.read_text().splitlines())


def last_order(lab: Lab) -> str:
    """The newest order of the first slot, as its node would be told it."""
    newest = "select \"order\" from work.task where slot_id = 'lab-a/0' order by position desc limit 1"
    with psycopg.connect(lab.stack.admin_dsn) as conn:
        row = conn.execute(newest).fetchone()
    assert row is not None
    return str(row[0])


def answer_to(lab: Lab, order: Order) -> str:
    """The code with which the node refuses the order."""
    asyncio.run(send(lab, order))
    until(lambda: str(order.order_id) in refusals(lab), "the order is refused")
    return refusals(lab)[str(order.order_id)]


def refusals(lab: Lab) -> dict[str, str]:
    """Codes of refusal by order, as the ledger has them."""
    return {fact["order_id"]: fact["reason"]["code"] for fact in lab.facts("order.refused")}


async def send(lab: Lab, order: Order) -> None:
    """Put an order into its node's queue, signed, as the relay does."""
    client = Redis.from_url(lab.stack.redis_url)
    signer = Signer.of_pem(lab.layout.signing_key.read_bytes())
    signed = seal(signer, order.model_dump_json(), datetime.now(UTC) + timedelta(minutes=5))
    message = OrderMessage(order.order_id, order.body.kind, signed)
    await Relay(client).enqueue(
        NodeId(order.node_id), order.order_id, encode_order(message, sent_at=datetime.now(UTC))
    )
    await client.aclose()
