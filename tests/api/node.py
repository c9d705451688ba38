"""A node as the API sees it, played by a test: what it posts, and nothing of what an agent does."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import uuid4

import httpx

from tests.servers.plane import RunningPlane

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV"
BEAT = {"agent_version": "0.1.0", "spooled_reports": 0, "resynced": True}
SLOT = {"index": 0, "vcpus": 1, "memory_mib": 96, "network_device": "slice0"}
CREDENTIAL, QUEUE_PASSWORD = "credential-made-on-the-node", "queue-password-made-on-the-node"


def expect(plane: RunningPlane, name: str) -> str:
    answer = plane.client().post("/nodes", json={"id": name})
    assert answer.status_code == 201
    return str(answer.json()["enrolment_token"])


def enrol(plane: RunningPlane, name: str, token: str, credential: str = CREDENTIAL) -> httpx.Response:
    body = {
        "node_id": name,
        "token": token,
        "credential_sha256": sha256(credential.encode()).hexdigest(),
        "queue_password_sha256": sha256(QUEUE_PASSWORD.encode()).hexdigest(),
        "agent_version": "0.1.0",
    }
    return httpx.post(f"{plane.url}/v1/agent/enroll", json=body, timeout=20)


def as_node(plane: RunningPlane, name: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {name}:{CREDENTIAL}"}
    return httpx.Client(base_url=f"{plane.url}/v1/agent", headers=headers, timeout=20)


def survey(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "node.surveyed",
        "hostname": "n",
        "agent_version": "0.1.0",
        "simulated": True,
        "images": ["lab-guest"],
        "missing": [],
        "slots": [SLOT],
        **changes,
    }


def batch(incarnation: str, *bodies: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    moment = datetime.now(UTC).isoformat()
    reports = [{"sequence": sequence, "observed_at": moment, "body": body} for sequence, body in bodies]
    return {"incarnation": incarnation, "reports": reports}


def admit(plane: RunningPlane, name: str, slots: int = 1) -> httpx.Client:
    """Enrol a node, let it describe itself, and approve its slots; returns its own client."""
    enrol(plane, name, expect(plane, name))
    node = as_node(plane, name)
    found = [{**SLOT, "index": index, "network_device": f"slice{index}"} for index in range(slots)]
    assert node.post("/reports", json=batch(str(uuid4()), (1, survey(slots=found)))).is_success
    assert node.post("/heartbeat", json=BEAT).is_success
    for index in range(slots):
        assert plane.client().post(f"/nodes/{name}/slots/{index}/approve").is_success
    return node


def allocate(plane: RunningPlane, **fields: object) -> httpx.Response:
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], **fields}
    return plane.client().post("/allocations", json=body)
