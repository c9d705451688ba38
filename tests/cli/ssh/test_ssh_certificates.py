"""`sliceplane allocations ssh-certificate`, and the certificates with which `sliceplane ssh` logs in."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from control_plane.cli.ssh import Login, ssh_arguments
from tests.cli.conftest import OWN_KEY
from tests.cli.control_plane import ScriptedPlane, document, problem
from tests.cli.examples import ALLOCATION, NODE, allocation
from tests.cli.outcome import Outcome
from tests.cli.ssh.test_ssh import PATH, programs, started

__all__ = ["programs"]
Run = Callable[..., Outcome]
ISSUE: Final = f"POST /v1/allocations/{ALLOCATION}/ssh-certificates"
ISSUED: Final = {
    "allocation_id": ALLOCATION,
    "certificate": "ssh-ed25519-cert-v01@openssh.com AAAA me@here",
    "fingerprint": "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU",
    "key_id": "key:trainer",
    "serial": 17,
    "valid_until": "2026-01-02T03:19:05Z",
}


@pytest.fixture
def active(plane: ScriptedPlane, environment: None) -> ScriptedPlane:
    plane.script(PATH, document(allocation(gateway_access=True)))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    plane.script(ISSUE, document(ISSUED, 201))
    return plane


@pytest.fixture
def folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with the temporary keys of the client."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return home / ".config/sliceplane/ssh"


def sent(plane: ScriptedPlane) -> list[dict[str, Any]]:
    """Return the bodies of the requests for certificates."""
    return [json.loads(each.body) for each in plane.received if each.route == ISSUE]


@pytest.mark.parametrize("out", [(), ("--out", "elsewhere")])
def test_certificate_is_written_beside_the_key_or_to_the_named_file(
    active: ScriptedPlane, sliceplane: Run, home: Path, monkeypatch: pytest.MonkeyPatch, out: tuple[str, ...]
) -> None:
    monkeypatch.chdir(home)
    key = home / ".ssh/id_ed25519.pub"
    outcome = sliceplane("allocations", "ssh-certificate", ALLOCATION, "--public-key", str(key), *out)
    file = home / "elsewhere" if out else home / ".ssh/id_ed25519-cert.pub"
    assert (outcome.code, file.read_text()) == (0, f"{ISSUED['certificate']}\n")
    assert str(file if not out else "elsewhere") in outcome.err
    assert sent(active) == [{"public_key": OWN_KEY}]


def test_ssh_certificate_command_refuses_private_keys_several_keys_and_a_missing_output_folder(
    active: ScriptedPlane, sliceplane: Run, home: Path
) -> None:
    key = home / "key"
    for text, words, message in (
        ("-----BEGIN OPENSSH PRIVATE KEY-----", (), "is a private key, which must not be sent"),
        (f"{OWN_KEY}\n{OWN_KEY}\n", (), "has several keys"),
        (OWN_KEY, ("--out", str(home / "none/file")), "the certificate cannot be written"),
    ):
        key.write_text(text)
        outcome = sliceplane("allocations", "ssh-certificate", ALLOCATION, "--public-key", str(key), *words)
        assert outcome.code == 2
        assert message in outcome.err


def test_ssh_with_gateway_access_offers_a_temporary_key_with_its_certificate_before_keys_of_the_user(
    active: ScriptedPlane, programs: Path, home: Path, folder: Path
) -> None:
    own = home / ".ssh/id_ed25519"
    own.touch()
    code, words, err = started(programs, ALLOCATION)
    assert (code, err) == (23, "")
    [key] = [each for each in folder.iterdir() if "." not in each.name and "-cert" not in each.name]
    assert key.stat().st_mode & 0o777 == 0o600
    at = words.index("IdentitiesOnly=yes")
    assert words[at + 1 : at + 5] == ["-i", str(key), "-i", str(own)]
    assert key.with_name(f"{key.name}-cert.pub").read_text() == f"{ISSUED['certificate']}\n"
    assert sent(active) == [{"public_key": key.with_name(f"{key.name}.pub").read_text().strip()}]


def test_ssh_deletes_temporary_keys_of_which_the_certificate_has_expired(
    active: ScriptedPlane, programs: Path, folder: Path
) -> None:
    started(programs, ALLOCATION)
    first = set(folder.iterdir())
    started(programs, ALLOCATION)
    assert first < set(folder.iterdir())
    for each in folder.iterdir():
        os.utime(each, (0, 0))
    started(programs, ALLOCATION)
    assert len([*folder.iterdir()]) == len(first) == 3
    assert not first & set(folder.iterdir())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("fields", "options", "count"),
    [
        ({"gateway_access": True}, ("--no-certificate",), 0),
        ({"gateway_access": True}, ("-i", "/keys/own"), 0),
        ({"gateway_access": True}, ("-i", "/keys/own", "--certificate"), 1),
        ({"gateway_access": False}, (), 0),
        ({}, (), 0),
        ({"gateway_access": False}, ("--certificate",), 1),
    ],
)
def test_ssh_requests_a_certificate_for_gateway_access_without_an_identity_or_with_option_certificate(
    active: ScriptedPlane, programs: Path, fields: dict[str, Any], options: tuple[str, ...], count: int
) -> None:
    active._replies[PATH] = [document(allocation(**fields))]
    code, words, _ = started(programs, ALLOCATION, *options)
    assert (code, len(sent(active))) == (23, count)
    assert ("IdentitiesOnly=yes" in words) == bool(count)
    assert ("/keys/own" in words) == ("-i" in options)


@pytest.mark.usefixtures("folder")
def test_ssh_logs_in_without_a_certificate_that_the_api_refuses_unless_option_certificate_is_given(
    active: ScriptedPlane, programs: Path
) -> None:
    active._replies[ISSUE] = [problem(403, "scope_missing", "the credential has no scope allocations:write")]
    code, words, err = started(programs, ALLOCATION)
    assert (code, "IdentitiesOnly=yes" in words) == (23, False)
    assert "logging in without a certificate: " in err
    code, words, err = started(programs, ALLOCATION, "--certificate")
    assert (code, words) == (3, [])
    assert "allocations:write" in err


def test_gateway_and_slice_are_offered_the_same_keys() -> None:
    login = Login("lab-a", "gateway", "slice-0", 22, "alc-1@ssh.example.com:2222")
    words = ssh_arguments(login, identities=[Path("/keys/own")], certified=Path("/keys/new"))
    keys = "-o IdentitiesOnly=yes -i /keys/new -i /keys/own"
    [proxy] = [each for each in words if each.startswith("ProxyCommand=")]
    assert keys in proxy
    assert keys in " ".join(words[words.index(proxy) + 1 :])
