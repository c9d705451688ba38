"""An event that a read model cannot deal with stops it visibly; passing over it or trying again is an audited
command.
"""

import json
from uuid import uuid4

import psycopg

from tests.api.node import allocate
from tests.projections.keeping import NAMES, caught_up, change, rebuild, show, some_life, verify
from tests.servers.plane import RunningPlane
from tests.waiting import until


def from_a_newer_release(plane: RunningPlane) -> int:
    """An event of a type that this release does not know, recorded as a newer one would; its position."""
    event = {
        "event_id": str(uuid4()),
        "stream_id": f"slot-node-z/{uuid4().hex[:4]}",
        "version": 1,
        "type": "slot.painted",
        "schema_version": 1,
        "data": "{}",
        "actor": "key:newer",
        "why": "test",
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


def test_everything_before_a_poison_event_is_in_and_nothing_behind_it(running_plane: RunningPlane) -> None:
    some_life(running_plane)
    poison = from_a_newer_release(running_plane)
    allocate(running_plane)

    until(lambda: stopped_at(running_plane, "holdings") == poison, "holdings stops")

    shown = show(running_plane, "holdings")
    assert shown["state"] == "stopped"
    assert "slot.painted" in shown["stopped"]["error"]
    [[last]] = running_plane.rows("select max(position) from read.holding")
    [[claimed]] = running_plane.rows(
        "select max(position) from ledger.event where type = 'slot.released' and position < %(at)s", at=poison
    )
    assert last == claimed


def test_a_skipped_event_is_passed_over_for_good_and_the_log_says_who_let_it(
    running_plane: RunningPlane,
) -> None:
    client = running_plane.client()
    some_life(running_plane)
    poison = from_a_newer_release(running_plane)
    both = ("allocations", "holdings")
    until(lambda: all(stopped_at(running_plane, name) == poison for name in both), "both stop")
    for name in both:
        body = {"position": poison, "reason": "a release from the future"}
        assert client.post(f"/projections/{name}/skip", json=body).is_success
    caught_up(running_plane)

    told = client.get("/events", params={"after": f"position:{poison}"}).json()["items"]
    skips = [event for event in told if event["type"] == "projection.event_skipped"]
    assert [event["data"]["position"] for event in skips] == [poison, poison]
    assert all(event["actor"].startswith("key:") and "/skip" in event["why"] for event in skips)
    assert show(running_plane, "holdings")["skipped"] == [poison]
    stories = running_plane.rows("select count(*) from read.story where position = %(at)s", at=poison)
    assert stories == [(1,)], "a story needs no fact, and so it lacks none"


def test_a_rebuild_stops_at_it_too_and_the_live_tables_stay(running_plane: RunningPlane) -> None:
    client = running_plane.client()
    some_life(running_plane)
    poison = from_a_newer_release(running_plane)
    client.post("/projections/slots/rebuild")

    def stopped() -> bool:
        rebuilding = show(running_plane, "slots")["rebuild"]
        return rebuilding is not None and rebuilding["stopped"] is not None

    until(stopped, "the rebuild stops")
    assert allocate(running_plane).status_code == 202
    assert show(running_plane, "slots")["rebuild"]["stopped"]["position"] == poison

    client.post("/projections/slots/skip", json={"position": poison, "reason": "not ours"})

    until(lambda: show(running_plane, "slots")["rebuild"] is None, "the rebuild ends")
    assert [allocate(running_plane).status_code for _ in range(2)] == [202, 409]


def test_tried_again_after_its_cause_is_mended_it_goes_on(running_plane: RunningPlane) -> None:
    some_life(running_plane)
    caught_up(running_plane)
    [[last]] = running_plane.rows("select last from ledger.fence()")
    change(running_plane, f"insert into read.holding values ('slot', 'node-a/0', {last + 3}, null)")
    allocate(running_plane)
    until(lambda: stopped_at(running_plane, "holdings") == last + 3, "holdings stops")

    change(running_plane, f"delete from read.holding where position = {last + 3}")
    assert running_plane.client().post("/projections/holdings/retry").is_success

    caught_up(running_plane)
    assert stopped_at(running_plane, "holdings") is None
    assert verify(running_plane)["state"] == "equal"


def test_only_what_stops_a_projection_can_be_skipped(running_plane: RunningPlane) -> None:
    client = running_plane.client()
    some_life(running_plane)
    caught_up(running_plane)

    elsewhere = client.post("/projections/holdings/skip", json={"position": 2, "reason": "I feel like it"})
    again = client.post("/projections/holdings/retry")
    blank = client.post("/projections/holdings/skip", json={"position": 2, "reason": "  "})
    nonsense = client.post("/projections/holdings/skip", json={"position": 0, "reason": "", "more": 1})

    assert (elsewhere.status_code, elsewhere.json()["reasons"][0]["code"]) == (409, "not_stopped_there")
    assert (again.status_code, again.json()["reasons"][0]["code"]) == (409, "not_stopped")
    assert (blank.status_code, nonsense.status_code) == (422, 422)
    assert {reason["field"] for reason in nonsense.json()["reasons"]} == {"/position", "/reason", "/more"}
    assert verify(running_plane)["state"] == "equal"


def test_a_verification_says_at_which_event_it_cannot_go_on(running_plane: RunningPlane) -> None:
    some_life(running_plane)
    poison = from_a_newer_release(running_plane)

    found = verify(running_plane)

    assert found["state"] == "stopped"
    assert found["stopped"]["position"] == poison


def test_rebuilding_a_stopped_projection_with_the_event_skipped_sets_it_going(
    running_plane: RunningPlane,
) -> None:
    some_life(running_plane)
    caught_up(running_plane)
    [[last]] = running_plane.rows("select last from ledger.fence()")
    change(running_plane, f"insert into read.holding values ('slot', 'node-a/0', {last + 3}, null)")
    allocate(running_plane)
    until(lambda: stopped_at(running_plane, "holdings") == last + 3, "holdings stops")

    rebuild(running_plane, "holdings")

    caught_up(running_plane)
    assert verify(running_plane)["state"] == "equal"


def test_a_verification_does_not_wait_for_a_rebuild_that_an_event_stops(running_plane: RunningPlane) -> None:
    some_life(running_plane)
    poison = from_a_newer_release(running_plane)
    running_plane.client().post("/projections/slots/rebuild")
    until(lambda: bool((show(running_plane, "slots")["rebuild"] or {}).get("stopped")), "the rebuild stops")

    assert verify(running_plane)["stopped"]["position"] == poison

    for name in NAMES:
        skipped = running_plane.client().post(
            f"/projections/{name}/skip", json={"position": poison, "reason": "not ours"}
        )
        assert skipped.is_success or name in {"nodes", "keys"}
    until(lambda: show(running_plane, "slots")["rebuild"] is None, "the rebuild ends with what it had filled")
