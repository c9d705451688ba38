"""Tests of the list of nodes in the web console: its filters, which are in the address of the page, and links to the
list from other pages.
"""

import json
import re
import shlex
from typing import get_args

import pytest

from control_plane.web.rendering import SLOT_STATUSES, STATIC, mark_of, tone_of
from control_plane.web.timeline import IMPORTANT_IN_WORDS
from events.slot_states import SlotStateName
from tests.api.broken_nodes import Node
from tests.api.node import admit, register_node
from tests.api.nodes.test_exclusions import fail_bring_ups
from tests.servers.plane import RunningPlane
from tests.waiting import until
from tests.web.browsing import Browser, Page, logged_in
from tests.web.visitors import Visitor

CUT = 25
"""Number of nodes that one page of the list shows."""


@pytest.fixture(scope="module")
def plane(shared_plane: RunningPlane) -> RunningPlane:
    """A control plane with an enrolled and cordoned node with drift, an unreachable node, and many registered nodes."""
    for name in ("rack-1", "rack-2"):
        admit(shared_plane, name, slots=2)
    for number in range(CUT + 1):
        register_node(shared_plane, f"spare-{number:02}")
    with shared_plane.client() as client:
        assert client.post("/nodes/rack-1/cordon", json={"reason": "a fan is loud"}).is_success
    shared_plane.rows(
        "update work.node_seen set seen_at = now() + case node_id when 'rack-2' then interval '-1 day'"
        " else interval '1 day' end returning 1"
    )
    drift = '[{"kind": "port.absent", "desired": "a", "observed": "b", "since": "2026-11-25T00:00:00Z", "blocks": true}]'
    shared_plane.rows(
        "update read.slot set drift = %(drift)s where slot_id = 'rack-1/1' returning 1", drift=drift
    )
    return shared_plane


@pytest.fixture
def admin(plane: RunningPlane) -> Browser:
    return logged_in(plane)


def names(page: Page) -> list[str]:
    """Return the names of the nodes in the table of a page."""
    return [str(found["value"]) for tag, found in page.tags if found.get("name") == "item"]


def chosen(page: Page) -> list[str]:
    """Return the values of the filters that the filter form of a page shows as chosen."""
    return [
        str(found["value"])
        for tag, found in page.tags
        if (tag == "option" and "selected" in found and "value" in found)
        or (tag == "input" and found.get("name") == "name" and "type" not in found)
    ]


def test_free_slot_that_placement_cannot_use_is_shown_as_blocked(admin: Browser) -> None:
    assert "slot 0 blocked" in admin.open("/nodes?name=rack-2").text
    assert "▲ blocked" in admin.open("/nodes/rack-2").text
    assert "free, but no slice can be placed in it now: unreachable" in admin.open("/nodes/rack-2").text
    slot = admin.open("/nodes/rack-2/slots/0").text
    assert "▲ blocked" in slot
    assert "no slice can be placed in it now: unreachable" in slot
    listed = admin.open("/nodes").text
    assert listed.index(
        "Slots: ● free ■ claimed ◐ releasing ◆ quarantined ▲ blocked ◇ discovered ○ retired"
    ) < (listed.index("Nodes by name")), "the key of the shapes is above the table"
    explained = admin.open("/nodes").attributes("span", "title")
    assert {*SLOT_STATUSES.values()} <= {*explained}
    overview = admin.open("/").text
    assert "▲ blocked 4 Blocked: no slice can be placed there now (2 " in overview
    assert "2 unreachable" in overview
    stated = "Slots that cannot be used because of their node are free there: whether a node was unreachable is not"
    assert overview.index("Slots in the last 24 hours") < overview.index(stated) < overview.index("Table of")
    assert "if the slot itself has drift that blocks placement, or was excluded itself" in overview
    assert "Now: 4 blocked." in overview
    assert not re.search(r"● free \d", overview)


def test_overview_lists_everything_that_needs_an_operator_with_the_most_urgent_first(admin: Browser) -> None:
    until(lambda: "▲ 1 Drift that blocks" in admin.open("/").text, "the overview counts the drift")
    page = admin.open("/")
    found = page.text[page.text.index("Attention") : page.text.index("Control plane")]
    concerns = (
        "▲ 1 Unreachable nodes",
        "▲ 1 Drift that blocks placement",
        "▲ 2 Blocked slots: unreachable",
        "◐ 1 SKUs without a free slot: lab.small",
        f"◇ {CUT + 1} Nodes to enrol",
    )
    assert [each for each in concerns if each not in found] == []
    assert [*concerns] == sorted(concerns, key=found.index)
    for target in ("state=unreachable", "drift=true", "state=registered"):
        assert f"/ui/nodes?{target}" in page.attributes("a", "href")


def test_overview_describes_the_parts_of_the_control_plane_and_what_counts_as_important(
    admin: Browser,
) -> None:
    page = admin.open("/")
    titles = page.attributes("span", "title")
    for name in ("Postgres", "Redis", "Dispatcher", "Projector", "Sealer"):
        assert len([each for each in titles if each.startswith(f"{name}: ")]) == 1, name
    assert len([each for each in titles if each.startswith("Lag: ")]) == 3
    assert all(each[:1].upper() + each[1:] in page.text for each in IMPORTANT_IN_WORDS)


def test_overview_links_the_slots_to_approve(admin: Browser, plane: RunningPlane) -> None:
    change = "update read.slot set state = %(state)s where slot_id = 'rack-2/1' returning 1"
    plane.rows(change, state="discovered")
    page = admin.open("/")
    plane.rows(change, state="free")
    assert "◇ 1 Slots to approve: rack-2/1" in page.text
    assert "/ui/nodes/rack-2/slots/1" in page.attributes("a", "href")
    assert "Slots to approve" not in admin.open("/").text


def test_page_of_an_unreachable_node_states_from_when_its_values_are(
    admin: Browser, plane: RunningPlane
) -> None:
    drift = '[{"kind": "uplink.unresponsive", "desired": "a", "observed": "b", "since": "2026-11-25T00:00:00Z", "blocks": true}]'
    change = "update read.node set drift = %(drift)s where node_id = 'rack-2' returning 1"
    plane.rows(change, drift=drift)
    page = admin.open("/nodes/rack-2").text
    plane.rows(change, drift=None)
    assert "This page shows what the node reported until then; its present state is not known." in page
    assert "Reports to deliver 0 at the last heartbeat" in page
    assert "Placement blocked: unreachable, the uplink does not respond Host" in page, "every reason is shown"
    assert "Observed since Last heartbeat rack-2 uplink.unresponsive" in page
    assert re.search(r"becomes unreachable\. The last heartbeat of this node was at \d{4}-", page)
    assert "becomes unreachable" not in admin.open("/nodes/rack-1").text
    assert page.index("Open drift") < page.index("Slots Slots by index"), "open drift is above the slots"
    assert "reported until then" not in admin.open("/nodes/rack-1").text


def test_excluded_node_is_marked_in_the_list_and_its_page_and_form_show_why_and_since_when(
    running_plane: RunningPlane,
) -> None:
    fail_bring_ups(running_plane, Node(running_plane), 3)
    [(time,)] = running_plane.rows("select recorded_at from ledger.event where type = 'node.excluded'")
    since, admin = f"{time:%Y-%m-%d %H:%M:%S}", logged_in(running_plane)
    listed, page, form = (admin.open(path).text for path in ("/nodes", "/nodes/n1", "/nodes/n1/readmit"))
    assert "n1 simulated ● enrolled ▲ excluded" in listed
    assert "Node n1 ● enrolled ▲ excluded" in page
    advice = "Repair the cause first, then readmit the node\\. Reason: 3 consecutive bring-ups"
    assert re.search(rf"Excluded from placement since {since}, [^.]+ ago\. {advice}", page)
    assert re.search(rf"Excluded because 3 consecutive bring-ups .* Excluded since {since} Effect", form)
    assert "Repair the cause first" in form
    submitted = admin.submit("/nodes/n1/readmit", reason="repaired")
    assert "Excluded from placement" not in submitted.text
    assert "▲ excluded" not in submitted.text


def test_slots_of_a_node_and_the_name_of_its_host_are_not_broken_into_lines(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    admit(running_plane, "rack-1", slots=3)
    drift = '[{"kind": "uplink.unresponsive", "desired": "a", "observed": "b", "since": "2026-11-25T00:00:00Z", "blocks": true}]'
    running_plane.rows(
        "update read.node set hostname = 'a-host-with-a-long-name', cordoned = 'x', drift = %(drift)s returning 1",
        drift=drift,
    )
    running_plane.rows("update work.node_seen set seen_at = now() - interval '20 hours' returning 1")
    visitor.open("/nodes")
    slots = visitor.page.locator("tbody .slot")
    for width in (1280, 1000, 390):
        visitor.page.set_viewport_size({"width": width, "height": 800})
        tops = slots.evaluate_all("all => all.map(each => each.getBoundingClientRect().top)")
        assert (len(tops), len({*tops})) == (3, 1), width
    host = visitor.page.get_by_text("a-host-with-a-long-name")
    assert host.evaluate("it => getComputedStyle(it).whiteSpace") == "nowrap"


def test_history_of_a_node_states_which_events_it_does_not_list(admin: Browser, plane: RunningPlane) -> None:
    page = admin.open("/nodes/rack-1")
    assert "Events of its slots, allocations and tasks are not listed here." in page.text
    assert "/ui/events?node=rack-1" in page.attributes("a", "href")
    assert "Attempt began Ended" in page.text
    slot = admin.open("/nodes/rack-1/slots/0").text
    assert "Events of its allocations and tasks are not listed here." in slot


def test_node_at_a_past_position_shows_whether_it_was_cordoned(admin: Browser, plane: RunningPlane) -> None:
    [(position,)] = plane.rows("select position from ledger.event where type = 'node.cordoned'")
    before, then = (
        admin.open(f"/nodes/rack-1?at=position:{int(str(position)) - back}").text for back in (1, 0)
    )
    unrecorded = "Placement not cordoned, not excluded; whether it was reachable is not recorded Host"
    assert unrecorded in before
    assert "Node rack-1 ○ enrolled As of" in before, "the state has not the colour of a reachable node"
    assert "Node rack-1 ○ enrolled ◆ cordoned As of" in then
    assert re.search(r"Cordoned since [\d :-]+\. Reason: a fan is loud ", then)
    assert "Cordoned since" not in before
    assert "Placement blocked: cordoned Cordoned a fan is loud Host" in then
    nodes = admin.open(f"/nodes?name=rack-1&at=position:{position}").text
    assert "blocked: cordoned" in nodes
    unknown = "Views of the past do not show which slots were blocked"
    tasks = "Tasks are shown only as they are now; views of the past do not have them. Show the present"
    for each in (unknown, tasks, "Actions are available in the present view."):
        assert each in then
        assert each not in admin.open("/nodes/rack-1").text
    assert unknown in nodes
    assert unknown not in admin.open("/nodes").text


def test_slot_at_a_past_position_has_its_state_then_and_states_that_blocking_is_not_recorded(
    admin: Browser, plane: RunningPlane
) -> None:
    first, *later = (
        str(position)
        for (position,) in plane.rows(
            "select position from ledger.event where stream_id = 'slot-rack-1/0' order by position"
        )
    )
    past = admin.open(f"/nodes/rack-1/slots/0?at=position:{first}")
    present = admin.open("/nodes/rack-1/slots/0")
    assert "Slot rack-1/0 ◇ discovered" in past.text
    assert "Slot rack-1/0 ▲ blocked" in present.text
    assert "Placement Views of the past do not show which slots were blocked" in past.text
    assert "Placement no slice can be placed in it now: cordoned" in present.text
    assert "Actions are available in the present view." in past.text
    assert "Actions are available in the present view." not in present.text
    node = admin.open(f"/nodes/rack-1?at=position:{first}")
    links = f"/ui/nodes/rack-1?at=position%3A{first}", f"/ui/nodes/rack-1/slots/0?at=position%3A{first}"
    assert links[0] in past.attributes("a", "href"), "a link between views of the past keeps the time"
    assert links[1] in node.attributes("a", "href")
    assert links[0] in admin.open(f"/nodes?at=position:{first}").attributes("a", "href")
    assert later, "the slot changed after the first event"
    events = [
        {f"/ui/events/{each}" for each in later} & {*page.attributes("a", "href")} for page in (past, present)
    ]
    assert events == [set(), {f"/ui/events/{each}" for each in later}]


@pytest.mark.parametrize("theme", [0, 1])
def test_states_of_slots_differ_in_shape_and_colour(theme: int) -> None:
    assert {*SLOT_STATUSES} == {*get_args(SlotStateName), "blocked"}
    assert len({mark_of(each) for each in SLOT_STATUSES}) == len(SLOT_STATUSES)
    style = (STATIC / "console.css").read_text()
    tones = {*map(tone_of, SLOT_STATUSES)}
    colours = {re.findall(rf"--{each}: #(\w{{6}});", style)[theme] for each in tones}
    assert len(colours) == len(tones) == len(SLOT_STATUSES)
    assert all(f".slot.{each} " in style for each in tones - {"quiet"})
    assert re.search(r"\.slots-quarantined \{ fill: var\(--held\)", style), (
        "the chart has the colour of the list"
    )


def test_list_of_nodes_states_how_many_it_shows_and_whether_more_follow(admin: Browser) -> None:
    total = f"{CUT} nodes on this page; more follow; {CUT + 3} in total"
    assert total in admin.open("/nodes").text
    assert f"more follow; {CUT + 1} in total" in admin.open("/nodes?state=registered").text
    assert "in total" not in admin.open("/nodes?name=spare-").text, "the API does not count this"
    first = admin.open("/nodes?name=spare-")
    [following] = [found["href"] for tag, found in first.tags if tag == "a" and found.get("rel") == "next"]
    assert (
        "1 node on this page, which is the last page" in admin.open(str(following).removeprefix("/ui")).text
    )
    assert re.search(r"retired\s+2 nodes\s+Nodes by name", admin.open("/nodes?name=rack-").text)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=unreachable", ["rack-2"]),
        ("state=enrolled", ["rack-1"]),
        ("name=rack-", ["rack-1", "rack-2"]),
        ("cordoned=true", ["rack-1"]),
        ("drift=true", ["rack-1"]),
        ("name=rack&drift=false", ["rack-2"]),
        ("state=&name=rack&cordoned=&excluded=false&drift=", ["rack-1", "rack-2"]),
        ("state=unreachable&cordoned=true", []),
    ],
)
def test_list_of_nodes_has_the_nodes_that_match_the_filters_in_its_address(
    admin: Browser, query: str, expected: list[str]
) -> None:
    page = admin.open(f"/nodes?{query}")
    assert (page.status, names(page)) == (200, expected)
    slots = [each for each in page.attributes("a", "href") if "#slot-" in each]
    assert slots == [f"/ui/nodes/{name}#slot-{index}" for name in expected for index in (0, 1)]


def test_filter_form_of_the_list_of_nodes_shows_the_chosen_filters(admin: Browser) -> None:
    page = admin.open("/nodes?state=enrolled&name=rack-&cordoned=true&drift=false")
    assert chosen(page) == ["rack-", "true", "false"]
    states = [found for tag, found in page.tags if tag == "option" and "value" not in found]
    assert ["selected" in each for each in states] == [False, True, False, False, False]


def test_next_page_of_the_list_of_nodes_keeps_the_filters(admin: Browser) -> None:
    first = admin.open("/nodes?name=spare-&drift=false")
    assert names(first) == [f"spare-{number:02}" for number in range(CUT)]
    [following] = [found["href"] for tag, found in first.tags if tag == "a" and found.get("rel") == "next"]
    second = admin.open(str(following).removeprefix("/ui"))
    assert names(second) == [f"spare-{CUT}"]
    assert "/ui/nodes?name=spare-&drift=false" in second.attributes("a", "href"), (
        "the first page has them too"
    )


def test_list_without_matching_nodes_links_to_the_list_of_all_nodes(admin: Browser) -> None:
    page = admin.open("/nodes?name=absent")
    assert "No node matches the filters. Show all nodes" in page.text
    assert names(admin.open("/nodes")) == [
        "rack-1",
        "rack-2",
        *(f"spare-{number:02}" for number in range(23)),
    ]
    assert page.attributes("a", "href").count("/ui/nodes") == 3, "the menu, the form and the empty list"


def test_list_of_nodes_offers_cli_and_curl_commands_with_the_filters_of_the_page(
    admin: Browser, plane: RunningPlane
) -> None:
    page = admin.open(
        "/nodes?state=enrolled&name=rack-&cordoned=true&excluded=false&drift=true&at=position:7"
    )
    cli, curl = page.attributes("button", "data-copy")
    filters = ("--state=enrolled", "--name=rack-", "--cordoned", "--not-excluded", "--drift")
    assert shlex.split(cli) == ["sliceplane", "nodes", "list", *filters, "--at=position:7"]
    query = "state=enrolled&name=rack-&cordoned=true&excluded=false&drift=true&at=position%3A7"
    assert shlex.split(curl)[-1] == f"{plane.url}/v1/nodes?{query}"


def test_links_and_forms_of_the_node_list_at_a_past_position_keep_it_and_omit_states_that_are_not_recorded(
    admin: Browser, plane: RunningPlane
) -> None:
    position = plane.last_position()
    page = admin.open(f"/nodes?name=spare-0&drift=false&at=position:{position}")
    assert "spare-09" in page.text
    assert "rack-1" not in page.text
    assert "unreachable" not in page.text
    assert "not recorded" in page.text
    node = admin.open(f"/nodes/spare-09?at=position:{position}").text
    assert "Last heartbeat not recorded Reports to deliver not recorded " in node
    kept = [(found["name"], found["value"]) for tag, found in page.tags if found.get("type") == "hidden"]
    assert ("at", f"position:{position}") in kept, "the form of the filters keeps the time"
    assert {("name", "spare-0"), ("drift", "false")} <= {*kept}, "the form of the time keeps the filters"
    assert f"/ui/nodes?at=position%3A{position}" in page.attributes("a", "href")
    assert admin.open(f"/nodes?state=unreachable&at=position:{position}").status == 422


def test_list_of_nodes_with_invalid_filters_shows_the_reason_of_each_invalid_filter(admin: Browser) -> None:
    page = admin.open("/nodes?state=gone&name=Rack&drift=perhaps")
    assert page.status == 422
    for reason in ("unknown value 'gone'", "'Rack' is not a valid beginning", "not 'perhaps'"):
        assert reason in page.text


def test_counts_of_the_overview_lead_to_the_nodes_that_they_count(admin: Browser) -> None:
    until(lambda: "▲ 1 Drift that blocks" in admin.open("/").text, "the overview counts the drift")
    targets = admin.open("/").attributes("a", "href")
    assert names(admin.open("/nodes?state=unreachable")) == ["rack-2"]
    assert {"/ui/nodes?state=unreachable", "/ui/nodes?state=registered", "/ui/nodes?drift=true"} <= {*targets}
    assert "/ui/nodes/rack-1/slots/1" in targets, "the drift of a slot links to the page of the slot"


def test_overview_with_more_open_drift_than_it_shows_links_to_all_nodes_with_drift(
    plane: RunningPlane, admin: Browser
) -> None:
    assert "Only the first" not in admin.open("/").text
    change = "update read.slot set drift = %(drift)s where slot_id = 'rack-1/1' returning drift::text"
    query = "select drift::text from read.slot where slot_id = 'rack-1/1'"
    [(before,)] = plane.rows(query)
    plane.rows(change, drift=json.dumps(9 * json.loads(str(before))))
    page = admin.open("/")
    plane.rows(change, drift=before)
    assert "Only the first 8 are shown. All nodes with open drift" in page.text


def test_filters_of_the_list_of_nodes_are_chosen_and_cleared_by_keyboard(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    for name in ("rack-1", "spare-1"):
        register_node(running_plane, name)
    page = visitor.page
    visitor.open("/nodes")
    page.get_by_label("Name begins with").focus()
    page.keyboard.type("rack")
    page.keyboard.press("Tab")
    page.keyboard.type("n")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/nodes?state=&name=rack&cordoned=false&excluded=&drift=")
    assert page.locator("tbody tr").count() == 1
    page.get_by_role("link", name="Clear").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/nodes")
    assert page.locator("tbody tr").count() == 2
