"""`sliceplane paths list`: a line per network path between Sliceplane's parts, and each warning once with its paths."""

import json
from collections.abc import Callable

from tests.cli.control_plane import ScriptedPlane, page
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
READABLE = "credentials and data cross the network in plaintext (10.0.0.5)"


def path(
    client: str, server: str, *warnings: str, encrypted: bool = True, survives: bool = True
) -> dict[str, object]:
    return {
        "client": client,
        "server": server,
        "address": "10.0.0.5:6380",
        "transport": "TLS" if encrypted else "TCP",
        "encrypted": encrypted,
        "credential": "user x, password",
        "survives_private_redis": survives,
        "warnings": list(warnings),
    }


def test_paths_list_prints_a_line_per_network_path_and_each_warning_once(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    first = path("api", "Redis", READABLE, encrypted=False)
    second = path("8 nodes", "Redis", READABLE, encrypted=False, survives=False)
    plane.script("GET /v1/paths", page(path("callers", "API"), first, second))
    outcome = sliceplane("paths", "list")
    assert outcome.code == 0
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[0][:3] == ["FROM", "TO", "ADDRESS"]
    assert [line[0] for line in lines[1:]] == ["callers", "api", "8"]
    assert "fails" in lines[3]
    assert outcome.err.count(READABLE) == 1
    assert "[api to Redis, 8 nodes to Redis]" in outcome.err


def test_paths_list_with_json_prints_the_response_of_the_api_unchanged(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    items = [path("api", "Redis", READABLE)]
    plane.script("GET /v1/paths", page(*items))
    outcome = sliceplane("paths", "list", "-o", "json")
    assert json.loads(outcome.out)["items"] == items
    assert outcome.err == ""
