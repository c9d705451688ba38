"""An invalid request is refused with every reason at once, as problem+json, and changes nothing."""

import json
import re
from typing import Any
from uuid import UUID

import httpx
import pytest

from control_plane.api.requests.body_limit import MOST_BYTES, MOST_ENROLMENT_BYTES, MOST_REPORTED_BYTES
from tests.api.node import admit, batch, survey
from tests.servers.plane import TLS_CONTEXT, RunningPlane

GOOD = {
    "sku": "lab.small",
    "ssh_authorized_keys": [
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV"
    ],
}
INGRESS = {**GOOD, "network_mode": "public-nat"}
EVERYTHING_WRONG = {
    "sku": "h900.huge",
    "network_mode": "fabric-only",
    "image": "no-such-image",
    "ssh_authorized_keys": ["ssh-rsa not-base64"],
    "lease_seconds": "an hour",
    "not_a_field": 1,
}
HELD = {"index": 0, "epoch": 1, "position": 1, "sha256": "0" * 64}
STEP = {"order_id": str(UUID(int=1)), "step": "boot", "number": 1, "of": 2, "at": "2026-11-25T09:30:00Z"}


@pytest.fixture(scope="module")
def node(shared_plane: RunningPlane) -> httpx.Client:
    return admit(shared_plane, "n1", approve=False)


def codes(answer: httpx.Response) -> set[str]:
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    return {reason["code"] for reason in answer.json()["reasons"]}


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"sku": "h900.huge"}, 404, "unknown_sku"),
        ({"image": "no-such-image"}, 404, "unknown_image"),
        ({"network_mode": "fabric-only"}, 409, "fabric_only_refused"),
        ({"network_mode": "overlay"}, 409, "network_mode_not_offered"),
        ({"network_mode": "pigeon"}, 422, "unknown_network_mode"),
        ({"ssh_authorized_keys": ["ssh-rsa not-base64"]}, 422, "invalid_value"),
        ({"ssh_authorized_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9z"]}, 422, "invalid_value"),
        ({"ssh_authorized_keys": []}, 422, "too_short"),
        ({"not_a_field": 1}, 422, "unknown_field"),
        ({"lease_seconds": "an hour"}, 422, "wrong_type"),
        ({"lease_seconds": True}, 422, "wrong_type"),
        ({"slot_count": 0}, 422, "out_of_range"),
        ({"project": "Not A Name"}, 422, "invalid_value"),
        ({}, 409, "no_suitable_slot"),
    ],
)
def test_invalid_allocation_request_is_refused_with_its_status_and_reason(
    shared_plane: RunningPlane, change: dict[str, Any], status: int, code: str
) -> None:
    before = shared_plane.rows("select max(position) from ledger.event")
    answer = shared_plane.client().post("/allocations", json=GOOD | change)
    assert answer.status_code == status
    assert codes(answer) == {code}
    assert shared_plane.rows("select max(position) from ledger.event") == before


@pytest.mark.parametrize(("count", "what"), [(1, "a free slot"), (3, "3 free slots")])
def test_allocation_request_refused_for_lack_of_free_slots_names_their_number_and_sku(
    shared_plane: RunningPlane, count: int, what: str
) -> None:
    answer = shared_plane.client().post("/allocations", json={**GOOD, "slot_count": count})
    [reason] = answer.json()["reasons"]
    # Other tests of this module admit a node, which the message then names.
    assert re.match(rf"no schedulable node has {what} of SKU {GOOD['sku']}(;|$)", reason["message"])


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("/allocations", {**GOOD, "lease_seconds": 1}, "/lease_seconds", "the value must be at least 60, not 1"),
        ("/allocations", {**GOOD, "slot_count": 99}, "/slot_count", "the value must be at most 64, not 99"),
        ("/keys", {"name": "x", "role": "caller"}, "/projects", "the role caller must be limited to at least one"),
        ("/keys", {"name": "x", "role": "auditor", "scopes": ["fleet:write"]}, "/scopes", "the role auditor does not"),
        ("/keys", {"name": "x"}, "/role", "a role or a service account is required"),
        ("/allocations", {**INGRESS, "ingress": [{"port": 22, "slot": 1}]}, "/ingress", "slot 1 is out of range"),
        ("/allocations", {**INGRESS, "network_mode": {}}, "/network_mode", "the value must be a string, not an object"),
        (
            "/nodes/n1/public-addresses",
            {"addresses": [{"address": "192.0.2.1", "use": "ports", "first_port": 9, "last_port": 8}]},
            "/addresses/0/first_port",
            "first_port 9 is greater than last_port 8",
        ),
    ],
)  # fmt: skip
def test_refusal_of_a_request_names_the_invalid_field_and_what_is_wrong_with_its_value(
    shared_plane: RunningPlane, path: str, body: dict[str, Any], field: str, message: str
) -> None:
    method = "PUT" if path.endswith("public-addresses") else "POST"
    [reason] = shared_plane.client().request(method, path, json=body).json()["reasons"]
    assert reason["field"] == field
    assert reason["message"].startswith(message)


def test_allocation_request_with_several_errors_is_refused_with_every_reason(
    shared_plane: RunningPlane,
) -> None:
    answer = shared_plane.client().post("/allocations", json=EVERYTHING_WRONG)
    assert answer.status_code == 422
    assert codes(answer) == {
        "unknown_sku",
        "unknown_image",
        "fabric_only_refused",
        "invalid_value",
        "wrong_type",
        "unknown_field",
    }
    assert {reason["field"] for reason in answer.json()["reasons"]} == {
        "/sku",
        "/image",
        "/network_mode",
        "/ssh_authorized_keys/0",
        "/lease_seconds",
        "/not_a_field",
    }


def test_request_with_a_secret_in_a_recorded_place_is_refused_without_repeating_the_secret(
    shared_plane: RunningPlane,
) -> None:
    key = f"sp_{'a-_0' * 10}"
    token = "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0xxxx.c2lnbmF0dXJl"
    client = shared_plane.client()
    events = shared_plane.last_position()
    answers = {
        "/labels/note": client.post("/allocations", json={**GOOD, "labels": {"note": f"use {token}"}}),
        "/labels/[secret]": client.post("/allocations", json={**GOOD, "labels": {key: "x"}}),
        "/ssh_authorized_keys/0": client.post(
            "/allocations",
            json={**GOOD, "ssh_authorized_keys": ["-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl"]},
        ),
        "key": client.get(f"/keys/{key}"),
        "actor": client.get("/events", params={"actor": f"key:{key}"}),
        "[secret]": client.get("/skus", params={key: "1"}),
        "Idempotency-Key": client.post(
            "/projects", json={"id": "with-a-secret"}, headers={"Idempotency-Key": f"a {key}"}
        ),
    }
    for place, answer in answers.items():
        assert (answer.status_code, codes(answer)) == (422, {"secret_in_request"}), answer.text
        named = [each["field"] or each["parameter"] for each in answer.json()["reasons"]]
        assert place in named
        assert key not in answer.text
        assert token not in answer.text
    assert shared_plane.last_position() == events
    absent = client.get(f"/absent/{key}")
    assert absent.status_code == 404
    assert "/v1/absent/[secret]" in absent.text
    listed = client.get("/access-log", params={"order": "desc", "limit": 100}).text
    assert "/v1/keys/[secret]" in listed
    assert key not in listed


def test_text_that_only_resembles_a_secret_is_accepted(shared_plane: RunningPlane) -> None:
    labels = {"sp_team": "sp_short", "note": "eyJ.a.b", "enrol_by": "-----BEGIN CERTIFICATE-----"}
    answer = shared_plane.client().post("/allocations", json={**GOOD, "labels": labels})
    assert "secret_in_request" not in codes(answer)


def test_error_about_a_request_field_of_a_wrong_type_does_not_repeat_the_value(
    shared_plane: RunningPlane,
) -> None:
    secret = "a-token-in-the-wrong-place"
    wrong = GOOD | {"lease_seconds": secret, "slot_count": 1.5, "labels": [secret]}
    answer = shared_plane.client().post("/allocations", json=wrong)
    assert {each["field"]: each["message"] for each in answer.json()["reasons"]} == {
        "/lease_seconds": "the value must be an integer, not a string",
        "/slot_count": "the value must be an integer, not a number",
        "/labels": "the value must be an object, not a list",
    }
    assert secret not in answer.text
    assert "/lease_seconds: the value must be an integer, not a string" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"[]", 422),
        (b"null", 422),
        (b'"\\ud800"', 422),
        (b"1e999", 422),
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b"[" * 900 + b"]" * 900, 422),
    ],
)
def test_body_that_is_not_a_json_object_is_refused(
    shared_plane: RunningPlane, body: bytes, status: int
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = shared_plane.client().post("/allocations", content=body, headers=headers)
    assert answer.status_code == status
    assert codes(answer)
    assert "pydantic" not in answer.text.lower()


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("agent/enroll", MOST_ENROLMENT_BYTES),
        ("agent/sessions", MOST_ENROLMENT_BYTES),
        ("agent/heartbeat", MOST_ENROLMENT_BYTES),
        ("allocations", MOST_BYTES),
        ("agent/reports", MOST_REPORTED_BYTES),
        ("agent/progress", MOST_REPORTED_BYTES),
        ("agent/desired-state", MOST_REPORTED_BYTES),
    ],
)
def test_body_larger_than_the_limit_of_its_route_is_refused(
    shared_plane: RunningPlane, path: str, most: int
) -> None:
    url = f"{shared_plane.url}/v1/{path}"
    answer = httpx.post(url, content=iter([b"x" * most, b"x"]), verify=TLS_CONTEXT)
    assert (answer.status_code, codes(answer)) == (413, {"content_too_large"})
    assert f"{most} bytes" in answer.json()["detail"]
    assert httpx.post(url, content=iter([b"x" * most]), verify=TLS_CONTEXT).status_code in {401, 415}


def test_largest_valid_allocation_request_is_not_too_large(shared_plane: RunningPlane) -> None:
    [key] = GOOD["ssh_authorized_keys"]
    character = "\U0001f600"  # the longest one in JSON: 12 characters
    largest = {
        **GOOD,
        "network_mode": "public-nat",
        "ssh_authorized_keys": [f"{key} {character * 360}"] * 16,
        "ingress": [{"port": 22, "sources": ["255.255.255.255/32"] * 16}] * 16,
        "labels": {f"{number:02}{character * 61}": character * 255 for number in range(32)},
    }
    content = json.dumps(largest)
    assert 190_000 < len(content) < MOST_BYTES
    headers = {"Content-Type": "application/json"}
    answer = shared_plane.client().post("/allocations", content=content, headers=headers)
    assert (answer.status_code, codes(answer)) == (409, {"no_suitable_slot"}), answer.text[:1000]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/allocations/nonsense", 404),
        ("/allocations/alc-00000000000000000000000000", 404),
        ("/nodes/NOT-A-NODE", 404),
        ("/nodes/not-registered", 404),
        ("/allocations?cursor=x", 422),
        ("/allocations?limit=0", 422),
        ("/slots?cursor=lab-a", 422),
        ("/nodes?cursor=NOT-A-NODE", 422),
        ("/allocations?project=%00", 422),
        ("/slots?node=%00", 422),
        ("/events?after=-1", 422),
        ("/no-such-route", 404),
    ],
)
def test_request_with_an_invalid_resource_name_or_list_cursor_is_refused(
    shared_plane: RunningPlane, path: str, status: int
) -> None:
    answer = shared_plane.client().get(path)
    assert answer.status_code == status
    assert codes(answer)


@pytest.mark.parametrize("path", ["/nodes?att=position:1&sort=name", "/skus?att=1&sort=name"])
def test_unknown_query_parameters_are_refused_and_all_named(shared_plane: RunningPlane, path: str) -> None:
    answer = shared_plane.client().get(path)
    assert answer.status_code == 422
    assert codes(answer) == {"unknown_parameter"}
    assert all(f"'{name}'" in answer.json()["detail"] for name in ("att", "sort"))


@pytest.mark.parametrize(
    ("method", "path", "header", "value"),
    [
        ("GET", "/events/watch", "Last-Event-ID", "9" * 5000),
        ("GET", "/events/watch", "Last-Event-ID", "the last"),
        ("POST", "/allocations", "Idempotency-Key", "k" * 256),
        ("POST", "/allocations", "Idempotency-Key", ""),
    ],
)
def test_invalid_request_header_is_refused(
    shared_plane: RunningPlane, method: str, path: str, header: str, value: str
) -> None:
    answer = shared_plane.client(**{header: value}).request(method, path, json=GOOD)
    assert answer.status_code == 422
    assert codes(answer)


def test_request_without_a_valid_api_key_is_refused_with_401(shared_plane: RunningPlane) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}):
        answer = httpx.get(f"{shared_plane.url}/v1/allocations", headers=headers, verify=TLS_CONTEXT)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert codes(answer)


def test_agent_request_without_a_valid_credential_is_refused_with_401(shared_plane: RunningPlane) -> None:
    for token in ("lab-a:guess", "lab-a", ":", "Not/A/Node:x"):
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.post(
            f"{shared_plane.url}/v1/agent/desired-state", json={}, headers=headers, verify=TLS_CONTEXT
        )
        assert answer.status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (
            "/heartbeat",
            {"agent_version": "1", "spooled_reports": False, "resynced": True},
            "/spooled_reports",
        ),
        ("/heartbeat", {"agent_version": "1", "spooled_reports": 0, "resynced": 1}, "/resynced"),
        ("/desired-state", {"held": [HELD | {"index": True}]}, "/held/0/index"),
        ("/desired-state", {"held": [HELD | {"epoch": "0"}]}, "/held/0/epoch"),
        ("/progress", {"progress": [STEP | {"at": 0}]}, "/progress/0/at"),
        ("/progress", {"progress": [STEP | {"at": "0"}]}, "/progress/0/at"),
        ("/progress", {"progress": [STEP | {"number": True}]}, "/progress/0/number"),
        ("/reports", batch(str(UUID(int=1)), (1, survey(simulated=1))), "/reports/0/body/simulated"),
    ],
)
def test_agent_request_with_a_value_of_a_wrong_type_is_refused(
    node: httpx.Client, path: str, body: dict[str, Any], field: str
) -> None:
    answer = node.post(path, json=body)
    assert answer.status_code == 422
    assert answer.json()["reasons"][0]["field"] == field
