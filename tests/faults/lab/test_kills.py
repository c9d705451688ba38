"""Fault tests on real nodes: a node delivers its report after the API was dead, and refuses an order with an older
fence token or changed content.
"""

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from redis.asyncio import Redis

from control_plane.queues.relay import Relay
from events.values import NodeId, allocation_of, new_uuid
from tasks.orders import Order, Token
from tasks.sealed import seal
from tasks.signing import Signer
from tasks.wire import OrderMessage, encode_order
from tests.faults.programs import Lab
from tests.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]


def test_report_that_a_node_spooled_while_the_api_was_dead_is_delivered_after_the_api_restarts(
    lab: Lab,
) -> None:
    before, api = lab.lives(), lab.stack.programs["api"]
    allocation = lab.create()
    try:
        until(lambda: "slice0" in lab.machines(), "the machine was started")
        lab.signal("api", signal.SIGKILL)
        # The API is not restarted before the node has a report that it cannot deliver: the node has no other API.
        spool = lab.node.folder / "agent" / "spool" / "reports.jsonl"
        until(
            lambda: has_spooled_readiness(spool, allocation), "readiness is spooled while the API is away", 60
        )
        assert api.status == -signal.SIGKILL
        assert not lab.is_active(allocation)
        lab.await_state(allocation, "active")
        assert (lab.machines(), lab.ports()) == (["slice0"], ["slice0"])
        assert lab.lives().since(before).starts == 1
    finally:
        lab.release_all(allocation)


def test_order_with_an_older_fence_token_or_changed_content_is_refused_by_the_node(lab: Lab) -> None:
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
        # virsh fails at times on a machine with a high load.
        until(lambda: lab.machines() == ["slice0"], "the machine of the allocation still runs")
    finally:
        lab.release_all(allocation)


def has_spooled_readiness(spool: Path, allocation: str) -> bool:
    """Return whether the node's spool contains the readiness report of this allocation."""
    return any(allocation in line and "slice.ready" in line for line in spool.read_text().splitlines())


def last_order(lab: Lab) -> str:
    """Return the newest order of the node's first slot, as the node receives it."""
    newest = "select \"order\" from work.task where slot_id = 'lab-a/0' order by position desc limit 1"
    with psycopg.connect(lab.stack.admin_dsn) as conn:
        row = conn.execute(newest).fetchone()
    assert row is not None
    return str(row[0])


def answer_to(lab: Lab, order: Order) -> str:
    """Send an order that the node must refuse, and return the reason code of the refusal."""
    asyncio.run(send(lab, order))
    until(lambda: str(order.order_id) in refusals(lab), "the order is refused")
    return refusals(lab)[str(order.order_id)]


def refusals(lab: Lab) -> dict[str, str]:
    """Return the reason codes of all refused orders in the ledger, by order id."""
    return {fact["order_id"]: fact["reason"]["code"] for fact in lab.facts("order.refused")}


async def send(lab: Lab, order: Order) -> None:
    """Sign an order and put it into its node's queue, as the control plane does."""
    client = Redis.from_url(lab.stack.redis_url)
    signer = Signer.of_pem(lab.layout.signing_key.read_bytes())
    signed = seal(signer, order.model_dump_json(), datetime.now(UTC) + timedelta(minutes=5))
    message = OrderMessage(order.order_id, order.body.kind, signed)
    await Relay(client).enqueue(
        NodeId(order.node_id), order.order_id, encode_order(message, sent_at=datetime.now(UTC))
    )
    await client.aclose()
