"""`sliceplane login`, `logout` and `sessions` on a real control plane, with keys and with a real identity provider."""

import json
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from control_plane.cli import device_login
from control_plane.cli.program import program
from deploy.embedded.certificates import ensure
from deploy.embedded.postgres import PostgresServer
from tests.api.access.issuers import issuer_of
from tests.cli.control_plane import Reply, ScriptedPlane, document, problem, running_plane
from tests.cli.outcome import Outcome
from tests.servers.oidc_provider import Provider, running_provider
from tests.servers.plane import ADMIN_KEY, RunningPlane, running
from tests.waiting import until

Run = Callable[..., Outcome]
_CODE: Final = re.compile(r"or open (\S+) and compare")
SESSION: Final = {
    "id": "ses-1",
    "secret": "ss_scripted",
    "actor": "user:corp/alice",
    "credential": "corp/1",
    "credential_kind": "token",
    "label": "",
    "state": "active",
    "role": "admin",
    "scopes": [],
    "started_at": "2026-11-25T12:00:00Z",
    "expires_at": "2126-11-25T12:00:00Z",
    "idle_seconds": 3600,
}


@pytest.fixture(scope="module")
def real(postgres_server: PostgresServer, oidc_provider: Provider) -> Iterator[RunningPlane]:
    """Control plane with an identity provider for logins."""
    issuer = issuer_of(oidc_provider, clock_skew_seconds=0, login_scope="openid slices")
    with running(postgres_server, oidc=(issuer,)) as made:
        yield made


@pytest.fixture(autouse=True)
def config(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the contexts. No other configuration exists."""
    monkeypatch.delenv("SLICEPLANE_CONFIG")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    return home / ".config/sliceplane/config.json"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times that the command line waits for a provider, which pass at once."""
    found: list[float] = []
    monkeypatch.setattr(device_login, "sleep", found.append)
    return found


def with_key(url: str, *words: str) -> Outcome:
    result = CliRunner().invoke(program, ["login", "--url", url, "--with-key", *words], input=ADMIN_KEY)
    return Outcome(result.exit_code, result.stdout, result.stderr)


def stored(config: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config.read_text())["contexts"]["default"]["credential"]
    return found


def state_of(plane: RunningPlane, session: str) -> str:
    with plane.client() as admin:
        return str(admin.get(f"/sessions/{session}").json()["state"])


def test_login_with_a_key_stores_a_session_that_logout_ends(
    real: RunningPlane, unconfigured: Run, config: Path
) -> None:
    done = with_key(real.url)
    assert done.code == 0, done.err
    assert "as key:test-" in done.out
    assert ADMIN_KEY not in config.read_text()
    credential = stored(config)
    assert credential.keys() == {"type", "id", "secret"}
    assert credential["type"] == "session"
    me = unconfigured("whoami").out
    assert f"session {credential['id']}" in me
    assert "expires" in me
    assert credential["secret"] not in me + done.out + done.err
    assert "session" in unconfigured("contexts", "list").out.splitlines()[-1]
    listed = json.loads(unconfigured("sessions", "list", "--state", "active", "-o", "json").out)["items"]
    assert [each["label"][:14] for each in listed if each["id"] == credential["id"]] == ["sliceplane on "]
    assert credential["id"] in unconfigured("sessions", "list").out
    assert unconfigured("logout").out.startswith("logged out of")
    assert state_of(real, credential["id"]) == "ended"
    assert "secret" not in config.read_text()
    assert unconfigured("whoami").code == 3
    assert unconfigured("logout").code == 0


def test_login_that_keeps_the_key_stores_the_key(real: RunningPlane, unconfigured: Run, config: Path) -> None:
    assert with_key(real.url, "--keep-key").code == 0
    assert stored(config) == {"type": "api_key", "key": ADMIN_KEY}
    assert "key test-" in unconfigured("whoami").out
    assert "still valid" in unconfigured("logout").out


def test_command_with_a_refused_session_prints_the_hint_to_log_in_again(
    real: RunningPlane, unconfigured: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_key(real.url)
    session = stored(config)["id"]
    monkeypatch.setenv("SLICEPLANE_API_KEY", ADMIN_KEY)
    ended = unconfigured("sessions", "end", session, "--reason", "laptop lost")
    assert (ended.code, "laptop lost" in ended.out) == (0, True)
    monkeypatch.delenv("SLICEPLANE_API_KEY")
    refused = unconfigured("whoami")
    assert (refused.code, "[session_ended]" in refused.err) == (3, True)
    assert "log in again: sliceplane login" in refused.err
    with_key(real.url)
    real.rows(
        "update read.session set expires_at = now() where session_id = %(id)s returning 1",
        id=stored(config)["id"],
    )
    refused = unconfigured("whoami")
    assert "[session_expired]" in refused.err
    assert "log in again: sliceplane login" in refused.err
    assert unconfigured("logout").code == 0


@pytest.mark.parametrize(("user", "code"), [("alice", 0), ("olivia", 0), ("mallory", 3)])
def test_device_login_exchanges_the_token_of_the_user_for_a_session(
    *,
    real: RunningPlane,
    oidc_provider: Provider,
    unconfigured: Run,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
    code: int,
) -> None:
    shown: list[str] = []
    waited: list[float] = []

    def complete(seconds: float) -> None:
        """Do the user's part while the command line waits for the second time."""
        waited.append(seconds)
        if len(waited) == 2:
            found = _CODE.search(" ".join(shown))
            assert found is not None, shown
            oidc_provider.sign_in(found[1], user)

    monkeypatch.setattr(device_login, "sleep", complete)
    monkeypatch.setattr("control_plane.cli.screen.Screen.note", lambda _, text: shown.append(text))
    done = unconfigured("login", "--device", "--provider", "corp", "--url", real.url)
    assert (done.code, waited) == (code, [5.0, 5.0]), done.err
    if code:
        assert "[no_grant]" in done.err
        assert not config.exists()
        return
    assert f"as user:corp/{user}" in done.out
    assert stored(config)["type"] == "session"
    assert f"user:corp/{user}" in unconfigured("whoami").out
    session = stored(config)["id"]
    assert unconfigured("logout").code == 0
    assert state_of(real, session) == "ended"


def test_device_login_prints_url_and_code_at_once_and_an_interrupt_ends_it(
    real: RunningPlane, config: Path
) -> None:
    words = (sys.executable, "-m", "control_plane.cli", "login", "--device", "--url", real.url)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as running_login:
        assert running_login.stderr is not None
        lines = [running_login.stderr.readline() for _ in range(3)]
        assert re.search(r"open \S+/device in a browser and enter the code \S+", lines[0]), lines
        assert "Ctrl-C" in lines[2]
        running_login.send_signal(signal.SIGINT)
        until(lambda: running_login.poll() is not None, "the command line has ended")
        assert running_login.returncode == 130
        assert "Traceback" not in running_login.stderr.read()
    assert not config.exists()


@pytest.fixture
def scripted() -> Iterator[ScriptedPlane]:
    """A control plane that is its own identity provider, which refuses tokens as the test defines."""
    with running_plane() as plane:
        login = {"name": "corp", "issuer": plane.url, "client_id": "cli", "audience": "a", "scope": "openid"}
        plane.script("GET /v1", document({"version": "0.1.0", "logins": [login]}))
        metadata = {
            "issuer": plane.url,
            "token_endpoint": f"{plane.url}/token",
            "device_authorization_endpoint": f"{plane.url}/device",
        }
        plane.script("GET /.well-known/openid-configuration", document(metadata))
        plane.script("POST /v1/sessions", document(SESSION, 201))
        yield plane


def begun(plane: ScriptedPlane, **changes: object) -> None:
    code = {"device_code": "d", "user_code": "ABCD", "verification_uri": "https://x", "expires_in": 60}
    plane.script("POST /device", document({**code, **changes}))


def error(code: str) -> Reply:
    return document({"error": code}, 400)


def test_device_login_waits_longer_when_the_provider_asks_for_it(
    scripted: ScriptedPlane, unconfigured: Run, waits: list[float], config: Path
) -> None:
    begun(scripted, interval=2)
    replies = [error("authorization_pending"), error("slow_down"), error("authorization_pending")]
    scripted.script("POST /token", *replies, document({"access_token": "a.b.c", "token_type": "Bearer"}))
    done = unconfigured("login", "--device", "--url", scripted.url)
    assert done.code == 0, done.err
    assert waits == [2.0, 2.0, 7.0, 7.0]
    [start] = scripted.requests("POST /v1/sessions")
    assert start.headers["Authorization"] == "Bearer a.b.c"
    [named] = scripted.requests("GET /v1")
    assert "Authorization" not in named.headers
    assert stored(config) == {"type": "session", "id": "ses-1", "secret": "ss_scripted"}
    assert "a.b.c" not in config.read_text()


@pytest.mark.parametrize(
    ("reply", "expires_in", "code", "reason"),
    [
        (error("access_denied"), 60, 3, "was denied"),
        (error("expired_token"), 60, 3, "the code of the device login expired"),
        (error("authorization_pending"), 0.05, 3, "the code of the device login expired"),
        (error("invalid_client"), 60, 3, "invalid_client"),
        (document({}), 60, 4, "unexpected response with status 200"),
        (Reply(b"<html>", 502), 60, 4, "unexpected response with status 502"),
        (Reply(lose=True), 60, 4, "cannot reach the identity provider"),
    ],
)
def test_device_login_that_the_provider_refuses_fails_with_the_reason_and_stores_nothing(
    *,
    scripted: ScriptedPlane,
    unconfigured: Run,
    waits: list[float],
    config: Path,
    reply: Reply,
    expires_in: float,
    code: int,
    reason: str,
) -> None:
    begun(scripted, expires_in=expires_in)
    scripted.script("POST /token", reply)
    done = unconfigured("login", "--device", "--url", scripted.url)
    assert (done.code, reason in " ".join(done.err.split())) == (code, True), done.err
    assert not config.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"issuer": "https://other.example"}, "the metadata of another issuer, https://other.example"),
        ({"device_authorization_endpoint": None}, "does not support the device authorization grant"),
        ({"token_endpoint": "ftp://x/token"}, "without TLS"),
    ],
)
def test_device_login_refuses_metadata_of_another_or_unsuitable_provider(
    unconfigured: Run, changes: dict[str, object], reason: str
) -> None:
    with running_plane() as plane:
        login = {"name": "corp", "issuer": plane.url, "client_id": "cli", "audience": "a", "scope": "openid"}
        plane.script("GET /v1", document({"version": "0.1.0", "logins": [login]}))
        metadata = {
            "issuer": plane.url,
            "token_endpoint": f"{plane.url}/token",
            "device_authorization_endpoint": f"{plane.url}/device",
        }
        plane.script("GET /.well-known/openid-configuration", document({**metadata, **changes}))
        done = unconfigured("login", "--device", "--url", plane.url)
        assert (done.code, reason in " ".join(done.err.split())) == (4, True), done.err
        assert plane.requests("POST /device") == []


def test_device_login_uses_a_provider_over_tls_only_if_its_certificate_is_trusted(
    unconfigured: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    own = ensure(tmp_path / "own", ["127.0.0.1"], datetime.now(UTC))
    with running_plane() as plane, running_provider(own.server, own.server) as provider:

        def complete(_seconds: float) -> None:
            found = _CODE.search(" ".join(shown))
            assert found is not None, shown
            replace(provider, verify=ssl.create_default_context(cafile=own.ca)).sign_in(found[1], "alice")

        monkeypatch.setattr(device_login, "sleep", complete)
        monkeypatch.setattr("control_plane.cli.screen.Screen.note", lambda _, text: shown.append(text))
        login = {"name": "corp", "client_id": "sliceplane", "audience": "a", "scope": "openid slices"}
        plane.script(
            "GET /v1", document({"version": "0.1.0", "logins": [{**login, "issuer": provider.issuer}]})
        )
        plane.script("POST /v1/sessions", document(SESSION, 201))
        done = unconfigured("login", "--device", "--url", plane.url)
        assert (done.code, "--provider-ca" in done.err) == (4, True), done.err
        assert plane.requests("POST /v1/sessions") == []
        done = unconfigured("login", "--device", "--url", plane.url, "--provider-ca", str(own.ca))
        assert done.code == 0, done.err
        [start] = plane.requests("POST /v1/sessions")
        assert start.headers["Authorization"].count(".") == 2


@pytest.mark.parametrize(
    ("names", "words", "reason"),
    [
        ([], [], "no identity provider for logins"),
        (["corp", "lab"], [], "choose one with --provider: corp, lab"),
        (["corp"], ["--provider", "lab"], "no identity provider 'lab'"),
        (["corp"], ["--with-key"], "--device cannot be combined with --with-key"),
    ],
)
def test_device_login_without_one_chosen_provider_is_wrong_usage(
    unconfigured: Run, names: list[str], words: list[str], reason: str
) -> None:
    logins = [
        {"name": each, "issuer": "http://localhost:1", "client_id": "c", "audience": "a", "scope": "openid"}
        for each in names
    ]
    with running_plane() as plane:
        plane.script("GET /v1", document({"version": "0.1.0", "logins": logins}))
        done = unconfigured("login", "--device", "--url", plane.url, *words)
    assert (done.code, reason in " ".join(done.err.split())) == (2, True), done.err


def test_logout_removes_a_session_that_could_not_be_ended_with_a_warning(
    scripted: ScriptedPlane, unconfigured: Run, config: Path
) -> None:
    scripted.script("POST /v1/sessions/ses-1/end", problem(503, "database_unavailable", "no database"))
    with_key(scripted.url)
    done = unconfigured("logout")
    assert (done.code, "could not be ended" in done.err) == (0, True)
    assert "ss_scripted" not in config.read_text()
