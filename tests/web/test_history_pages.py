"""The history explorer of the web console: states at any time, changes, and the difference of two times."""

import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from control_plane.web.rendering import STATIC, field_name, gist, moment, prose, readable, unnamed
from tests.api.broken_nodes import accepted_allocation, moved_allocation
from tests.api.node import admit, register_node
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.waiting import until
from tests.web.browsing import Browser, Page, logged_in
from tests.web.test_event_pages import position_of


@pytest.fixture(scope="module")
def running(shared_plane: RunningPlane) -> RunningAllocation:
    return RunningAllocation(shared_plane, admit(shared_plane, "n1"))


@pytest.fixture
def admin(running: RunningAllocation) -> Browser:
    return logged_in(running.plane)


def test_difference_of_two_positions_lists_only_the_fields_that_differ(
    running: RunningAllocation, admin: Browser
) -> None:
    placed, active = (
        position_of(running, "allocation.placed"),
        position_of(running, "allocation.lease_granted"),
    )
    own = f"/history?kind=allocation&name={running.id}"
    page = admin.open(f"{own}&compared=position:{placed}&at=position:{active}")
    table = page.text.partition("Fields that differ")[2].partition("State Unchanged since")[0]
    assert "state placed active" in table
    assert "slot ready false true" in table
    assert "lease granted at none" in table
    assert "lease until none" in table
    assert "mode" not in table
    assert "version" not in table
    assert "generation" not in page.text
    same = admin.open(f"{own}&compared=position:{active}&at=position:{active}")
    assert "Nothing differs." in same.text
    assert admin.open(f"{own}&compared=position:{active}&at=position:{placed}").status == 422


@pytest.mark.parametrize("kind", ["allocation", "slot", "node", "address"])
def test_history_names_fields_with_words_and_has_their_paths_as_titles(
    running: RunningAllocation, admin: Browser, kind: str
) -> None:
    names = {"allocation": running.id, "slot": "n1/0", "node": "n1", "address": running.slot["private_ip"]}
    page = admin.open(f"/history?kind={kind}&name={names[kind]}")
    shown = page.text.partition("Compared with")[2].partition("This page as JSON")[0]
    assert re.findall(r"\b(?!slice_|lease_granted|hardware_approved)[a-z]+_[a-z_]+\b", shown) == []
    if kind == "slot":
        assert "MAC 52:54:00" in shown
        assert "memory (MiB) 96" in shown
        assert {"mac_address", "/mac_address"} <= {*page.attributes("span", "title")}
    if kind == "allocation":
        assert "price per hour (USD)" in shown
        assert "report 1 of the node's agent" in shown
        assert "former slot" not in shown
    if kind == "address":
        address = running.slot["private_ip"]
        assert f"held address {address} of network " in shown
        assert "held by slot n1/0" in shown
        assert "slot allocation" not in shown, "the allocation has a field of its own"


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/slots/0/slot_id", "slot"),
        ("slots / 1 / mac_address", "slot 1 MAC"),
        ("/slots/0/actual_ip", "slot observed address"),
        ("memory_mib", "memory (MiB)"),
        ("kind", "kind"),
        ("holders / 0 / kind", "kind of address"),
        ("holders / 0 / since", "held since position"),
        ("slots / 0 / slot_index", "slot index"),
        ("sku_version", "SKU version"),
        ("value", "value"),
        ("holders / 0 / value", "held"),
        ("labels / a / b_c", "label a / b_c"),
        ("/labels/a~1b_c", "label a/b_c"),
        ("<b>", "&lt;b&gt;"),
    ],
)
def test_path_of_a_field_is_shown_as_its_readable_name(path: str, shown: str) -> None:
    assert re.sub(r"^<span[^>]*>|</span>$", "", field_name(path)) == shown


@pytest.mark.parametrize(
    ("path", "value", "shown"),
    [
        ("/holders/0/value", "10.0.0.0/24/10.0.0.5", "address 10.0.0.5 of network 10.0.0.0/24"),
        (
            "holders / 1 / value",
            "lab/52:54:00:00:00:01",
            "MAC address 52:54:00:00:00:01 of L2 domain lab",
        ),
        ("/holders/0/value", "n1/0000:1b:00.0", "PCI device 0000:1b:00.0 of node n1"),
        ("/holders/0/value", "tcp/203.0.113.1:80", "tcp port 80 of address 203.0.113.1"),
        ("/holders/0/value", "203.0.113.1", "203.0.113.1"),
        ("/holders/0/stream", "slot-n1/0", "slot n1/0"),
        ("reason", f"report 4 of {UUID(int=1)}", "report 4 of the node's agent"),
        ("labels / stream", "slot-n1/0", "slot-n1/0"),
        ("/slots/0/slot_index", 0, 0),
    ],
)
def test_value_with_a_notation_of_the_ledger_is_shown_in_words(path: str, value: Any, shown: Any) -> None:
    assert readable(value, path) == shown


@pytest.mark.parametrize(
    ("sentence", "name", "shown"),
    [
        ("node n1 is not cordoned", "n1", "the node is not cordoned"),
        ("API key abc expired", "abc", "the API key expired"),
        ("slot n1/1 is claimed", "n1", "slot n1/1 is claimed"),
        ("the scope allocations:write is missing", "scope", "the scope allocations:write is missing"),
    ],
)
def test_reason_of_the_resource_of_the_page_is_shown_without_its_name(
    sentence: str, name: str, shown: str
) -> None:
    assert unnamed(sentence, name) == shown


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("longer than SKU s allows (5400 s)", "longer than SKU s allows (1\xa0h\xa030\xa0min)"),
        ("free in 3600 s; at 2026-11-28T10:00:00Z", "free in 1\xa0h; at 2026-11-28 10:00:00"),
        ("after 1.25 s, 9 s and 100 slots", "after 1.25 s, 9 s and 100 slots"),
    ],
)
def test_sentence_is_shown_with_durations_in_their_largest_units(sentence: str, shown: str) -> None:
    assert prose(sentence) == shown


def test_line_of_an_event_names_fields_with_words() -> None:
    def line(data: dict[str, Any], of: str = "") -> str:
        return gist({"actor": "key:robot", "data": data}, of)

    data = {
        "sku": "lab.small",
        "mac_address": "52:54:00:00:00:01",
        "lease_seconds": 60,
        "l2_domain": "default",
        "gateway_key": "ssh-ed25519 AAAA",
    }
    assert line(data) == "SKU lab.small, MAC 52:54:00:00:00:01, lease 1\xa0min, L2 domain default"
    assert line({"expires_at": "2026-11-28T10:00:00Z"}) == "until 2026-11-28 10:00:00"
    assert (
        line({"sku": {"name": "s", "version": 2, "content": {}}, "simulated": True})
        == "SKU s version 2, simulated"
    )
    assert line({"limits": {"max_lease_seconds": 86400}, "reservations": {"s": 4}}) == "max lease 1\xa0d, s 4"
    assert line({"vacated": ["n1/0", "n1/1"], "ready": False}) == "vacated n1/0, n1/1"


def test_line_of_an_event_states_what_its_times_and_slots_mean_and_names_a_leftover_once() -> None:
    def line(kind: str, data: dict[str, Any]) -> str:
        return gist({"type": kind, "actor": "process:allocation", "data": data})

    time, slots = "2026-11-28T10:00:00Z", [{"slot_id": "n2/0"}, {"slot_id": "n2/1"}]
    moved = {"vacated": ["n1/0", "n1/1"], "slots": slots, "attempt": 2, "deadline": time}
    assert line("allocation.replaced", moved) == (
        "moved from n1/0, n1/1 to n2/0, n2/1, attempt 2, must be ready by 2026-11-28 10:00:00"
    )
    assert line("allocation.placed", {"slots": slots[:1]}) == "slot n2/0"
    assert line("allocation.lease_expiring", {"expires_at": time}) == "the lease ends 2026-11-28 10:00:00"
    left = "the link tap0 is still on the bridge"
    reason = {"code": "absence_not_proved", "message": f"node n1 still finds 1 leftover of the slice: {left}"}
    assert line("slot.quarantined", {"reason": reason, "leftovers": [left]}) == reason["message"]
    assert line("slot.quarantined", {"reason": reason, "leftovers": [left, "a mount"]}).endswith("a mount")


def test_value_before_a_change_is_marked_by_a_word_and_not_by_a_line_that_hides_the_hyphens_of_a_date() -> (
    None
):
    style = (STATIC / "console.css").read_text()
    assert "line-through" not in style
    assert "del { color: var(--bad); text-decoration: none; }" in style, (
        "browsers draw a line through it by default"
    )
    assert 'del::before { content: "was ";' in style


def test_line_of_an_event_links_nodes_and_slots_for_callers_that_may_read_them() -> None:
    slot = '<a href="/ui/nodes/n1/slots/0">n1/0</a>'
    data = {"node_id": "n1", "vacated": ["n1/0"], "slots": [{"slot_id": "n1/0"}]}
    event = {"actor": "key:robot", "data": data}
    assert gist(event, links=True) == f'<a href="/ui/nodes/n1">n1</a>, moved from {slot} to {slot}'
    assert gist(event) == "n1, moved from n1/0 to n1/0"
    hostile = gist({"actor": "key:robot", "data": {"node_id": "<b>/../x"}}, links=True)
    assert hostile == '<a href="/ui/nodes/%3Cb%3E/slots/..%2Fx">&lt;b&gt;/../x</a>'


def test_line_of_an_event_leaves_out_counters_repeated_names_and_the_resource_of_the_page() -> None:
    data = {
        "node_id": "n1",
        "slot_id": "n1/0",
        "session": 2,
        "session_id": "ses-1",
        "actor": "key:robot",
        "reason": {"code": "c", "message": "it failed at 2026-11-28T10:00:00.123456+00:00"},
        "failures": [{"reason": {"message": "another sentence"}}],
    }
    shown = gist({"actor": "key:robot", "data": data})
    assert shown == "n1/0, it failed at 2026-11-28 10:00:00"
    assert gist({"actor": "key:robot", "data": data}, "n1/0") == "n1, it failed at 2026-11-28 10:00:00"


def test_state_has_the_time_of_its_last_change_and_the_position_at_which_it_was_read(
    running: RunningAllocation, admin: Browser
) -> None:
    own = f"/history?kind=allocation&name={running.id}"
    [(position, time)] = running.plane.rows(
        "select position, recorded_at from ledger.event where stream_id = %(s)s order by position desc limit 1",
        s=f"allocation-{running.id}",
    )
    register_node(running.plane, "later")
    last = running.plane.last_position()
    assert last > int(str(position))
    now, then = admin.open(own).text, admin.open(f"{own}&at=position:{position}").text
    since = f"Unchanged since {time:%Y-%m-%d %H:%M:%S}"
    assert f"{since} (position {position}), as of position {last}, which was recorded at" in now
    assert f"{since}, as of position {position}, which was recorded at" in then
    assert "Unchanged" not in admin.open(f"{own}&at=position:1").text
    after = admin.open(f"{own}&from=position:{last}").text
    assert f"State As of position {last}, which" in after, "the last change is not among the listed ones"


def test_fields_for_times_on_the_history_page_have_examples_of_accepted_times(admin: Browser) -> None:
    shown = admin.open("/history").attributes("input", "placeholder")
    assert sum("3h ago" in each for each in shown) == 3


def test_changes_lead_to_the_state_after_them_and_to_their_neighbours(
    running: RunningAllocation, admin: Browser
) -> None:
    placed, active = position_of(running, "allocation.placed"), position_of(running, "allocation.activated")
    page = admin.open(f"/history?kind=allocation&name={running.id}&at=position:{placed}")
    links = {
        found["rel"]: found["href"]
        for tag, found in page.tags
        if tag == "a" and found.get("rel") in {"prev", "next"}
    }
    for target, relation in ((links["prev"], "before"), (links["next"], "after")):
        position = int(str(target).rpartition("position%3A")[2])
        assert (position < placed) is (relation == "before")
        assert admin.open(str(target).removeprefix("/ui")).attributes("li", "aria-current") == ["true"]
    assert f"/ui/events/{active}" in page.attributes("a", "href")
    changes = page.text.partition("Changes newest first")[2]
    assert "Changes marked “later” happened after the chosen time." in changes
    assert re.search(r"allocation\.activated ○ later ", changes)
    assert re.search(r"allocation\.placed (?!○ later)", changes)
    assert "○ later" not in admin.open(f"/history?kind=allocation&name={running.id}").text
    assert f"/ui/history?kind=allocation&name={running.id}" in page.attributes("a", "href"), (
        "the present state"
    )


def test_history_of_an_address_or_slot_names_the_allocation_at_that_time_and_why_an_earlier_one_ended(
    running_plane: RunningPlane,
) -> None:
    node = admit(running_plane, "n1", slots=1)
    first = RunningAllocation(running_plane, node)
    held = running_plane.last_position()
    with running_plane.client() as client:
        assert client.delete(f"/allocations/{first.id}").is_success
    first.report("slice.removed", absent=["port", "lease"])
    released = logged_in(running_plane).open(f"/history?kind=allocation&name={first.id}")
    assert "former slot n1/0" in released.text
    assert "no longer has its former slots" in released.text
    path = f"/history?kind=allocation&name={first.id}&compared=position:{held}"
    difference = (
        logged_in(running_plane).open(path).text.partition("Fields that differ")[2].partition("State Un")[0]
    )
    slot = first.slot
    for lost in (
        "slot n1/0 none",
        f"slot MAC {slot['mac_address']} none",
        f"slot address {slot['private_ip']} none",
    ):
        assert lost in difference
    assert "Former slots of the allocation count as none" in difference
    changes = released.text.partition("Changes newest first")[2]
    assert "state: none → requested" in changes
    assert changes.index("allocation.released") < changes.index("allocation.requested")
    free = running_plane.last_position()
    second = RunningAllocation(running_plane, node)
    admin = logged_in(running_plane)
    for kind, name in (("address", first.slot["private_ip"]), ("slot", "n1/0")):
        page = f"/history?kind={kind}&name={name}"
        then = _allocations(admin.open(f"{page}&at=position:{held}"))
        assert f"{first.id[-6:]} had it then" in then
        assert f"released {first.view()['reason']['message']}" in then
        assert second.id[-6:] not in then
        between = _allocations(admin.open(f"{page}&at=position:{free}"))
        assert "No allocation had it then" in between
        assert f"{first.id[-6:]} default" in between
        now = _allocations(admin.open(page))
        assert f"{second.id[-6:]} has it now" in now
        assert f"{first.id[-6:]} default" in now


def test_history_of_a_slot_names_the_caller_of_a_request_that_waited(emptied_plane: RunningPlane) -> None:
    """The claim of the slot has another actor: the dispatcher placed the request."""
    first = RunningAllocation(emptied_plane, admit(emptied_plane, "n1", slots=1))
    waiting = accepted_allocation(emptied_plane, wait_for_capacity=True)["id"]
    with emptied_plane.client() as client:
        requester = client.get("/whoami").json()["actor"]
        assert client.delete(f"/allocations/{first.id}").is_success
        first.report("slice.removed", absent=["port", "lease"])
        until(lambda: client.get(f"/allocations/{waiting}").json()["state"] == "placed", "it is placed")
        claims = {"stream": "slot-n1/0", "type": "slot.claimed"}
        *_, claim = client.get("/events", params=claims).json()["items"]
    assert claim["actor"] != requester
    listed = _allocations(logged_in(emptied_plane).open("/history?kind=slot&name=n1/0"))
    assert listed.count(f"default {requester}") == 2


def test_history_of_a_slot_that_an_allocation_left_for_another_node_names_the_reason_of_the_move(
    emptied_plane: RunningPlane,
) -> None:
    moved = moved_allocation(emptied_plane)
    with emptied_plane.client() as client:
        view = client.get(f"/allocations/{moved['id']}").json()
    assert [each["slot_id"] for each in view["slots"]] == ["n2/0"]
    admin = logged_in(emptied_plane)
    left = _allocations(admin.open("/history?kind=slot&name=n1/0"))
    assert f"moved to another node: {view['replaced']['reason']['message']}" in left
    assert "moved" not in _allocations(admin.open("/history?kind=slot&name=n2/0"))


def test_history_of_an_address_with_more_allocations_than_it_shows_links_to_all_claims(
    running_plane: RunningPlane,
) -> None:
    node = admit(running_plane, "n1", slots=1)
    names, address, position = list[str](), "", 0
    admin = logged_in(running_plane)
    for number in range(7):
        held = RunningAllocation(running_plane, node)
        names.append(held.id)
        address = f"/history?kind=address&name={held.slot['private_ip']}"
        if number == 4:
            position = running_plane.last_position()
            assert "Only the newest" not in admin.open(address).text, "five allocations are all shown"
        with running_plane.client() as client:
            assert client.delete(f"/allocations/{held.id}").is_success
        held.report("slice.removed", absent=["port", "lease"])
    page = admin.open(address)
    assert "Only the newest 5 allocations are shown. All claims of slot n1/0" in page.text
    assert names[1][-6:] not in _allocations(page)
    [link] = {str(each) for each in page.attributes("a", "href") if "type=slot.claimed" in str(each)}
    claims = admin.open(link.removeprefix("/ui")).text
    assert [name for name in names if name in claims] == names
    assert "Only the newest" not in admin.open(f"{address}&at=position:{position}").text


def _allocations(page: Page) -> str:
    """Return the part of a history that names the allocations."""
    assert page.status == 200, page.text
    return (
        page.text.partition("Why it ended")[2].partition("Changes")[0]
        + page.text.partition("Allocations")[2].partition("Why it ended")[0]
    )


def test_time_of_the_slider_leads_to_the_state_then_and_its_end_to_the_present(
    running: RunningAllocation, admin: Browser
) -> None:
    own = {"kind": "allocation", "name": running.id}
    page = admin.open("/history", **own)
    [slider] = [found for tag, found in page.tags if tag == "input" and found.get("type") == "range"]
    first, last = str(slider["min"]), str(slider["max"])
    begin = moment(datetime.fromtimestamp(int(first), UTC).isoformat())
    assert begin in page.response.text, "the time at which the slider begins"
    assert slider["value"] == last
    then = admin.open("/history", **own, moment=first, last=last)
    assert "at=20" in then.path
    assert "did not exist yet" in then.text
    assert "at=" not in admin.open("/history", **own, moment=last, last=last).path
    for wrong in ("x", "9" * 30, "-" + "9" * 30):
        assert admin.open("/history", **own, moment=wrong).status == 422
