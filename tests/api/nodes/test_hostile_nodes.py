"""False reports of a compromised node affect neither the readers of the ledger nor the orders of another node."""

from itertools import count
from typing import Any
from uuid import uuid4

import pytest
import redis

from tests.api.node import (
    BEAT,
    KEY,
    QUEUE_PASSWORD,
    SLOT,
    admit,
    allocate,
    as_node,
    batch,
    enrol,
    register_node,
    survey,
)
from tests.servers.plane import RunningPlane
from tests.servers.redis import connect_as_node
from tests.waiting import until


def order_of(plane: RunningPlane, node: str) -> str:
    """Wait for an unfinished order of a node, and return its id."""
    query = "select order_id::text from work.task where node_id = %(node)s and state in ('due', 'sent')"
    until(lambda: bool(plane.rows(query, node=node)), "the node has an order")
    return str(plane.rows(query, node=node)[0][0])


def refused(slot: str, order: str) -> dict[str, Any]:
    reason = {"code": "stale_token", "message": "a false reason"}
    return {"kind": "order.refused", "order_id": order, "slot_id": slot, "reason": reason}


def test_order_refusal_from_another_node_does_not_end_the_order(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1")
    assert allocate(running_plane).status_code == 202
    order = order_of(running_plane, "n1")
    other_node = admit(running_plane, "n2")
    for slot in ("n1/0", "n2/0"):
        assert other_node.post("/reports", json=batch(str(uuid4()), (1, refused(slot, order)))).is_success
        assert order_of(running_plane, "n1") == order


def test_slice_failed_report_of_a_node_with_the_order_id_of_another_node_does_not_end_that_order(
    running_plane: RunningPlane,
) -> None:
    reporting_node = admit(running_plane, "n1")
    own = allocate(running_plane).json()["id"]
    admit(running_plane, "n2")
    assert allocate(running_plane).json()["slots"][0]["node_id"] == "n2"
    order = order_of(running_plane, "n2")
    failed = {
        "kind": "slice.failed",
        "slot_id": "n1/0",
        "allocation_id": own,
        "reason": {"code": "broken", "message": "a slice of the reporting node"},
    }
    body = batch(str(uuid4()), (1, failed))
    body["reports"][0]["order_id"] = order
    assert reporting_node.post("/reports", json=body).is_success
    assert order_of(running_plane, "n2") == order


def test_node_that_refuses_orders_repeatedly_adds_a_bounded_number_of_events(
    running_plane: RunningPlane,
) -> None:
    """The node refuses its own and unknown orders, with known and unknown codes; each combination is recorded once."""
    node = admit(running_plane, "n1")
    assert allocate(running_plane).status_code == 202
    own, spool, numbers = order_of(running_plane, "n1"), str(uuid4()), count(1)

    def refuse(*fields: tuple[str, str, str | None]) -> int:
        reports = [
            {**refused("", order), "slot_id": slot, "reason": _reason(code)} for order, code, slot in fields
        ]
        assert node.post(
            "/reports", json=batch(spool, *((next(numbers), each) for each in reports))
        ).is_success
        query = "select 1 from ledger.event where type in ('order.refused', 'order.message_refused')"
        return len(running_plane.rows(query))

    assert refuse(*[(str(uuid4()), "forged", None) for _ in range(20)]) == 1
    assert refuse(*[(str(uuid4()), "malformed", None) for _ in range(20)]) == 2
    assert refuse(*[(str(uuid4()), "malformed", "n1/0") for _ in range(20)]) == 2
    assert refuse(*[(str(uuid4()), f"invented_{number}", None) for number in range(20)]) == 3
    assert refuse(*[(own, f"invented_{number}", "n1/0") for number in range(20)]) == 4
    assert refuse(*[(own, "stale_token", "n1/0") for _ in range(20)]) == 5
    assert running_plane.rows("select sum(times)::int from work.refusal") == [(120,)]


def test_node_that_floods_its_queue_is_revoked_and_another_node_still_receives_its_order(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    flood = connect_as_node(running_plane.redis.port, "n1", QUEUE_PASSWORD)
    with pytest.raises(redis.RedisError):
        any(flood.hset("ctl:n1:slices.messages", str(each), "x" * 500_000) < 0 for each in count())
    client = running_plane.client()
    until(lambda: client.get("/nodes/n1").json()["state"] == "revoked", "the flood is detected")
    assert client.get("/nodes/n1").json()["revoked"].startswith("queue_flooded: ")
    admit(running_plane, "n2")
    assert allocate(running_plane).json()["slots"][0]["node_id"] == "n2"
    order = order_of(running_plane, "n2")
    with redis.Redis.from_url(running_plane.redis.url, decode_responses=True) as admin:
        until(lambda: admin.lrange("ctl:n2:slices", 0, -1) == [order], "its order is in its queue")
        assert admin.keys("ctl:n1:*") == []


def _reason(code: str) -> dict[str, str]:
    return {"code": code, "message": "a false reason"}


def test_report_with_an_unreadable_time_is_refused(running_plane: RunningPlane) -> None:
    enrol(running_plane, "n1", register_node(running_plane, "n1"))
    body = batch(str(uuid4()), (1, survey()))
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-03-01T12:00:00"):
        body["reports"][0]["observed_at"] = moment
        assert as_node(running_plane, "n1").post("/reports", json=body).status_code == 422
    assert running_plane.rows("select 1 from ledger.event where type = 'node.inspected'") == []


@pytest.mark.parametrize(
    "fields",
    [
        {"hostname": "n\0"},
        {"agent_version": "\0"},
        {"images": ["\0"]},
        {"missing": ["\0"]},
        {"slots": [{**SLOT, "vcpus": 2**40}]},
        {"slots": [{**SLOT, "memory_mib": 2**40}]},
        {"slots": [{**SLOT, "network_device": "\0"}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_node_description_that_cannot_be_stored_is_refused(
    shared_plane: RunningPlane, fields: dict[str, Any]
) -> None:
    name = f"n{uuid4().hex[:8]}"
    enrol(shared_plane, name, register_node(shared_plane, name))
    answer = as_node(shared_plane, name).post("/reports", json=batch(str(uuid4()), (1, survey(**fields))))
    assert answer.status_code == 422


@pytest.mark.parametrize("beat", [{"spooled_reports": 2**40}, {"agent_version": "\0"}], ids=str)
def test_heartbeat_that_cannot_be_stored_is_refused(shared_plane: RunningPlane, beat: dict[str, Any]) -> None:
    name = f"n{uuid4().hex[:8]}"
    enrol(shared_plane, name, register_node(shared_plane, name))
    body = {"agent_version": "1", "spooled_reports": 0, "resynced": True, **beat}
    assert as_node(shared_plane, name).post("/heartbeat", json=body).status_code == 422


def test_node_view_shows_the_number_of_spooled_reports(shared_plane: RunningPlane) -> None:
    name = f"n{uuid4().hex[:8]}"
    enrol(shared_plane, name, register_node(shared_plane, name))
    client = shared_plane.client()
    assert client.get(f"/nodes/{name}").json()["spooled_reports"] is None
    as_node(shared_plane, name).post("/heartbeat", json={**BEAT, "spooled_reports": 9_998})
    shown = client.get(f"/nodes/{name}").json()
    assert (shown["spooled_reports"], shown["state"]) == (9_998, "resyncing")


def test_report_of_an_old_sequence_is_answered_with_the_last_accepted_sequence(
    running_plane: RunningPlane,
) -> None:
    enrol(running_plane, "n1", register_node(running_plane, "n1"))
    node, spool = as_node(running_plane, "n1"), str(uuid4())
    taken = node.post("/reports", json=batch(spool, *((number, survey()) for number in range(1, 6))))
    assert taken.json() == {"sequence": 5}
    restored = node.post("/reports", json=batch(spool, (2, survey(hostname="another"))))
    assert restored.json() == {"sequence": 5}


def test_allocation_request_that_needs_too_large_an_order_is_refused(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1")
    keys = [f"{KEY} {'x' * 8000}-{number}" for number in range(16)]
    answer = allocate(running_plane, ssh_authorized_keys=keys)
    assert answer.status_code == 422
    assert answer.json()["reasons"][0]["field"] == "/ssh_authorized_keys"


def test_request_with_an_invalid_trace_context_starts_a_trace_and_a_valid_one_is_continued(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1", slots=2)
    good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}
    expected = []
    for given in ("x" * 60_000, good):
        answer = running_plane.client(traceparent=given).post("/allocations", json=body)
        assert answer.status_code == 202
        own = answer.headers["x-request-id"].removeprefix("req-")
        trace = good[3:35] if given == good else own
        expected.append(f"00-{trace}-{own[16:]}-01")
        assert answer.headers["traceparent"] == expected[-1]
    twice = running_plane.client().get("/skus", headers=[("traceparent", good), ("traceparent", good)])
    assert good[3:35] not in twice.headers["traceparent"]
    requested = "select trace_context from ledger.event where type = 'allocation.requested' order by position"
    assert running_plane.rows(requested) == [(each,) for each in expected]
    order_of(running_plane, "n1")
