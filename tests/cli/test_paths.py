"""`sliceplane paths list`: every path in a line, and each warning once with the paths that it is about."""

import json
from collections.abc import Callable

from tests.cli.control_plane import ScriptedPlane, page
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
READABLE = "passwords and what they open cross the network in plaintext (10.0.0.5)"


def path(
    who: str, reaches: str, *warnings: str, encrypted: bool = True, kept: bool = True
) -> dict[str, object]:
    return {
        "who": who,
        "reaches": reaches,
        "at": "10.0.0.5:6380",
        "transport": "TLS" if encrypted else "TCP",
        "encrypted": encrypted,
        "credential": "user x, password",
        "survives_private_redis": kept,
        "warnings": list(warnings),
    }


def test_each_path_is_a_line_and_each_warning_is_told_once(plane: ScriptedPlane, sliceplane: Run) -> None:
    first = path("api", "Redis", READABLE, encrypted=False)
    second = path("8 nodes", "Redis", READABLE, encrypted=False, kept=False)
    plane.answers("GET /v1/paths", page(path("callers", "API"), first, second))
    outcome = sliceplane("paths", "list")
    assert outcome.code == 0
    lines = [line.split() for line in outcome.out.splitlines()]
    assert lines[0][:3] == ["WHO", "REACHES", "AT"]
    assert [line[0] for line in lines[1:]] == ["callers", "api", "8"]
    assert "ends" in lines[3]
    assert outcome.err.count(READABLE) == 1
    assert "[api to Redis, 8 nodes to Redis]" in outcome.err


def test_for_programs_it_is_the_answer_as_it_came(plane: ScriptedPlane, sliceplane: Run) -> None:
    items = [path("api", "Redis", READABLE)]
    plane.answers("GET /v1/paths", page(*items))
    outcome = sliceplane("paths", "list", "--json")
    assert json.loads(outcome.out)["items"] == items
    assert outcome.err == ""
