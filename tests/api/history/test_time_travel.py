"""An API view with the parameter `at` equals the view that the API returned at that time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from deploy.embedded.postgres import PostgresServer
from tests.api.lifecycle import RECORDED_PATHS, Lifecycle, at_values, get_view, record_lifecycle
from tests.api.node import admit, allocate, register_node
from tests.servers.plane import RunningPlane, running


@pytest.fixture(scope="module")
def lifecycle(postgres_server: PostgresServer) -> Iterator[Lifecycle]:
    with running(postgres_server) as plane:
        yield record_lifecycle(plane)


def as_of_the_past(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a view without the actions of the caller, the address of terminals, and the fields that come from
    heartbeats, which are not events.
    """
    if "items" in answer:
        return answer | {"items": [as_of_the_past(item) for item in answer["items"]]}
    answer = answer | {"allowed_actions": None}
    if "l2_domain" in answer:
        state = answer["state"].replace("resyncing", "enrolled")
        return answer | {"state": state, "seen_at": None, "spooled_reports": None, "blocked_by": None}
    if "network_device" in answer:
        return answer | {"blocked_by": None}
    return answer | {"conditions": None, "terminal_address": None}


@pytest.mark.parametrize("path", [*RECORDED_PATHS, "/allocations/ID"])
def test_view_of_a_past_position_equals_the_view_that_the_api_returned_at_that_position(
    lifecycle: Lifecycle, path: str
) -> None:
    requested = path if path in RECORDED_PATHS else f"/allocations/{lifecycle.allocation}"
    for moment in lifecycle.moments:
        for at in at_values(moment):
            then = get_view(lifecycle.plane, requested, at=at)
            assert then.status_code == 200, then.text
            assert then.json() == as_of_the_past(moment.responses[requested]), (path, at)
            assert then.headers["sliceplane-position"] == f"1.{moment.position}"


def test_allocation_recorded_for_the_time_travel_tests_passes_through_its_states_in_order(
    lifecycle: Lifecycle,
) -> None:
    states = [
        moment.responses[f"/allocations/{lifecycle.allocation}"]["state"] for moment in lifecycle.moments
    ]
    assert states == [
        "placed",
        "provisioning",
        "provisioning",
        "provisioning",
        "active",
        "starting",
        "active",
        "releasing",
        "releasing",
        "released",
    ]


def test_views_can_be_read_at_every_ledger_position(lifecycle: Lifecycle) -> None:
    """The positions include those inside an append of several events, and those before the first event."""
    for position in range(lifecycle.moments[-1].position + 1):
        at = f"position:{position}"
        for path in ("/allocations", "/nodes", "/slots"):
            assert get_view(lifecycle.plane, path, at=at).status_code == 200
        for path in (f"/allocations/{lifecycle.allocation}", "/nodes/n1"):
            assert get_view(lifecycle.plane, path, at=at).status_code in {200, 404}
    requested = lifecycle.moments[0].position - 2
    view = get_view(
        lifecycle.plane, f"/allocations/{lifecycle.allocation}", at=f"position:{requested}"
    ).json()
    assert (view["state"], view["slots"], view["generation"]) == ("requested", [], 0)


def test_resource_at_a_time_before_the_first_event_of_the_ledger_returns_404_and_lists_are_empty(
    lifecycle: Lifecycle,
) -> None:
    for at in ("position:0", "2000-01-01T00:00:00+00:00"):
        for path in (f"/allocations/{lifecycle.allocation}", "/nodes/n1"):
            then = get_view(lifecycle.plane, path, at=at)
            assert then.status_code == 404
            assert "at position 0" in then.json()["reasons"][0]["message"]
        for path in ("/allocations", "/nodes", "/slots"):
            then = get_view(lifecycle.plane, path, at=at)
            assert then.json() == {"items": [], "next_cursor": None}
            assert then.headers["sliceplane-position"] == "0.0"


@pytest.mark.parametrize(
    "at",
    [
        "yesterday",
        "2026-11-21",
        "2026-11-21T09:30:00",
        "2026-13-21T09:30:00Z",
        "2026-11-21T09:30:00 00:00",
        "0001-01-01T00:00:00+14:00",
        "position:-1",
        "position:1e3",
        "position:9999999999999999999",
        "position:٣",
        "",
        "x" * 65,
    ],
)
def test_request_with_an_invalid_time_and_other_errors_is_refused_with_all_errors(
    lifecycle: Lifecycle, at: str
) -> None:
    refused = get_view(lifecycle.plane, "/slots", at=at, limit="0")
    assert refused.status_code == 422
    assert {reason["parameter"] for reason in refused.json()["reasons"]} == {"at", "limit"}


def test_view_at_a_future_time_or_position_is_refused(lifecycle: Lifecycle) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for at, code in ((tomorrow, "in_the_future"), ("position:999999", "position_not_reached")):
        for path in ("/slots", "/allocations", f"/history/allocation/{lifecycle.allocation}"):
            refused = get_view(lifecycle.plane, path, at=at)
            assert refused.status_code == 409
            assert refused.json()["reasons"][0]["code"] == code


def test_node_pages_at_an_earlier_position_contain_every_node_of_that_time(
    emptied_plane: RunningPlane,
) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in names:
        register_node(emptied_plane, name)
    at = f"position:{emptied_plane.rows('select max(position) from ledger.event')[0][0]}"
    register_node(emptied_plane, "n00")
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = get_view(emptied_plane, "/nodes", at=at, limit="2", **cursor).json()
        found += [node["id"] for node in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == names


def test_allocation_page_at_an_earlier_position_skips_later_allocations(emptied_plane: RunningPlane) -> None:
    admit(emptied_plane, "n1", slots=3)
    made = [allocate(emptied_plane).json()["id"] for _ in range(2)]
    at = f"position:{emptied_plane.rows('select max(position) from ledger.event')[0][0]}"
    assert allocate(emptied_plane).status_code == 202
    first = get_view(emptied_plane, "/allocations", at=at, limit="1").json()
    assert [each["id"] for each in first["items"]] == made[1:]
    second = get_view(emptied_plane, "/allocations", at=at, limit="1", cursor=first["next_cursor"]).json()
    assert [each["id"] for each in second["items"]] == made[:1]


def test_uncommitted_append_delays_only_views_of_later_times(emptied_plane: RunningPlane) -> None:
    register_node(emptied_plane, "n1")
    [(position, before)] = emptied_plane.rows("select max(position), clock_timestamp() from ledger.event")
    with psycopg.connect(emptied_plane.database.app_dsn) as hanging:
        hanging.execute("set idle_in_transaction_session_timeout = 0")
        hanging.execute(_APPEND)
        [(during,)] = emptied_plane.rows("select clock_timestamp()")
        for at in (f"position:{position}", before.isoformat()):
            then = get_view(emptied_plane, "/nodes", at=at)
            assert [node["id"] for node in then.json()["items"]] == ["n1"]
        drawn = emptied_plane.rows("select last_value from ledger.position_seq")[0][0]
        for at in (during.isoformat(), f"position:{drawn}"):
            early = get_view(emptied_plane, "/nodes", at=at)
            assert early.status_code == 503
            assert early.headers["retry-after"] == "1"
            assert early.json()["reasons"][0]["code"] == "not_yet_final"
        assert get_view(emptied_plane, "/nodes").status_code == 200
        hanging.rollback()
    then = get_view(emptied_plane, "/nodes", at=during.isoformat())
    assert then.status_code == 200


_APPEND = """
select ledger.append(jsonb_build_array(jsonb_build_object(
  'event_id', gen_random_uuid(), 'stream_id', 'node-n9', 'version', 1, 'type', 'node.registered', 'schema_version', 1,
  'data', '{}', 'actor', 'key:x', 'reason', 'x', 'correlation_id', gen_random_uuid(), 'observed_at', now())))
"""
