"""`sliceplane --as-curl`: the printed command sends what the command itself would send, and has no secret."""

import json
import os
import shlex
import ssl
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deploy.embedded.certificates import ensure
from tests.cli.conftest import KEY
from tests.cli.control_plane import Request, ScriptedPlane, document, page, running_plane, stream
from tests.cli.examples import ALLOCATION, BRING_UP, NODE, allocation
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
SENT = ("Authorization", "Content-Type", "Accept")
TASK = {"id": "t-1", "kind": "k", "state": "done", "node_id": "n", "created_at": "2026-01-02T03:04:05Z"}
COMMANDS = {
    "get": ("nodes", "show", "lab-a"),
    "past": ("nodes", "list", "--at", "position:7"),
    "filters": ("events", "list", "--type", "a.b", "--type", "c.d", "--actor", "key:it's"),
    "post": ("allocations", "create", "--sku", "lab.small", "--label", 'it\'s="$HOME" `id`', "--no-wait"),
    "put": ("nodes", "addresses", "lab-a", "203.0.113.7"),
    "patch": ("projects", "describe", "p", "what it's for; \\n"),
    "delete": ("allocations", "release", ALLOCATION),
    "escaped": ("nodes", "show", "?x#y%2F"),
}


def scripted(plane: ScriptedPlane) -> None:
    for path in ("/v1/nodes/lab-a", "/v1/nodes/%3Fx%23y%252F"):
        plane.script(f"GET {path}", document(NODE))
    plane.script("GET /v1/nodes", page())
    plane.script("GET /v1/events", page())
    plane.script("POST /v1/allocations", document(allocation("placed"), 202))
    plane.script("PUT /v1/nodes/lab-a/public-addresses", document(NODE))
    plane.script("PATCH /v1/projects/p", document({"id": "p", "state": "active", "description": "d"}))
    plane.script(f"DELETE /v1/allocations/{ALLOCATION}", document(allocation("releasing"), 202))


def run(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "SLICEPLANE_API_KEY": KEY, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def essence(request: Request) -> tuple[object, ...]:
    headers = {name: value for name, value in request.headers.items() if name in SENT and value != "*/*"}
    return request.method, request.path, headers, request.body, "Idempotency-Key" in request.headers


@pytest.mark.parametrize("name", COMMANDS)
def test_curl_command_printed_by_as_curl_sends_the_same_request_as_the_command_itself(
    plane: ScriptedPlane, sliceplane: Run, name: str
) -> None:
    scripted(plane)
    printed = sliceplane("--as-curl", *COMMANDS[name])
    assert (printed.code, plane.received) == (0, []), printed.err
    assert KEY not in printed.out
    assert run(printed.out).returncode == 0
    done = sliceplane(*COMMANDS[name])
    assert done.code == 0, done.err
    by_curl, *_ = plane.received
    [by_command] = [each for each in plane.received[1:] if each.method == by_curl.method][:1]
    assert essence(by_curl) == essence(by_command)


def test_curl_command_printed_by_as_curl_for_a_watch_prints_events_as_they_arrive(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/events/watch", stream(*BRING_UP))
    printed = sliceplane("--as-curl", "events", "follow", "--after", "3")
    assert "--no-buffer" in printed.out
    assert run(printed.out).stdout.count("data: ") == len(BRING_UP)
    assert plane.received[-1].path == "/v1/events/watch?after=position%3A3"


def test_option_as_curl_prints_each_request_of_a_command_that_sends_several_requests(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    printed = sliceplane("--as-curl", "slots", "approve", "lab-a/0", "lab-a/1")
    assert [shlex.split(line)[-1] for line in printed.out.splitlines()] == [
        f"{plane.url}/v1/nodes/lab-a/slots/{index}/approve" for index in (0, 1)
    ]
    rebuild = sliceplane("--as-curl", "projections", "rebuild", "slots", "nodes")
    assert len(rebuild.out.splitlines()) == 2
    assert plane.received == []


def test_option_as_curl_prints_the_curl_command_without_a_configured_api_key(
    plane: ScriptedPlane, unconfigured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = unconfigured("--url", plane.url, "--as-curl", "whoami")
    assert printed.code == 0
    assert "$SLICEPLANE_API_KEY" in printed.out


@pytest.mark.parametrize(
    "words",
    [
        *[("ssh", ALLOCATION), ("doctor",), ("login",), ("logout",)],
        *[("contexts", "use", "lab"), ("contexts", "remove", "lab")],
    ],
)
def test_option_as_curl_is_refused_for_a_command_that_is_not_a_single_request(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...]
) -> None:
    assert sliceplane("--as-curl", *words).code == 2
    assert plane.received == []


@pytest.mark.parametrize("where", ["file", "configuration"])
def test_curl_command_printed_by_as_curl_verifies_the_certificate_with_the_ca_of_the_command(
    home: Path, unconfigured: Run, where: str
) -> None:
    made = ensure(home / "tls", ["127.0.0.1"], datetime.now(UTC))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server)
    with running_plane() as plane:
        plane.script("GET /v1/nodes/lab-a", document(NODE))
        plane.socket = context.wrap_socket(plane.socket, server_side=True)
        url = plane.url.replace("http:", "https:")
        configuration = {"url": url, "api_key": "k", "ca": made.ca.read_text()}
        (home / "client.json").write_text(json.dumps(configuration))
        given = ("--ca", str(made.ca)) if where == "file" else ()
        printed = unconfigured(*given, "--as-curl", "nodes", "show", "lab-a")
        environment = {} if where == "file" else {"SLICEPLANE_CA": str(made.ca)}
        assert ("SLICEPLANE_CA" in printed.err) == (where == "configuration")
        assert json.loads(run(printed.out, **environment).stdout) == NODE
        assert run(printed.out.replace("--cacert", "--user-agent"), **environment).returncode != 0
