"""HTTP protocol of the API: methods, media types, values that cannot be stored, and the format of errors."""

import json
import re
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.api.node import as_node, batch, enrol, register_node, survey
from tests.api.requests.test_wrong_requests import GOOD, codes
from tests.servers.plane import TLS_CONTEXT, RunningPlane

INGRESS = {**GOOD, "network_mode": "public-nat"}


def reasons(answer: httpx.Response) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer.json()["reasons"]
    return found


def node_of(plane: RunningPlane) -> httpx.Client:
    """Enrol a new node and return its client."""
    name = f"n{uuid4().hex[:8]}"
    enrol(plane, name, register_node(plane, name))
    return as_node(plane, name)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/allocations", "GET, HEAD, POST"),
        ("DELETE", "/nodes", "GET, HEAD, POST"),
        ("GET", "/parked/x/retry", "POST"),
    ],
)
def test_unsupported_method_is_refused_with_the_allowed_methods(
    shared_plane: RunningPlane, method: str, path: str, allowed: str
) -> None:
    answer = shared_plane.client().request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert codes(answer) == {"method_not_allowed"}


@pytest.mark.parametrize("path", ["/allocations", "/skus", "/nodes/not-registered", "/events?limit=1"])
def test_http_head_request_returns_the_status_and_headers_of_get_without_a_body(
    shared_plane: RunningPlane, path: str
) -> None:
    client = shared_plane.client()
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.headers["content-type"] == get.headers["content-type"]
    assert head.headers["content-length"] == get.headers["content-length"]


def test_http_head_request_for_an_event_stream_returns_headers_and_ends(shared_plane: RunningPlane) -> None:
    head = shared_plane.client().head("/events/watch")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_body_with_an_unsupported_media_type_is_refused_with_415(
    shared_plane: RunningPlane, media_type: str
) -> None:
    headers = {"Content-Type": media_type} if media_type else {}
    body = json.dumps(GOOD).encode()
    answer = shared_plane.client().post("/allocations", content=body, headers=headers)
    assert (answer.status_code, codes(answer)) == (415, {"unsupported_media_type"})
    assert reasons(answer)[0]["parameter"] == "Content-Type"


def test_malformed_json_body_is_refused_with_400_and_the_byte_offset(shared_plane: RunningPlane) -> None:
    headers = {"Content-Type": "application/json"}
    answer = shared_plane.client().post("/allocations", content=b'{"sku": }', headers=headers)
    assert (answer.status_code, codes(answer)) == (400, {"invalid_json"})
    assert "byte 8" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({**INGRESS, "ingress": [{"port": "x"}]}, {"/ingress/0/port"}),
        ({**INGRESS, "ingress": [{"kind": "port"}]}, {"/ingress/0/port"}),
        ({**INGRESS, "ingress": [{"kind": "port", "port": 22, "more": 1}]}, {"/ingress/0/more"}),
        ({**INGRESS, "ingress": [{"kind": "tunnel"}]}, {"/ingress/0"}),
        ({**GOOD, "labels": {"a/b~c": 1}}, {"/labels/a~1b~0c"}),
        ({"sku": "lab.small"}, {"/ssh_authorized_keys"}),
        ([], {""}),
    ],
)
def test_field_of_an_error_reason_is_a_json_pointer_into_the_request_body(
    shared_plane: RunningPlane, body: Any, fields: set[str]
) -> None:
    answer = shared_plane.client().post("/allocations", json=body)
    assert answer.status_code == 422
    assert {reason["field"] for reason in reasons(answer)} == fields


def test_refusal_of_an_invalid_query_parameter_names_the_parameter_and_no_body_field(
    shared_plane: RunningPlane,
) -> None:
    [reason] = reasons(shared_plane.client().get("/allocations?limit=many"))
    assert (reason["code"], reason["field"], reason["parameter"]) == ("wrong_type", None, "limit")
    assert reason["message"] == "parameter limit: the value must be an integer, not 'many'"


def test_reasons_of_an_invalid_body_contain_no_code_or_text_of_the_validation_library(
    shared_plane: RunningPlane,
) -> None:
    wrong = {
        "sku": 1,
        "ssh_authorized_keys": "x",
        "lease_seconds": 1.5,
        "slot_count": 99,
        "labels": [],
        "project": "A",
        "ingress": [{"kind": "port", "protocol": "icmp", "port": 0}],
    }
    answer = shared_plane.client().post("/allocations", json=wrong)
    assert answer.status_code == 422
    own = {"wrong_type", "out_of_range", "invalid_value", "unknown_value"}
    assert codes(answer) == own
    assert not re.search(r"Input should|Value error|valid dictionary|pydantic", answer.text)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/parked/%00/retry"),
        ("POST", "/parked/%ED%A0%80/retry"),
        ("GET", "/events?type=%00"),
        ("GET", f"/history/slot/n%00/changes?at={2**63}"),
        ("POST", f"/nodes/n1/slots/{2**63}/approve"),
        ("GET", f"/events?limit={'9' * 5000}"),
    ],
)
def test_url_with_a_value_that_cannot_be_stored_is_refused(
    shared_plane: RunningPlane, method: str, path: str
) -> None:
    answer = shared_plane.client().request(method, path)
    assert 400 <= answer.status_code < 500, answer.text
    assert codes(answer)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"labels": {"team": "a\0b"}}, "/labels/team"),
        ({"labels": {"a\0b": "x"}}, "/labels/a\0b"),
        ({"lease_seconds": 2**63}, "/lease_seconds"),
        ({"project": "a\0"}, "/project"),
    ],
)
def test_body_with_a_value_that_cannot_be_stored_is_refused(
    shared_plane: RunningPlane, change: dict[str, Any], field: str
) -> None:
    answer = shared_plane.client().post("/allocations", json={**GOOD, **change})
    assert answer.status_code == 422
    assert codes(answer) <= {"unstorable_character", "number_out_of_range"}
    assert {reason["field"] for reason in reasons(answer)} == {field}


def test_report_time_with_an_offset_that_postgres_rejects_is_stored(shared_plane: RunningPlane) -> None:
    report = batch(str(uuid4()), (1, survey()))
    report["reports"][0]["observed_at"] = "2026-11-21T09:30:00+23:59"
    answer = node_of(shared_plane).post("/reports", json=report)
    assert answer.status_code == 200, answer.text
    past = shared_plane.client().get("/nodes", params={"at": "2026-11-21T09:30:00+23:59"})
    assert past.status_code < 500, past.text


@pytest.mark.parametrize("sequence", [2**63, 2**63 - 1, 2**64, -1])
def test_report_with_an_impossible_sequence_number_is_refused(
    shared_plane: RunningPlane, sequence: int
) -> None:
    answer = node_of(shared_plane).post("/reports", json=batch(str(uuid4()), (sequence, survey())))
    assert answer.status_code in {409, 422}
    assert codes(answer)


def test_openapi_document_is_the_same_at_each_request_and_requires_no_credentials_for_health_checks(
    shared_plane: RunningPlane,
) -> None:
    first, second = (httpx.get(f"{shared_plane.url}/openapi.json", verify=TLS_CONTEXT) for _ in range(2))
    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()
    paths = first.json()["paths"]
    assert "security" not in paths["/healthz"]["get"]
    assert "security" in paths["/v1/allocations"]["get"]


def test_openapi_document_describes_the_problem_body_of_every_error_response(
    shared_plane: RunningPlane,
) -> None:
    document = httpx.get(f"{shared_plane.url}/openapi.json", verify=TLS_CONTEXT).json()
    problem = document["components"]["schemas"]["Problem"]
    of_every_problem = {"type", "title", "status", "detail", "hint", "reasons", "request_id"}
    assert {*problem["properties"]} == {*of_every_problem, "placement", "outlook", "exceeded"}
    assert "ReasonBody" in document["components"]["schemas"]
    described = 0
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                if path.startswith("/v1") and int(status) >= 400:
                    assert [*response["content"]] == ["application/problem+json"], (path, status)
                    schema = response["content"]["application/problem+json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Problem"}
                    described += 1
    assert described > 100


def test_documentation_page_loads_all_assets_from_the_api(shared_plane: RunningPlane) -> None:
    page = httpx.get(f"{shared_plane.url}/docs", verify=TLS_CONTEXT)
    assert page.status_code == 200
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert assets
    for asset in assets:
        assert asset.startswith("/"), asset
        assert httpx.get(f"{shared_plane.url}{asset}", verify=TLS_CONTEXT).status_code == 200
