"""`sliceplane history`, and other commands with `--at`: state and changes at earlier positions."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from time import tzset

import pytest
import typer

from control_plane.cli.pages.fields import name
from control_plane.cli.pages.words import clock
from control_plane.cli.times import time_or_position
from deploy.embedded.postgres import PostgresServer
from tests.api.broken_nodes import accepted_allocation, moved_allocation
from tests.api.lifecycle import Lifecycle, record_lifecycle
from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.cli.control_plane import ScriptedPlane, document, page, problem
from tests.cli.examples import ALLOCATION, NODE, allocation, event
from tests.cli.outcome import Outcome
from tests.servers.plane import ADMIN_KEY, RunningPlane, running
from tests.waiting import until

Run = Callable[..., Outcome]
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def life(postgres_server: PostgresServer) -> Iterator[Lifecycle]:
    with running(postgres_server) as plane:
        yield record_lifecycle(plane)


@pytest.fixture
def history(life: Lifecycle, unconfigured: Run) -> Run:
    """Return a function that runs `sliceplane history` on the control plane with the recorded allocation lifecycle."""
    return lambda *words: unconfigured("--url", life.plane.url, "--api-key", ADMIN_KEY, "history", *words)


@pytest.fixture
def events(life: Lifecycle, unconfigured: Run) -> Run:
    """Return a function that runs `sliceplane events` on the control plane with the recorded allocation lifecycle."""
    return lambda *words: unconfigured("--url", life.plane.url, "--api-key", ADMIN_KEY, "events", *words)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("position:7", "position:7"),
        ("10m ago", "2026-11-21T11:50:00Z"),
        ("-1h30m", "2026-11-21T10:30:00Z"),
        ("2d ago", "2026-11-19T12:00:00Z"),
        ("10 minutes ago", "2026-11-21T11:50:00Z"),
        ("yesterday", "2026-11-20T12:00:00Z"),
        ("yesterday 10:00 UTC", "2026-11-20T10:00:00Z"),
        ("2026-11-21 05:31:34 UTC", "2026-11-21T05:31:34Z"),
        ("2026-11-21 10:00 UTC", "2026-11-21T10:00:00Z"),
        ("2026-11-21T13:00:00+02:00", "2026-11-21T11:00:00Z"),
        ("2026-11-21T11:00:00.25Z", "2026-11-21T11:00:00.250000Z"),
    ],
)
def test_time_or_position_is_converted_to_the_value_that_the_api_accepts(given: str, sent: str) -> None:
    assert time_or_position(given, clock=lambda: NOON) == sent


def test_time_without_a_zone_is_taken_as_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    tzset()
    try:
        for given, sent in {
            "2026-11-21 09:30": "2026-11-21T00:30:00Z",
            "yesterday 10:00": "2026-11-21T01:00:00Z",
            "today 2:00": "2026-11-21T17:00:00Z",
        }.items():
            # In Tokyo, it is already the next day.
            assert time_or_position(given, clock=lambda: NOON.replace(hour=18)) == sent
    finally:
        monkeypatch.undo()
        tzset()


@pytest.mark.parametrize("given", ["soon", "10m", "position:x", "1.7", "", "ago", "999999w ago"])
def test_text_that_is_neither_a_time_nor_a_position_is_wrong_usage(given: str) -> None:
    with pytest.raises(typer.BadParameter):
        time_or_position(given, clock=lambda: NOON)


@pytest.mark.parametrize(
    ("words", "route"),
    [
        (("allocations", "list"), "/v1/allocations"),
        (("nodes", "list"), "/v1/nodes"),
        (("slots", "list"), "/v1/slots"),
    ],
)
def test_list_command_with_option_at_sends_the_position_and_shows_which_position_was_read(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...], route: str
) -> None:
    headers = {"Sliceplane-Position": "1.7", "Sliceplane-Time": "2026-11-21T12:00:00+00:00"}
    plane.script(f"GET {route}", replace(page(), headers=headers))
    outcome = sliceplane(*words, "--at", "position:7")
    assert outcome.code == 0
    assert "at=position%3A7" in plane.received[0].path
    assert "as of position 7, recorded 2026-11-21T12:00:00+00:00" in outcome.err


def test_ages_printed_with_option_at_are_relative_to_the_requested_time(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    headers = {"Sliceplane-Position": "1.7", "Sliceplane-Time": "2026-01-02T03:09:05+00:00"}
    drift = {"node_id": "lab-a", "kind": "uplink.lost", "desired": "a", "observed": "b", "blocks": True}
    open_drift = {**drift, "since": "2026-01-02T03:04:05Z"}
    drifting = {**NODE, "drift": [open_drift]}
    then = {"kind": "node", "name": "lab-a", "at": {"position": 7, "time": None}, "state": drifting}
    for route, reply in {
        "/v1/allocations": page(allocation()),
        f"/v1/allocations/{ALLOCATION}": document(allocation(endpoints=[])),
        "/v1/nodes/lab-a": document(drifting),
        "/v1/drift": page(open_drift),
        "/v1/history/node/lab-a": document(then),
    }.items():
        plane.script(f"GET {route}", replace(reply, headers=headers))
    for at, ago, left in (
        ("position:7", "5 min ago", "in 55 min"),
        ("2026-01-02T03:14:05Z", "10 min ago", "in 50 min"),
    ):
        assert ago in sliceplane("nodes", "drift", "--at", at).out
        assert ago in sliceplane("nodes", "show", "lab-a", "--at", at).out
        assert ago in sliceplane("history", "show", "node", "lab-a", "--at", at).out
        assert ago.replace(" ago", " 5 s ago") in sliceplane("allocations", "list", "--at", at).out
        assert left in sliceplane("allocations", "show", ALLOCATION, "--at", at).out


def test_history_show_with_option_at_prints_the_position_once(life: Lifecycle, history: Run) -> None:
    outcome = history("show", "slot", "n1/0", "--at", f"position:{life.moments[0].position}")
    assert f"as of position {life.moments[0].position}, last event recorded 20" in outcome.out
    assert outcome.err == ""


def test_history_show_with_a_time_prints_this_time_and_the_position_of_its_last_event(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    place = {"position": 7, "time": "2026-11-21T09:45:56Z"}
    body = {"kind": "slot", "name": "lab-a/0", "at": place, "state": None}
    plane.script("GET /v1/history/slot/lab-a/0", document(body))
    asked, recorded = NOON.replace(hour=10), datetime(2026, 11, 21, 9, 45, 56, tzinfo=UTC)
    first = sliceplane("history", "show", "slot", "lab-a/0", "--at", "2026-11-21 10:00 UTC").out.splitlines()[
        0
    ]
    assert first == f"as of {clock(asked)} (position 7, last event recorded {clock(recorded)})"


def test_history_show_of_a_slot_keeps_the_slash_in_its_name(plane: ScriptedPlane, sliceplane: Run) -> None:
    body = {"kind": "slot", "name": "lab-a/0", "at": {"position": 7, "time": None}, "state": None}
    plane.script("GET /v1/history/slot/lab-a/0", document(body))
    outcome = sliceplane("history", "show", "slot", "lab-a/0")
    assert outcome.code == 0
    assert "did not exist yet" in outcome.out


def test_history_show_prints_the_state_at_the_given_position(life: Lifecycle, history: Run) -> None:
    active = next(
        m for m in life.moments if m.responses[f"/allocations/{life.allocation}"]["state"] == "active"
    )
    state = active.responses[f"/allocations/{life.allocation}"]
    out = history("show", "allocation", life.allocation, "--at", f"position:{active.position}").out
    for part in (f"position {active.position}", life.allocation, "active", "DHCP bound", ":22  (on node"):
        assert part in out
    address = state["slots"][0]["private_ip"]
    then = history("show", "address", address, "--at", f"position:{active.position}").out
    for part in (address, "slot-n1/0", "claimed", life.allocation, "project default", "by key:test"):
        assert part in then
    assert "none" in history("show", "address", address).out
    assert "free" in history("show", "slot", "n1/0").out
    node = history("show", "node", "n1").out
    assert "enrolled" in node
    assert "heartbeat" not in node


@pytest.mark.parametrize("kind", ["address", "slot"])
def test_history_show_of_a_slot_or_its_address_prints_the_allocations_that_had_it_and_why_they_ended(
    life: Lifecycle, history: Run, kind: str
) -> None:
    first, last = life.moments[0], life.moments[-1]
    slot = first.responses["/slots"]["items"][0]
    name = slot["private_ip"] if kind == "address" else slot["id"]
    then = history("show", kind, name, "--at", f"position:{first.position}").out
    assert "no allocation had the slot" not in then
    now = history("show", kind, name).out
    assert "no allocation has the slot now" in now
    reason = last.responses[f"/allocations/{life.allocation}"]["reason"]["message"]
    for out in (then, now):
        [row] = [line for line in out.splitlines() if line.startswith(life.allocation)]
        for part in ("default", "key:test", "released", reason):
            assert part in row
        begin, end = re.findall(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \w+", row)
        assert begin <= end
    before = history("show", "slot", "n1/0", "--at", f"position:{first.position - 1}").out
    assert "no allocation had the slot at that time" in before


def test_history_show_of_a_slot_names_the_caller_of_a_request_that_waited(
    emptied_plane: RunningPlane, unconfigured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of the slot has another actor: the dispatcher placed the request."""
    monkeypatch.setenv("SLICEPLANE_URL", emptied_plane.url)
    monkeypatch.setenv("SLICEPLANE_API_KEY", ADMIN_KEY)
    first = RunningAllocation(emptied_plane, admit(emptied_plane, "n1", slots=1))
    waiting = accepted_allocation(emptied_plane, wait_for_capacity=True)["id"]
    with emptied_plane.client() as client:
        requester = client.get("/whoami").json()["actor"]
        assert client.delete(f"/allocations/{first.id}").is_success
        first.report("slice.removed", absent=["port", "lease"])
        until(lambda: client.get(f"/allocations/{waiting}").json()["state"] == "placed", "it is placed")
    rows = [
        line
        for line in unconfigured("history", "show", "slot", "n1/0").out.splitlines()
        if line.startswith("alc-")
    ]
    assert [requester in row for row in rows] == [True, True]


def test_history_show_of_a_slot_that_an_allocation_left_for_another_node_prints_the_reason_of_the_move(
    emptied_plane: RunningPlane, unconfigured: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICEPLANE_URL", emptied_plane.url)
    monkeypatch.setenv("SLICEPLANE_API_KEY", ADMIN_KEY)
    moved = moved_allocation(emptied_plane)
    [left] = [
        row
        for row in unconfigured("history", "show", "slot", "n1/0").out.splitlines()
        if row.startswith(moved["id"])
    ]
    assert "moved to another node: " in left
    assert "moved to" not in unconfigured("history", "show", "slot", "n2/0").out


def test_history_show_of_a_slot_reports_that_it_had_more_allocations_than_are_shown(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    slot = {"id": "lab-a/0", "node_id": "lab-a", "index": 0, "state": "free", "version": 30, "skus": []}
    body = {"kind": "slot", "name": "lab-a/0", "at": {"position": 90, "time": None}, "state": slot}
    events = [
        {
            **event(number, "slot.released" if number % 2 else "slot.claimed"),
            "data": {"allocation_id": f"alc-{number // 2}"},
        }
        for number in range(23, 1, -1)
    ]
    plane.script("GET /v1/history/slot/lab-a/0", document(body))
    plane.script("GET /v1/events", page(*events))
    outcome = sliceplane("history", "show", "slot", "lab-a/0")
    assert [line.split()[0] for line in outcome.out.splitlines() if line.startswith("alc-")] == [
        f"alc-{number}" for number in range(11, 1, -1)
    ]
    assert "only the newest 10 allocations of slot lab-a/0 are shown" in outcome.err
    assert "sliceplane events list --stream slot-lab-a/0 --type slot.claimed --all-projects" in outcome.err


def test_history_show_of_a_slot_without_permission_to_read_events_omits_its_allocations(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    slot = {"id": "lab-a/0", "node_id": "lab-a", "index": 0, "state": "free", "version": 30, "skus": []}
    body = {"kind": "slot", "name": "lab-a/0", "at": {"position": 90, "time": None}, "state": slot}
    plane.script("GET /v1/history/slot/lab-a/0", document(body))
    plane.script("GET /v1/events", problem(403, "forbidden", "the key lacks the scope events:read"))
    outcome = sliceplane("history", "show", "slot", "lab-a/0")
    assert outcome.code == 0
    assert "free" in outcome.out
    assert "allocations of slot" not in outcome.out


def test_history_diff_prints_each_change_with_its_event_actor_and_reason(
    life: Lifecycle, history: Run
) -> None:
    first, last = life.moments[0], life.moments[-1]
    out = history(
        *("diff", "slot", "n1/0", "--from", f"position:{first.position}", "--to", f"position:{last.position}")
    ).out
    for part in ("slot.releasing", "by key:test", f"(DELETE /v1/allocations/{life.allocation}", "by node:n1"):
        assert part in out
    steps, _, net_change = out.partition("net change")
    assert [line.split() for line in steps.splitlines() if line.strip().startswith("state ")] == [
        ["state", "claimed", "→", "releasing"],
        ["state", "releasing", "→", "quarantined"],
        ["state", "quarantined", "→", "free"],
    ]
    assert ["state", "claimed", "→", "free"] in [line.split() for line in net_change.splitlines()]
    assert "reason" not in net_change


def test_history_diff_of_an_address_prints_each_field_once_with_its_display_name(
    life: Lifecycle, history: Run
) -> None:
    out = history("diff", "address", life.moments[0].responses["/slots"]["items"][0]["private_ip"]).out
    rows = [line.split("→") for line in out.splitlines() if "→" in line]
    names = [before.rsplit(maxsplit=1)[0].strip() for before, _ in rows]
    assert names[:4] == ["held", "held by", "slot", "slot state"]
    assert {"slot SKU", "slot memory", "slot MAC", "slot address", "allocation", "allocation project"} <= {
        *names
    }
    assert not [name for name in names if "/" in name or "_" in name]
    assert out.count(f"→  {life.allocation}") == 1


def test_history_diff_prints_the_lease_end_in_local_time_and_omits_request_time_grant_time_and_version(
    life: Lifecycle, history: Run
) -> None:
    out = history("diff", "allocation", life.allocation).out
    [until] = [
        line.split("→")[1].strip() for line in out.splitlines() if "lease until" in line and "-  →" in line
    ]
    lease = life.moments[-1].responses[f"/allocations/{life.allocation}"]["lease"]
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
        ("/field_of_a_newer_release/0/its_part", "field of a newer release its part"),
        ("/slots/1/node_id", None),
        ("/version", None),
    ],
)
def test_path_of_a_changed_field_is_converted_to_its_display_name_unless_the_heading_shows_it(
    path: str, shown: str | None
) -> None:
    assert name(path) == shown


def test_history_diff_cut_by_its_limit_prints_the_position_to_continue_from(
    life: Lifecycle, history: Run
) -> None:
    first = history("diff", "allocation", life.allocation, "--limit", "3")
    assert first.out.count("by ") == 3
    _, _, position = first.err.rpartition("--from ")
    rest = history("diff", "allocation", life.allocation, "--from", position.strip(), "-o", "json")
    whole = history("diff", "allocation", life.allocation, "-o", "json")
    assert json.loads(whole.out)["changes"][3:] == json.loads(rest.out)["changes"]


def test_events_list_between_two_positions_contains_the_events_of_the_range_with_their_actors(
    life: Lifecycle, events: Run
) -> None:
    first, last = life.moments[0].position, life.moments[3].position
    words = ("--from", f"position:{first}", "--to", f"position:{last}", "-o", "json")
    listed = json.loads(events("list", *words).out)["items"]
    assert [event["position"] for event in listed] == list(range(first + 1, last + 1))
    assert {event["actor"] for event in listed} == {"node:n1"}


def test_events_list_reports_that_it_was_cut_or_is_empty(events: Run) -> None:
    cut = events("list", "--limit", "2")
    assert len(cut.out.splitlines()) == 2
    assert "more results available" in cut.err
    assert "more results available" not in events("list", "--limit", "10000").err
    assert "no matching events" in events("list", "--actor", "key:absent").err


def test_history_diff_without_events_in_the_range_reports_that_there_are_none(
    life: Lifecycle, history: Run
) -> None:
    last = f"position:{life.moments[-1].position}"
    assert "no events in this range" in history("diff", "node", "n1", "--from", last).out


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("show", "ingress", "tcp/203.0.113.7:443"), 1, "no ingress rule"),
        (("show", "address", "203.0.113.7"), 1, "no slot or node had address"),
        (("show", "allocation", "alc-nonsense"), 1, "not a valid allocation id"),
        (("show", "node", "n1", "--at", "2999-01-01T00:00:00Z"), 1, "is in the future"),
        (("show", "pigeon", "n1"), 2, "pigeon"),
        (("show", "node", "n1", "--at", "soon"), 2, "not a time or position"),
        (("diff", "node", "n1", "--from", "position:3", "--to", "position:1"), 1, "after position 1"),
    ],
)
def test_history_command_with_an_invalid_argument_is_refused_with_the_reason(
    history: Run, words: tuple[str, ...], code: int, reason: str
) -> None:
    outcome = history(*words)
    assert outcome.code == code
    assert reason in outcome.err


def test_time_in_a_different_zone_is_converted_to_utc() -> None:
    local = NOON.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert time_or_position(local.isoformat()) == "2026-11-21T12:00:00Z"
