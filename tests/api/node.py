"""API requests of nodes and callers, for tests that send the requests of a node without an agent."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import httpx

from tasks.agent_api import Enrolment, EnrolmentClaims, Renewal, RenewalClaims
from tasks.catalogue import ANNOUNCED
from tasks.signing import Signer, new_private_key
from tests.servers.plane import TLS_CONTEXT, RunningPlane

KEYS: Final[dict[str, Signer]] = {}
"""Key pair of each node, by the name of the node."""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV"
BEAT = {"agent_version": "0.1.0", "spooled_reports": 0, "resynced": True}
SLOT = {"index": 0, "vcpus": 1, "memory_mib": 96, "network_device": "slice0"}
CREDENTIAL, QUEUE_PASSWORD = "credential-made-on-the-node", "queue-password-made-on-the-node"


def register_node(plane: RunningPlane, name: str) -> str:
    """Register a node and return its enrolment token."""
    answer = plane.client().post("/nodes", json={"id": name})
    assert answer.status_code == 201
    return str(answer.json()["enrolment_token"])


def blocked_by(plane: RunningPlane) -> dict[str, str | None]:
    """Return the field `blocked_by` of each node and slot, by id: the reasons why placement does not use it."""
    with plane.client() as client:
        listed = [each for path in ("/nodes", "/slots") for each in client.get(path).json()["items"]]
    return {each["id"]: each["blocked_by"] for each in listed}


def digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def key_of(name: str) -> Signer:
    """Return the private key of a node. The first call generates it, and later calls return the same key."""
    return KEYS.setdefault(name, Signer.of_pem(new_private_key()))


def enrolment(
    name: str, token: str, credential: str = CREDENTIAL, key: Signer | None = None, version: str = "0.1.0"
) -> Enrolment:
    signer = key or key_of(name)
    claims = EnrolmentClaims(
        node_id=name,
        token_sha256=digest(token),
        credential_sha256=digest(credential),
        queue_password_sha256=digest(QUEUE_PASSWORD),
        agent_version=version,
        capabilities=ANNOUNCED,
    )
    proof = signer.sign("session+jws", claims.model_dump_json().encode())
    return Enrolment(token=token, public_key=signer.public, proof=proof)


def enrol(
    plane: RunningPlane, name: str, token: str, credential: str = CREDENTIAL, key: Signer | None = None
) -> httpx.Response:
    body = enrolment(name, token, credential, key).model_dump()
    return httpx.post(f"{plane.url}/v1/agent/enroll", json=body, timeout=20, verify=TLS_CONTEXT)


def renewal(
    name: str,
    number: int,
    credential: str,
    *,
    presented: str = CREDENTIAL,
    password: str = QUEUE_PASSWORD,
    key: Signer | None = None,
    capabilities: tuple[str, ...] = (),
) -> Renewal:
    """Build a request to renew session `number` of a node, in which the node presents the credential `presented`."""
    claims = RenewalClaims(
        node_id=name,
        number=number,
        presented_sha256=digest(presented),
        credential_sha256=digest(credential),
        queue_password_sha256=digest(password),
        capabilities=capabilities,
    )
    proof = (key or key_of(name)).sign("session+jws", claims.model_dump_json().encode())
    return Renewal(node_id=name, proof=proof)


def renew(plane: RunningPlane, request: Renewal) -> httpx.Response:
    return httpx.post(
        f"{plane.url}/v1/agent/sessions", json=request.model_dump(), timeout=20, verify=TLS_CONTEXT
    )


def as_node(plane: RunningPlane, name: str, credential: str = CREDENTIAL) -> httpx.Client:
    headers = {"Authorization": f"Bearer {name}:{credential}"}
    return httpx.Client(base_url=f"{plane.url}/v1/agent", headers=headers, timeout=20, verify=TLS_CONTEXT)


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


def admit(
    plane: RunningPlane, name: str, slots: int = 1, *, approve: bool = True, **hardware: int
) -> httpx.Client:
    """Register and enrol a node, post its description, approve its slots if `approve` is True, and return its client.

    `hardware` overrides fields of the slots in the description.
    """
    enrol(plane, name, register_node(plane, name))
    node = as_node(plane, name)
    slots_found = [
        {**SLOT, **hardware, "index": index, "network_device": f"slice{index}"} for index in range(slots)
    ]
    assert node.post("/reports", json=batch(str(uuid4()), (1, survey(slots=slots_found)))).is_success
    assert node.post("/heartbeat", json=BEAT).is_success
    for index in range(slots if approve else 0):
        assert plane.client().post(f"/nodes/{name}/slots/{index}/approve").is_success
    return node


def set_capabilities(plane: RunningPlane, announced: list[str] | None) -> None:
    """Set the stored capabilities of every agent; None stands for an agent of a release that reported none."""
    plane.rows(
        "update work.node_session set capabilities = %(announced)s returning node_id", announced=announced
    )


def allocate(plane: RunningPlane, **fields: object) -> httpx.Response:
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], **fields}
    return plane.client().post("/allocations", json=body)


def request_desired_state(node: httpx.Client, *held: dict[str, Any]) -> httpx.Response:
    """Post the orders that a node holds (`held`) and return the API response, which contains the orders that differ."""
    return node.post("/desired-state", json={"held": held})


def desired_orders(node: httpx.Client) -> list[str]:
    """Return the signed orders of all slots that a node without any stored order receives."""
    orders: list[str] = request_desired_state(node).json()["orders"]
    return orders
