"""A node as the API sees it, played by a test: what it posts, and nothing of what an agent does."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final
from uuid import uuid4

import httpx

from tasks.agent_api import Enrolment, EnrolmentClaims, Renewal, RenewalClaims
from tasks.catalogue import ANNOUNCED
from tasks.signing import Signer, new_private_key
from tests.servers.plane import RunningPlane

KEYS: Final[dict[str, Signer]] = {}
"""Of each node, by name: the key that it made."""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV"
BEAT = {"agent_version": "0.1.0", "spooled_reports": 0, "resynced": True}
SLOT = {"index": 0, "vcpus": 1, "memory_mib": 96, "network_device": "slice0"}
CREDENTIAL, QUEUE_PASSWORD = "credential-made-on-the-node", "queue-password-made-on-the-node"


def expect(plane: RunningPlane, name: str) -> str:
    answer = plane.client().post("/nodes", json={"id": name})
    assert answer.status_code == 201
    return str(answer.json()["enrolment_token"])


def blocked(plane: RunningPlane) -> dict[str, str | None]:
    """What keeps slices off each node and each slot, as the lists say."""
    with plane.client() as client:
        listed = [each for path in ("/nodes", "/slots") for each in client.get(path).json()["items"]]
    return {each["id"]: each["blocked_by"] for each in listed}


def digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def key_of(name: str) -> Signer:
    """The same in all of a process, so that a host that asks again has the key that it had."""
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
        speaks=ANNOUNCED,
    )
    proof = signer.sign("session+jws", claims.model_dump_json().encode())
    return Enrolment(token=token, public_key=signer.public, proof=proof)


def enrol(
    plane: RunningPlane, name: str, token: str, credential: str = CREDENTIAL, key: Signer | None = None
) -> httpx.Response:
    body = enrolment(name, token, credential, key).model_dump()
    return httpx.post(f"{plane.url}/v1/agent/enroll", json=body, timeout=20)


def renewal(
    name: str,
    number: int,
    credential: str,
    *,
    presented: str = CREDENTIAL,
    password: str = QUEUE_PASSWORD,
    key: Signer | None = None,
    speaks: tuple[str, ...] = (),
) -> Renewal:
    """A request to go on from session `number`, whose credential is `presented`."""
    claims = RenewalClaims(
        node_id=name,
        number=number,
        presented_sha256=digest(presented),
        credential_sha256=digest(credential),
        queue_password_sha256=digest(password),
        speaks=speaks,
    )
    proof = (key or key_of(name)).sign("session+jws", claims.model_dump_json().encode())
    return Renewal(node_id=name, proof=proof)


def renew(plane: RunningPlane, asked: Renewal) -> httpx.Response:
    return httpx.post(f"{plane.url}/v1/agent/sessions", json=asked.model_dump(), timeout=20)


def as_node(plane: RunningPlane, name: str, credential: str = CREDENTIAL) -> httpx.Client:
    headers = {"Authorization": f"Bearer {name}:{credential}"}
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


def admit(
    plane: RunningPlane, name: str, slots: int = 1, *, approve: bool = True, **hardware: int
) -> httpx.Client:
    """Enrol a node, let it describe itself and its slots' hardware, and approve these unless told otherwise; returns
    its own client.
    """
    enrol(plane, name, expect(plane, name))
    node = as_node(plane, name)
    found = [
        {**SLOT, **hardware, "index": index, "network_device": f"slice{index}"} for index in range(slots)
    ]
    assert node.post("/reports", json=batch(str(uuid4()), (1, survey(slots=found)))).is_success
    assert node.post("/heartbeat", json=BEAT).is_success
    for index in range(slots if approve else 0):
        assert plane.client().post(f"/nodes/{name}/slots/{index}/approve").is_success
    return node


def speaks(plane: RunningPlane, announced: list[str] | None) -> None:
    """What every agent said last that it knows; None: one of a release that said nothing."""
    plane.rows("update work.node_session set speaks = %(announced)s returning node_id", announced=announced)


def allocate(plane: RunningPlane, **fields: object) -> httpx.Response:
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], **fields}
    return plane.client().post("/allocations", json=body)


def desired(node: httpx.Client, *held: dict[str, Any]) -> httpx.Response:
    """The answer to a node whose slots hold this, and nothing else."""
    return node.post("/desired-state", json={"held": held})


def wanted(node: httpx.Client) -> list[str]:
    """The signed orders that a node without a disk is given."""
    orders: list[str] = desired(node).json()["orders"]
    return orders
