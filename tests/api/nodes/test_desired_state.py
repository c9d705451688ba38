"""A node reports which orders its slots hold, and receives the orders of the slots that differ (NOD-10)."""

import re
from hashlib import sha256
from typing import Any

import httpx
import psycopg
import pytest

from control_plane.work.desired_state import DIFFERENCES
from node_agent.slots.resync import order_of
from tasks.sealed import task_in
from tests.api.node import (
    admit,
    allocate,
    as_node,
    desired_orders,
    enrol,
    register_node,
    request_desired_state,
)
from tests.servers.plane import RunningPlane
from tests.waiting import until

MANY = """
insert into work.task (order_id, node_id, slot_id, kind, epoch, position, "order", state, created_at, lane)
select gen_random_uuid(), 'n1', 'n1/' || n % 2, 'slice.apply', 1, -n, 'an old one', 'superseded', now(), 'orders'
from generate_series(1, 30000) as n
"""
PLAIN = re.sub(r":(indexes|epochs|positions|digests)\b", "'{}'", DIFFERENCES.text).replace(":node", "'n1'")


@pytest.fixture(scope="module")
def node(shared_plane: RunningPlane) -> httpx.Client:
    """Node with two slots, each with an apply order. It sends no reports and only requests its desired state."""
    node = admit(shared_plane, "n1", slots=2)
    for _ in range(2):
        assert allocate(shared_plane).is_success
    until(lambda: len(desired_orders(node)) == 2, "both orders are created")
    return node


def held_by_node(node: httpx.Client) -> list[dict[str, Any]]:
    """Return the held orders (index, fence token, digest) that a node reports after it applied all of its orders."""
    texts = [task_in(signed) for signed in desired_orders(node)]
    return [
        {
            "index": index,
            "epoch": order_of(text).token.epoch,
            "position": order_of(text).token.position,
            "sha256": sha256(text).hexdigest(),
        }
        for index, text in enumerate(texts)
    ]


def slots_in(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [order_of(task_in(signed)).slot_id for signed in answer.json()["orders"]]


def test_node_that_stores_no_orders_receives_the_orders_of_all_its_slots(node: httpx.Client) -> None:
    assert slots_in(request_desired_state(node)) == ["n1/0", "n1/1"]


def test_node_that_stores_the_newest_order_of_each_slot_receives_no_orders(node: httpx.Client) -> None:
    answer = request_desired_state(node, *held_by_node(node))
    assert answer.json() == {"orders": [], "unknown": []}


@pytest.mark.parametrize(
    "changed",
    [{"sha256": "0" * 64}, {"position": 1, "sha256": "0" * 64}, None],
    ids=["other-digest", "older-order", "no-order"],
)
def test_node_that_lacks_the_newest_order_of_one_slot_receives_only_this_order(
    node: httpx.Client, changed: dict[str, Any] | None
) -> None:
    first, second = held_by_node(node)
    differing = [] if changed is None else [{**second, **changed}]
    answer = request_desired_state(node, first, *differing)
    assert slots_in(answer) == ["n1/1"]
    assert answer.json()["unknown"] == []


@pytest.mark.parametrize("newer", [{"epoch": 2}, {"position": 2**62}], ids=str)
def test_order_that_a_node_stores_and_that_is_newer_than_the_ledger_is_listed_as_unknown(
    node: httpx.Client, newer: dict[str, int]
) -> None:
    first, second = held_by_node(node)
    answer = request_desired_state(node, {**first, **newer, "sha256": "0" * 64}, second)
    assert answer.json() == {"orders": [], "unknown": [0]}


def test_order_that_a_node_stores_for_a_slot_without_orders_is_listed_as_unknown_to_the_control_plane(
    node: httpx.Client,
) -> None:
    stray = {"index": 63, "epoch": 1, "position": 1, "sha256": "0" * 64}
    answer = request_desired_state(node, stray)
    assert answer.json()["unknown"] == [63]
    assert slots_in(answer) == ["n1/0", "n1/1"]


def test_desired_state_request_returns_no_orders_of_another_node(
    node: httpx.Client, shared_plane: RunningPlane
) -> None:
    enrol(shared_plane, "n2", register_node(shared_plane, "n2"))
    answer = request_desired_state(as_node(shared_plane, "n2"), *held_by_node(node))
    assert answer.json() == {"orders": [], "unknown": [0, 1]}


ONE = {"index": 0, "epoch": 1, "position": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("held", "reasons"),
    [
        ([{**ONE, "sha256": "none"}, {**ONE, "index": 64, "epoch": -1}], 3),
        ([{**ONE, "position": 2**63}], 1),
        ([{**ONE, "epoch": 2**31}], 1),
        ([{**ONE, "slot": "n1/0"}], 1),
        ([ONE, ONE], 1),
        ([{**ONE, "index": number} for number in range(65)], 1),
    ],
    ids=["digest-index-epoch", "position", "epoch", "unknown-field", "twice", "too-many"],
)
def test_desired_state_request_that_lists_invalid_stored_orders_is_refused_with_every_reason(
    node: httpx.Client, held: list[dict[str, Any]], reasons: int
) -> None:
    answer = request_desired_state(node, *held)
    assert answer.status_code == 422, answer.text
    assert len(answer.json()["reasons"]) >= reasons


def test_desired_state_request_on_a_database_with_many_superseded_orders_reads_few_database_pages(
    node: httpx.Client, shared_plane: RunningPlane
) -> None:
    held = held_by_node(node)
    with psycopg.connect(shared_plane.database.admin_dsn, autocommit=True) as conn:
        conn.execute(MANY)
        conn.execute("analyze work.task")
        [plan] = conn.execute(f"explain (analyze, buffers, format json) {PLAIN}").fetchall()[0][0]
    assert request_desired_state(node, *held).json() == {"orders": [], "unknown": []}
    read = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    assert read < 50, f"the query read {read} database pages for two slots"
