"""End-to-end tests of SSH certificates at the SSH gateway with OpenSSH as the client: those of the API, and others that
differ from them in one respect.
"""

import asyncio
import base64
import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import asyncssh
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from control_plane.cli.own_keys import certificate_file
from control_plane.identity.gateway_keys import gateway_key
from control_plane.identity.ssh_certificates import Certified, ssh_certificate
from events.values import AllocationId, SshPublicKey
from tests.road.conftest import Site
from tests.servers.ssh_gateway import GREETING, Client, Gateway, KeyPair, key_pair
from tests.waiting import until

TO: Final = ("-W", "slice:22", "127.0.0.1")


class Slices:
    """An active allocation with gateway access, and a caller with another key than those of the allocation."""

    def __init__(self, site: Site, gateway: Gateway, folder: Path) -> None:
        self.site, self.plane, self.gateway, self.folder = site, site.plane, gateway, folder
        self.owner, self.key = key_pair(folder, "owner"), key_pair(folder, "caller")
        self.allocation = self.create()

    def create(self) -> str:
        made = self.site.create(ssh_authorized_keys=[self.owner.public], gateway_access=True)
        self.site.await_state(made, "active")
        return made

    def certify(self, line: str) -> None:
        """Store an SSH certificate where the SSH client finds it."""
        certificate_file(self.key.file).write_text(f"{line}\n")

    def request(self, allocation: str | None = None) -> dict[str, Any]:
        """Request a certificate from the API, and store it."""
        path = f"/allocations/{allocation or self.allocation}/ssh-certificates"
        with self.plane.client() as client:
            answer = client.post(path, json={"public_key": self.key.public})
        assert answer.is_success, answer.text
        body: dict[str, Any] = answer.json()
        self.certify(body["certificate"])
        return body

    def certified(self) -> Certified:
        """Return the content of a valid SSH certificate for the allocation, which a test can change before it is
        signed.
        """
        now, key = datetime.now(UTC), SshPublicKey(self.key.public)
        minute = timedelta(minutes=1)
        return Certified(AllocationId(self.allocation), key, "key:test", 1, now - minute, now + minute)

    def signed(self, key: Ed25519PrivateKey | None = None, **options: Any) -> str:
        """Return a certificate that asyncssh signs, with the gateway key of the allocation unless `key` is given."""
        signing = key or gateway_key(AllocationId(self.allocation))
        authority = asyncssh.import_private_key(
            signing.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        )
        subject = asyncssh.import_public_key(self.key.public)
        is_host = options.pop("is_host", False)
        make = authority.generate_host_certificate if is_host else authority.generate_user_certificate
        made = make(subject, "key:test", **{"principals": [self.allocation], **options})
        return made.export_certificate().decode().strip()

    def is_refused(self, user: str | None = None) -> bool:
        errors = self.gateway.refusal(user or self.allocation, self.key, *TO)
        return "Permission denied (publickey)" in errors

    def reasons(self) -> list[str]:
        """Return the reason of each certificate that the gateway refused, from the log of the gateway."""
        lines = self.gateway.child.log.read_text().splitlines()
        logged = [json.loads(each) for each in lines if "ssh_certificate_refused" in each]
        return [each["reason"] for each in logged]

    def sessions(self) -> list[tuple[str, str]]:
        """Return the actor and the reason of each requested SSH session."""
        query = "select actor, reason from ledger.event where type = 'console.requested' order by position"
        return [(actor, reason) for actor, reason in self.plane.rows(query)]


@pytest.fixture
def slices(site: Site, gateway: Gateway, tmp_path: Path) -> Slices:
    return Slices(site, gateway, tmp_path)


def greeted(client: Client) -> Client:
    assert client.read(len(GREETING)) == GREETING, client.errors()
    return client


def test_ssh_certificate_of_the_api_opens_a_connection_that_is_recorded_with_its_caller_and_serial_number(
    slices: Slices,
) -> None:
    assert slices.is_refused()
    issued = slices.request()
    with slices.gateway.connection(slices.allocation, slices.key) as client:
        greeted(client).echo(b"any bytes")
    [(actor, reason)] = slices.sessions()
    assert actor == issued["key_id"]
    assert actor.startswith("key:")
    assert reason == f"connection to the SSH gateway with SSH certificate {issued['serial']}"


def test_ssh_certificate_that_is_wrong_in_one_respect_is_refused_with_the_reason_in_the_log(
    slices: Slices,
) -> None:
    valid = slices.certified()
    slices.certify(ssh_certificate(valid))
    with slices.gateway.connection(slices.allocation, slices.key) as client:
        greeted(client)
    other, past, future = slices.create(), timedelta(hours=-1), timedelta(hours=1)
    not_signed = (
        "the gateway key of the allocation has not signed the certificate, or the allocation is not active"
    )
    not_principal = "the certificate does not have the user as its only principal"
    has_option = "the certificate has a critical option, which is not supported"
    expired = replace(valid, valid_from=valid.valid_from + past, valid_until=valid.valid_until + past)
    early = replace(valid, valid_from=valid.valid_from + future, valid_until=valid.valid_until + future)
    cases = [
        (ssh_certificate(expired), "Certificate expired"),
        (ssh_certificate(early), "Certificate not yet valid"),
        (ssh_certificate(replace(valid, allocation=AllocationId(other))), not_principal),
        (slices.signed(principals=[other]), not_principal),
        (slices.signed(principals=[]), not_principal),
        (slices.signed(principals=[slices.allocation, other]), not_principal),
        (slices.signed(Ed25519PrivateKey.generate()), not_signed),
        (slices.signed(gateway_key(AllocationId(other))), not_signed),
        (slices.signed(source_address=["127.0.0.0/8"]), has_option),
        (slices.signed(force_command="id"), has_option),
    ]
    for line, reason in cases:
        slices.certify(line)
        count = len(slices.reasons())
        assert slices.is_refused(), reason
        assert slices.reasons()[count:] == [reason]
    assert len(slices.sessions()) == 1


def test_tampered_ssh_certificate_is_refused(slices: Slices) -> None:
    line = slices.signed(principals=["alc-00000000000000000000000000"])
    kind, blob, *_ = line.split()
    raw = bytearray(asyncssh.import_certificate(line).public_data)
    at = raw.index(b"alc-00000000000000000000000000")
    raw[at : at + 30] = slices.allocation.encode()
    slices.certify(f"{kind} {base64.b64encode(raw).decode()}")
    assert blob not in certificate_file(slices.key.file).read_text()
    assert slices.is_refused()


def test_ssh_host_certificate_is_refused_in_place_of_a_user_certificate(slices: Slices) -> None:
    # OpenSSH does not offer a host certificate.
    certificate = asyncssh.import_certificate(slices.signed(is_host=True))
    key = asyncssh.read_private_key(slices.key.file)

    async def connect() -> None:
        options: dict[str, Any] = {"known_hosts": None, "agent_path": None, "config": None}
        await asyncssh.connect(
            "127.0.0.1",
            slices.gateway.port,
            username=slices.allocation,
            client_keys=[(key, certificate)],
            **options,
        )

    with pytest.raises(asyncssh.PermissionDenied):
        asyncio.run(connect())
    assert slices.reasons() == ["Invalid certificate type"]


def test_ssh_certificate_is_refused_if_the_client_lacks_its_private_key(
    slices: Slices, tmp_path: Path
) -> None:
    slices.request()
    thief = key_pair(tmp_path, "thief")
    certificate_file(thief.file).write_text(certificate_file(slices.key.file).read_text())
    slices.key = thief
    assert slices.is_refused()


def test_ssh_certificate_is_refused_for_another_user_name_than_its_allocation(slices: Slices) -> None:
    slices.request()
    other = slices.create()
    assert slices.is_refused(other)
    assert slices.is_refused("root")
    slices.request(other)
    assert slices.is_refused()


def test_client_that_authenticates_with_the_gateway_key_itself_is_refused(
    slices: Slices, tmp_path: Path
) -> None:
    key = gateway_key(AllocationId(slices.allocation))
    file = tmp_path / "gateway"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    file.chmod(0o600)
    slices.key = KeyPair(file)
    assert slices.is_refused()


def test_release_cuts_a_connection_with_an_ssh_certificate_in_five_seconds_and_the_certificate_is_refused_afterwards(
    slices: Slices,
) -> None:
    slices.request()
    with slices.gateway.connection(slices.allocation, slices.key) as client:
        greeted(client)
        with slices.plane.client() as api:
            assert api.delete(f"/allocations/{slices.allocation}").is_success
        client.errors(5.0)
    assert slices.is_refused()
    assert slices.reasons()[-1].startswith("the gateway key of the allocation has not signed")


def test_expired_ssh_certificate_keeps_its_open_connection_and_opens_no_further_connection(
    slices: Slices, tmp_path: Path
) -> None:
    # The certificate has to be valid until the client is connected, also on a busy machine.
    socket, expiring = tmp_path / "control", slices.certified()
    expiring = replace(expiring, valid_until=datetime.now(UTC) + timedelta(seconds=6))
    slices.certify(ssh_certificate(expiring))
    shared = ("-o", "ControlMaster=auto", "-o", f"ControlPath={socket}", *TO)
    first = Client(slices.gateway.command(slices.allocation, slices.key, *shared))
    try:
        greeted(first)
        until(lambda: datetime.now(UTC) > expiring.valid_until, "the certificate has expired", 10)
        first.echo(b"the connection is still open")
        again = subprocess.run(
            slices.gateway.command(slices.allocation, slices.key, *shared),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert again.stdout == ""
        assert "Stdio forwarding request failed" in again.stderr
        assert slices.is_refused()
        first.echo(b"the connection is still open after that")
    finally:
        first.end()
    assert slices.reasons()[-1] == "Certificate expired"
    assert len(slices.sessions()) == 1
