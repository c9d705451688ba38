"""What the tests of read models ask of a running control plane."""

from typing import Any
from uuid import uuid4

from tests.api.node import admit, allocate, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until

NAMES = ("nodes", "slots", "keys", "allocations", "holdings")


def some_life(plane: RunningPlane, node: str = "node-a", slots: int = 3) -> list[str]:
    """A node with slots, an allocation that is released again and others that stay; returns their ids."""
    client = admit(plane, node, slots)
    made = [allocate(plane).json() for _ in range(slots - 1)]
    assert plane.client().delete(f"/allocations/{made[0]['id']}").is_success
    removed = {
        "kind": "slice.removed",
        "allocation_id": made[0]["id"],
        "slot_id": made[0]["slots"][0]["slot_id"],
        "absent": ["port", "domain"],
    }
    assert client.post("/reports", json=batch(str(uuid4()), (1, removed))).is_success
    return [each["id"] for each in made]


def show(plane: RunningPlane, name: str) -> dict[str, Any]:
    found: dict[str, Any] = plane.client().get(f"/projections/{name}").json()
    return found


def rebuild(plane: RunningPlane, *names: str) -> None:
    for name in names:
        assert plane.client().post(f"/projections/{name}/rebuild").status_code == 202
    until(lambda: all(show(plane, name)["rebuild"] is None for name in names), f"{names} are rebuilt")


def caught_up(plane: RunningPlane) -> None:
    """Everything that the log holds is in the read models."""
    [[last]] = plane.rows("select last from ledger.fence()")
    until(
        lambda: all((show(plane, name)["position"] or last) >= last for name in NAMES),
        f"all are at {last}",
    )


def verify(plane: RunningPlane) -> dict[str, Any]:
    """The answer of a verification that has ended."""
    asked = plane.client().post("/verifications")
    assert asked.status_code == 202, asked.text
    found: dict[str, Any] = asked.json()

    def ended() -> bool:
        found.update(plane.client().get(f"/verifications/{found['id']}").json())
        return found["state"] not in {"asked", "running"}

    until(ended, "the verification ended")
    return found


def change(plane: RunningPlane, statement: str) -> None:
    """As the database's superuser, by hand."""
    plane.rows(f"{statement} returning 1")
