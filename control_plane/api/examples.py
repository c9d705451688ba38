"""Examples of requests for the OpenAPI document: the path parameters, and the body of every route that has one.

A test sends each example to a real control plane. Ids, tokens and proofs in the examples are placeholders, because the
control plane or a node makes them.
"""

import json
from typing import Any, Final, NamedTuple


class PathParameter(NamedTuple):
    """The meaning of a path parameter, and an example."""

    description: str
    example: str


PARAMETERS: Final = {
    "account": PathParameter("Id of a service account.", "ci"),
    "allocation": PathParameter("Id of an allocation.", "alc-01jd0000000000000000000001"),
    "app_profile": PathParameter("Name of an app profile.", "infiniband"),
    "check": PathParameter("Name of a health check.", "postgres"),
    "console": PathParameter("Id of a console session.", "con-01jd0000000000000000000001"),
    "code": PathParameter("Reason code of a problem.", "no_capacity"),
    "image": PathParameter("Name of an image.", "lab-guest"),
    "index": PathParameter("Index of a slot on its node, counted from 0.", "0"),
    "ingress": PathParameter("Id of an ingress rule.", "ing-01jd0000000000000000000001"),
    "key": PathParameter("Id of an API key, which is not its secret.", "ci-0c1d2e3f4a5b"),
    "kind": PathParameter("Kind of the resource.", "slot"),
    "name": PathParameter("Name of the resource, or of the read model.", "lab-a/0"),
    "node": PathParameter("Name of a node.", "lab-a"),
    "period": PathParameter("Name of a billing period.", "2026-11"),
    "position": PathParameter("Position in the ledger.", "1"),
    "problem": PathParameter("Name of a problem type.", "conflict"),
    "project": PathParameter("Name of a project.", "vision"),
    "session": PathParameter("Id of a session, which is not its secret.", "ses-01jd0000000000000000000001"),
    "sku": PathParameter("Name of a SKU.", "lab.small"),
    "stream_id": PathParameter("Id of a requested stream.", "7d1f6f0e-52a1-4f0c-9f43-5d7c0c1b2a3f"),
    "stream": PathParameter("Name of a stream of the ledger.", "allocation-alc-01jd0000000000000000000001"),
    "task_id": PathParameter("Id of a task.", "01933b2f-6f7e-7d0c-8a3f-5b1c2d3e4f50"),
    "verification": PathParameter("Id of a verification.", "01933b2f-6f7e-7d0c-8a3f-5b1c2d3e4f50"),
}
READ_MODEL: Final = "allocations"
"""Example of `name` in the routes of read models."""
_SSH_KEY: Final = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV you@example.com"
)
_ALLOCATION: Final = {
    "project": "default",
    "sku": "lab.small",
    "network_mode": "private-nat",
    "image": "lab-guest",
    "ssh_authorized_keys": [_SSH_KEY],
    "lease_seconds": 7200,
    "labels": {"job": "train-17"},
}
_REASON: Final = {"reason": "its memory was replaced"}
_JWS: Final = "eyJhbGciOiJFZERTQSJ9.eyJub2RlX2lkIjoibGFiLWEifQ.c2lnbmF0dXJl"
_SPOOL: Final = "7d1f6f0e-52a1-4f0c-9f43-5d7c0c1b2a3f"
_MOMENT: Final = "2026-11-25T09:30:00Z"

_SKU: Final = {
    "gpu_model": "NVIDIA H200",
    "gpu_count": 1,
    "vcpus": 24,
    "memory_mib": 245760,
    "disk_gib": 200,
    "fabric": "ib",
    "network_modes": ["private-nat", "public-nat"],
    "numa": "single",
    "price_per_hour": "3.20",
    "provisioning_seconds": 600,
}
_IMAGE: Final = {
    "format": "qcow2",
    "digest": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "size_bytes": 412876800,
    "firmware": "uefi",
    "default_user": "debian",
    "minimum_disk_gib": 4,
}
_PROFILE: Final = {"description": "Training over InfiniBand", "fabrics": ["ib", "roce"]}
_WITHDRAWN: Final = {"reason": "a newer size replaces it"}

BODIES: Final[dict[str, dict[str, Any]]] = {
    "POST /v1/allocations/{allocation}/lease": {"lease_seconds": 7200},
    "POST /v1/allocations/{allocation}/ssh-certificates": {"public_key": _SSH_KEY},
    "POST /v1/allocations/{allocation}/fault": {"fault": "GPU 3 fell off the bus (Xid 79)"},
    "POST /v1/skus": {"name": "h200.one", **_SKU},
    "PUT /v1/skus/{sku}": _SKU,
    "POST /v1/skus/{sku}/retire": _WITHDRAWN,
    "POST /v1/images": {"name": "debian-12", **_IMAGE},
    "PUT /v1/images/{image}": _IMAGE,
    "POST /v1/images/{image}/retire": _WITHDRAWN,
    "POST /v1/app-profiles": {"name": "training", **_PROFILE},
    "PUT /v1/app-profiles/{app_profile}": _PROFILE,
    "POST /v1/app-profiles/{app_profile}/retire": _WITHDRAWN,
    "POST /v1/projects": {"id": "vision", "description": "Training of the vision models"},
    "PATCH /v1/projects/{project}": {"description": "Training and evaluation of the vision models"},
    "PUT /v1/projects/{project}/limits": {
        "slots": 16,
        "gpus": 16,
        "public_ports": 40,
        "price_per_hour": "60.00",
        "max_lease_seconds": 604800,
        "budget_per_month": "9000.00",
    },
    "PUT /v1/projects/{project}/reservations/{sku}": {"slots": 4},
    "POST /v1/projects/{project}/archive": {"reason": "the project has ended"},
    "DELETE /v1/projects/{project}/personal-data": {"reason": "request of the owner"},
    "POST /v1/keys": {
        "name": "ci",
        "role": "caller",
        "projects": ["default"],
        "scopes": ["allocations:read", "allocations:write"],
        "lifetime_seconds": 7776000,
    },
    "POST /v1/service-accounts": {
        "id": "deployer",
        "description": "Deploys the training jobs",
        "role": "caller",
        "projects": ["default"],
        "scopes": ["allocations:read", "allocations:write"],
    },
    "POST /v1/service-accounts/{account}/disable": {"reason": "its host was compromised"},
    "POST /v1/keys/{key}/rotate": {"overlap_seconds": 3600},
    "POST /v1/keys/{key}/revoke": {"reason": "the laptop was lost"},
    "POST /v1/usage/periods/{period}/close": {
        "starts_at": "2026-10-01T00:00:00Z",
        "ends_at": "2026-11-01T00:00:00Z",
    },
    "POST /v1/principals/revoke": {"actor": "service-account:trainer", "reason": "its host was compromised"},
    "PUT /v1/principals/limits": {"actor": "service-account:trainer", "slots": 4, "price_per_hour": "12.80"},
    "POST /v1/sessions": {"label": "laptop of alice", "lifetime_seconds": 28800},
    "POST /v1/sessions/{session}/end": {"reason": "the laptop was returned"},
    "POST /v1/allocations": _ALLOCATION,
    "POST /v1/placements/preview": _ALLOCATION,
    "POST /v1/allocations/{allocation}/ingress": {
        "kind": "port",
        "protocol": "tcp",
        "port": 22,
        "sources": ["198.51.100.0/24"],
    },
    "POST /v1/nodes": {"id": "lab-b"},
    "POST /v1/nodes/{node}/revoke": {"reason": "its disk was stolen"},
    "POST /v1/nodes/{node}/readmit": _REASON,
    "POST /v1/nodes/{node}/cordon": {"reason": "its firmware is updated tonight"},
    "POST /v1/nodes/{node}/uncordon": {"reason": "its firmware was updated"},
    "POST /v1/nodes/{node}/drain": {"reason": "its firmware is updated", "release_after_seconds": 1800},
    "POST /v1/nodes/{node}/slots/{index}/approve": {"skus": ["lab.small"]},
    "POST /v1/nodes/{node}/slots/{index}/force-release": {"reason": "the host was scrapped"},
    "POST /v1/nodes/{node}/slots/{index}/readmit": _REASON,
    "POST /v1/nodes/{node}/slots/{index}/retire": {"reason": "its GPU is returned to the vendor"},
    "POST /v1/nodes/{node}/slots/{index}/reprovision": {"reason": "its address was published"},
    "PUT /v1/nodes/{node}/network": {
        "bridge": "br-slice",
        "l2_domain": "hall-2",
        "mac_pool": {"first": "02:00:5e:00:00:00", "last": "02:00:5e:00:ff:ff"},
    },
    "PUT /v1/nodes/{node}/public-addresses": {
        "addresses": [
            {"address": "203.0.113.7", "use": "ports", "first_port": 20000, "last_port": 20999},
            {"address": "203.0.113.8", "use": "whole"},
        ]
    },
    "POST /v1/projections/{name}/skip": {"position": 4711, "reason": "the event of a test that was removed"},
    "POST /v1/tasks": {"kind": "node.verify", "node_id": "lab-a"},
    "POST /v1/agent/enroll": {
        "token": "enrol_of-POST-v1-nodes",
        "public_key": "-----BEGIN PUBLIC KEY-----\n...\n-----END PUBLIC KEY-----\n",
        "proof": _JWS,
    },
    "POST /v1/agent/sessions": {"node_id": "lab-a", "proof": _JWS},
    "POST /v1/agent/reports": {
        "incarnation": _SPOOL,
        "reports": [
            {
                "sequence": 1,
                "observed_at": _MOMENT,
                "body": {
                    "kind": "node.surveyed",
                    "hostname": "lab-a",
                    "agent_version": "0.1.0",
                    "simulated": False,
                    "images": ["lab-guest"],
                    "missing": [],
                    "slots": [{"index": 0, "vcpus": 1, "memory_mib": 96, "network_device": "slice0"}],
                },
            }
        ],
    },
    "POST /v1/agent/heartbeat": {"agent_version": "0.1.0", "spooled_reports": 0, "resynced": True},
    "POST /v1/agent/desired-state": {"held": []},
    "POST /v1/agent/consistency": {"first": 1, "second": 1},
    "POST /v1/allocations/{allocation}/console-sessions": {"slot": 0},
    "POST /v1/allocations/{allocation}/terminal-sessions": {"slot": 0, "origin": "https://cloud.example.com"},
    "POST /v1/console-sessions/{console}/cut": {"reason": "the maintenance is over"},
    "POST /v1/console-sessions/{console}/connect": {
        "ticket": "TICKET",
        "origin": "https://cloud.example.com",
    },
    "POST /v1/agent/serial-logs": {"stream_id": _SPOOL, "text": "Welcome to Debian\r\n", "kept_bytes": 19},
    "POST /v1/agent/progress": {
        "progress": [{"order_id": _SPOOL, "step": "machine.start", "number": 4, "of": 7, "at": _MOMENT}]
    },
}
"""Body of each route that requires one, by method and path."""


def sample(method: str, path: str, *, anonymous: bool) -> str:
    """Return the example of a request as a `curl` command."""
    examples = {name: each.example for name, each in PARAMETERS.items()}
    if path.startswith("/v1/projections/"):
        examples["name"] = READ_MODEL
    words = ["curl"] if method == "GET" else [f"curl -X {method}"]
    words.append(f'"$SLICEPLANE_URL{path.format(**examples)}"')
    if not anonymous:
        words.append('-H "Authorization: Bearer $SLICEPLANE_API_KEY"')
    if (body := BODIES.get(f"{method} {path}")) is not None:
        words.append("-H 'Content-Type: application/json'")
        words.append(f"-d '{json.dumps(body)}'")
    return " ".join(words)
