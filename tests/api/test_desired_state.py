"""A node says what its slots hold, and is told of those that should hold another thing (NOD-10)."""

import re
from hashlib import sha256
from typing import Any

import httpx
import psycopg
import pytest

from control_plane.desired_state import DIFFERENCES
from node_agent.resync import order_of
from tasks.sealed import task_in
from tests.api.node import admit, allocate, as_node, desired, enrol, expect, wanted
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
    """Of two slots, each of which should carry a slice; it only ever asks."""
    node = admit(shared_plane, "n1", slots=2)
    for _ in range(2):
        assert allocate(shared_plane).is_success
    until(lambda: len(wanted(node)) == 2, "both orders are derived")
    return node


def holding(node: httpx.Client) -> list[dict[str, Any]]:
    """What a node holds that took all that it was given."""
    texts = [task_in(signed) for signed in wanted(node)]
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


def test_a_node_that_holds_nothing_gets_everything(node: httpx.Client) -> None:
    assert slots_in(desired(node)) == ["n1/0", "n1/1"]


def test_a_node_that_holds_all_of_it_is_told_nothing(node: httpx.Client) -> None:
    answer = desired(node, *holding(node))
    assert answer.json() == {"orders": [], "unknown": []}


@pytest.mark.parametrize(
    "changed",
    [{"sha256": "0" * 64}, {"position": 1, "sha256": "0" * 64}, None],
    ids=["another-text", "an-older-one", "nothing"],
)
def test_only_a_slot_that_differs_is_told_of(node: httpx.Client, changed: dict[str, Any] | None) -> None:
    first, second = holding(node)
    differing = [] if changed is None else [{**second, **changed}]
    answer = desired(node, first, *differing)
    assert slots_in(answer) == ["n1/1"]
    assert answer.json()["unknown"] == []


@pytest.mark.parametrize("newer", [{"epoch": 2}, {"position": 2**62}], ids=str)
def test_what_is_newer_than_all_that_is_known_is_named_and_gets_no_order(
    node: httpx.Client, newer: dict[str, int]
) -> None:
    first, second = holding(node)
    answer = desired(node, {**first, **newer, "sha256": "0" * 64}, second)
    assert answer.json() == {"orders": [], "unknown": [0]}


def test_a_slot_that_never_had_an_order_is_unknown(node: httpx.Client) -> None:
    stray = {"index": 63, "epoch": 1, "position": 1, "sha256": "0" * 64}
    answer = desired(node, stray)
    assert answer.json()["unknown"] == [63]
    assert slots_in(answer) == ["n1/0", "n1/1"]


def test_what_a_node_is_told_is_its_own_alone(node: httpx.Client, shared_plane: RunningPlane) -> None:
    enrol(shared_plane, "n2", expect(shared_plane, "n2"))
    answer = desired(as_node(shared_plane, "n2"), *holding(node))
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
def test_what_no_node_holds_is_refused_with_every_reason(
    node: httpx.Client, held: list[dict[str, Any]], reasons: int
) -> None:
    answer = desired(node, *held)
    assert answer.status_code == 422, answer.text
    assert len(answer.json()["reasons"]) >= reasons


def test_how_long_a_slots_past_is_does_not_matter(node: httpx.Client, shared_plane: RunningPlane) -> None:
    held = holding(node)
    with psycopg.connect(shared_plane.database.admin_dsn, autocommit=True) as conn:
        conn.execute(MANY)
        conn.execute("analyze work.task")
        [plan] = conn.execute(f"explain (analyze, buffers, format json) {PLAIN}").fetchall()[0][0]
    assert desired(node, *held).json() == {"orders": [], "unknown": []}
    read = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    assert read < 50, f"{read} pages were read for two slots"
