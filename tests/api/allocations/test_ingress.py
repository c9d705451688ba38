"""Ingress rules over the API: reservation of a public port, publication when the node reports the rule, removal."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx
import psycopg
import pytest

from control_plane.decisions.ingress import IN_PLACE_WITHIN
from tests.api.node import admit, allocate, set_capabilities
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until

ADDRESS = "203.0.113.7"
SHARED = {"address": ADDRESS, "use": "ports", "first_port": 20000, "last_port": 20001}
WHOLE = {"address": "203.0.113.9", "use": "whole"}
SSH = {"protocol": "tcp", "port": 22}


def set_public_addresses(plane: RunningPlane, *addresses: dict[str, Any], node: str = "n1") -> httpx.Response:
    with plane.client() as client:
        return client.put(f"/nodes/{node}/public-addresses", json={"addresses": list(addresses)})


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    return emptied_plane


@pytest.fixture
def node(plane: RunningPlane) -> httpx.Client:
    made = admit(plane, "n1")
    assert set_public_addresses(plane, SHARED, WHOLE).is_success
    return made


@pytest.fixture
def running(plane: RunningPlane, node: httpx.Client) -> RunningAllocation:
    """An active allocation without ingress rules."""
    return RunningAllocation(plane, node, network_mode="public-nat")


def create_ingress(running: RunningAllocation, **rule: Any) -> httpx.Response:
    with running.plane.client() as client:
        return client.post(f"/allocations/{running.id}/ingress", json={**SSH, **rule})


def delete_ingress(running: RunningAllocation, name: str) -> httpx.Response:
    with running.plane.client() as client:
        return client.delete(f"/allocations/{running.id}/ingress/{name}")


def ingress_states(running: RunningAllocation) -> list[str]:
    return [each["state"] for each in running.view()["ingress"]]


def public_endpoints(running: RunningAllocation) -> list[tuple[str, int]]:
    return [
        (each["address"], each["port"]) for each in running.view()["endpoints"] if each["via"] == "public"
    ]


def claimed_ports(plane: RunningPlane) -> set[str]:
    return {value for (value,) in plane.rows("select value from ledger.claim where kind = 'port'")}


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def test_ingress_requested_with_an_allocation_is_published_once_the_allocation_is_active(
    plane: RunningPlane, node: httpx.Client
) -> None:
    running = RunningAllocation(
        plane, node, network_mode="public-nat", ingress=[{**SSH, "public_port": 20001}]
    )
    assert running.event_types()[:4] == ["requested", "specified", "ingress.reserved", "placed"]
    assert ingress_states(running) == ["published"]
    assert public_endpoints(running) == [(ADDRESS, 20001)]
    assert claimed_ports(plane) == {f"tcp/{ADDRESS}:20001"}


def test_ingress_added_to_an_active_allocation_is_published_when_its_node_reports_it(
    running: RunningAllocation,
) -> None:
    rule = create_ingress(running).json()
    assert (rule["state"], rule["public_address"], rule["port"]) == ("reserved", ADDRESS, 22)
    assert (ingress_states(running), public_endpoints(running)) == (["reserved"], [])
    running.complete_order()
    assert (ingress_states(running), public_endpoints(running)) == (
        ["published"],
        [(ADDRESS, rule["public_port"])],
    )
    assert running.view()["state"] == "active"


def test_report_of_an_older_order_does_not_publish_new_ingress(running: RunningAllocation) -> None:
    first = running.newest_order()
    create_ingress(running)
    running.report_ready(first)
    assert ingress_states(running) == ["reserved"]


def test_port_of_deleted_ingress_is_free_once_its_node_proves_the_removal(running: RunningAllocation) -> None:
    name = create_ingress(running).json()["id"]
    running.complete_order()
    assert delete_ingress(running, name).status_code == 202
    assert (ingress_states(running), public_endpoints(running)) == (["withdrawn"], [])
    assert claimed_ports(running.plane) != set()
    running.complete_order()
    assert (ingress_states(running), claimed_ports(running.plane)) == (["removed"], set())


def test_ingress_of_a_stopping_allocation_is_reserved_at_once_and_published_after_a_start(
    running: RunningAllocation,
) -> None:
    create_ingress(running)
    running.complete_order()
    assert running.request("stop").is_success
    assert (running.view()["state"], ingress_states(running), public_endpoints(running)) == (
        "stopping",
        ["reserved"],
        [],
    )
    running.report_stopped()
    assert (running.view()["state"], ingress_states(running), public_endpoints(running)) == (
        "stopped",
        ["reserved"],
        [],
    )
    assert running.request("start").is_success
    running.complete_order()
    assert (running.view()["state"], ingress_states(running)) == ("active", ["published"])


def test_ingress_of_a_releasing_allocation_is_withdrawn_at_once(
    running: RunningAllocation,
) -> None:
    create_ingress(running)
    running.complete_order()
    assert running.plane.client().delete(f"/allocations/{running.id}").is_success
    assert (running.view()["state"], ingress_states(running), public_endpoints(running)) == (
        "releasing",
        ["withdrawn"],
        [],
    )


def test_ingress_reported_lost_is_not_an_endpoint_until_it_is_back(running: RunningAllocation) -> None:
    name = create_ingress(running).json()["id"]
    order = running.complete_order()
    running.report("slice.ingress_observed", order_id=order, lost=[name])
    assert (ingress_states(running), public_endpoints(running)) == (["lost"], [])
    [lost] = running.view()["ingress"]
    assert lost["reason"]["code"] == "ingress_lost"
    assert "nothing in the slice answers on tcp/22" in lost["reason"]["message"]
    running.report("slice.ingress_observed", order_id=order, lost=[])
    assert ingress_states(running) == ["published"]


def test_deadline_of_an_ingress_added_before_its_slice_is_ready_is_later_than_the_deadline_of_the_placement(
    plane: RunningPlane, node: httpx.Client
) -> None:
    made = allocate(plane, network_mode="public-nat").json()
    with plane.client() as client:
        assert client.post(f"/allocations/{made['id']}/ingress", json=SSH).is_success
    later = """select (ingress.data::jsonb ->> 'deadline')::timestamptz - (placed.data::jsonb ->> 'deadline')::timestamptz
                 from ledger.event ingress, ledger.event placed
                where ingress.type = 'ingress.reserved' and placed.type = 'allocation.placed'"""
    assert plane.rows(later) == [(IN_PLACE_WITHIN,)]


def test_ingress_reported_lost_under_an_older_order_is_not_an_endpoint(running: RunningAllocation) -> None:
    """The node reports under the older order because it has not yet received the order with the second ingress rule."""
    name = create_ingress(running).json()["id"]
    order = running.complete_order()
    create_ingress(running)
    running.report("slice.ingress_observed", order_id=order, lost=[name])
    assert (ingress_states(running), public_endpoints(running)) == (["lost", "reserved"], [])


def test_ingress_of_a_stopped_allocation_keeps_its_port_and_is_published_after_the_next_start(
    running: RunningAllocation,
) -> None:
    rule = create_ingress(running).json()
    running.complete_order()
    running.request("stop")
    assert public_endpoints(running) == []
    running.report_stopped()
    off = running.plane.last_position()
    assert (ingress_states(running), public_endpoints(running)) == (["reserved"], [])
    assert claimed_ports(running.plane) == {f"tcp/{ADDRESS}:{rule['public_port']}"}
    running.request("start")
    assert (ingress_states(running), public_endpoints(running)) == (["reserved"], [])
    running.complete_order()
    assert (ingress_states(running), public_endpoints(running)) == (
        ["published"],
        [(ADDRESS, rule["public_port"])],
    )
    with running.plane.client() as client:
        client.delete(f"/allocations/{running.id}")
        assert public_endpoints(running) == []
        running.report("slice.removed", absent=["link"])
        assert (ingress_states(running), claimed_ports(running.plane)) == (["removed"], set())
        then = client.get(f"/allocations/{running.id}", params={"at": f"position:{off}"}).json()
    assert [each["state"] for each in then["ingress"]] == ["reserved"]


def test_ingress_events_reference_the_event_that_caused_their_order(running: RunningAllocation) -> None:
    name = create_ingress(running).json()["id"]
    order = running.complete_order()
    create_ingress(running)
    running.report("slice.ingress_observed", order_id=order, lost=[name])
    assert running.causes_of("ingress.published", "ingress.lost") == ["ingress.reserved"] * 2
    delete_ingress(running, name)
    running.complete_order()
    assert running.causes_of("ingress.removed") == ["ingress.withdrawn"]
    assert running.causes_of("allocation.slice_ready") == ["allocation.placed"]


def test_ingress_that_fails_does_not_prevent_another_from_being_published(running: RunningAllocation) -> None:
    bad, good = create_ingress(running, protocol="udp").json(), create_ingress(running).json()
    running.report("slice.ingress_observed", order_id=running.newest_order(), lost=[bad["id"]])
    assert (ingress_states(running), public_endpoints(running)) == (
        ["reserved", "published"],
        [(ADDRESS, good["public_port"])],
    )
    running.complete_order()
    assert ingress_states(running) == ["published", "published"]


def test_ingress_that_stays_lost_does_not_prevent_the_removal_of_another(running: RunningAllocation) -> None:
    bad, gone = create_ingress(running, protocol="udp").json(), create_ingress(running).json()
    running.complete_order()
    delete_ingress(running, gone["id"])
    running.report("slice.ingress_observed", order_id=running.newest_order(), lost=[bad["id"]])
    assert ingress_states(running) == ["lost", "withdrawn"]
    running.report("slice.ingress_observed", order_id=running.newest_order(), lost=[bad["id"]], others=False)
    assert ingress_states(running) == ["lost", "removed"]
    assert claimed_ports(running.plane) == {f"udp/{ADDRESS}:{bad['public_port']}"}


def test_released_allocation_claims_no_port_once_its_slot_is_proved_empty(running: RunningAllocation) -> None:
    create_ingress(running)
    with running.plane.client() as client:
        client.delete(f"/allocations/{running.id}")
    assert claimed_ports(running.plane) != set()
    running.report("slice.removed", absent=["link"])
    assert (claimed_ports(running.plane), running.view()["state"]) == (set(), "released")


def test_ingress_rules_receive_different_ports_until_none_is_left(running: RunningAllocation) -> None:
    ports = {create_ingress(running).json()["public_port"] for _ in range(2)}
    assert ports == {20000, 20001}
    refused = create_ingress(running)
    assert (refused.status_code, codes(refused)) == (409, ["no_public_address"])
    assert create_ingress(running, protocol="udp").is_success, "the ports of each protocol are independent"


def test_requested_public_port_is_reserved_or_the_request_is_refused(running: RunningAllocation) -> None:
    assert create_ingress(running, public_port=20001).json()["public_port"] == 20001
    assert codes(create_ingress(running, public_port=20001)) == ["no_public_address"]
    assert codes(create_ingress(running, public_port=443)) == ["no_public_address"]


def test_whole_public_address_is_reserved_for_one_ingress_rule_only(running: RunningAllocation) -> None:
    with running.plane.client() as client:
        path = f"/allocations/{running.id}/ingress"
        first, second = (client.post(path, json={"kind": "address"}) for _ in range(2))
    assert (first.json()["public_address"], first.json()["protocol"]) == (WHOLE["address"], None)
    assert codes(second) == ["no_public_address"]


def test_request_with_ingress_that_no_node_can_provide_is_refused_without_events(
    plane: RunningPlane, node: httpx.Client
) -> None:
    set_public_addresses(plane)
    refused = allocate(plane, network_mode="public-nat", ingress=[SSH])
    assert refused.status_code == 409
    assert plane.rows("select 1 from ledger.event where type like 'allocation.%'") == []


def test_request_with_ingress_is_placed_on_the_node_with_a_public_address(plane: RunningPlane) -> None:
    for name, slots in (("n1", 1), ("n2", 3)):
        admit(plane, name, slots=slots)
    set_public_addresses(plane, SHARED, node="n2")
    placed = allocate(plane, network_mode="public-nat", ingress=[SSH]).json()
    assert [each["node_id"] for each in placed["slots"]] == ["n2"]


INVALID: Final[tuple[tuple[dict[str, Any], str], ...]] = (
    ({"network_mode": "private-nat", "ingress": [SSH]}, "ingress_needs_public_nat"),
    ({"network_mode": "public-nat", "ingress": [{**SSH, "slot": 1}]}, "unknown_slot_index"),
    ({"network_mode": "public-nat", "ingress": [{"protocol": "icmp", "port": 1}]}, "unknown_value"),
    ({"network_mode": "public-nat", "ingress": [{**SSH, "sources": ["10.0.0.1/8"]}]}, "invalid_value"),
)


def test_allocation_request_with_invalid_ingress_is_refused_with_its_reason(
    plane: RunningPlane, node: httpx.Client
) -> None:
    for requested, code in INVALID:
        refused = allocate(plane, **requested)
        assert (refused.status_code, codes(refused)) == (422, [code])


def test_ingress_of_a_private_nat_allocation_is_refused(plane: RunningPlane, node: httpx.Client) -> None:
    refused = create_ingress(RunningAllocation(plane, node))
    assert (refused.status_code, codes(refused)) == (409, ["ingress_needs_public_nat"])


def test_public_address_in_use_is_neither_removed_nor_assigned_to_another_node(
    running: RunningAllocation,
) -> None:
    create_ingress(running)
    assert codes(set_public_addresses(running.plane)) == ["address_in_use"]
    admit(running.plane, "n2")
    refused = set_public_addresses(running.plane, SHARED, node="n2")
    assert (refused.status_code, codes(refused)) == (409, ["public_taken"])
    with running.plane.client() as client:
        assert [each["address"] for each in client.get("/nodes/n1").json()["public_addresses"]] == [
            ADDRESS,
            WHOLE["address"],
        ]


@pytest.mark.parametrize(
    ("rule", "in_use"), [({**SSH, "protocol": "udp"}, ADDRESS), ({"kind": "address"}, WHOLE["address"])]
)
def test_public_address_of_a_node_can_be_removed_unless_an_ingress_rule_uses_it(
    running: RunningAllocation, rule: dict[str, Any], in_use: str
) -> None:
    other_addresses: list[dict[str, Any]] = [
        {**SHARED, "address": f"{ADDRESS}0"},
        {"address": f"{WHOLE['address']}0", "use": "whole"},
    ]
    assert set_public_addresses(running.plane, SHARED, WHOLE, *other_addresses).is_success
    with running.plane.client() as client:
        assert client.post(f"/allocations/{running.id}/ingress", json=rule).is_success
    kept = [each for each in (SHARED, WHOLE) if each["address"] == in_use]
    other = [each for each in (SHARED, WHOLE) if each not in kept]
    assert codes(set_public_addresses(running.plane, *other)) == ["address_in_use"]
    assert set_public_addresses(running.plane, *kept).is_success


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
def test_public_address_that_is_not_a_host_address_is_refused(
    emptied_plane: RunningPlane, address: str, status: int, code: str
) -> None:
    emptied_plane.client().post("/nodes", json={"id": "n1"})
    refused = set_public_addresses(emptied_plane, {"address": address, "use": "whole"})
    assert (refused.status_code, codes(refused)) == (status, [code])


def test_history_of_a_public_port_names_the_allocation_that_held_it(running: RunningAllocation) -> None:
    rule = create_ingress(running).json()
    with running.plane.client() as client:
        found = client.get(f"/history/ingress/tcp/{ADDRESS}:{rule['public_port']}")
    assert running.id in found.text


def test_agent_without_the_ingress_capability_receives_no_slice_with_ingress(plane: RunningPlane) -> None:
    admit(plane, "n1")
    assert set_public_addresses(plane, SHARED).is_success
    set_capabilities(plane, ["slice.apply/1"])
    refused = allocate(plane, network_mode="public-nat", ingress=[SSH])
    assert (refused.status_code, codes(refused)) == (409, ["no_healthy_slot"])
    assert allocate(plane, network_mode="public-nat").status_code == 202


def test_public_address_that_is_being_removed_is_not_reserved(plane: RunningPlane) -> None:
    admit(plane, "n1")
    assert set_public_addresses(plane, SHARED).is_success
    with ThreadPoolExecutor() as pool, psycopg.connect(plane.database.admin_dsn) as taking:
        taking.execute("update read.node set public_addresses = '[]' where node_id = 'n1'")
        requested = pool.submit(allocate, plane, network_mode="public-nat", ingress=[SSH])
        until(lambda: requested.done() or plane.has_lock_waiter(), "the request waits for its node")
        taking.commit()
    assert (requested.result().status_code, codes(requested.result())) == (409, ["no_public_address"])
    assert claimed_ports(plane) == set()


def test_failure_of_the_order_that_added_an_ingress_does_not_fail_a_later_stop(
    running: RunningAllocation,
) -> None:
    create_ingress(running)
    order = running.complete_order()
    running.report(
        "slice.interrupted", order_id=order, reason={"code": "machine_not_running", "message": "it died"}
    )
    running.request("stop")
    running.report("slice.failed", order_id=order, reason={"code": "not_reachable", "message": "unreachable"})
    assert running.view()["state"] == "stopping"
