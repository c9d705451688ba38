"""Orders carry the newest sealed head to nodes, which check it with proofs of the API and report a false one."""

from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest
import redis

from control_plane.audit.heads import SignedHead, head_of, verify_head
from deploy.embedded.postgres import PostgresServer
from events.ledger.tree import verifies_consistency
from node_agent.transport.trust import keys_by_id
from tasks.agent_api import SessionGrant
from tasks.scripts import QueueKeys, namespace_of
from tasks.sealed import unseal
from tasks.wire import decode_message, order_of
from tests.api.node import allocate, as_node, batch, desired_orders, enrol, register_node, survey
from tests.servers.plane import RunningPlane, running
from tests.waiting import until


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    with running(postgres_server) as plane:
        yield plane


@pytest.fixture(scope="module")
def granted(plane: RunningPlane) -> SessionGrant:
    """Return the session that the control plane grants to node n1 when it enrols."""
    return SessionGrant.model_validate(enrol(plane, "n1", register_node(plane, "n1")).json())


@pytest.fixture(scope="module")
def node(plane: RunningPlane, granted: SessionGrant) -> httpx.Client:
    """Node n1 with an order for its only slot, which was sent after the first head."""
    node = as_node(plane, granted.node_id)
    assert node.post("/reports", json=batch(str(uuid4()), (1, survey()))).is_success
    beat = {"agent_version": "0.1.0", "spooled_reports": 0, "resynced": True}
    assert node.post("/heartbeat", json=beat).is_success
    assert plane.client().post("/nodes/n1/slots/0/approve").is_success
    until(lambda: bool(stored_heads(plane)), "a head is stored")
    assert allocate(plane).is_success
    until(lambda: len(desired_orders(node)) == 1, "the order is created")
    return node


def stored_heads(plane: RunningPlane) -> list[str]:
    return [text for (text,) in plane.rows("select signed from ledger.tree_head order by number")]


def head_in(text: str, granted: SessionGrant) -> SignedHead:
    carried = unseal(text, keys_by_id(granted.order_keys)).head
    assert carried is not None
    return verify_head(carried, keys_by_id(granted.sealing_keys))


def test_order_in_the_desired_state_carries_the_newest_head(
    plane: RunningPlane, node: httpx.Client, granted: SessionGrant
) -> None:
    before = head_of(stored_heads(plane)[-1])
    [text] = desired_orders(node)
    assert before.head.number <= head_in(text, granted).head.number
    assert head_in(text, granted).text in stored_heads(plane)


def test_order_in_the_queue_carries_a_stored_head(
    plane: RunningPlane, node: httpx.Client, granted: SessionGrant
) -> None:
    with redis.Redis.from_url(plane.redis.url) as queue:
        key = QueueKeys.of(namespace_of("n1")).messages
        until(lambda: bool(queue.hvals(key)), "the order is in the queue of its node")
        [data] = queue.hvals(key)
    assert head_in(order_of(decode_message(data)).order, granted).text in stored_heads(plane)


def test_api_proves_to_a_node_that_two_heads_are_consistent(plane: RunningPlane, node: httpx.Client) -> None:
    until(lambda: len({head_of(text).head.size for text in stored_heads(plane)}) > 1, "the ledger has grown")
    first, *_, second = (head_of(text).head for text in stored_heads(plane))
    answer = node.post("/consistency", json={"first": first.size, "second": second.size})
    proof = [bytes.fromhex(each) for each in answer.json()["hashes"]]
    roots = bytes.fromhex(first.root), bytes.fromhex(second.root)
    assert verifies_consistency(first.size, roots[0], second.size, roots[1], proof)


@pytest.mark.parametrize(
    ("sizes", "status", "code"),
    [
        ({"first": 1, "second": 10**9}, 409, "not_sealed"),
        ({"first": 3, "second": 2}, 422, "invalid_value"),
        ({"first": 0, "second": 2}, 422, "out_of_range"),
    ],
    ids=["not-sealed", "reversed", "empty"],
)
def test_request_for_a_proof_that_does_not_exist_is_refused(
    node: httpx.Client, sizes: dict[str, int], status: int, code: str
) -> None:
    answer = node.post("/consistency", json=sizes)
    assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (status, code)
    assert code != "not_sealed" or "the ledger is sealed up to position" in answer.text


def test_refused_head_is_an_event_of_the_node_with_both_heads_as_evidence(
    plane: RunningPlane, node: httpx.Client
) -> None:
    reason = {"code": "head_inconsistent", "message": "two different heads have the number 7"}
    body = {"kind": "head.refused", "reason": reason, "held": "a.held.head", "refused": "a.refused.head"}
    assert node.post("/reports", json=batch(str(uuid4()), (1, body))).is_success
    with plane.client() as client:
        [event] = client.get("/events", params={"type": "node.head_refused"}).json()["items"]
    assert event["data"] == {
        "node_id": "n1",
        "reason": reason,
        "evidence": {"held": "a.held.head", "refused": "a.refused.head"},
    }
