"""Timelines of the web console: groups of folded events that can be opened, times without events, the level that
decides which events are folded, and timelines of many events in Chromium.
"""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import psycopg
import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from control_plane.web.calls import Api
from control_plane.web.rendering import elapsed
from control_plane.web.timeline import IMPORTANT, LEVELS, ROUTINE, TIMELINE_PAGE, level_of, timeline_of
from control_plane.web.visits import Visit
from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.projections.plane_requests import caught_up
from tests.servers.plane import RunningPlane
from tests.web.browsing import Browser, Page, logged_in
from tests.web.visitors import Visitor

NAMES = Path(__file__).parents[2] / "docs/names/events.txt"
EVENTS = 600


def renew(plane: RunningPlane, allocation: str, count: int) -> None:
    """Append renewals of a lease to the stream of an allocation, of which each is a routine event."""
    stream = f"allocation-{allocation}"
    [(version, correlation, data)] = plane.rows(
        "select (select max(version) from ledger.event where stream_id = %(s)s), correlation_id::text, data from ledger.event"
        " where stream_id = %(s)s and type = 'allocation.lease_granted'",
        s=stream,
    )
    expires = json.loads(data)["expires_at"] if isinstance(data, str) else data["expires_at"]
    content = {"allocation_id": allocation, "expires_at": expires}
    with psycopg.connect(plane.database.app_dsn) as conn:
        for start in range(0, count, 1000):
            batch: list[dict[str, Any]] = [
                {
                    "event_id": str(uuid4()),
                    "stream_id": stream,
                    "version": version + 1 + start + n,
                    "type": "allocation.lease_renewed",
                    "schema_version": 1,
                    "data": json.dumps(content),
                    "actor": "key:robot",
                    "reason": "test",
                    "correlation_id": correlation,
                    "observed_at": "2026-01-01T00:00:00Z",
                }
                for n in range(min(1000, count - start))
            ]
            conn.execute("select ledger.append(%s::jsonb)", [json.dumps(batch)])


@pytest.fixture(scope="module")
def running(shared_plane: RunningPlane) -> RunningAllocation:
    found = RunningAllocation(shared_plane, admit(shared_plane, "n1"))
    renew(shared_plane, found.id, 30)
    return found


@pytest.fixture
def admin(running: RunningAllocation) -> Browser:
    return logged_in(running.plane)


def rows(page: Page, name: str) -> list[str]:
    """Return the ids of the rows of a timeline that begin with `name`: events `e`, or folds `fold-`."""
    return [each for each in page.attributes("tr", "id") if re.fullmatch(rf"{name}\d+", each)]


def renewals_of(running: RunningAllocation) -> int:
    """Return how often the lease of the allocation was renewed: 30 times, and once more by a test."""
    [(count,)] = running.plane.rows(
        "select count(*) from ledger.event where stream_id = %(a)s and type = 'allocation.lease_renewed'",
        a=f"allocation-{running.id}",
    )
    return int(count)


def fold_link(page: Page) -> str:
    return next(each for each in page.attributes("a", "href") if "#fold-" in each).removeprefix("/ui")


def test_run_of_routine_events_is_folded_with_its_number_and_opens_by_its_link(
    running: RunningAllocation, admin: Browser
) -> None:
    renewals = renewals_of(running)
    for path in (
        f"/allocations/{running.id}",
        f"/allocations/{running.id}/timeline",
        f"/events?stream=allocation-{running.id}",
    ):
        folded = admin.open(path)
        assert f"Open {renewals + 1} events" in folded.text, path
        assert f"{renewals + 1} less important events are folded. Show them" in folded.text, path
        assert f"allocation.lease_renewed × {renewals}" in folded.text, path
        assert "allocation.activated" in folded.text, path
        assert "Since previous" in folded.text, path
        opened = admin.open(fold_link(folded).partition("#")[0])
        assert len(rows(opened, "e")) == len(rows(folded, "e")) + renewals + 1, path
        assert f"Close {renewals + 1} events" in opened.text, path
        assert "less important" not in opened.text, path
        closed = admin.open(fold_link(opened).partition("#")[0])
        assert rows(closed, "e") == rows(folded, "e"), path


def test_fold_stays_open_when_a_newer_event_joins_it(running: RunningAllocation, admin: Browser) -> None:
    path = f"/allocations/{running.id}/timeline"
    link = fold_link(admin.open(path))
    renew(running.plane, running.id, 1)
    [fold] = [each for each in rows(admin.open(link.partition("#")[0]), "fold-") if each in link]
    assert fold
    assert f"Close {renewals_of(running) + 1} events" in admin.open(link.partition("#")[0]).text


def test_level_decides_which_events_are_folded_and_no_event_is_left_out(
    running: RunningAllocation, admin: Browser
) -> None:
    path = f"/allocations/{running.id}/timeline"
    every = admin.open(f"{path}?level=routine")
    assert rows(every, "fold-") == []
    [(count,)] = running.plane.rows(
        "select count(*) from ledger.event where correlation_id ="
        " (select correlation_id from ledger.event where stream_id = %(a)s limit 1)",
        a=f"allocation-{running.id}",
    )
    assert len(rows(every, "e")) == count
    important = admin.open(f"{path}?level=important")
    folded = sum(int(each) for each in re.findall(r"Open (\d+) events", important.text))
    assert folded + len(rows(important, "e")) == count
    assert (f"No important event among the newest {count}." in important.text) is (folded == count)
    assert admin.open(f"{path}?level=absent&open=x,-1,99999999999999999999999").status == 200


def test_list_at_the_level_important_has_important_events_that_many_others_follow(
    emptied_plane: RunningPlane,
) -> None:
    failed, admin = RunningAllocation(emptied_plane, admit(emptied_plane, "n1")), logged_in(emptied_plane)
    failed.report("slice.failed", reason={"code": "machine_absent", "message": "the machine is absent"})
    renew(emptied_plane, failed.id, TIMELINE_PAGE)
    assert "allocation.failed" not in admin.open("/events").text
    page = admin.open("/events?level=important")
    assert ("allocation.failed" in page.text, rows(page, "fold-")) == (True, [])
    assert "Only important events are listed." in page.text
    claimed = admin.open("/events?type=slot.claimed")
    assert "/ui/nodes/n1/slots/0" in claimed.attributes("a", "href")
    chosen = admin.open("/events?level=important&type=allocation.lease_renewed")
    assert f"Open {TIMELINE_PAGE} events" in chosen.text


def event(position: int, kind: str, time: str) -> dict[str, Any]:
    return {"position": position, "type": kind, "recorded_at": f"2026-11-28T{time}Z"}


def timeline(*events: dict[str, Any], query: str = "", filtered: bool = False) -> list[tuple[str, Any]]:
    scope = {"type": "http", "path": "/ui/events", "query_string": query.encode(), "headers": []}
    return [
        *timeline_of(Visit(Request(scope), Api(Starlette()), "", {}), events, None, filtered=filtered).rows
    ]


def test_idle_row_of_a_timeline_names_the_node_or_slot_that_had_no_events(
    admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control_plane.web.timeline.IDLE_SECONDS", 1e-6)
    for path, subject in (
        ("/nodes/n1", "the node itself"),
        ("/nodes/n1/slots/0?level=routine", "the slot itself"),
    ):
        page = admin.open(path)
        assert f"no event of {subject} for " in page.text, path
        assert rows(page, "fold-") == [], path
        assert "less important" not in page.text.lower(), path


def test_step_shows_the_time_since_the_event_before_it_and_an_hour_without_events_is_idle() -> None:
    events = [
        event(4, "allocation.activated", "10:00:03.5"), event(3, "allocation.placed", "10:00:00"),
        event(2, "allocation.requested", "08:59:00"), event(1, "slot.approved", "08:00:00"),
    ]  # fmt: skip
    rows = timeline(*events)
    assert [kind for kind, _ in rows] == ["step", "step", "idle", "step", "step"]
    assert [elapsed(row.since_previous) for kind, row in rows if kind == "step"] == [
        "3.5\xa0s",
        "1\xa0h\xa01\xa0min",
        "59\xa0min",
        "",
    ]
    assert [kind for kind, _ in timeline(*events, filtered=True)] == ["step"] * 4


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-0.003, "0 ms"),
        (0.12, "120 ms"),
        (90, "1 min 30 s"),
        (17_280, "4 h 48 min"),
        (172_800, "2 d"),
        (238_000, "2 d 18 h"),
    ],
)
def test_time_between_events_has_two_units_and_is_never_negative(seconds: float, shown: str) -> None:
    assert elapsed(seconds).replace("\xa0", " ") == shown


def test_idle_time_inside_of_an_open_fold_is_shown_and_after_a_closed_one_too() -> None:
    events = [
        event(5, "allocation.activated", "10:00:00"), event(4, "allocation.lease_renewed", "09:00:00"),
        event(3, "allocation.lease_renewed", "07:00:00"), event(2, "allocation.lease_renewed", "06:59:00"),
        event(1, "allocation.placed", "05:00:00"),
    ]  # fmt: skip
    closed = timeline(*events)
    assert [kind for kind, _ in closed] == ["step", "idle", "fold", "idle", "step"]
    for query in ("open=2", "open=4"):
        opened = timeline(*events, query=query)
        assert [kind for kind, _ in opened] == [
            "step", "idle", "fold", "folded", "idle", "folded", "folded", "idle", "step",
        ]  # fmt: skip


def test_fold_has_the_time_from_its_oldest_to_its_newest_event() -> None:
    events = [
        event(4, "allocation.activated", "10:00:00"), event(3, "allocation.lease_renewed", "09:00:00"),
        event(2, "allocation.lease_renewed", "08:59:30"), event(1, "allocation.placed", "05:00:00"),
    ]  # fmt: skip
    [fold] = [row for kind, row in timeline(*events) if kind == "fold"]
    assert fold.seconds == 30


def test_important_event_interrupts_a_run_and_is_never_folded() -> None:
    events = [event(n, "allocation.lease_renewed", f"10:00:0{n}") for n in (9, 8, 7, 6)]
    events[1]["type"] = "allocation.slice_interrupted"
    assert [kind for kind, _ in timeline(*events)] == ["step", "step", "fold"]
    assert [kind for kind, _ in timeline(*events, query="level=important")] == ["step", "step", "fold"]
    assert [kind for kind, _ in timeline(*events, query="level=routine")] == ["step"] * 4


def test_every_type_of_event_with_a_level_exists() -> None:
    known = {each.partition("/")[0].split(" ")[0] for each in NAMES.read_text().splitlines()}
    assert {level_of(each) for each in known} == set(LEVELS)
    assert known >= IMPORTANT | ROUTINE
    assert not IMPORTANT & ROUTINE


def test_long_timeline_is_divided_into_pages_with_folds_that_open_and_close(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    running = RunningAllocation(running_plane, admit(running_plane, "n1"))
    renew(running_plane, running.id, EVENTS)
    caught_up(running_plane)
    page = visitor.page
    visitor.open(f"/allocations/{running.id}/timeline?level=routine")
    page.get_by_role("link", name="Next page").focus()
    page.get_by_role("link", name="normal").click()
    page.get_by_role("link", name="Open 250 events").click()
    page.get_by_role("link", name="Close 250 events").wait_for()
    page.go_back()
    page.get_by_role("link", name="Open 250 events").wait_for()


def test_live_page_asks_for_events_that_were_recorded_after_its_state_was_read(
    running: RunningAllocation, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Visit.get

    async def get_and_then_record(self: Visit, *path: str, **query: Any) -> Any:
        found = await read(self, *path, **query)
        if path == ("allocations", running.id):
            renew(running.plane, running.id, 1)
        return found

    monkeypatch.setattr(Visit, "get", get_and_then_record)
    [shown] = admin.open(f"/allocations/{running.id}").attributes("div", "data-after")
    newest = "select max(position) from ledger.event where stream_id = %(s)s"
    [(position,)] = running.plane.rows(newest, s=f"allocation-{running.id}")
    assert int(shown.partition(".")[2]) < position


def test_page_of_an_allocation_names_the_caller_that_requested_it_also_after_many_events(
    emptied_plane: RunningPlane,
) -> None:
    running, admin = RunningAllocation(emptied_plane, admit(emptied_plane, "n1")), logged_in(emptied_plane)
    [(actor,)] = emptied_plane.rows(
        "select actor from ledger.event where type = 'allocation.requested' and stream_id = %(s)s",
        s=f"allocation-{running.id}",
    )
    for renewals in (0, 100):
        renew(emptied_plane, running.id, renewals)
        page = admin.open(f"/allocations/{running.id}")
        assert f"Requested by {actor}" in page.text
        assert f"/ui/events?actor={quote(actor)}" in page.attributes("a", "href")
        assert ("The whole timeline" in page.text) is (renewals > 0)
