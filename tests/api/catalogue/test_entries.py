"""SKUs, images and app profiles over the API: publish, list, retire and offer again, equally for all three kinds."""

from typing import Any

import httpx
import pytest

from tests.api.access.principals import client_of, issue
from tests.api.catalogue.entries import CHANGES, CONTENTS, KINDS, create, new_name
from tests.servers.plane import RunningPlane


def codes(answer: httpx.Response) -> list[str]:
    return [reason["code"] for reason in answer.json()["reasons"]]


@pytest.mark.parametrize("path", KINDS)
def test_created_entry_has_version_1_is_offered_and_is_listed(shared_plane: RunningPlane, path: str) -> None:
    with shared_plane.client() as client:
        made = create(client, path)
        assert (made["version"], made["state"], made["reason"]) == (1, "offered", None)
        assert {name: made[name] for name in CONTENTS[path]} == CONTENTS[path]
        shown = client.get(f"/{path}/{made['name']}")
        assert shown.json() == made
        assert made in client.get(f"/{path}", params={"limit": 500}).json()["items"]


@pytest.mark.parametrize("path", KINDS)
def test_creation_of_an_entry_with_an_existing_name_is_refused(shared_plane: RunningPlane, path: str) -> None:
    with shared_plane.client() as client:
        made = create(client, path)
        answer = client.post(f"/{path}", json={"name": made["name"], **CONTENTS[path]})
    assert answer.status_code == 409
    assert codes(answer) == [
        f"{ {'skus': 'sku', 'images': 'image', 'app-profiles': 'app_profile'}[path] }_exists"
    ]


@pytest.mark.parametrize("path", KINDS)
def test_published_version_does_not_change_when_a_further_version_is_published(
    shared_plane: RunningPlane, path: str
) -> None:
    with shared_plane.client() as client:
        first = create(client, path)
        url = f"/{path}/{first['name']}"
        second = client.put(url, json={**CONTENTS[path], **CHANGES[path]}).json()
        assert second["version"] == 2
        assert {name: second[name] for name in CHANGES[path]} == CHANGES[path]
        old = client.get(url, params={"version": 1}).json()
        assert old == {**first, "state": "superseded", "allowed_actions": None}
        versions = client.get(f"{url}/versions").json()["items"]
        assert versions == [old, {**second, "allowed_actions": None}]
        newest_first = client.get(f"{url}/versions", params={"order": "desc", "limit": 1}).json()
        assert newest_first["items"] == [versions[1]]
        missing = client.get(url, params={"version": 3})
        assert (missing.status_code, codes(missing)) == (404, ["unknown_version"])


@pytest.mark.parametrize("path", KINDS)
def test_publishing_the_content_of_the_newest_version_changes_nothing(
    shared_plane: RunningPlane, path: str
) -> None:
    with shared_plane.client() as client:
        made = create(client, path)
        before = shared_plane.last_position()
        assert client.put(f"/{path}/{made['name']}", json=CONTENTS[path]).json() == made
        assert shared_plane.last_position() == before


@pytest.mark.parametrize("path", KINDS)
def test_retired_entry_is_offered_again_when_a_further_version_is_published(
    shared_plane: RunningPlane, path: str
) -> None:
    with shared_plane.client() as client:
        made = create(client, path)
        url, reason = f"/{path}/{made['name']}", "replaced by a larger one"
        retired = client.post(f"{url}/retire", json={"reason": reason}).json()
        assert retired == {**made, "state": "retired", "reason": reason}
        before = shared_plane.last_position()
        assert client.post(f"{url}/retire", json={"reason": "again"}).json() == retired
        assert shared_plane.last_position() == before
        for state, listed in (("retired", True), ("offered", False)):
            found = client.get(f"/{path}", params={"state": state, "limit": 500}).json()["items"]
            assert (made["name"] in [each["name"] for each in found]) == listed
        again = client.put(url, json=CONTENTS[path]).json()
        assert (again["version"], again["state"], again["reason"]) == (2, "offered", None)


@pytest.mark.parametrize("path", KINDS)
def test_view_of_an_entry_at_a_past_position_shows_its_state_at_that_position(
    shared_plane: RunningPlane, path: str
) -> None:
    with shared_plane.client() as client:
        made = create(client, path)
        url, then = f"/{path}/{made['name']}", f"position:{shared_plane.last_position()}"
        client.put(url, json={**CONTENTS[path], **CHANGES[path]})
        client.post(f"{url}/retire", json={"reason": "obsolete"})
        later = create(client, path)
        past = {**made, "allowed_actions": None}
        assert client.get(url, params={"at": then}).json() == past
        listed = client.get(f"/{path}", params={"at": then, "limit": 500}).json()["items"]
        assert past in listed
        assert later["name"] not in [each["name"] for each in listed]
        assert client.get(f"/{path}/{later['name']}", params={"at": then}).status_code == 404


@pytest.mark.parametrize("path", KINDS)
def test_dry_run_of_a_creation_creates_nothing(shared_plane: RunningPlane, path: str) -> None:
    body = {"name": new_name(), **CONTENTS[path]}
    with shared_plane.client() as client:
        answer = client.post(f"/{path}", json=body, params={"dry_run": True})
        assert (answer.status_code, answer.json()["version"]) == (200, 1)
        assert client.get(f"/{path}/{body['name']}").status_code == 404


@pytest.mark.parametrize("path", KINDS)
def test_publishing_with_an_if_match_of_an_older_state_of_the_entry_is_refused(
    shared_plane: RunningPlane, path: str
) -> None:
    with shared_plane.client() as client:
        url = f"/{path}/{create(client, path)['name']}"
        tag = {"If-Match": client.get(url).headers["etag"]}
        changed = {**CONTENTS[path], **CHANGES[path]}
        assert client.put(url, json=changed, headers=tag).status_code == 200
        assert client.put(url, json=CONTENTS[path], headers=tag).status_code == 412


@pytest.mark.parametrize("path", KINDS)
def test_key_with_the_role_caller_can_read_the_catalogue_but_not_change_it(
    shared_plane: RunningPlane, path: str
) -> None:
    with (
        shared_plane.client() as admin,
        client_of(shared_plane, issue(shared_plane, "reader", projects=["default"])) as caller,
    ):
        made = create(admin, path)
        url = f"/{path}/{made['name']}"
        shown = caller.get(url).json()
        assert {name: each["allowed"] for name, each in shown["allowed_actions"].items()} == {
            "publish": False,
            "retire": False,
        }
        refused = (
            caller.post(f"/{path}", json={"name": new_name(), **CONTENTS[path]}),
            caller.put(url, json=CONTENTS[path]),
            caller.post(f"{url}/retire", json={"reason": "x"}),
        )
        assert [each.status_code for each in refused] == [403] * 3


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("skus", {"gpu_count": 1}),
        ("skus", {"gpu_model": "NVIDIA H200"}),
        ("skus", {"vcpus": 0}),
        ("skus", {"price_per_hour": "1.1234567"}),
        ("skus", {"price_per_hour": "-1"}),
        ("skus", {"price_per_hour": 1.5}),
        ("skus", {"network_modes": []}),
        ("skus", {"network_modes": ["private-nat", "private-nat"]}),
        ("skus", {"network_modes": ["overlay"]}),
        ("skus", {"fabric": "infiniband"}),
        ("images", {"digest": None}),
        ("images", {"digest": "sha256:xyz"}),
        ("images", {"firmware": None}),
        ("images", {"format": "kernel"}),
        ("images", {"format": "raw", "size_bytes": 4 * 2**30 + 1}),
        ("images", {"architecture": "aarch64"}),
        ("images", {"readiness": {"port": 22, "banner": "\x07"}}),
        ("images", {"default_user": "Not a user"}),
        ("app-profiles", {"fabrics": []}),
        ("app-profiles", {"fabrics": ["ib", "ib"]}),
        ("app-profiles", {"unknown": 1}),
    ],
)
def test_creation_of_an_entry_with_invalid_content_is_refused(
    shared_plane: RunningPlane, path: str, change: dict[str, Any]
) -> None:
    with shared_plane.client() as client:
        before = shared_plane.last_position()
        answer = client.post(f"/{path}", json={"name": new_name(), **CONTENTS[path], **change})
        assert answer.status_code == 422, answer.text
        assert shared_plane.last_position() == before
