"""Dry runs: every check and choice of a creation, without an effect."""

from typing import Any, Final

import pytest

from tests.api.access.principals import create_project
from tests.api.node import KEY, admit
from tests.servers.plane import RunningPlane

ALLOCATION: Final = {"sku": "lab.small", "ssh_authorized_keys": [KEY]}


def state(plane: RunningPlane) -> tuple[Any, ...]:
    """Return what a creation would change: events, next position, claims, idempotency keys and read models."""
    return (
        plane.rows("select max(position), count(*) from ledger.event"),
        plane.rows("select last_value from ledger.position_seq"),
        plane.rows("select * from ledger.claim order by 1, 2"),
        plane.rows("select count(*) from ledger.command_key"),
        plane.rows("select slot_id, version, state from read.slot order by 1"),
        plane.rows("select project from read.project order by 1"),
        plane.rows("select key_id from read.api_key order by 1"),
        plane.rows("select session_id from read.session order by 1"),
    )


@pytest.fixture(scope="module")
def plane(shared_plane: RunningPlane) -> RunningPlane:
    admit(shared_plane, "n1")
    create_project(shared_plane, "taken")
    return shared_plane


@pytest.mark.parametrize(
    ("path", "body", "shown"),
    [
        ("/allocations", ALLOCATION, {"project": "default", "sku": "lab.small", "state": "placed"}),
        (
            "/projects",
            {"id": "planned", "description": "later"},
            {"id": "planned", "state": "active", "description": "later"},
        ),
        (
            "/service-accounts",
            {"id": "planned", "role": "caller", "projects": ["taken"]},
            {"id": "planned", "role": "caller", "projects": ["taken"], "state": "active"},
        ),
        (
            "/keys",
            {"name": "ci", "role": "caller", "projects": ["taken"]},
            {"name": "ci", "role": "caller", "projects": ["taken"], "state": "active"},
        ),
        ("/sessions", {"label": "x"}, {"label": "x", "role": "admin", "state": "active"}),
    ],
)
def test_dry_run_returns_what_would_be_created_and_changes_nothing(
    plane: RunningPlane, path: str, body: dict[str, Any], shown: dict[str, Any]
) -> None:
    before = state(plane)
    with plane.client(**{"Idempotency-Key": "dry"}) as admin:
        for _ in range(2):
            answer = admin.post(path, params={"dry_run": "true"}, json=body)
            assert answer.status_code == 200, answer.text
            assert {name: answer.json()[name] for name in shown} == shown
            assert "idempotent-replayed" not in answer.headers
            assert "location" not in answer.headers
            assert not {"key", "secret"} & answer.json().keys()
    assert state(plane) == before


def test_dry_run_of_an_allocation_returns_the_slot_that_placement_chooses(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1")
    with emptied_plane.client() as admin:
        planned = admin.post("/allocations", params={"dry_run": "true"}, json=ALLOCATION).json()
        assert [each["slot_id"] for each in planned["slots"]] == ["n1/0"]
        assert admin.get(f"/allocations/{planned['id']}").status_code == 404
        created = admin.post("/allocations", json=ALLOCATION)
        assert created.status_code == 202
        assert [each["slot_id"] for each in created.json()["slots"]] == ["n1/0"]
        full = admin.post("/allocations", params={"dry_run": "true"}, json=ALLOCATION)
        assert (full.status_code, [each["code"] for each in full.json()["reasons"]]) == (409, ["no_capacity"])
        assert admin.delete(f"/allocations/{created.json()['id']}").is_success


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/allocations", {**ALLOCATION, "project": "nowhere"}),
        ("/allocations", {**ALLOCATION, "slot_count": 8}),
        ("/allocations", {**ALLOCATION, "sku": "none"}),
        ("/projects", {"id": "taken"}),
        ("/service-accounts", {"id": "bad", "role": "caller", "projects": ["nowhere"]}),
        ("/keys", {"name": "ci", "role": "caller", "projects": ["nowhere"]}),
    ],
)
def test_dry_run_is_refused_with_the_same_reasons_as_the_request(
    plane: RunningPlane, path: str, body: dict[str, Any]
) -> None:
    with plane.client() as admin:
        dry, real = (admin.post(path, params={"dry_run": each}, json=body) for each in ("true", "false"))
    assert not dry.is_success
    assert (dry.status_code, dry.json()["reasons"]) == (real.status_code, real.json()["reasons"])


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_dry_run_with_an_invalid_idempotency_key_is_refused_like_the_request(
    plane: RunningPlane, key: str
) -> None:
    with plane.client(**{"Idempotency-Key": key}) as client:
        answers = [
            client.post("/projects", json={"id": "never"}, params=params)
            for params in ({}, {"dry_run": True})
        ]
    assert [each.status_code for each in answers] == [422, 422]
    assert [each.json()["reasons"][0]["code"] for each in answers] == ["invalid_idempotency_key"] * 2
