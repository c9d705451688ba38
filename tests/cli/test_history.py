"""The past, from the command line."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer

from control_plane.cli.moments import place
from control_plane.cli.pages.fields import name
from control_plane.cli.pages.words import clock
from deploy.embedded.postgres import PostgresServer
from tests.api.lives import Life, lived
from tests.cli.control_plane import ScriptedPlane, document, page
from tests.cli.examples import ALLOCATION, NODE, allocation
from tests.cli.outcome import Outcome
from tests.servers.plane import ADMIN_KEY, running

Run = Callable[..., Outcome]
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def life(postgres_server: PostgresServer) -> Iterator[Life]:
    with running(postgres_server) as plane:
        yield lived(plane)


@pytest.fixture
def history(life: Life, bare: Run) -> Run:
    """`sliceplane history` on a life that was lived."""
    return lambda *words: bare("--url", life.plane.url, "--api-key", ADMIN_KEY, "history", *words)


@pytest.fixture
def events(life: Life, bare: Run) -> Run:
    """`sliceplane events` on the same."""
    return lambda *words: bare("--url", life.plane.url, "--api-key", ADMIN_KEY, "events", *words)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("position:7", "position:7"),
        ("10m ago", "2026-11-21T11:50:00Z"),
        ("-1h30m", "2026-11-21T10:30:00Z"),
        ("2d ago", "2026-11-19T12:00:00Z"),
        ("2026-11-21T13:00:00+02:00", "2026-11-21T11:00:00Z"),
        ("2026-11-21T11:00:00.25Z", "2026-11-21T11:00:00.250000Z"),
    ],
)
def test_people_name_times_as_they_think_of_them(given: str, asked: str) -> None:
    assert place(given, clock=lambda: NOON) == asked


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 21, 9, 30).astimezone()
    assert datetime.fromisoformat(place("2026-11-21 09:30")) == local


@pytest.mark.parametrize("given", ["yesterday", "10m", "position:x", "1.7", "", "ago", "999999w ago"])
def test_what_names_no_place_is_wrong_usage(given: str) -> None:
    with pytest.raises(typer.BadParameter):
        place(given, clock=lambda: NOON)


@pytest.mark.parametrize(
    ("words", "route"),
    [
        (("allocations", "list"), "/v1/allocations"),
        (("nodes", "list"), "/v1/nodes"),
        (("slots", "list"), "/v1/slots"),
    ],
)
def test_lists_are_asked_for_as_of_then(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...], route: str
) -> None:
    of = {"Sliceplane-Position": "1.7", "Sliceplane-Time": "2026-11-21T12:00:00+00:00"}
    plane.answers(f"GET {route}", replace(page(), headers=of))
    outcome = sliceplane(*words, "--at", "position:7")
    assert outcome.code == 0
    assert "at=position%3A7" in plane.seen[0].path
    assert "as of 1.7, recorded 2026-11-21T12:00:00+00:00" in outcome.err


def test_ages_are_counted_from_the_moment_that_was_asked_for(plane: ScriptedPlane, sliceplane: Run) -> None:
    of = {"Sliceplane-Position": "1.7", "Sliceplane-Time": "2026-01-02T03:09:05+00:00"}
    drifts = {"node_id": "lab-a", "kind": "uplink.lost", "wanted": "a", "found": "b", "blocks": True}
    open_ = {**drifts, "since": "2026-01-02T03:04:05Z"}
    drifting = {**NODE, "drift": [open_]}
    then = {"kind": "node", "name": "lab-a", "at": {"position": 7, "time": None}, "state": drifting}
    for route, reply in {
        "/v1/allocations": page(allocation()),
        f"/v1/allocations/{ALLOCATION}": document(allocation(endpoints=[])),
        "/v1/nodes/lab-a": document(drifting),
        "/v1/drift": page(open_),
        "/v1/history/node/lab-a": document(then),
    }.items():
        plane.answers(f"GET {route}", replace(reply, headers=of))
    for at, ago, left in (
        ("position:7", "5 min ago", "in 55 min"),
        ("2026-01-02T03:14:05Z", "10 min ago", "in 50 min"),
    ):
        assert ago in sliceplane("nodes", "drift", "--at", at).out
        assert ago in sliceplane("nodes", "show", "lab-a", "--at", at).out
        assert ago in sliceplane("history", "show", "node", "lab-a", "--at", at).out
        assert ago.replace(" ago", " 5 s ago") in sliceplane("allocations", "list", "--at", at).out
        assert left in sliceplane("allocations", "show", ALLOCATION, "--at", at).out


def test_a_page_of_the_past_tells_its_moment_once(life: Life, history: Run) -> None:
    outcome = history("show", "slot", "n1/0", "--at", f"position:{life.moments[0].position}")
    assert f"as of position {life.moments[0].position}, " in outcome.out
    assert outcome.err == ""


def test_a_name_with_slashes_stays_one_name(plane: ScriptedPlane, sliceplane: Run) -> None:
    told = {"kind": "slot", "name": "lab-a/0", "at": {"position": 7, "time": None}, "state": None}
    plane.answers("GET /v1/history/slot/lab-a/0", document(told))
    outcome = sliceplane("history", "show", "slot", "lab-a/0")
    assert outcome.code == 0
    assert "was not there yet" in outcome.out


def test_show_tells_what_was_true(life: Life, history: Run) -> None:
    active = next(m for m in life.moments if m.said[f"/allocations/{life.allocation}"]["state"] == "active")
    said = active.said[f"/allocations/{life.allocation}"]
    out = history("show", "allocation", life.allocation, "--at", f"position:{active.position}").out
    for part in (f"position {active.position}", life.allocation, "active", "DHCP bound", ":22  (on node"):
        assert part in out
    address = said["slots"][0]["private_ip"]
    then = history("show", "address", address, "--at", f"position:{active.position}").out
    for part in (address, "slot-n1/0", "claimed", life.allocation, "project default", "by key:test"):
        assert part in then
    assert "none" in history("show", "address", address).out
    assert "free" in history("show", "slot", "n1/0").out
    node = history("show", "node", "n1").out
    assert "enrolled" in node
    assert "heard of" not in node


def test_diff_names_what_changed_who_did_it_and_why(life: Life, history: Run) -> None:
    first, last = life.moments[0], life.moments[-1]
    out = history(
        *("diff", "slot", "n1/0", "--from", f"position:{first.position}", "--to", f"position:{last.position}")
    ).out
    for part in ("slot.releasing", "by key:test", f"(DELETE /v1/allocations/{life.allocation}", "by node:n1"):
        assert part in out
    steps, _, altogether = out.partition("altogether")
    assert [line.split() for line in steps.splitlines() if line.strip().startswith("state ")] == [
        ["state", "claimed", "→", "releasing"],
        ["state", "releasing", "→", "withheld"],
        ["state", "withheld", "→", "free"],
    ]
    assert ["state", "claimed", "→", "free"] in [line.split() for line in altogether.splitlines()]
    assert "reason" not in altogether


def test_diff_of_an_address_tells_each_thing_once_in_the_words_of_the_pages(life: Life, history: Run) -> None:
    out = history("diff", "address", life.moments[0].said["/slots"]["items"][0]["private_ip"]).out
    rows = [line.split("→") for line in out.splitlines() if "→" in line]
    named = [before.rsplit(maxsplit=1)[0].strip() for before, _ in rows]
    assert named[:4] == ["held", "held by", "slot", "slot state"]
    assert {"slot SKU", "slot memory", "slot MAC", "slot address", "allocation", "allocation project"} <= {
        *named
    }
    assert not [name for name in named if "/" in name or "_" in name]
    assert out.count(f"→  {life.allocation}") == 1


def test_diff_tells_the_time_of_an_event_once_and_others_on_this_machines_clock(
    life: Life, history: Run
) -> None:
    out = history("diff", "allocation", life.allocation).out
    [until] = [
        line.split("→")[1].strip() for line in out.splitlines() if "lease until" in line and "-  →" in line
    ]
    lease = life.moments[-1].said[f"/allocations/{life.allocation}"]["lease"]
    assert until == clock(datetime.fromisoformat(lease["expires_at"]))
    changed = [line.strip() for line in out.splitlines() if "→" in line]
    assert not [line for line in changed if line.startswith(("requested", "lease granted", "version"))]


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/slots/0/slot_id", "slot"),
        ("/slots/1/mac_address", "slot 1 MAC"),
        ("/holders/0/slot/drift/0/kind", "slot drift"),
        ("/labels/cost~1center_id", "label cost/center_id"),
        ("/labels/0", "label 0"),
        ("/a_field_of_tomorrow/0/its_part", "a field of tomorrow its part"),
        ("/slots/1/node_id", None),
        ("/version", None),
    ],
)
def test_fields_are_named_as_on_the_pages(path: str, shown: str | None) -> None:
    assert name(path) == shown


def test_diff_says_where_there_is_more_and_goes_on_from_there(life: Life, history: Run) -> None:
    first = history("diff", "allocation", life.allocation, "--limit", "3")
    assert first.out.count("by ") == 3
    _, _, place_ = first.err.rpartition("--from ")
    rest = history("diff", "allocation", life.allocation, "--from", place_.strip(), "--json")
    whole = history("diff", "allocation", life.allocation, "--json")
    assert json.loads(whole.out)["changes"][3:] == json.loads(rest.out)["changes"]


def test_events_between_two_places_are_listed_with_who_caused_them(life: Life, events: Run) -> None:
    first, last = life.moments[0].position, life.moments[3].position
    words = ("--from", f"position:{first}", "--to", f"position:{last}", "--json")
    listed = json.loads(events("list", *words).out)["items"]
    assert [event["position"] for event in listed] == list(range(first + 1, last + 1))
    assert {event["actor"] for event in listed} == {"node:n1"}


def test_a_list_that_was_cut_says_so_and_an_empty_one_too(events: Run) -> None:
    cut = events("list", "--limit", "2")
    assert len(cut.out.splitlines()) == 2
    assert "there is more" in cut.err
    assert "there is more" not in events("list", "--limit", "10000").err
    assert "no such events" in events("list", "--actor", "key:nobody").err


def test_nothing_happened_is_said(life: Life, history: Run) -> None:
    last = f"position:{life.moments[-1].position}"
    assert "nothing happened" in history("diff", "node", "n1", "--from", last).out


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("show", "mapping", "tcp/203.0.113.7:443"), 1, "no ingress mapping"),
        (("show", "address", "203.0.113.7"), 1, "reserved for no slot"),
        (("show", "allocation", "alc-nonsense"), 1, "not a valid allocation id"),
        (("show", "node", "n1", "--at", "2999-01-01T00:00:00Z"), 1, "still to come"),
        (("show", "pigeon", "n1"), 2, "pigeon"),
        (("show", "node", "n1", "--at", "soon"), 2, "no place in the past"),
        (("diff", "node", "n1", "--from", "position:3", "--to", "position:1"), 1, "behind position 1"),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_reason(
    history: Run, words: tuple[str, ...], code: int, why: str
) -> None:
    outcome = history(*words)
    assert outcome.code == code
    assert why in outcome.err


def test_another_zone_names_the_same_moment() -> None:
    there = NOON.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert place(there.isoformat()) == "2026-11-21T12:00:00Z"
