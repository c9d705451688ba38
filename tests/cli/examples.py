"""Example responses of the control plane: an allocation, a node and the events of an allocation."""

from typing import Final

ALLOCATION: Final = "alc-01jd4z0000000000000000000a"
SSH: Final = {"kind": "ssh", "address": "10.100.1.10", "port": 22, "node_id": "lab-a", "via": "node"}
NODE: Final = {
    "id": "lab-a",
    "state": "enrolled",
    "subnet": "10.100.1.0/24",
    "l2_domain": "default",
    "hostname": "lab-a.example",
    "agent_version": "0.1.0",
    "simulated": False,
    "images": ["lab-guest"],
    "missing": ["no bridge br-slice"],
    "seen_at": "2026-01-02T03:04:05Z",
}


def allocation(state: str = "active", **changes: object) -> dict[str, object]:
    return {
        "id": ALLOCATION,
        "project": "default",
        "sku": "lab.small",
        "state": state,
        "reason": None,
        "network_mode": "private-nat",
        "image": "lab-guest",
        "slots": [
            {
                "slot_id": "lab-a/0",
                "node_id": "lab-a",
                "slot_index": 0,
                "mac_address": "52:54:00:12:34:56",
                "private_ip": "10.100.1.10",
                "actual_ip": "10.100.1.10",
                "lease_state": "bound",
            }
        ],
        "lease": {"granted_at": "2026-01-02T03:04:05Z", "expires_at": "2026-01-02T04:04:05Z"},
        "endpoints": [SSH] if state == "active" else [],
        "labels": {},
        "version": 7,
        "generation": 2,
        "requested_at": "2026-01-02T03:04:00Z",
        **changes,
    }


def event(position: int, type_: str, second: float = 0.0, **data: object) -> dict[str, object]:
    return {
        "position": position,
        "id": "019341f0-0000-7000-8000-000000000000",
        "stream": f"allocation-{ALLOCATION}",
        "version": position,
        "type": type_,
        "project": "default",
        "actor": "key:admin",
        "reason": "POST /v1/allocations req-1",
        "correlation_id": "019341f0-0000-7000-8000-000000000000",
        "causation_id": None,
        "trace_context": None,
        "observed_at": f"2026-01-02T03:04:{second:06.3f}Z",
        "recorded_at": f"2026-01-02T03:04:{second:06.3f}Z",
        "epoch": 1,
        "data": {"allocation_id": ALLOCATION, **data},
    }


REQUESTED: Final = event(1, "allocation.requested")
PLACED: Final = event(2, "allocation.placed", slots=[{"slot_id": "lab-a/0"}])
STARTING: Final = event(4, "allocation.slice_starting", 0.25, slot_id="lab-a/0")
READY: Final = event(6, "allocation.slice_ready", 5.0, slot_id="lab-a/0", address="10.100.1.10")
ACTIVE: Final = event(7, "allocation.activated", 5.0)
BRING_UP: Final = (REQUESTED, PLACED, STARTING, READY, ACTIVE)
FAILED: Final = event(
    8, "allocation.failed", 9.0, reason={"code": "deadline_missed", "message": "not ready: lab-a/0"}
)
RELEASING: Final = event(
    9, "allocation.releasing", 20.0, reason={"code": "released_by_caller", "message": "requested"}
)
REMOVED: Final = event(10, "allocation.slice_removed", 21.5, slot_id="lab-a/0")
RELEASED: Final = event(11, "allocation.released", 21.5)
