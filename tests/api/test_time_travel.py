"""The past is what the API said when it was the present."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from deploy.embedded.postgres import PostgresServer
from tests.api.lives import SEEN, Life, ask, at, lived
from tests.api.node import admit, allocate, expect
from tests.servers.plane import RunningPlane, running


@pytest.fixture(scope="module")
def life(postgres_server: PostgresServer) -> Iterator[Life]:
    with running(postgres_server) as plane:
        yield lived(plane)


def without_heartbeats(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what no event tells."""
    if "items" in answer:
        return answer | {"items": [without_heartbeats(item) for item in answer["items"]]}
    if "l2_domain" in answer:
        state = answer["state"].replace("resyncing", "enrolled")
        return answer | {"state": state, "seen_at": None, "spooled_reports": None, "blocked_by": None}
    if "network_device" in answer:
        return answer | {"blocked_by": None}
    if "conditions" in answer:
        return answer | {"conditions": None}
    return answer


@pytest.mark.parametrize("path", [*SEEN, "the allocation"])
def test_what_was_said_then_is_said_of_then(life: Life, path: str) -> None:
    asked = path if path in SEEN else f"/allocations/{life.allocation}"
    for moment in life.moments:
        for place in at(moment):
            then = ask(life.plane, asked, at=place)
            assert then.status_code == 200, then.text
            assert then.json() == without_heartbeats(moment.said[asked]), (path, place)
            assert then.headers["sliceplane-position"] == f"1.{moment.position}"


def test_the_life_had_all_its_states(life: Life) -> None:
    states = [moment.said[f"/allocations/{life.allocation}"]["state"] for moment in life.moments]
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


def test_every_position_of_the_log_can_be_looked_at(life: Life) -> None:
    """Those within an append too, and those before anything was there."""
    for position in range(life.moments[-1].position + 1):
        place = f"position:{position}"
        for path in ("/allocations", "/nodes", "/slots"):
            assert ask(life.plane, path, at=place).status_code == 200
        for path in (f"/allocations/{life.allocation}", "/nodes/n1"):
            assert ask(life.plane, path, at=place).status_code in {200, 404}
    requested = life.moments[0].position - 2
    told = ask(life.plane, f"/allocations/{life.allocation}", at=f"position:{requested}").json()
    assert (told["state"], told["slots"], told["generation"]) == ("requested", [], 0)


def test_before_it_was_there_a_thing_is_unknown_and_a_list_is_empty(life: Life) -> None:
    for place in ("position:0", "2000-01-01T00:00:00+00:00"):
        for path in (f"/allocations/{life.allocation}", "/nodes/n1"):
            then = ask(life.plane, path, at=place)
            assert then.status_code == 404
            assert "at position 0" in then.json()["reasons"][0]["message"]
        for path in ("/allocations", "/nodes", "/slots"):
            then = ask(life.plane, path, at=place)
            assert then.json() == {"items": [], "next_cursor": None}
            assert then.headers["sliceplane-position"] == "0.0"


@pytest.mark.parametrize(
    "place",
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
def test_what_names_no_place_is_refused_with_every_other_reason(life: Life, place: str) -> None:
    refused = ask(life.plane, "/slots", at=place, limit="0")
    assert refused.status_code == 422
    assert {reason["parameter"] for reason in refused.json()["reasons"]} == {"at", "limit"}


def test_what_is_still_to_come_is_refused(life: Life) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    for place, code in ((tomorrow, "in_the_future"), ("position:999999", "not_reached")):
        for path in ("/slots", "/allocations", f"/history/allocation/{life.allocation}"):
            refused = ask(life.plane, path, at=place)
            assert refused.status_code == 409
            assert refused.json()["reasons"][0]["code"] == code


def test_pages_of_the_past_make_its_list(running_plane: RunningPlane) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in names:
        expect(running_plane, name)
    place = f"position:{running_plane.rows('select max(position) from ledger.event')[0][0]}"
    expect(running_plane, "n00")
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = ask(running_plane, "/nodes", at=place, limit="2", **cursor).json()
        found += [node["id"] for node in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == names


def test_a_page_of_allocations_is_full_though_others_came_later(running_plane: RunningPlane) -> None:
    admit(running_plane, "n1", slots=3)
    made = [allocate(running_plane).json()["id"] for _ in range(2)]
    place = f"position:{running_plane.rows('select max(position) from ledger.event')[0][0]}"
    assert allocate(running_plane).status_code == 202
    first = ask(running_plane, "/allocations", at=place, limit="1").json()
    assert [each["id"] for each in first["items"]] == made[1:]
    second = ask(running_plane, "/allocations", at=place, limit="1", cursor=first["next_cursor"]).json()
    assert [each["id"] for each in second["items"]] == made[:1]


def test_an_appender_that_hangs_holds_back_only_what_came_since(running_plane: RunningPlane) -> None:
    expect(running_plane, "n1")
    [(position, before)] = running_plane.rows("select max(position), clock_timestamp() from ledger.event")
    with psycopg.connect(running_plane.database.app_dsn) as hung:
        hung.execute("set idle_in_transaction_session_timeout = 0")
        hung.execute(_APPEND)
        [(during,)] = running_plane.rows("select clock_timestamp()")
        for place in (f"position:{position}", before.isoformat()):
            then = ask(running_plane, "/nodes", at=place)
            assert [node["id"] for node in then.json()["items"]] == ["n1"]
        drawn = running_plane.rows("select last_value from ledger.position_seq")[0][0]
        for place in (during.isoformat(), f"position:{drawn}"):
            early = ask(running_plane, "/nodes", at=place)
            assert early.status_code == 503
            assert early.headers["retry-after"] == "1"
            assert early.json()["reasons"][0]["code"] == "not_yet_final"
        assert ask(running_plane, "/nodes").status_code == 200
        hung.rollback()
    then = ask(running_plane, "/nodes", at=during.isoformat())
    assert then.status_code == 200


_APPEND = """
select ledger.append(jsonb_build_array(jsonb_build_object(
  'event_id', gen_random_uuid(), 'stream_id', 'node-n9', 'version', 1, 'type', 'node.expected', 'schema_version', 1,
  'data', '{}', 'actor', 'key:x', 'why', 'x', 'correlation_id', gen_random_uuid(), 'observed_at', now())))
"""
