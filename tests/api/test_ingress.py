"""Ways in from outside over the API: reserved with their public side, published by the node's word, and given back."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psycopg
import pytest

from control_plane.decisions.ingress import IN_PLACE_WITHIN
from tests.api.node import admit, allocate, speaks
from tests.api.reporting import Running
from tests.servers.plane import RunningPlane
from tests.waiting import until

ADDRESS = "203.0.113.7"
SHARED = {"address": ADDRESS, "use": "ports", "first_port": 20000, "last_port": 20001}
WHOLE = {"address": "203.0.113.9", "use": "whole"}
SSH = {"protocol": "tcp", "port": 22}


def has(plane: RunningPlane, *addresses: dict[str, Any], node: str = "n1") -> httpx.Response:
    with plane.client() as client:
        return client.put(f"/nodes/{node}/public-addresses", json={"addresses": list(addresses)})


@pytest.fixture
def plane(running_plane: RunningPlane) -> RunningPlane:
    return running_plane


@pytest.fixture
def node(plane: RunningPlane) -> httpx.Client:
    made = admit(plane, "n1")
    assert has(plane, SHARED, WHOLE).is_success
    return made


@pytest.fixture
def running(plane: RunningPlane, node: httpx.Client) -> Running:
    """An active allocation that has no ways in yet."""
    return Running(plane, node, network_mode="public-nat")


def opened(running: Running, **way: Any) -> httpx.Response:
    with running.plane.client() as client:
        return client.post(f"/allocations/{running.id}/ingress", json={**SSH, **way})


def closed(running: Running, name: str) -> httpx.Response:
    with running.plane.client() as client:
        return client.delete(f"/allocations/{running.id}/ingress/{name}")


def states(running: Running) -> list[str]:
    return [each["state"] for each in running.found()["ingress"]]


def public(running: Running) -> list[tuple[str, int]]:
    return [
        (each["address"], each["port"]) for each in running.found()["endpoints"] if each["via"] == "public"
    ]


def claims(plane: RunningPlane) -> set[str]:
    return {value for (value,) in plane.rows("select value from ledger.claim where kind = 'port'")}


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def test_what_is_asked_for_with_an_allocation_is_reserved_and_an_endpoint_once_it_is_active(
    plane: RunningPlane, node: httpx.Client
) -> None:
    running = Running(plane, node, network_mode="public-nat", ingress=[{**SSH, "public_port": 20001}])
    assert running.types()[:3] == ["requested", "ingress.reserved", "placed"]
    assert states(running) == ["published"]
    assert public(running) == [(ADDRESS, 20001)]
    assert claims(plane) == {f"tcp/{ADDRESS}:20001"}


def test_one_that_is_opened_later_is_reserved_at_once_and_published_by_its_nodes_word(
    running: Running,
) -> None:
    way = opened(running).json()
    assert (way["state"], way["public_address"], way["port"]) == ("reserved", ADDRESS, 22)
    assert (states(running), public(running)) == (["reserved"], [])
    running.carried_out()
    assert (states(running), public(running)) == (["published"], [(ADDRESS, way["public_port"])])
    assert running.found()["state"] == "active"


def test_an_older_orders_word_publishes_nothing(running: Running) -> None:
    first = running.newest_order()
    opened(running)
    running.comes_up(first)
    assert states(running) == ["reserved"]


def test_closed_it_is_no_endpoint_and_its_port_is_free_when_it_is_proved_gone(running: Running) -> None:
    name = opened(running).json()["id"]
    running.carried_out()
    assert closed(running, name).status_code == 202
    assert (states(running), public(running)) == (["withdrawn"], [])
    assert claims(running.plane) != set()
    running.carried_out()
    assert (states(running), claims(running.plane)) == (["removed"], set())


def test_ingress_of_an_allocation_that_stops_is_reserved_before_the_node_closed_it_and_published_after_a_start(
    running: Running,
) -> None:
    opened(running)
    running.carried_out()
    assert running.asked_to("stop").is_success
    assert (running.found()["state"], states(running), public(running)) == ("stopping", ["reserved"], [])
    running.is_off()
    assert (running.found()["state"], states(running), public(running)) == ("stopped", ["reserved"], [])
    assert running.asked_to("start").is_success
    running.carried_out()
    assert (running.found()["state"], states(running)) == ("active", ["published"])


def test_ingress_of_an_allocation_that_is_released_is_withdrawn_before_the_node_closed_it(
    running: Running,
) -> None:
    opened(running)
    running.carried_out()
    assert running.plane.client().delete(f"/allocations/{running.id}").is_success
    assert (running.found()["state"], states(running), public(running)) == ("releasing", ["withdrawn"], [])


def test_a_node_that_finds_it_gone_takes_it_from_the_endpoints_until_it_is_back(running: Running) -> None:
    name = opened(running).json()["id"]
    order = running.carried_out()
    running.says("slice.exposed", of=order, lost=[name])
    assert (states(running), public(running)) == (["lost"], [])
    running.says("slice.exposed", of=order, lost=[])
    assert states(running) == ["published"]


def test_one_that_is_opened_before_its_slice_is_up_is_not_waited_for_for_ever(
    plane: RunningPlane, node: httpx.Client
) -> None:
    made = allocate(plane, network_mode="public-nat").json()
    with plane.client() as client:
        assert client.post(f"/allocations/{made['id']}/ingress", json=SSH).is_success
    later = """select (way.data::jsonb ->> 'deadline')::timestamptz - (placed.data::jsonb ->> 'deadline')::timestamptz
                 from ledger.event way, ledger.event placed
                where way.type = 'ingress.reserved' and placed.type = 'allocation.placed'"""
    assert plane.rows(later) == [(IN_PLACE_WITHIN,)]


def test_one_that_is_gone_is_no_endpoint_though_an_older_orders_word_says_so(running: Running) -> None:
    """Whoever says so has not heard yet of the way in that was opened meanwhile."""
    name = opened(running).json()["id"]
    order = running.carried_out()
    opened(running)
    running.says("slice.exposed", of=order, lost=[name])
    assert (states(running), public(running)) == (["lost", "reserved"], [])


def test_a_stop_leaves_it_reserved_until_its_node_finds_it_in_place_again(running: Running) -> None:
    way = opened(running).json()
    running.carried_out()
    running.asked_to("stop")
    assert public(running) == []
    running.is_off()
    off = running.plane.last_position()
    assert (states(running), public(running)) == (["reserved"], [])
    assert claims(running.plane) == {f"tcp/{ADDRESS}:{way['public_port']}"}
    running.asked_to("start")
    assert (states(running), public(running)) == (["reserved"], [])
    running.carried_out()
    assert (states(running), public(running)) == (["published"], [(ADDRESS, way["public_port"])])
    with running.plane.client() as client:
        client.delete(f"/allocations/{running.id}")
        assert public(running) == []
        running.says("slice.removed", absent=["link"])
        assert (states(running), claims(running.plane)) == (["removed"], set())
        then = client.get(f"/allocations/{running.id}", params={"at": f"position:{off}"}).json()
    assert [each["state"] for each in then["ingress"]] == ["reserved"]


def test_the_ledger_says_of_each_word_about_it_which_wish_led_to_it(running: Running) -> None:
    name = opened(running).json()["id"]
    order = running.carried_out()
    opened(running)
    running.says("slice.exposed", of=order, lost=[name])
    assert running.led_to_by("ingress.published", "ingress.lost") == ["ingress.reserved"] * 2
    closed(running, name)
    running.carried_out()
    assert running.led_to_by("ingress.removed") == ["ingress.withdrawn"]
    assert running.led_to_by("allocation.slice_ready") == ["allocation.placed"]


def test_one_that_cannot_be_made_leaves_a_good_one_published(running: Running) -> None:
    bad, good = opened(running, protocol="udp").json(), opened(running).json()
    running.says("slice.exposed", of=running.newest_order(), lost=[bad["id"]])
    assert (states(running), public(running)) == (["reserved", "published"], [(ADDRESS, good["public_port"])])
    running.carried_out()
    assert states(running) == ["published", "published"]


def test_one_that_cannot_be_mended_keeps_back_the_end_of_no_other(running: Running) -> None:
    bad, gone = opened(running, protocol="udp").json(), opened(running).json()
    running.carried_out()
    closed(running, gone["id"])
    running.says("slice.exposed", of=running.newest_order(), lost=[bad["id"]])
    assert states(running) == ["lost", "withdrawn"]
    running.says("slice.exposed", of=running.newest_order(), lost=[bad["id"]], others=False)
    assert states(running) == ["lost", "removed"]
    assert claims(running.plane) == {f"udp/{ADDRESS}:{bad['public_port']}"}


def test_released_and_proved_empty_nothing_of_it_is_claimed(running: Running) -> None:
    opened(running)
    with running.plane.client() as client:
        client.delete(f"/allocations/{running.id}")
    assert claims(running.plane) != set()
    running.says("slice.removed", absent=["link"])
    assert (claims(running.plane), running.found()["state"]) == (set(), "released")


def test_two_never_have_the_same_port_and_with_none_left_the_reason_is_told(running: Running) -> None:
    ports = {opened(running).json()["public_port"] for _ in range(2)}
    assert ports == {20000, 20001}
    refused = opened(running)
    assert (refused.status_code, codes(refused)) == (409, ["no_public_address"])
    assert opened(running, protocol="udp").is_success, "ports of another protocol are others"


def test_a_port_that_is_named_is_given_or_refused(running: Running) -> None:
    assert opened(running, public_port=20001).json()["public_port"] == 20001
    assert codes(opened(running, public_port=20001)) == ["no_public_address"]
    assert codes(opened(running, public_port=443)) == ["no_public_address"]


def test_a_whole_address_has_one_holder(running: Running) -> None:
    with running.plane.client() as client:
        path = f"/allocations/{running.id}/ingress"
        first, second = (client.post(path, json={"kind": "address"}) for _ in range(2))
    assert (first.json()["public_address"], first.json()["protocol"]) == (WHOLE["address"], None)
    assert codes(second) == ["no_public_address"]


def test_without_a_node_that_has_what_it_wants_a_request_is_refused_whole(
    plane: RunningPlane, node: httpx.Client
) -> None:
    has(plane)
    refused = allocate(plane, network_mode="public-nat", ingress=[SSH])
    assert refused.status_code == 409
    assert plane.rows("select 1 from ledger.event where type like 'allocation.%'") == []


def test_a_node_that_has_what_it_wants_is_found_beside_a_fuller_one_that_has_not(plane: RunningPlane) -> None:
    for name, slots in (("n1", 1), ("n2", 3)):
        admit(plane, name, slots=slots)
    has(plane, SHARED, node="n2")
    placed = allocate(plane, network_mode="public-nat", ingress=[SSH]).json()
    assert [each["node_id"] for each in placed["slots"]] == ["n2"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"network_mode": "private-nat", "ingress": [SSH]}, "ingress_needs_public_nat"),
        ({"network_mode": "public-nat", "ingress": [{**SSH, "slot": 1}]}, "no_such_slot"),
        ({"network_mode": "public-nat", "ingress": [{"protocol": "icmp", "port": 1}]}, "unknown_value"),
        ({"network_mode": "public-nat", "ingress": [{**SSH, "sources": ["10.0.0.1/8"]}]}, "invalid_value"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_reason(
    plane: RunningPlane, node: httpx.Client, asked: dict[str, Any], code: str
) -> None:
    refused = allocate(plane, **asked)
    assert (refused.status_code, codes(refused)) == (422, [code])


def test_an_allocation_of_another_mode_has_no_ways_in(plane: RunningPlane, node: httpx.Client) -> None:
    refused = opened(Running(plane, node))
    assert (refused.status_code, codes(refused)) == (409, ["ingress_needs_public_nat"])


def test_an_address_in_use_is_neither_taken_away_nor_given_to_another_node(running: Running) -> None:
    opened(running)
    assert codes(has(running.plane)) == ["address_in_use"]
    admit(running.plane, "n2")
    refused = has(running.plane, SHARED, node="n2")
    assert (refused.status_code, codes(refused)) == (409, ["public_taken"])
    with running.plane.client() as client:
        assert [each["address"] for each in client.get("/nodes/n1").json()["public_addresses"]] == [
            ADDRESS,
            WHOLE["address"],
        ]


@pytest.mark.parametrize(
    ("way", "in_use"), [({**SSH, "protocol": "udp"}, ADDRESS), ({"kind": "address"}, WHOLE["address"])]
)
def test_only_the_address_that_somebody_comes_in_by_is_in_use(
    running: Running, way: dict[str, Any], in_use: str
) -> None:
    alike: list[dict[str, Any]] = [
        {**SHARED, "address": f"{ADDRESS}0"},
        {"address": f"{WHOLE['address']}0", "use": "whole"},
    ]
    assert has(running.plane, SHARED, WHOLE, *alike).is_success
    with running.plane.client() as client:
        assert client.post(f"/allocations/{running.id}/ingress", json=way).is_success
    kept = [each for each in (SHARED, WHOLE) if each["address"] == in_use]
    other = [each for each in (SHARED, WHOLE) if each not in kept]
    assert codes(has(running.plane, *other)) == ["address_in_use"]
    assert has(running.plane, *kept).is_success


@pytest.mark.parametrize(
    ("address", "status", "code"),
    [
        ("0.0.0.0", 422, "no_host_address"),
        ("127.0.0.1", 422, "no_host_address"),
        ("169.254.0.1", 422, "no_host_address"),
        ("224.0.0.1", 422, "no_host_address"),
        ("255.255.255.255", 422, "no_host_address"),
        ("0.1.2.3", 422, "no_host_address"),
        ("240.0.0.9", 422, "no_host_address"),
        ("10.100.1.1", 409, "address_of_slices"),
    ],
)
def test_what_is_no_address_of_a_host_is_not_given_to_slices(
    shared_plane: RunningPlane, address: str, status: int, code: str
) -> None:
    shared_plane.client().post("/nodes", json={"id": "n1"})
    refused = has(shared_plane, {"address": address, "use": "whole"})
    assert (refused.status_code, codes(refused)) == (status, [code])


def test_who_had_a_port_is_in_its_history(running: Running) -> None:
    way = opened(running).json()
    with running.plane.client() as client:
        found = client.get(f"/history/mapping/tcp/{ADDRESS}:{way['public_port']}")
    assert running.id in found.text


def test_an_agent_that_knows_of_no_way_in_is_given_no_slice_with_one(plane: RunningPlane) -> None:
    admit(plane, "n1")
    assert has(plane, SHARED).is_success
    speaks(plane, ["slice.apply/1"])
    refused = allocate(plane, network_mode="public-nat", ingress=[SSH])
    assert (refused.status_code, codes(refused)) == (409, ["no_capacity"])
    assert allocate(plane, network_mode="public-nat").status_code == 202


def test_an_address_that_is_being_taken_away_is_given_to_nobody(plane: RunningPlane) -> None:
    admit(plane, "n1")
    assert has(plane, SHARED).is_success
    with ThreadPoolExecutor() as pool, psycopg.connect(plane.database.admin_dsn) as taking:
        taking.execute("update read.node set public_addresses = '[]' where node_id = 'n1'")
        asked = pool.submit(allocate, plane, network_mode="public-nat", ingress=[SSH])
        until(lambda: asked.done() or plane.somebody_waits_for_a_lock(), "the request waits for its node")
        taking.commit()
    assert (asked.result().status_code, codes(asked.result())) == (409, ["no_public_address"])
    assert claims(plane) == set()


def test_what_failed_under_an_order_for_a_way_in_fails_no_stop(running: Running) -> None:
    opened(running)
    order = running.carried_out()
    running.says("slice.interrupted", of=order, reason={"code": "machine_not_running", "message": "it died"})
    running.asked_to("stop")
    running.says("slice.failed", of=order, reason={"code": "not_reachable", "message": "silent"})
    assert running.found()["state"] == "stopping"
