"""Command `sliceplane access-log list`: its filters and its table."""

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from tests.cli.control_plane import ScriptedPlane, page
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
ROW = {
    "request_id": "req-1",
    "position": 7,
    "opened_at": "2026-01-02T03:04:05.678Z",
    "method": "POST",
    "route": "/v1/nodes",
    "path": "/v1/nodes",
    "principal": "key:ci-1a2b",
    "credential": "ci-1a2b",
    "source": "192.0.2.1",
    "status": 403,
    "outcome": "refused",
    "reasons": ["role_missing"],
    "duration_ms": 12,
    "count": 1,
    "process": "0196f5b0-0000-7000-8000-000000000000",
}


def test_access_log_list_prints_principal_source_and_outcome_of_each_request(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    counted = {**ROW, "principal": None, "credential": None, "count": 40, "request_id": "req-2"}
    plane.script("GET /v1/access-log", page(ROW, counted))
    out = sliceplane("access-log", "list").out
    for part in (
        "POST /v1/nodes",
        "403",
        "refused: role_missing",
        "key:ci-1a2b",
        "192.0.2.1",
        "req-1",
        "(40 times)",
    ):
        assert part in out


def test_access_log_list_sends_its_filters(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/access-log", page())
    outcome = sliceplane(
        *("access-log", "list", "--principal", "key:ci-1a2b", "--method", "POST", "--outcome", "open"),
        *("--from", "2026-01-02T03:04:05Z", "--after", "7"),
    )
    assert "no matching requests" in outcome.out
    assert parse_qs(urlsplit(plane.received[0].path).query) == {
        "principal": ["key:ci-1a2b"],
        "method": ["POST"],
        "outcome": ["open"],
        "from": ["2026-01-02T03:04:05Z"],
        "after": ["7"],
        "order": ["asc"],
        "limit": ["100"],
    }


def test_access_log_list_refuses_a_position_of_the_ledger_as_a_time(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    outcome = sliceplane("access-log", "list", "--from", "position:7")
    assert outcome.code == 2
    assert "position of the ledger" in outcome.err
    assert plane.received == []
