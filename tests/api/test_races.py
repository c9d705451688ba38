"""Many callers at once: one of them wins, the others get a reason, and nobody gets an error."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import psycopg
import pytest

from tests.api.node import KEY, admit, allocate
from tests.servers.plane import RunningPlane
from tests.waiting import until

CROWD = (
    """insert into read.node select (jsonb_populate_record(n, jsonb_build_object('node_id', 'a' || number))).*
         from read.node n, generate_series(1, 80) as number where n.node_id = 'z1' returning 1""",
    """insert into read.slot select (jsonb_populate_record(s, jsonb_build_object(
                'node_id', 'a' || number, 'slot_id', 'a' || number || '/0'))).*
         from read.slot s, generate_series(1, 80) as number where s.slot_id = 'z1/0' returning 1""",
    """insert into work.node_seen select (jsonb_populate_record(w, jsonb_build_object('node_id', 'a' || number))).*
         from work.node_seen w, generate_series(1, 80) as number where w.node_id = 'z1' returning 1""",
    """insert into work.node_session select (jsonb_populate_record(w, jsonb_build_object('node_id', 'a' || nth))).*
         from work.node_session w, generate_series(1, 80) as nth where w.node_id = 'z1' returning 1""",
)
"""Eighty nodes like z1 that come before it by name, with one free slot each."""


def at_once(calls: Sequence[Callable[[], httpx.Response]]) -> Counter[int]:
    """How often each status was answered."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return Counter(future.result().status_code for future in [pool.submit(call) for call in calls])


def post_node(plane: RunningPlane, name: str) -> httpx.Response:
    return plane.client().post("/nodes", json={"id": name})


def test_a_name_registered_concurrently_is_one_registration_with_one_subnet(
    running_plane: RunningPlane,
) -> None:
    names = ("n1", "n2", "n3", "n4")
    for name in names:
        assert at_once([partial(post_node, running_plane, name)] * 6) == {201: 6}
    registered = "select count(*) from ledger.event where type = 'node.expected'"
    assert running_plane.rows(registered) == [(len(names),)]
    assert running_plane.rows("select count(distinct subnet) from read.node") == [(len(names),)]


def test_nodes_admitted_at_once_get_a_subnet_each(running_plane: RunningPlane) -> None:
    calls = [partial(post_node, running_plane, f"n{number}") for number in range(16)]
    assert at_once(calls) == {201: 16}
    assert running_plane.rows("select count(distinct subnet) from read.node") == [(16,)]


def test_slots_wanted_together_go_to_one_of_those_who_ask(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1", slots=2)
    answers = at_once([lambda: allocate(running_plane, slot_count=2)] * 8)
    assert answers == {202: 1, 409: 7}


def test_as_many_are_served_as_there_are_slots(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1", slots=4)
    assert at_once([lambda: allocate(running_plane)] * 12) == {202: 4, 409: 8}


def test_a_twin_gets_the_first_ones_answer(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1", slots=2)
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}
    client = running_plane.client(**{"Idempotency-Key": "twin"})
    assert at_once([lambda: client.post("/allocations", json=body)] * 8) == {202: 8}
    assert running_plane.rows("select count(*) from read.slot where state = 'claimed'") == [(1,)]


def test_a_slot_that_was_approved_is_shown_while_its_row_is_held(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1", approve=False)
    client = running_plane.client(**{"Idempotency-Key": "twin"})
    assert client.post("/nodes/n1/slots/0/approve").is_success
    with psycopg.connect(running_plane.database.admin_dsn) as holding:
        holding.execute("select 1 from read.slot where slot_id = 'n1/0' for update")
        again = client.post("/nodes/n1/slots/0/approve")
    assert again.json()["state"] == "free"


def test_a_node_with_room_is_found_behind_many_with_too_little(running_plane: RunningPlane) -> None:
    admit(running_plane, "z1", slots=2)
    for statement in CROWD:
        assert len(running_plane.rows(statement)) == 80
    made = allocate(running_plane, slot_count=2)
    assert made.status_code == 202, made.text
    assert {slot["node_id"] for slot in made.json()["slots"]} == {"z1"}


SHARED = {"address": "203.0.113.7", "use": "ports", "first_port": 443, "last_port": 443}
WHOLE, OTHER_WHOLE = ({"address": f"203.0.113.{last}", "use": "whole"} for last in (9, 10))
OTHERS = """update read.node set public_addresses = jsonb_build_array(public_addresses -> 0
                 || jsonb_build_object('address', '198.51.100.' || substr(node_id, 2))) where node_id like 'a%' returning 1"""
TAKEN = """insert into ledger.claim select 'port', replace(%(way)s, '*', '198.51.100.' || number), 'allocation-x'
             from generate_series(1, 80) as number returning 1"""


@pytest.mark.parametrize(
    ("address", "way", "taken"),
    [
        (SHARED, {"port": 22, "public_port": 443}, "tcp/*:443"),
        (SHARED, {"port": 22}, "tcp/*:443"),
        (WHOLE, {"kind": "address"}, "*"),
    ],
)
def test_a_node_with_a_way_in_is_found_behind_many_whose_ways_are_taken(
    running_plane: RunningPlane, address: dict[str, Any], way: dict[str, Any], taken: str
) -> None:
    admit(running_plane, "z1")
    with running_plane.client() as client:
        assert client.put("/nodes/z1/public-addresses", json={"addresses": [address]}).is_success
    for statement in (*CROWD, OTHERS):
        assert len(running_plane.rows(statement)) == 80
    running_plane.rows(TAKEN, way=taken)
    made = allocate(running_plane, network_mode="public-nat", ingress=[way])
    assert made.status_code == 202, made.text
    assert [slot["node_id"] for slot in made.json()["slots"]] == ["z1"]
    refused = allocate(running_plane, network_mode="public-nat", ingress=[way])
    assert [each["code"] for each in refused.json()["reasons"]] == ["no_public_address"], (
        "z1 has no slot left"
    )


def test_a_locked_slot_is_waited_for_where_no_other_nodes_way_is_free(running_plane: RunningPlane) -> None:
    for name in ("n1", "n2"):
        admit(running_plane, name)
    with running_plane.client() as client:
        assert client.put("/nodes/n2/public-addresses", json={"addresses": [WHOLE]}).is_success
        assert client.put("/nodes/n1/public-addresses", json={"addresses": [OTHER_WHOLE]}).is_success
    # What n1 has is being taken, so that only its row's holder knows.
    with ThreadPoolExecutor() as pool, psycopg.connect(running_plane.database.admin_dsn) as holding:
        holding.execute("select 1 from read.slot where node_id = 'n2' for update")
        holding.execute("update read.node set public_addresses = '[]' where node_id = 'n1'")
        asked = pool.submit(allocate, running_plane, network_mode="public-nat", ingress=[{"kind": "address"}])
        until(lambda: asked.done() or running_plane.somebody_waits_for_a_lock(), "the request waits for n1")
        holding.commit()
    assert [slot["node_id"] for slot in asked.result().json()["slots"]] == ["n2"]


def test_a_request_that_waits_for_a_slot_holds_no_other(running_plane: RunningPlane) -> None:
    """Who has the slot may want the others of its node next."""
    admit(running_plane, "n1", slots=2)
    with ThreadPoolExecutor() as pool, psycopg.connect(running_plane.database.admin_dsn) as holding:
        holding.execute("select 1 from read.slot where slot_id = 'n1/0' for update")
        asked = pool.submit(allocate, running_plane, slot_count=2)
        until(lambda: asked.done() or running_plane.somebody_waits_for_a_lock(), "the request waits for n1/0")
        holding.execute("select 1 from read.slot where slot_id = 'n1/1' for update nowait")
        holding.commit()
    assert asked.result().status_code == 202
