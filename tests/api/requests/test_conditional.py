"""ETag, If-None-Match and If-Match of resources that can change."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from tests.api.access.principals import create_account, create_project, issue, session_of
from tests.api.catalogue.entries import CONTENTS, create
from tests.api.node import admit, allocate
from tests.servers.plane import ADMIN_KEY, TLS_CONTEXT, RunningPlane
from tests.waiting import until

CHANGED: Final = '"999.0000000000000000"'
BODIES: Final[dict[str, Any]] = {
    "/v1/allocations/{allocation}/ingress": {"port": 22},
    "/v1/allocations/{allocation}/lease": {"lease_seconds": 60},
    "/v1/allocations/{allocation}/fault": {"fault": "a GPU fell off the bus"},
    "/v1/keys/{key}/revoke": {"reason": "lost"},
    "/v1/keys/{key}/rotate": {},
    "/v1/nodes/{node}/public-addresses": {"addresses": []},
    "/v1/nodes/{node}/network": {},
    "/v1/nodes/{node}/readmit": {"reason": "repaired"},
    "/v1/nodes/{node}/cordon": {"reason": "update"},
    "/v1/nodes/{node}/uncordon": {"reason": "updated"},
    "/v1/nodes/{node}/drain": {"reason": "update"},
    "/v1/nodes/{node}/revoke": {"reason": "lost"},
    "/v1/nodes/{node}/slots/{index}/force-release": {"reason": "scrapped"},
    "/v1/nodes/{node}/slots/{index}/retire": {"reason": "sold"},
    "/v1/nodes/{node}/slots/{index}/reprovision": {"reason": "published"},
    "/v1/nodes/{node}/slots/{index}/readmit": {"reason": "repaired"},
    "/v1/sessions/{session}/end": {"reason": "lost"},
    "/v1/service-accounts/{account}/disable": {"reason": "lost"},
    "/v1/skus/{sku}": CONTENTS["skus"],
    "/v1/skus/{sku}/retire": {"reason": "over"},
    "/v1/images/{image}": CONTENTS["images"],
    "/v1/images/{image}/retire": {"reason": "over"},
    "/v1/app-profiles/{app_profile}": CONTENTS["app-profiles"],
    "/v1/app-profiles/{app_profile}/retire": {"reason": "over"},
    "/v1/projects/{project}": {"description": "changed"},
    "/v1/projects/{project}/archive": {"reason": "over"},
    "/v1/projects/{project}/personal-data": {"reason": "requested"},
    "/v1/projects/{project}/limits": {"slots": 8},
    "/v1/projects/{project}/reservations/{sku}": {"slots": 2},
}
"""Bodies of the requests that have one and change a resource."""


@pytest.fixture(scope="module")
def names(shared_plane: RunningPlane) -> dict[str, str]:
    """Path parameters of one resource of each kind."""
    admit(shared_plane, "n1")
    create_project(shared_plane, "p1")
    with shared_plane.client() as admin:
        entries = {path: create(admin, path)["name"] for path in CONTENTS}
    return {
        "allocation": allocate(shared_plane).json()["id"],
        "ingress": "ing-0000000000000000000000000a",
        "node": "n1",
        "index": "0",
        "project": "p1",
        "account": create_account(shared_plane, "a1", "auditor"),
        "key": issue(shared_plane, "k1", "auditor").id,
        "session": session_of(shared_plane, ADMIN_KEY).id,
        "sku": entries["skus"],
        "image": entries["images"],
        "app_profile": entries["app-profiles"],
    }


def with_header(plane: RunningPlane, header: str) -> Iterator[tuple[str, str]]:
    """Yield method and path of each operation for which the OpenAPI document declares a header."""
    for path, operations in (
        httpx.get(f"{plane.url}/openapi.json", verify=TLS_CONTEXT).json()["paths"].items()
    ):
        for method, operation in operations.items():
            if header in {each["name"] for each in operation.get("parameters", ())}:
                yield method.upper(), path


def test_response_with_a_resource_is_not_sent_again_while_its_etag_is_the_same(
    shared_plane: RunningPlane, names: dict[str, str]
) -> None:
    paths = {path for _, path in with_header(shared_plane, "If-None-Match")}
    assert {path.rpartition("{")[2] for path in paths} >= {
        "allocation}",
        "node}",
        "index}",
        "project}",
        "key}",
        "account}",
        "session}",
        "sku}",
        "image}",
        "app_profile}",
    }
    with shared_plane.client() as admin:
        for path in paths:
            url = f"{shared_plane.url}{path.format(**names)}"
            first = admin.get(url)
            tag = first.headers["etag"]
            for method in ("GET", "HEAD"):
                same = admin.request(method, url, headers={"If-None-Match": f'W/"1", {tag}'})
                assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag), path
                other = admin.request(method, url, headers={"If-None-Match": CHANGED})
                assert (other.status_code, other.headers["etag"]) == (200, tag), path
            assert admin.get(url, headers={"If-None-Match": CHANGED}).content == first.content


def test_every_change_is_refused_if_the_resource_has_another_version_than_if_match(
    shared_plane: RunningPlane, names: dict[str, str]
) -> None:
    routes = [*with_header(shared_plane, "If-Match")]
    assert len(routes) >= 25
    before = shared_plane.last_position()
    with shared_plane.client() as admin:
        for method, path in routes:
            url = f"{shared_plane.url}{path.format(**names)}"
            for tag in (CHANGED, 'W/"1.0000000000000000"', '"another-form"'):
                answer = admin.request(method, url, json=BODIES.get(path), headers={"If-Match": tag})
                assert answer.status_code == 412, (method, path, answer.text)
                assert answer.json()["type"] == "/problems/precondition-failed"
                assert [each["code"] for each in answer.json()["reasons"]] == ["version_changed"]
    assert shared_plane.last_position() == before


def test_change_with_the_present_etag_succeeds_and_returns_the_next_etag(shared_plane: RunningPlane) -> None:
    create_project(shared_plane, "tagged")
    with shared_plane.client() as admin:
        tag = admin.get("/projects/tagged").headers["etag"]
        for description in ("one", "two"):
            answer = admin.patch(
                "/projects/tagged", json={"description": description}, headers={"If-Match": f'"x", {tag}'}
            )
            assert answer.json()["description"] == description
            assert answer.headers["etag"] != tag
            tag = answer.headers["etag"]
        assert admin.get("/projects/tagged").headers["etag"] == tag
        for condition in ("*", None):
            headers = {} if condition is None else {"If-Match": condition}
            assert admin.patch("/projects/tagged", json={"description": "x"}, headers=headers).is_success


@pytest.mark.parametrize(
    ("path", "body", "end"),
    [
        ("/keys", {"name": "etag", "role": "auditor"}, "/keys/{id}/revoke"),
        ("/keys/{key}/rotate", {}, "/keys/{id}/revoke"),
        ("/sessions", {}, "/sessions/{id}/end"),
    ],
)
def test_etag_of_a_new_credential_is_accepted_by_if_match_until_the_credential_changes(
    shared_plane: RunningPlane, path: str, body: dict[str, str], end: str
) -> None:
    key = issue(shared_plane, "replaced", "auditor").id
    repeated = {"Idempotency-Key": uuid4().hex}
    with shared_plane.client() as admin:
        made, again = (admin.post(path.format(key=key), json=body, headers=repeated) for _ in range(2))
        assert made.status_code == again.status_code == 201
        assert made.headers["etag"] == again.headers["etag"]
        url, tag = end.format(id=made.json()["id"]), made.headers["etag"]
        ended = admin.post(url, json={"reason": "over"}, headers={"If-Match": tag})
        assert ended.is_success, ended.text
        assert admin.post(url, json={"reason": "over"}, headers={"If-Match": tag}).status_code == 412


def test_exactly_one_of_several_concurrent_changes_with_the_same_etag_succeeds(
    shared_plane: RunningPlane,
) -> None:
    create_project(shared_plane, "raced")
    with shared_plane.client() as admin:
        for turn in range(10):
            tag = admin.get("/projects/raced").headers["etag"]

            def change(number: int, tag: str = tag, turn: int = turn) -> int:
                body = {"description": f"{turn}/{number}"}
                return admin.patch("/projects/raced", json=body, headers={"If-Match": tag}).status_code

            with ThreadPoolExecutor(8) as pool:
                assert Counter(pool.map(change, range(8))) == {200: 1, 412: 7}


def test_etag_of_a_node_changes_with_its_heartbeat_but_if_match_compares_only_the_version(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1")
    with emptied_plane.client() as admin:
        before = admin.get("/nodes/n1").headers["etag"]
        emptied_plane.rows("update work.node_seen set spooled_reports = 7 returning 1")
        after = admin.get("/nodes/n1", headers={"If-None-Match": before})
        assert after.status_code == 200
        assert after.headers["etag"] != before
        assert after.headers["etag"].split(".")[0] == before.split(".")[0]
        body = {"addresses": [{"address": "203.0.113.7", "use": "whole"}]}
        answer = admin.put("/nodes/n1/public-addresses", json=body, headers={"If-Match": before})
        assert answer.is_success
        assert (
            admin.put("/nodes/n1/public-addresses", json=body, headers={"If-Match": before}).status_code
            == 412
        )


def test_repeated_request_with_the_same_idempotency_key_and_etag_is_replayed_and_not_refused(
    shared_plane: RunningPlane,
) -> None:
    create_project(shared_plane, "again")
    with shared_plane.client() as admin:
        headers = {"If-Match": admin.get("/projects/again").headers["etag"], "Idempotency-Key": "again"}
        for replayed in (None, "true"):
            answer = admin.patch("/projects/again", json={"description": "new"}, headers=headers)
            assert (answer.status_code, answer.headers.get("idempotent-replayed")) == (200, replayed)


@pytest.mark.parametrize("value", ["7", '"unclosed', '"a""b"', ","])
def test_if_match_that_is_not_a_list_of_entity_tags_is_refused(
    shared_plane: RunningPlane, names: dict[str, str], value: str
) -> None:
    with shared_plane.client() as admin:
        answer = admin.patch(
            f"/projects/{names['project']}", json={"description": "x"}, headers={"If-Match": value}
        )
    assert answer.status_code == 422
    assert answer.json()["reasons"][0]["parameter"] == "If-Match"


def test_if_match_for_a_resource_that_does_not_exist_is_refused_as_unknown(
    shared_plane: RunningPlane,
) -> None:
    with shared_plane.client() as admin:
        for path in ("/projects/no-such-project", "/nodes/no-such-node", "/keys/none/revoke"):
            method, body = ("POST", {"reason": "x"}) if "keys" in path else ("DELETE", None)
            if "projects" in path:
                method, body = "PATCH", {"description": "x"}
            answer = admin.request(method, path, json=body, headers={"If-Match": CHANGED})
            assert answer.status_code == 404, path


def test_etag_of_an_allocation_is_the_version_of_its_stream(
    shared_plane: RunningPlane, names: dict[str, str]
) -> None:
    def tagged() -> bool:
        with shared_plane.client() as admin:
            answer = admin.get(f"/allocations/{names['allocation']}")
        [(version,)] = shared_plane.rows(
            "select max(version) from ledger.event where stream_id = %(stream)s",
            stream=f"allocation-{names['allocation']}",
        )
        return answer.headers["etag"].startswith(f'"{version}.') and answer.json()["version"] == version

    until(tagged, "the ETag has the version of the stream")
