"""A real lab node holds the newest head of the ledger that its orders carry, and refuses and reports a fork (LED-7)."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from redis.asyncio import Redis

from control_plane.audit.heads import head_of, sign_head
from control_plane.queues.relay import Relay
from events.values import NodeId, allocation_of, new_uuid
from tasks.orders import Order
from tasks.sealed import seal
from tasks.signing import Signer
from tasks.wire import OrderMessage, encode_order
from tests.faults.lab.test_kills import last_order
from tests.faults.programs import Lab
from tests.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]


def test_lab_node_stores_the_ledger_head_of_its_orders_and_reports_a_contradicting_head(lab: Lab) -> None:
    before = stored_heads(lab)
    allocation = lab.create()
    try:
        lab.await_state(allocation, "active")
        until(lambda: number_of(held(lab)) >= len(before), "the node holds the head of its newest order")
        kept = held(lab)
        assert kept in stored_heads(lab)
        # The true key signs another history: a dishonest sealer, or an attacker with its key.
        signer = Signer.of_pem(lab.layout.sealing_key.read_bytes())
        fork = sign_head(signer, msgspec.structs.replace(head_of(kept).head, root="00" * 32)).text
        asyncio.run(send_with_head(lab, fork))
        until(lambda: reported(lab, fork) is not None, "the node reports the fork", 60)
        found = reported(lab, fork)
        assert found is not None
        assert found["reason"]["code"] == "head_inconsistent"
        assert found["evidence"]["held"] in stored_heads(lab)
        assert held(lab) != fork
    finally:
        lab.release_all(allocation)


def held(lab: Lab) -> str:
    """Return the ledger head that the first lab node has stored on its disk; empty if it has none."""
    file = lab.node.folder / "agent" / "heads" / "held.json"
    return str(json.loads(file.read_text())["held"] or "") if file.exists() else ""


def number_of(text: str) -> int:
    """Return the number of a ledger head, 0 for an empty text."""
    return head_of(text).head.number if text else 0


def stored_heads(lab: Lab) -> list[str]:
    with psycopg.connect(lab.stack.admin_dsn) as conn:
        return [text for (text,) in conn.execute("select signed from ledger.tree_head order by number")]


def reported(lab: Lab, refused: str) -> dict[str, Any] | None:
    """Return the data of the event which records that the node refused a ledger head; None if there is no such
    event.
    """
    facts = lab.facts("node.head_refused")
    return next((each for each in facts if each["evidence"]["refused"] == refused), None)


async def send_with_head(lab: Lab, head: str) -> None:
    """Send an order that carries the given ledger head. The node refuses the order itself, because an earlier order has
    the same fence token.
    """
    real = Order.model_validate_json(last_order(lab))
    order = real.model_copy(update={"order_id": new_uuid(), "allocation_id": allocation_of(new_uuid())})
    client, signer = (
        Redis.from_url(lab.stack.redis_url),
        Signer.of_pem(lab.layout.signing_key.read_bytes()),
    )
    signed = seal(signer, order.model_dump_json(), datetime.now(UTC) + timedelta(minutes=5), head)
    message = OrderMessage(order.order_id, order.body.kind, signed)
    await Relay(client).enqueue(
        NodeId(order.node_id), order.order_id, encode_order(message, sent_at=datetime.now(UTC))
    )
    await client.aclose()
