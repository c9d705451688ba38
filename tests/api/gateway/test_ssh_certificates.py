"""SSH certificates of callers for the slices of an allocation: their content, their refusals, and their events."""

import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

from deploy.embedded.postgres import PostgresServer
from tests.api.access.principals import client_of, create_project, issue
from tests.api.broken_nodes import Node, accepted_allocation
from tests.servers.plane import RunningPlane, running
from tests.waiting import until

KEYS: Final = {
    "ssh-ed25519": (
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV you@example.com"
    ),
    "sk-ssh-ed25519@openssh.com": (
        "sk-ssh-ed25519@openssh.com AAAAGnNrLXNzaC1lZDI1NTE5QG9wZW5zc2guY29tAAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV"
        "AAAABHNzaDo= token"
    ),
}


class Allocations:
    """Creates active allocations on one node of a test control plane."""

    def __init__(self, plane: RunningPlane) -> None:
        self.plane, self.node = plane, Node(plane, "lab-a", slots=16)

    def requested(self, **fields: object) -> dict[str, Any]:
        return accepted_allocation(self.plane, node="lab-a", **{"gateway_access": True, **fields})

    def active(self, **fields: object) -> str:
        made = self.requested(**fields)
        query = "select order_id::text from work.task where allocation_id = %(name)s and kind = 'slice.apply'"
        until(lambda: bool(self.plane.rows(query, name=made["id"])), "the allocation has an order")
        [(order,)] = self.plane.rows(query, name=made["id"])
        self.node.report_ready(made, order=order)
        return str(made["id"])

    def request(self, name: str, key: str = KEYS["ssh-ed25519"], **headers: str) -> httpx.Response:
        with self.plane.client() as client:
            path = f"/allocations/{name}/ssh-certificates"
            return client.post(path, json={"public_key": key}, headers=headers)

    def refusal(self, name: str) -> tuple[int, str]:
        answer = self.request(name)
        return answer.status_code, answer.json()["reasons"][0]["code"]

    def issued(self) -> list[dict[str, Any]]:
        """Return the recorded events of issued certificates, oldest first."""
        query = (
            "select stream_id, actor, correlation_id::text, project, data::jsonb from ledger.event"
            " where type = 'ssh_certificate.issued' order by position"
        )
        names = ("stream", "actor", "correlation", "project", "data")
        return [dict(zip(names, row, strict=True)) for row in self.plane.rows(query)]


@pytest.fixture(scope="module")
def allocations(postgres_server: PostgresServer) -> Iterator[Allocations]:
    with running(postgres_server) as plane:
        yield Allocations(plane)


def certificate_in(answer: httpx.Response) -> SSHCertificate:
    assert answer.status_code == httpx.codes.CREATED, answer.text
    made = load_ssh_public_identity(answer.json()["certificate"].encode())
    assert isinstance(made, SSHCertificate)
    return made


def gateway_key_of(allocations: Allocations, name: str) -> str:
    query = "select (data::jsonb)->>'gateway_key' from ledger.event where type = 'allocation.requested' and stream_id = %(s)s"
    [(key,)] = allocations.plane.rows(query, s=f"allocation-{name}")
    return str(key).rpartition(" ")[0]


def test_certificate_is_signed_with_the_gateway_key_for_the_allocation_only(allocations: Allocations) -> None:
    name = allocations.active()
    answer = allocations.request(name)
    certificate = certificate_in(answer)
    certificate.verify_cert_signature()
    authority = certificate.signature_key()
    assert isinstance(authority, Ed25519PublicKey)
    line = authority.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    assert line == gateway_key_of(allocations, name)
    assert certificate.type is SSHCertificateType.USER
    assert certificate.valid_principals == [name.encode()]
    assert certificate.critical_options == {}
    assert list(certificate.extensions) == [
        b"permit-agent-forwarding",
        b"permit-port-forwarding",
        b"permit-pty",
        b"permit-user-rc",
    ]
    assert certificate.valid_before - certificate.valid_after == 60 + 900
    body = answer.json()
    assert certificate.valid_before == datetime.fromisoformat(body["valid_until"]).timestamp()
    assert (certificate.serial, certificate.key_id) == (body["serial"], body["key_id"].encode())


@pytest.mark.parametrize("kind", KEYS)
def test_ssh_keygen_reads_a_certificate_of_an_ordinary_key_and_of_a_security_key(
    allocations: Allocations, kind: str, tmp_path: Path
) -> None:
    name = allocations.active()
    body = allocations.request(name, KEYS[kind]).json()
    file = tmp_path / "key-cert.pub"
    file.write_text(body["certificate"])
    shown = subprocess.run(
        ["ssh-keygen", "-L", "-f", str(file)], capture_output=True, text=True, check=True
    ).stdout
    assert f"Type: {kind.removesuffix('@openssh.com')}-cert-v01@openssh.com user certificate" in shown
    assert body["fingerprint"] in shown
    assert f"\n                {name}\n" in shown
    assert "Critical Options: (none)" in shown
    assert f'Key ID: "{body["key_id"]}"' in shown


def test_each_issued_ssh_certificate_is_recorded_with_its_caller_and_the_allocation_version_stays_the_same(
    allocations: Allocations,
) -> None:
    name = allocations.active()
    with allocations.plane.client() as client:
        before = client.get(f"/allocations/{name}").json()["version"]
        events = client.get(f"/allocations/{name}/events").json()["items"]
    bodies = [allocations.request(name).json() for _ in range(2)]
    with allocations.plane.client() as client:
        assert client.get(f"/allocations/{name}").json()["version"] == before
    own = allocations.issued()[-2:]
    for body, event in zip(bodies, own, strict=True):
        data = event["data"]
        assert event["stream"] == f"ssh-certificate-{body['serial']}"
        assert event["actor"] == data["key_id"] == body["key_id"]
        assert event["correlation"] == events[0]["correlation_id"]
        assert (data["allocation_id"], data["fingerprint"]) == (name, body["fingerprint"])
    assert bodies[0]["serial"] != bodies[1]["serial"]


def test_request_repeated_with_one_idempotency_key_gets_the_first_ssh_certificate(
    allocations: Allocations,
) -> None:
    name = allocations.active()
    count = len(allocations.issued())
    first, second = (allocations.request(name, **{"Idempotency-Key": "certificate"}) for _ in range(2))
    assert first.json() == second.json()
    assert second.headers["Idempotent-Replayed"] == "true"
    assert len(allocations.issued()) == count + 1


def test_allocation_without_gateway_access_or_that_is_not_active_gets_no_certificate(
    allocations: Allocations,
) -> None:
    count = len(allocations.issued())
    assert allocations.refusal(allocations.active(gateway_access=False)) == (409, "no_gateway_access")
    assert allocations.refusal(allocations.requested()["id"]) == (409, "wrong_state")
    ended = allocations.active()
    with allocations.plane.client() as client:
        assert client.delete(f"/allocations/{ended}").is_success
    assert allocations.refusal(ended) == (409, "wrong_state")
    stopping = allocations.active()
    with allocations.plane.client() as client:
        assert client.post(f"/allocations/{stopping}/stop").is_success
    assert allocations.refusal(stopping) == (409, "wrong_state")
    assert len(allocations.issued()) == count


def test_only_callers_of_the_project_with_the_scope_get_a_certificate(allocations: Allocations) -> None:
    name, plane = allocations.active(), allocations.plane
    create_project(plane, "other")
    body = {"public_key": KEYS["ssh-ed25519"]}
    statuses = {}
    for label, fields in {
        "own project": {"projects": ["default"]},
        "other project": {"projects": ["other"]},
        "read only": {"projects": ["default"], "scopes": ["allocations:read"]},
    }.items():
        with client_of(plane, issue(plane, "caller", "caller", **fields)) as caller:
            statuses[label] = caller.post(f"/allocations/{name}/ssh-certificates", json=body).status_code
    assert statuses == {"own project": 201, "other project": 404, "read only": 403}
    assert allocations.refusal("alc-0000000000000000000000000z") == (404, "unknown_allocation")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ssh-dss AAAAB3NzaC1kc3MAAACBAP",
        'command="id" ssh-ed25519 AAAA',
        "ssh-ed25519-cert-v01@openssh.com AAAA",
    ],
)
def test_certificate_for_an_ssh_key_of_an_unsupported_type_or_with_options_is_refused(
    allocations: Allocations, key: str
) -> None:
    answer = allocations.request(allocations.active(), key)
    assert (answer.status_code, answer.json()["reasons"][0]["field"]) == (422, "/public_key")


def test_certificate_is_valid_for_fifteen_minutes_from_the_time_of_its_issue(
    allocations: Allocations,
) -> None:
    name = allocations.active()
    [(before,)] = allocations.plane.rows("select clock_timestamp()")
    until_ = datetime.fromisoformat(allocations.request(name).json()["valid_until"])
    [(after,)] = allocations.plane.rows("select clock_timestamp()")
    assert before - timedelta(seconds=1) <= until_ - timedelta(minutes=15) <= after
