"""Concurrent requests for the same resource: one succeeds, the others are refused with a reason, without errors."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import psycopg
import pytest

from read_models import slots
from tests.api.node import KEY, admit, allocate
from tests.servers.plane import RunningPlane
from tests.waiting import until

COLUMNS = ", ".join(column.name for column in slots.slot.columns if column.computed is None)
CROWD = (
    """insert into read.node select (jsonb_populate_record(n, jsonb_build_object('node_id', 'a' || number))).*
         from read.node n, generate_series(1, 80) as number where n.node_id = 'z1' returning 1""",
    f"""insert into read.slot ({COLUMNS}) select {", ".join(f"copy.{each}" for each in COLUMNS.split(", "))}
         from read.slot s, generate_series(1, 80) as number, jsonb_populate_record(s, jsonb_build_object(
                'node_id', 'a' || number, 'slot_id', 'a' || number || '/0')) as copy
         where s.slot_id = 'z1/0' returning 1""",
    """insert into work.node_seen select (jsonb_populate_record(w, jsonb_build_object('node_id', 'a' || number))).*
         from work.node_seen w, generate_series(1, 80) as number where w.node_id = 'z1' returning 1""",
    """insert into work.node_session select (jsonb_populate_record(w, jsonb_build_object('node_id', 'a' || nth))).*
         from work.node_session w, generate_series(1, 80) as nth where w.node_id = 'z1' returning 1""",
    """insert into work.slot_counts select node_id, class, 1, 1, 1, 1, 1 from read.slot where node_id like 'a%%'
         returning 1""",
)
"""Statements that add eighty copies of node z1, which precede it by name, with one free slot each."""


def run_concurrently(calls: Sequence[Callable[[], httpx.Response]]) -> Counter[int]:
    """Run the API calls concurrently, and return the number of responses by HTTP status."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return Counter(future.result().status_code for future in [pool.submit(call) for call in calls])


def post_node(plane: RunningPlane, name: str) -> httpx.Response:
    return plane.client().post("/nodes", json={"id": name})


def test_concurrent_registrations_of_nodes_with_the_same_name_are_recorded_once_with_one_subnet(
    emptied_plane: RunningPlane,
) -> None:
    names = ("n1", "n2", "n3", "n4")
    for name in names:
        assert run_concurrently([partial(post_node, emptied_plane, name)] * 6) == {201: 6}
    registered = "select count(*) from ledger.event where type = 'node.registered'"
    assert emptied_plane.rows(registered) == [(len(names),)]
    assert emptied_plane.rows("select count(distinct subnet) from read.node") == [(len(names),)]


def test_concurrent_registrations_of_nodes_with_different_names_receive_a_subnet_each(
    emptied_plane: RunningPlane,
) -> None:
    calls = [partial(post_node, emptied_plane, f"n{number}") for number in range(16)]
    assert run_concurrently(calls) == {201: 16}
    assert emptied_plane.rows("select count(distinct subnet) from read.node") == [(16,)]


def test_exactly_one_of_several_concurrent_requests_for_all_slots_of_a_node_succeeds(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=2)
    answers = run_concurrently([lambda: allocate(emptied_plane, slot_count=2)] * 8)
    assert answers == {202: 1, 409: 7}


def test_as_many_concurrent_requests_succeed_as_there_are_free_slots(emptied_plane: RunningPlane) -> None:
    admit(emptied_plane, "n1", slots=4)
    assert run_concurrently([lambda: allocate(emptied_plane)] * 12) == {202: 4, 409: 8}


def test_concurrent_requests_with_one_idempotency_key_return_the_same_answer(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=2)
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}
    client = emptied_plane.client(**{"Idempotency-Key": "twin"})
    assert run_concurrently([lambda: client.post("/allocations", json=body)] * 8) == {202: 8}
    assert emptied_plane.rows("select count(*) from read.slot where state = 'claimed'") == [(1,)]


def test_repeated_approval_of_a_slot_succeeds_while_another_transaction_locks_the_row_of_the_slot(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", approve=False)
    client = emptied_plane.client(**{"Idempotency-Key": "twin"})
    assert client.post("/nodes/n1/slots/0/approve").is_success
    with psycopg.connect(emptied_plane.database.admin_dsn) as holding:
        holding.execute("select 1 from read.slot where slot_id = 'n1/0' for update")
        again = client.post("/nodes/n1/slots/0/approve")
    assert again.json()["state"] == "free"


def test_placement_finds_the_node_with_enough_slots_after_many_nodes_with_too_few(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "z1", slots=2)
    for statement in CROWD:
        assert len(emptied_plane.rows(statement)) == 80
    made = allocate(emptied_plane, slot_count=2)
    assert made.status_code == 202, made.text
    assert {slot["node_id"] for slot in made.json()["slots"]} == {"z1"}


SHARED = {"address": "203.0.113.7", "use": "ports", "first_port": 443, "last_port": 443}
WHOLE, OTHER_WHOLE = ({"address": f"203.0.113.{last}", "use": "whole"} for last in (9, 10))
OTHERS = """update read.node set public_addresses = jsonb_build_array(public_addresses -> 0
                 || jsonb_build_object('address', '198.51.100.' || substr(node_id, 2))) where node_id like 'a%' returning 1"""
TAKEN = """insert into ledger.claim select 'port', replace(%(ingress)s, '*', '198.51.100.' || number), 'allocation-x'
             from generate_series(1, 80) as number returning 1"""


@pytest.mark.parametrize(
    ("address", "ingress", "taken"),
    [
        (SHARED, {"port": 22, "public_port": 443}, "tcp/*:443"),
        (SHARED, {"port": 22}, "tcp/*:443"),
        (WHOLE, {"kind": "address"}, "*"),
    ],
)
def test_placement_finds_the_node_with_a_free_public_port_after_many_nodes_without_a_free_port(
    emptied_plane: RunningPlane, address: dict[str, Any], ingress: dict[str, Any], taken: str
) -> None:
    admit(emptied_plane, "z1")
    with emptied_plane.client() as client:
        assert client.put("/nodes/z1/public-addresses", json={"addresses": [address]}).is_success
    for statement in (*CROWD, OTHERS):
        assert len(emptied_plane.rows(statement)) == 80
    emptied_plane.rows(TAKEN, ingress=taken)
    made = allocate(emptied_plane, network_mode="public-nat", ingress=[ingress])
    assert made.status_code == 202, made.text
    assert [slot["node_id"] for slot in made.json()["slots"]] == ["z1"]
    refused = allocate(emptied_plane, network_mode="public-nat", ingress=[ingress])
    assert [each["code"] for each in refused.json()["reasons"]] == ["no_public_address"], (
        "z1 has no slot left"
    )


def test_request_waits_for_a_locked_slot_if_no_other_node_has_a_free_public_address(
    emptied_plane: RunningPlane,
) -> None:
    for name in ("n1", "n2"):
        admit(emptied_plane, name)
    with emptied_plane.client() as client:
        assert client.put("/nodes/n2/public-addresses", json={"addresses": [WHOLE]}).is_success
        assert client.put("/nodes/n1/public-addresses", json={"addresses": [OTHER_WHOLE]}).is_success
    # A transaction that is not committed takes the address of n1, so the request sees that only once it has the lock.
    with ThreadPoolExecutor() as pool, psycopg.connect(emptied_plane.database.admin_dsn) as holding:
        holding.execute("select 1 from read.slot where node_id = 'n2' for update")
        holding.execute("update read.node set public_addresses = '[]' where node_id = 'n1'")
        requested = pool.submit(
            allocate, emptied_plane, network_mode="public-nat", ingress=[{"kind": "address"}]
        )
        until(lambda: requested.done() or emptied_plane.has_lock_waiter(), "the request waits for n1")
        holding.commit()
    assert [slot["node_id"] for slot in requested.result().json()["slots"]] == ["n2"]


def test_request_that_waits_for_a_locked_slot_locks_no_other_slot(emptied_plane: RunningPlane) -> None:
    """The transaction that locks the slot may lock other slots of the node next, which must not cause a deadlock."""
    admit(emptied_plane, "n1", slots=2)
    with ThreadPoolExecutor() as pool, psycopg.connect(emptied_plane.database.admin_dsn) as holding:
        holding.execute("select 1 from read.slot where slot_id = 'n1/0' for update")
        requested = pool.submit(allocate, emptied_plane, slot_count=2)
        until(lambda: requested.done() or emptied_plane.has_lock_waiter(), "the request waits for n1/0")
        holding.execute("select 1 from read.slot where slot_id = 'n1/1' for update nowait")
        holding.commit()
    assert requested.result().status_code == 202
