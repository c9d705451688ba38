"""Tests of an event that a read model cannot process: the read model stops visibly, and skipping or retrying the event
is an audited command.
"""

import json
from uuid import uuid4

import psycopg

from read_models.projections import PROJECTIONS
from tests.api.node import allocate
from tests.projections.plane_requests import NAMES, caught_up, change, create_history, rebuild, show, verify
from tests.servers.plane import RunningPlane
from tests.waiting import until


def append_unknown_event(plane: RunningPlane) -> int:
    """Append an event of a type that only a newer release supports. Return the event's position."""
    event = {
        "event_id": str(uuid4()),
        "stream_id": f"slot-node-z/{uuid4().hex[:4]}",
        "version": 1,
        "type": "slot.painted",
        "schema_version": 1,
        "data": "{}",
        "actor": "key:newer",
        "reason": "test",
        "correlation_id": str(uuid4()),
        "observed_at": "2026-01-01T00:00:00Z",
    }
    with psycopg.connect(plane.database.app_dsn) as conn:
        row = conn.execute("select positions from ledger.append(%s::jsonb)", [json.dumps([event])]).fetchone()
    assert row is not None
    return int(row[0][0])


def stopped_at(plane: RunningPlane, name: str) -> int | None:
    stop = show(plane, name)["stopped"]
    return None if stop is None else int(stop["position"])


def test_read_model_stopped_by_an_unknown_event_contains_all_events_before_it_and_none_after(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    unknown = append_unknown_event(running_plane)
    allocate(running_plane)

    until(lambda: stopped_at(running_plane, "holdings") == unknown, "the projection 'holdings' has stopped")

    shown = show(running_plane, "holdings")
    assert shown["state"] == "stopped"
    assert "slot.painted" in shown["stopped"]["error"]
    [[last]] = running_plane.rows("select max(position) from read.holding")
    [[claimed]] = running_plane.rows(
        "select max(position) from ledger.event where type = 'slot.released' and position < %(at)s",
        at=unknown,
    )
    assert last == claimed


def test_event_skipped_in_a_read_model_stays_skipped_and_the_ledger_records_the_actor(
    running_plane: RunningPlane,
) -> None:
    client = running_plane.client()
    create_history(running_plane)
    unknown = append_unknown_event(running_plane)
    stopped = ("allocations", "project_events", "holdings", "capacity", "usage")
    until(
        lambda: all(stopped_at(running_plane, name) == unknown for name in stopped),
        "every projection that is not inline has stopped",
    )
    for name in stopped:
        body = {"position": unknown, "reason": "a release from the future"}
        assert client.post(f"/projections/{name}/skip", json=body).is_success
    caught_up(running_plane)

    recorded = client.get("/events", params={"after": f"position:{unknown}"}).json()["items"]
    skips = [event for event in recorded if event["type"] == "projection.event_skipped"]
    assert [event["data"]["position"] for event in skips] == [unknown] * len(stopped)
    assert all(event["actor"].startswith("key:") and "/skip" in event["reason"] for event in skips)
    assert show(running_plane, "holdings")["skipped"] == [unknown]
    timeline_rows = running_plane.rows("select count(*) from read.story where position = %(at)s", at=unknown)
    assert timeline_rows == [(1,)], "a timeline row needs no decoded fact, so the event has its row"


def test_read_model_rebuild_stopped_by_an_unknown_event_keeps_the_live_tables_until_the_event_is_skipped(
    running_plane: RunningPlane,
) -> None:
    client = running_plane.client()
    create_history(running_plane)
    unknown = append_unknown_event(running_plane)
    client.post("/projections/slots/rebuild")

    def stopped() -> bool:
        rebuilding = show(running_plane, "slots")["rebuild"]
        return rebuilding is not None and rebuilding["stopped"] is not None

    until(stopped, "the rebuild has stopped")
    assert allocate(running_plane).status_code == 202
    assert show(running_plane, "slots")["rebuild"]["stopped"]["position"] == unknown

    client.post("/projections/slots/skip", json={"position": unknown, "reason": "not ours"})

    until(lambda: show(running_plane, "slots")["rebuild"] is None, "the rebuild has finished")
    assert [allocate(running_plane).status_code for _ in range(2)] == [202, 409]


def test_stopped_read_model_that_is_retried_after_its_cause_is_removed_continues(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    caught_up(running_plane)
    [[last]] = running_plane.rows("select last from ledger.fence()")
    change(running_plane, f"insert into read.holding values ('slot', 'node-a/0', {last + 4}, null)")
    allocate(running_plane)
    until(lambda: stopped_at(running_plane, "holdings") == last + 4, "the projection 'holdings' has stopped")

    change(running_plane, f"delete from read.holding where position = {last + 4}")
    assert running_plane.client().post("/projections/holdings/retry").is_success

    caught_up(running_plane)
    assert stopped_at(running_plane, "holdings") is None
    assert verify(running_plane)["state"] == "equal"


def test_skip_and_retry_of_a_read_model_that_is_not_stopped_are_rejected(running_plane: RunningPlane) -> None:
    client = running_plane.client()
    create_history(running_plane)
    caught_up(running_plane)

    not_stopped = client.post(
        "/projections/holdings/skip", json={"position": 2, "reason": "no particular reason"}
    )
    again = client.post("/projections/holdings/retry")
    blank = client.post("/projections/holdings/skip", json={"position": 2, "reason": "  "})
    invalid = client.post("/projections/holdings/skip", json={"position": 0, "reason": "", "more": 1})

    assert (not_stopped.status_code, not_stopped.json()["reasons"][0]["code"]) == (
        409,
        "not_stopped_at_position",
    )
    assert (again.status_code, again.json()["reasons"][0]["code"]) == (409, "projection_not_stopped")
    assert (blank.status_code, invalid.status_code) == (422, 422)
    assert {reason["field"] for reason in invalid.json()["reasons"]} == {"/position", "/reason", "/more"}
    assert verify(running_plane)["state"] == "equal"


def test_verification_stopped_by_an_unknown_event_shows_the_position_of_the_event(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    unknown = append_unknown_event(running_plane)

    found = verify(running_plane)

    assert found["state"] == "stopped"
    assert found["stopped"]["position"] == unknown


def test_stopped_read_model_continues_after_a_rebuild(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    caught_up(running_plane)
    [[last]] = running_plane.rows("select last from ledger.fence()")
    change(running_plane, f"insert into read.holding values ('slot', 'node-a/0', {last + 4}, null)")
    allocate(running_plane)
    until(lambda: stopped_at(running_plane, "holdings") == last + 4, "the projection 'holdings' has stopped")

    rebuild(running_plane, "holdings")

    caught_up(running_plane)
    assert verify(running_plane)["state"] == "equal"


def test_verification_during_a_stopped_rebuild_ends_without_waiting_for_it(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    unknown = append_unknown_event(running_plane)
    running_plane.client().post("/projections/slots/rebuild")
    until(
        lambda: bool((show(running_plane, "slots")["rebuild"] or {}).get("stopped")),
        "the rebuild has stopped",
    )

    assert verify(running_plane)["stopped"]["position"] == unknown

    live = [name for name in NAMES if not PROJECTIONS[name].inline]
    until(
        lambda: all(show(running_plane, name)["stopped"] for name in live),
        "all live projections have stopped",
    )
    for name in NAMES:
        skipped = running_plane.client().post(
            f"/projections/{name}/skip", json={"position": unknown, "reason": "not ours"}
        )
        assert skipped.is_success == (name == "slots" or not PROJECTIONS[name].inline), skipped.text
    until(lambda: show(running_plane, "slots")["rebuild"] is None, "the rebuild has finished")
