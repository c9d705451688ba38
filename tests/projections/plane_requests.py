"""Requests of the read model tests to the API of a running control plane."""

from typing import Any
from uuid import uuid4

from tests.api.node import admit, allocate, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until

NAMES = (
    "nodes",
    "slots",
    "keys",
    "principals",
    "projects",
    "quota_use",
    "billing",
    "catalogue",
    "service_accounts",
    "sessions",
    "waiting",
    "allocations",
    "project_events",
    "holdings",
    "capacity",
    "usage",
)


def create_history(plane: RunningPlane, node: str = "node-a", slots: int = 3) -> list[str]:
    """Create a node with slots, one allocation that is released, allocations that stay, and a service account with a
    key, and sessions of which one has ended. Return the ids of all allocations.
    """
    client = admit(plane, node, slots)
    made = [allocate(plane, labels={"team": "a"}).json() for _ in range(slots - 1)]
    assert plane.client().delete(f"/allocations/{made[0]['id']}").is_success
    removed = {
        "kind": "slice.removed",
        "allocation_id": made[0]["id"],
        "slot_id": made[0]["slots"][0]["slot_id"],
        "absent": ["port", "domain"],
    }
    assert client.post("/reports", json=batch(str(uuid4()), (1, removed))).is_success
    account = {"id": f"of-{node}", "role": "auditor"}
    with plane.client() as admin:
        assert admin.post("/service-accounts", json=account).is_success
        assert admin.post("/keys", json={"name": "job", "service_account": account["id"]}).is_success
        assert admin.post("/skus", json={"name": f"of.{node}", "vcpus": 1, "memory_mib": 64}).is_success
        assert admin.post(f"/skus/of.{node}/retire", json={"reason": "over"}).is_success
        for act, body in (("disable", {"reason": "paused"}), ("enable", None)):
            assert admin.post(f"/service-accounts/{account['id']}/{act}", json=body).is_success
        sessions = [admin.post("/sessions", json={"label": node}).json()["id"] for _ in range(2)]
        assert admin.post(f"/sessions/{sessions[0]}/end", json={"reason": "over"}).is_success
    return [each["id"] for each in made]


def show(plane: RunningPlane, name: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.client().get(f"/projections/{name}").json()
    return found


def rebuild(plane: RunningPlane, *names: str) -> None:
    for name in names:
        assert plane.client().post(f"/projections/{name}/rebuild").status_code == 202
    until(
        lambda: all(show(plane, name)["rebuild"] is None for name in names),
        f"the rebuilds of {names} have finished",
    )


def caught_up(plane: RunningPlane) -> None:
    """Wait until every read model contains all events of the ledger."""
    [[last]] = plane.rows("select last from ledger.fence()")
    until(
        lambda: all((show(plane, name)["position"] or last) >= last for name in NAMES),
        f"every projection is at position {last}",
    )


def verify(plane: RunningPlane) -> dict[str, Any]:
    """Request a verification of the read models, wait for its end, and return it."""
    accepted = plane.client().post("/verifications")
    assert accepted.status_code == 202, accepted.text
    found: dict[str, Any] = accepted.json()

    def ended() -> bool:
        found.update(plane.client().get(f"/verifications/{found['id']}").json())
        return found["state"] not in {"asked", "running"}

    until(ended, "the verification has ended")
    return found


def change(plane: RunningPlane, statement: str) -> None:
    """Run a statement that changes data, as the database's superuser."""
    plane.rows(f"{statement} returning 1")
