"""Tests of what both clients send, when they repeat a request, and how they interpret responses."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from control_plane.client import bodies, calls, errors
from control_plane.client.exchange import Call, Prepared, prepare
from control_plane.client.retries import LONGEST_PAUSE, PAUSES, pause_after_loss, pause_after_response
from deploy.embedded.certificates import ensure
from tests.cli.control_plane import Reply, ScriptedPlane, document, page, problem, running_plane
from tests.cli.examples import ALLOCATION, NODE, allocation
from tests.client.clients import AnyClient, client_of

CREATE = calls.create_allocation(bodies.CreateAllocation(sku="lab.small", ssh_authorized_keys=["k"]))
BUSY = problem(409, "idempotency_key_in_use", "still being answered", retry_after=0)
LATER = problem(503, "not_yet_listed", "repeat", retry_after=0)
NODES = [{**NODE, "id": f"n{number}"} for number in range(5)]


def keys_sent(plane: ScriptedPlane, route: str) -> set[str | None]:
    return {request.headers.get("Idempotency-Key") for request in plane.requests(route)}


def test_client_does_not_send_unset_fields_of_a_request_body(plane: ScriptedPlane, client: AnyClient) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    assert client.run(CREATE).state == "placed"
    assert json.loads(plane.received[0].body) == {"sku": "lab.small", "ssh_authorized_keys": ["k"]}
    assert plane.received[0].headers["Authorization"] == "Bearer sp_test"
    assert plane.received[0].headers["User-Agent"].startswith("sliceplane/")


@pytest.mark.parametrize("first", [Reply(lose=True), BUSY, LATER], ids=["lost", "busy", "unavailable"])
def test_post_without_a_usable_answer_is_repeated_with_the_same_idempotency_key(
    plane: ScriptedPlane, client: AnyClient, first: Reply
) -> None:
    plane.script("POST /v1/allocations", first, first, document(allocation("placed"), 202))
    assert client.run(CREATE).id == ALLOCATION
    assert len(plane.requests("POST /v1/allocations")) == 3
    [key] = keys_sent(plane, "POST /v1/allocations")
    assert key


def test_patch_is_repeated_with_the_same_idempotency_key(plane: ScriptedPlane, client: AnyClient) -> None:
    plane.script(
        "PATCH /v1/projects/p", Reply(lose=True), document({"id": "p", "state": "active", "description": "d"})
    )
    assert client.run(calls.describe_project("p", "d")).description == "d"
    [key] = keys_sent(plane, "PATCH /v1/projects/p")
    assert key


def test_two_calls_of_the_client_send_different_idempotency_keys(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    client.run(CREATE)
    client.run(CREATE)
    assert len(keys_sent(plane, "POST /v1/allocations")) == 2


def test_client_raises_a_conflict_that_is_not_temporary_after_one_request(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script("POST /v1/allocations", problem(409, "no_capacity", "there is none"))
    with pytest.raises(errors.Conflict) as refused:
        client.run(CREATE)
    assert (refused.value.codes, refused.value.request_id) == (frozenset({"no_capacity"}), "req-1")
    assert len(plane.received) == 1


def test_client_raises_unreachable_after_a_few_attempts_for_a_server_that_never_answers(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script("GET /v1/nodes/n1", Reply(lose=True))
    with pytest.raises(errors.Unreachable, match="cannot reach the control plane"):
        client.run(calls.node("n1"))
    assert len(plane.received) == len(PAUSES) + 1


def test_readiness_is_requested_once_and_its_response_is_read_whatever_its_status_is(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script("GET /readyz", document({"status": "not_ready", "checks": []}, 503), Reply(lose=True))
    assert client.run(calls.readiness()).status == "not_ready"
    with pytest.raises(errors.Unreachable):
        client.run(calls.readiness())
    assert len(plane.received) == 2


@pytest.mark.parametrize("reply", [Reply(b"<html>", 502), Reply(b"<html>"), document({"id": 3})])
def test_response_of_a_server_that_is_not_a_control_plane_is_reported_as_unexpected(
    plane: ScriptedPlane, client: AnyClient, reply: Reply
) -> None:
    plane.script("GET /v1/nodes/n1", reply)
    with pytest.raises(errors.UnexpectedResponse):
        client.run(calls.node("n1"))


def test_client_reply_has_the_position_and_time_of_the_state_the_request_id_and_whether_it_was_replayed(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    headers = {
        "Sliceplane-Position": "1.7",
        "Sliceplane-Time": "2026-01-02T03:04:05+00:00",
        "X-Request-Id": "req-9",
        "Idempotent-Replayed": "true",
    }
    plane.script("GET /v1/nodes/lab-a", Reply(json.dumps(NODE).encode(), headers=headers))
    reply = client.send(calls.node("lab-a", at="position:7"))
    assert plane.received[0].path == "/v1/nodes/lab-a?at=position%3A7"
    assert (reply.position, reply.request_id, reply.replayed) == ("1.7", "req-9", True)
    assert reply.recorded == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert json.loads(reply.raw) == NODE


def test_list_requests_its_pages_as_they_are_needed_and_stops_at_its_limit(
    plane: ScriptedPlane, client: AnyClient
) -> None:
    plane.script("GET /v1/nodes", page(*NODES[:2], next_cursor="n1"), page(*NODES[2:4], next_cursor="n3"))
    assert [node.id for node in client.items(calls.nodes(), 3)] == ["n0", "n1", "n2"]
    assert [each.path for each in plane.received] == ["/v1/nodes?limit=3", "/v1/nodes?cursor=n1&limit=1"]


def test_list_without_a_limit_has_the_items_of_all_pages(plane: ScriptedPlane, client: AnyClient) -> None:
    plane.script("GET /v1/nodes", page(*NODES[:3], next_cursor="n2"), page(*NODES[3:]))
    assert [node.id for node in client.items(calls.nodes())] == ["n0", "n1", "n2", "n3", "n4"]


@contextmanager
def serving_tls(certificate: Path) -> Iterator[ScriptedPlane]:
    """Run a scripted control plane with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with running_plane() as plane:
        plane.socket = context.wrap_socket(plane.socket, server_side=True)
        yield plane


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_certificate_of_an_untrusted_ca_is_reported_without_further_attempts(
    kind: str, tmp_path: Path
) -> None:
    made = ensure(tmp_path / "tls", ["127.0.0.1"], datetime.now(UTC))
    other = ensure(tmp_path / "other", ["127.0.0.1"], datetime.now(UTC))
    with serving_tls(made.server) as plane:
        plane.script("GET /v1/nodes/lab-a", document(NODE))
        with client_of(kind, plane.url.replace("http:", "https:"), "k", made.ca.read_text()) as client:
            assert client.run(calls.node("lab-a")).id == "lab-a"
        with (
            client_of(kind, plane.url.replace("http:", "https:"), "k", other.ca.read_text()) as client,
            pytest.raises(errors.Untrusted, match="not signed by a trusted CA"),
        ):
            client.run(calls.node("lab-a"))


@pytest.mark.parametrize("name", ["", "..", ".", "a/b"])
def test_name_that_is_not_one_segment_of_a_path_is_refused_before_a_request(name: str) -> None:
    with pytest.raises(errors.InvalidName):
        calls.node(name)


UNSAFE = Prepared("POST", "/x", {}, {})
SAFE = prepare(Call("POST", "/x", object), "key")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_request_with_an_idempotent_method_is_repeated_without_an_idempotency_key(method: str) -> None:
    request = prepare(Call(method, "/x", object), "key")
    assert "Idempotency-Key" not in request.headers
    assert [pause_after_loss(request, attempt) for attempt in range(4)] == [*PAUSES, None]


def test_post_without_an_idempotency_key_is_never_repeated() -> None:
    assert pause_after_loss(UNSAFE, 0) is None
    assert pause_after_response(UNSAFE, 0, 503, {"retry-after": "1"}) is None
    assert pause_after_loss(SAFE, 0) == PAUSES[0]


@pytest.mark.parametrize(
    ("status", "asked", "pause"),
    [
        (503, "1", 1.0),
        (429, "3600", LONGEST_PAUSE),
        (409, "0", 0.0),
        (503, "Wed, 21 Oct 2026 07:28:00 GMT", LONGEST_PAUSE),
        (503, None, None),
        (500, "1", None),
        (404, "1", None),
        (200, None, None),
    ],
)
def test_request_is_repeated_only_after_a_temporary_refusal_with_a_retry_after_header(
    status: int, asked: str | None, pause: float | None
) -> None:
    headers = {} if asked is None else {"retry-after": asked}
    assert pause_after_response(SAFE, 0, status, headers) == pause
    assert pause_after_response(SAFE, len(PAUSES), status, headers) is None
