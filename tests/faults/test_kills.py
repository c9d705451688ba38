"""On real nodes: whatever dies on the way, the allocation becomes active, and nothing is done twice at the host."""

import asyncio
import os
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
from tests.faults.embedded import QUEUE, Embedded
from tests.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]


def check_one_machine_was_started_once(embedded: Embedded, starts_before: int) -> None:
    assert embedded.machines() == ["slice0"]
    assert embedded.ports() == ["slice0"]
    assert embedded.starts("slice0") == starts_before + 1


def test_the_agent_killed_while_provisioning(embedded: Embedded) -> None:
    before = embedded.starts("slice0")
    allocation = embedded.create()
    until(lambda: "slice0" in embedded.machines(), "the machine was started")
    embedded.node().kill("agent")
    assert embedded.state(allocation) == "provisioning"
    embedded.await_state(allocation, "active")
    check_one_machine_was_started_once(embedded, before)
    assert embedded.story(allocation).count("allocation.activated") == 1
    embedded.release(allocation)
    assert (embedded.machines(), embedded.ports()) == ([], [])


def test_the_queue_flushed_between_an_orders_commit_and_its_fetch(embedded: Embedded) -> None:
    before = embedded.starts("slice0")
    embedded.node().kill("agent", signal.SIGSTOP)
    try:
        allocation = embedded.create()
        until(lambda: embedded.redis().llen(QUEUE) == 1, "the order is in the queue")
        embedded.redis().flushall()
        assert embedded.redis().llen(QUEUE) == 0
        assert embedded.state(allocation) == "placed"
    finally:
        embedded.node().kill("agent", signal.SIGCONT)
    embedded.await_state(allocation, "active")
    check_one_machine_was_started_once(embedded, before)
    embedded.release(allocation)


def test_the_api_killed_while_provisioning(embedded: Embedded) -> None:
    before = embedded.starts("slice0")
    allocation = embedded.create()
    until(lambda: "slice0" in embedded.machines(), "the machine was started")
    pid = embedded.stack.programs["api"].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    # Nobody starts it again before the node has news that it cannot deliver.
    spool = embedded.node().folder / "agent" / "spool" / "reports.jsonl"
    until(lambda: told_ready(spool, allocation), "readiness is spooled while the API is away", 60)
    assert embedded.state(allocation) == "unknown"
    embedded.await_state(allocation, "active")
    check_one_machine_was_started_once(embedded, before)
    embedded.release(allocation)


def test_older_orders_and_changed_ones_are_refused(embedded: Embedded) -> None:
    allocation = embedded.create()
    embedded.await_state(allocation, "active")
    real = Order.model_validate_json(last_order(embedded))
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
    assert answer_to(embedded, older) == "stale_token"
    assert answer_to(embedded, changed) == "conflicting_content"
    assert embedded.state(allocation) == "active"
    assert embedded.machines() == ["slice0"]
    embedded.release(allocation)


def told_ready(spool: Path, allocation: str) -> bool:
    """Whether the node's spool holds the readiness of this allocation."""
    return any(allocation in line and "slice.ready" in line for line in spool.read_text().splitlines())


def last_order(embedded: Embedded) -> str:
    """The newest order of the first slot, as its node would be told it."""
    newest = "select \"order\" from work.task where slot_id = 'lab-a/0' order by position desc limit 1"
    with psycopg.connect(embedded.stack.admin_dsn) as conn:
        row = conn.execute(newest).fetchone()
    assert row is not None
    return str(row[0])


def answer_to(embedded: Embedded, order: Order) -> str:
    """The code with which the node refuses the order."""
    asyncio.run(send(embedded, order))
    until(lambda: str(order.order_id) in refusals(embedded), "the order is refused")
    return refusals(embedded)[str(order.order_id)]


def refusals(embedded: Embedded) -> dict[str, str]:
    """Codes of refusal by order, as the ledger has them."""
    events = embedded.api.items("/events?limit=500")
    facts = [event["data"] for event in events if event["type"] == "order.refused"]
    return {fact["order_id"]: fact["reason"]["code"] for fact in facts}


async def send(embedded: Embedded, order: Order) -> None:
    """Put an order into its node's queue, signed, as the relay does."""
    client = Redis.from_url(embedded.stack.redis_url)
    signer = Signer.of_pem(embedded.layout.signing_key.read_bytes())
    signed = seal(signer, order.model_dump_json(), datetime.now(UTC) + timedelta(minutes=5))
    message = OrderMessage(order.order_id, order.body.kind, signed)
    await Relay(client).enqueue(
        NodeId(order.node_id), order.order_id, encode_order(message, sent_at=datetime.now(UTC))
    )
    await client.aclose()
