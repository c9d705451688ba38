"""Promise P23: no secret appears in a log, event, task, trace, dump, process list or error.

Each secret of a system, and each secret that a caller sends to the wrong place, is searched in everything that the
system has written or shows. Only the files and processes that need the secret may have it. A first test plants a text
in each kind of place and finds it there, so that a search without result proves something.
"""

import base64
import json
import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import make_url
from typer.testing import CliRunner

from control_plane.cli.program import program
from deploy.embedded.children import installed_program
from deploy.embedded.ssh_key import ensure_key_pair
from tests import matrix
from tests.faults.caller import KEY
from tests.faults.canaries import Places, Secret, open_modes, places_of, secret_line
from tests.faults.system import NODE, System
from tests.servers.program_copies import run_copy
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_PROGRAMS: Final = frozenset(
    f"process/{name}/environment"
    for program in ("api", "dispatcher", "projector", "ssh-gateway")
    for name in (program, f"{program}-2")
)
_SEALERS: Final = ("process/sealer/environment", "process/sealer-2/environment")
"""Environments of the sealer processes. They contain the address of Redis, although the sealer does not use Redis,
because every program requires this setting.
"""
OWN: Final = (
    "first API key",
    "issued API key",
    "successor of a rotated API key",
    "secret of a session",
    "key of the CLI's context",
    "key in the CLI's environment",
    "enrolment token",
    "reopened enrolment token",
    "credential of a node",
    "private key of a node",
    "queue password of a node",
    "signing key",
    "key of the CA",
    "key of the server's certificate",
    "password of the database",
    "password of the database's superuser",
    "password of Redis",
    "private SSH key",
    "password in a wrong database URL",
    "password in a wrong Redis URL",
)
"""Secrets of the system and its callers."""
MISPLACED: Final = (
    "unknown bearer",
    "bearer in the form of a JWT",
    "basic credentials",
    "authorization without a scheme",
    "other headers",
    "node credentials",
    "request id",
    "idempotency key",
    "condition",
    "query",
    "query value",
    "path",
    "path without credentials",
    "unknown field",
    "enumeration",
    "wrong type",
    "name",
    "free text",
    "label",
    "invalid JSON",
    "private SSH key in place of the public one",
    "enrolment",
)
"""Secrets that a caller sends to a place where none belongs."""


def _key() -> str:
    return f"sp_{secrets.token_urlsafe(32)}"


def _jwt() -> str:
    header, claims = (
        base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode()
        for each in ({"alg": "HS256", "typ": "JWT"}, {"sub": "admin", "nonce": secrets.token_hex(16)})
    )
    return f"{header}.{claims}.{secrets.token_urlsafe(32)}"


@dataclass
class Sender:
    """Sends secrets to a system, and keeps the responses and the output of the command line."""

    system: System
    client: httpx.Client
    shown: dict[str, str | bytes] = field(default_factory=dict)
    secrets: dict[str, Secret] = field(default_factory=dict)

    def have(self, name: str, value: str, *kept: str) -> str:
        self.secrets[name] = Secret(name, value, frozenset(kept))
        return value

    def send(
        self, method: str, path: str, *, kept: bool = True, headers: Mapping[str, str] = {}, **given: Any
    ) -> httpx.Response:
        """Send a request with the administrator's key, or with the `headers` instead. Keep the response if `kept`."""
        authorization = {} if "Authorization" in headers else {"Authorization": f"Bearer {self.system.key}"}
        answer = self.client.request(method, path, headers={**authorization, **headers}, **given)
        if kept:
            place = f"{len(self.shown)} {method} response"
            self.shown[place] = f"{answer.status_code} {answer.headers} {answer.text}"
        return answer

    def run(self, *words: str, environment: Mapping[str, str] = {}, given: str | None = None) -> str:
        """Run the command line and keep its output."""
        variables = {"SLICEPLANE_CONFIG": str(self.system.layout.client_file), **environment}
        done = CliRunner().invoke(program, list(words), input=given, env=variables, prog_name="sliceplane")
        self.shown[f"{len(self.shown)} output of sliceplane {words[0]}"] = f"{done.output}{done.stderr}"
        return done.output


def send_all(sender: Sender, folder: Path) -> None:
    system = sender.system
    allocation = system.create()
    system.await_state(allocation, "active")
    for step in (_own_keys, _files_of_the_installation, _nodes):
        step(sender)
    _command_line(sender, folder)
    _wrong_settings(sender)
    _misplaced_headers(sender)
    _misplaced_addresses(sender)
    _misplaced_bodies(sender, folder)
    _outage_of_the_database(sender)
    system.release_all(allocation)


def _own_keys(sender: Sender) -> None:
    sender.have("first API key", sender.system.key, "client.json")
    again = {"Idempotency-Key": uuid4().hex}
    body = {"name": "canary", "role": "auditor"}
    first, second = (
        sender.send("POST", "/v1/keys", kept=False, headers=again, json=body).json() for _ in range(2)
    )
    assert first == second
    sender.have("issued API key", first["key"])
    rotated, path = {"Idempotency-Key": uuid4().hex}, f"/v1/keys/{first['id']}/rotate"
    overlap = {"overlap_seconds": 60}
    successor = sender.send("POST", path, kept=False, headers=rotated, json=overlap).json()
    assert sender.send("POST", path, kept=False, headers=rotated, json=overlap).json() == successor
    sender.have("successor of a rotated API key", successor["key"])
    started = {"Idempotency-Key": uuid4().hex}
    session = sender.send("POST", "/v1/sessions", kept=False, headers=started, json={}).json()
    assert sender.send("POST", "/v1/sessions", kept=False, headers=started, json={}).json() == session
    sender.have("secret of a session", session["secret"])
    sender.send("GET", "/v1/whoami", headers={"Authorization": f"Bearer {session['secret']}"})
    # A repetition that is refused names no secret: another body, and another credential.
    sender.send("POST", "/v1/keys", headers=again, json={**body, "name": "other"})
    mine = {"Authorization": f"Bearer {successor['key']}"}
    sender.send("GET", "/v1/whoami", headers=mine)
    sender.send("POST", "/v1/keys", headers={**mine, **again}, json=body)


def _files_of_the_installation(sender: Sender) -> None:
    layout, stack = sender.system.layout, sender.system.stack
    tls = layout.certificates
    sender.have("signing key", secret_line(layout.signing_key.read_text()), "signing-key.pem")
    sender.have("key of the CA", secret_line((tls / "ca.key").read_text()), "tls/ca.key")
    sender.have(
        "key of the server's certificate",
        secret_line((tls / "server.pem").read_text()),
        "tls/server.pem",
        "redis/server.pem",
    )
    url = make_url(stack.environment()["SLICEPLANE_DATABASE_URL"])
    sender.have("password of the database", str(url.password), "postgres/secrets.json", *_PROGRAMS)
    admin = str(conninfo_to_dict(stack.admin_dsn)["password"])
    sender.have("password of the database's superuser", admin, "postgres/secrets.json")
    redis = str(httpx.URL(stack.redis_url).password)
    sender.have("password of Redis", redis, "redis/password", *_PROGRAMS, *_SEALERS)
    ensure_key_pair(layout.ssh_key)
    sender.have("private SSH key", secret_line(layout.ssh_key.read_text()), "ssh/id_ed25519")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(stack.admin_dsn, password=f"{admin}x")


def _nodes(sender: Sender) -> None:
    system = sender.system
    session = json.loads((system.node.folder / "agent/session.json").read_text())["secrets"]
    kept = tuple(f"nodes/{NODE}/agent/{name}" for name in ("session.json", "next-session.json"))
    sender.have("credential of a node", session["credential"], *kept)
    sender.have("queue password of a node", session["queue_password"], *kept)
    sender.have("private key of a node", secret_line(session["key"]), *kept)
    token = (system.layout.node(NODE) / "enrolment-token").read_text()
    sender.have("enrolment token", token, f"nodes/{NODE}/enrolment-token")
    name = f"canary-{uuid4().hex[:8]}"
    again = {"Idempotency-Key": uuid4().hex}
    sender.send("POST", "/v1/nodes", kept=False, json={"id": name})
    path = f"/v1/nodes/{name}/enrolment"
    answers = [sender.send("POST", path, kept=False, headers=again).json() for _ in range(2)]
    if "enrolment_token" not in answers[0]:
        answers = [
            sender.send("POST", "/v1/nodes", kept=False, headers=again, json={"id": name}).json()
            for _ in range(2)
        ]
    assert answers[0] == answers[1]
    sender.have("reopened enrolment token", answers[0]["enrolment_token"])
    proof = {"public_key": "none", "proof": "none"}
    sender.send("POST", "/v1/agent/enroll", json={"token": answers[0]["enrolment_token"], **proof})


def _command_line(sender: Sender, folder: Path) -> None:
    system = sender.system
    issued = [
        sender.send("POST", "/v1/keys", kept=False, json={"name": name, "role": "admin"}).json()["key"]
        for name in ("cli-context", "cli-environment")
    ]
    sender.have("key of the CLI's context", issued[0])
    sender.have("key in the CLI's environment", issued[1])
    home = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")}
    url, ca = system.stack.api_url, str(system.layout.ca_file)
    assert "logged in" in sender.run(
        *("login", "--with-key", "--url", url, "--ca", ca), environment=home, given=f"{issued[0]}\n"
    )
    for words in (
        ["contexts", "list", "-o", "json"],
        ["whoami"],
        ["--as-curl", "keys", "list"],
        ["--as-curl", "keys", "issue", "a", "--role", "auditor"],
        ["doctor"],
        ["keys", "list", "-o", "yaml"],
        ["keys", "show", "absent"],
        ["--url", "https://127.0.0.1:9", "whoami"],
        ["logout"],
    ):
        sender.run(*words, environment={**home, "SLICEPLANE_CONFIG": str(folder / "none.json")})
        set_ = {"SLICEPLANE_URL": url, "SLICEPLANE_API_KEY": issued[1], "SLICEPLANE_CA": ca}
        sender.run(*words, environment={**home, **set_})
    for words in (["--as-curl"], []):
        private = ("allocations", "create", "--sku", system.sku, "--ssh-key", str(system.layout.ssh_key))
        sender.run(*words, *private)


def _wrong_settings(sender: Sender) -> None:
    environment = {**os.environ, **sender.system.stack.environment()}
    wrong = {
        "password in a wrong database URL": (
            "SLICEPLANE_DATABASE_URL",
            ("postgresql+psycopg://a:{}@127.0.0.1:9/a", "postgresql+psycopg://a:{}@127.0.0.1:port/a"),
        ),
        "password in a wrong Redis URL": (
            "SLICEPLANE_REDIS_URL",
            ("redis://a:{}@127.0.0.1:port/0", "http://a:{}@127.0.0.1:9/0"),
        ),
    }
    for name, (variable, urls) in wrong.items():
        password = sender.have(name, secrets.token_urlsafe(32))
        for number, url in enumerate(urls):
            argv = installed_program("sliceplane-server", "issue-key", "x")
            done = run_copy(argv, {**environment, variable: url.format(password)})
            sender.shown[f"output with a {name} {number}"] = done.stdout + done.stderr
            assert done.returncode == 1, done.stderr


def _terminated(conn: "psycopg.Connection[Any]", role: str | None) -> int:
    """Terminate the database connections of a Postgres role, and return how many it had."""
    sessions = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = %s"
    return len(conn.execute(sessions, [role]).fetchall())


def _outage_of_the_database(sender: Sender) -> None:
    """Let every program log that it cannot use the database, with requests in progress that carry secrets."""
    key = sender.secrets["successor of a rotated API key"].value
    role = make_url(sender.system.stack.environment()["SLICEPLANE_DATABASE_URL"]).username
    with psycopg.connect(sender.system.stack.admin_dsn, autocommit=True) as conn:
        conn.execute(f"alter role {role} nologin")
        try:
            # A session that was being opened when the role lost its login is not listed yet: repeat until none is.
            until(lambda: not _terminated(conn, role), "no program is connected to the database")
            for method, path in (("GET", "/v1/whoami"), ("POST", "/v1/keys")):
                answer = sender.send(
                    method,
                    path,
                    headers={"Authorization": f"Bearer {key}", "Idempotency-Key": uuid4().hex},
                    json={"name": "a", "role": "auditor"} if method == "POST" else None,
                )
                assert answer.status_code == 503, answer.text
        finally:
            conn.execute(f"alter role {role} login")
    until(sender.system.is_settled, "the node is settled")


def _misplaced_headers(sender: Sender) -> None:
    for name, value in (("unknown bearer", _key()), ("bearer in the form of a JWT", _jwt())):
        bearer = {"Authorization": f"Bearer {sender.have(name, value)}"}
        assert sender.send("GET", "/v1/projects", headers=bearer).status_code == 401
        sender.send("POST", "/v1/agent/reports", headers=bearer, json={})
        sender.send("GET", "/v1/absent", headers=bearer)
    basic = base64.b64encode(f"admin:{sender.have('basic credentials', _key())}".encode()).decode()
    sender.have("basic credentials encoded", basic)
    assert sender.send("GET", "/v1/projects", headers={"Authorization": f"Basic {basic}"}).status_code == 401
    plain = {"Authorization": sender.have("authorization without a scheme", _key())}
    assert sender.send("GET", "/v1/projects", headers=plain).status_code == 401
    other = sender.have("other headers", _key())
    for name in ("X-Api-Key", "Cookie", "User-Agent", "Referer", "traceparent", "X-Forwarded-For"):
        sender.send("GET", "/v1/skus", headers={name: other})
    node = {"Authorization": f"Bearer {NODE}:{sender.have('node credentials', _key())}"}
    assert sender.send("POST", "/v1/agent/reports", headers=node, json={}).status_code in (401, 422)
    assert sender.send("POST", "/v1/agent/heartbeat", headers=node, json={}).status_code in (401, 422)
    sender.send("GET", "/v1/absent", headers={"X-Request-Id": sender.have("request id", _key())})
    key = {"Idempotency-Key": sender.have("idempotency key", _key())}
    sender.send("POST", "/v1/projects", headers=key, json={"id": f"canary-{uuid4().hex[:8]}"})
    sender.send("POST", "/v1/keys", headers=key, json={"name": "k", "role": "auditor"}, kept=False)
    condition = sender.have("condition", _key())
    sender.send("DELETE", "/v1/allocations/alc-absent", headers={"If-Match": f'"{condition}"'})


def _misplaced_addresses(sender: Sender) -> None:
    query = sender.have("query", _key())
    for path in ("/v1/skus", "/v1/absent", "/healthz", "/docs"):
        sender.send("GET", path, params={"api_key": query})
        sender.send("GET", path, params={query: "1"})
    value = sender.have("query value", _key())
    for path in ("/v1/keys?role=", "/v1/keys?cursor=", "/v1/events?actor=", "/v1/allocations?limit="):
        sender.send("GET", f"{path}{value}")
    inside, without = sender.have("path", _key()), sender.have("path without credentials", _key())
    for method, path in (
        ("GET", "/v1/keys/{}"),
        ("GET", "/v1/nodes/{}"),
        ("GET", "/v1/allocations/{}"),
        ("GET", "/v1/tasks/{}"),
        ("GET", "/v1/{}"),
        ("GET", "/problems/{}"),
        ("PUT", "/v1/keys/{}"),
        ("DELETE", "/v1/allocations/{}"),
        ("POST", "/v1/parked/{}/retry"),
        ("POST", "/v1/keys/{}/revoke"),
    ):
        sender.send(method, path.format(inside))
        sender.send(method, path.format(without), headers={"Authorization": "Bearer none"})


def _misplaced_bodies(sender: Sender, folder: Path) -> None:
    fields = {"name": "canary", "role": "auditor"}
    field_ = sender.have("unknown field", _key())
    sender.send("POST", "/v1/keys", json={**fields, "api_key": field_})
    sender.send("POST", "/v1/keys", json={**fields, field_: "1"})
    sender.send("POST", "/v1/keys", json={**fields, "role": sender.have("enumeration", _key())})
    wrong = sender.have("wrong type", _key())
    sender.send("POST", "/v1/keys", json={**fields, "projects": wrong, "lifetime_seconds": wrong})
    sender.send("POST", "/v1/keys", json=wrong)
    name = sender.have("name", _key())
    allocation = {"sku": sender.system.sku, "ssh_authorized_keys": [KEY]}
    for path, body in (
        ("/v1/keys", {**fields, "name": name}),
        ("/v1/projects", {"id": name}),
        ("/v1/nodes", {"id": name}),
        ("/v1/allocations", {**allocation, "sku": name}),
        ("/v1/allocations", {**allocation, "project": name}),
        ("/v1/tasks", {"kind": name, "node_id": NODE}),
    ):
        sender.send("POST", path, json=body)
    text = sender.have("free text", _jwt())
    issued = sender.send("POST", "/v1/keys", kept=False, json=fields).json()["id"]
    sender.send("POST", f"/v1/keys/{issued}/revoke", json={"reason": f"lost: {text}"})
    label = sender.have("label", _key())
    for labels in ({"token": label}, {label: "a"}):
        sender.send("POST", "/v1/allocations", json={**allocation, "labels": labels})
    broken = sender.have("invalid JSON", _key())
    content = {"Content-Type": "application/json"}
    sender.send("POST", "/v1/keys", headers=content, content=f'{{"name": "{broken}"')
    sender.send("POST", "/v1/keys", headers={"Content-Type": "text/plain"}, content=broken)
    ensure_key_pair(folder / "misplaced")
    private = (folder / "misplaced").read_text()
    sender.have("private SSH key in place of the public one", secret_line(private))
    for given in (private, private.replace("\n", " "), f"ssh-ed25519 {secret_line(private)}"):
        sender.send("POST", "/v1/allocations", json={**allocation, "ssh_authorized_keys": [given]})
    enrolment = sender.have("enrolment", f"enrol_{secrets.token_urlsafe(32)}")
    for proof in ({"public_key": "none", "proof": "none"}, {}, {"public_key": 1, "proof": enrolment}):
        sender.send("POST", "/v1/agent/enroll", json={"token": enrolment, **proof})


@contextmanager
def plant(sender: Sender, text: str) -> Iterator[None]:
    """Put a text into each kind of place of a system, and remove what can be removed at the end."""
    system, redis = sender.system, sender.system.redis()
    sender.send("GET", "/v1/absent", headers={"X-Request-Id": text})
    sender.send("GET", f"/v1/keys/{text}")
    key = sender.send("POST", "/v1/keys", kept=False, json={"name": text, "role": "auditor"}).json()["id"]
    sender.run("keys", "show", text)
    file = system.layout.state / "nodes/planted"
    names = [f"planted-{kind}" for kind in ("string", "hash", "list", "zset")]
    process = subprocess.Popen([sys.executable, "-c", "input()", text], stdin=subprocess.PIPE)
    with psycopg.connect(system.stack.admin_dsn, autocommit=True) as conn:
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            conn.execute(f"select '{text}'::int")
        conn.execute(f"create table public.planted as select '{text}' as text")
        try:
            file.write_text(text)
            redis.set(names[0], text)
            redis.hset(names[1], text, "1")
            redis.rpush(names[2], text)
            redis.zadd(names[3], {text: 1})
            redis.acl_setuser(text, enabled=False)
            yield
        finally:
            process.communicate(b"\n")
            redis.acl_deluser(text)
            redis.delete(*names)
            file.unlink()
            conn.execute("drop table public.planted")
            sender.send("POST", f"/v1/keys/{key}/revoke", json={"reason": "planted"})


@dataclass
class Searched:
    """The secrets of a system, and the places that were searched for them."""

    secrets: Mapping[str, Secret]
    places: Places
    state: Path


@pytest.fixture(scope="module")
def searched(system: System, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    until(system.is_settled, "the node is settled")
    folder = tmp_path_factory.mktemp("canaries")
    with httpx.Client(base_url=system.stack.api_url, timeout=30, verify=system.stack.trusted) as client:
        sender = Sender(system, client)
        send_all(sender, folder)
        return Searched(sender.secrets, places_of(system, sender.shown), system.layout.state)


@matrix.cases("P23", (*OWN, *MISPLACED), few=len(OWN) + len(MISPLACED))
def test_secret_is_found_only_in_the_files_and_processes_that_need_it(searched: Searched, case: str) -> None:
    for name, secret in searched.secrets.items():
        if name.removesuffix(" encoded") == case:
            found = searched.places.of(secret)
            assert found <= secret.kept, sorted(found - secret.kept)
            assert found or not secret.kept, "the search does not find the secret where it is kept"
            files = [each for each in found if not each.startswith("process/")]
            assert open_modes(searched.state, files) == []


def test_no_program_writes_its_memory_to_a_core_dump(system: System) -> None:
    until(system.is_settled, "the node is settled")
    programs = {**system.stack.programs, "agent": system.node.agent}
    limits = {
        name: resource.prlimit(child.pid or 0, resource.RLIMIT_CORE) for name, child in programs.items()
    }
    assert limits == dict.fromkeys(programs, (0, 0))


def test_search_for_secrets_finds_a_text_that_was_planted_in_each_kind_of_file_row_log_and_redis_key(
    system: System, tmp_path: Path
) -> None:
    planted = Secret("planted", f"planted-{secrets.token_hex(6)}")
    with httpx.Client(base_url=system.stack.api_url, timeout=30, verify=system.stack.trusted) as client:
        sender = Sender(system, client)
        with plant(sender, planted.value):
            found = places_of(system, sender.shown).of(planted)
    kinds = {
        "a file of the installation": lambda place: place == "nodes/planted",
        "a log": lambda place: place == "logs/api.log",
        "the log of Postgres": lambda place: place == "postgres/postgres.log",
        "a row": lambda place: place == "database",
        "a string in Redis": lambda place: place.startswith("redis/keys/b'planted-string"),
        "a hash in Redis": lambda place: place.startswith("redis/keys/b'planted-hash"),
        "a list in Redis": lambda place: place.startswith("redis/keys/b'planted-list"),
        "a sorted set in Redis": lambda place: place.startswith("redis/keys/b'planted-zset"),
        "a user of Redis": lambda place: place == "redis/ACL LIST",
        "an event": lambda place: place == "api/v1/events",
        "a list of the API": lambda place: place == "api/v1/keys",
        "a response": lambda place: place.startswith("shown/") and "response" in place,
        "an output": lambda place: place.startswith("shown/") and "output" in place,
        "a process list": lambda place: place.startswith("process/") and place.endswith("command line"),
    }
    assert [kind for kind, matches in kinds.items() if not any(map(matches, found))] == []
    encoded = Places()
    text = f"a b:{planted.value}"
    for number in range(3):
        encoded.add(str(number), base64.b64encode(b"x" * number + text.encode()))
    assert len(encoded.of(planted)) == 3
