"""Actions on several rows of a list in the web console: preview, result of each item, and choice of rows."""

import re
from typing import NamedTuple

import pytest

from control_plane.api.filters.scanning import filtered
from tests.api.access.principals import create_project, issue
from tests.api.node import admit, allocate
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.web.browsing import Browser, Page, logged_in
from tests.web.visitors import Visitor

BULK = "/bulk/allocations"
HOSTILE = "<script>alert(1)</script>\"'"


class Fleet(NamedTuple):
    """Three active allocations on n1, and one that is brought up on n2."""

    plane: RunningPlane
    active: tuple[str, str, str]
    placed: str


def fleet_in(plane: RunningPlane) -> Fleet:
    node = admit(plane, "n1", slots=3)
    first, second, third = (RunningAllocation(plane, node).id for _ in range(3))
    admit(plane, "n2")
    create_project(plane, "other")
    return Fleet(plane, (first, second, third), allocate(plane).json()["id"])


@pytest.fixture(scope="module")
def fleet(shared_plane: RunningPlane) -> Fleet:
    return fleet_in(shared_plane)


@pytest.fixture
def admin(fleet: Fleet) -> Browser:
    return logged_in(fleet.plane)


def preview_of(action: str, *items: str, of: str = BULK) -> str:
    return f"{of}?action={action}&" + "&".join(f"item={each}" for each in items)


def offered(page: Page) -> dict[str, list[str]]:
    """Return the items of a preview's form, by the name of their field."""
    hidden = [found for tag, found in page.tags if tag == "input" and found.get("type") == "hidden"]
    fields: dict[str, list[str]] = {"item": [], "left_out": []}
    for each in hidden:
        if (name := each.get("name")) in fields:
            fields[str(name)].append(str(each["value"]))
    return fields


def send(browser: Browser, page: Page, **fields: str) -> Page:
    hidden = {
        str(found["name"]): str(found["value"])
        for tag, found in page.tags
        if tag == "input" and found.get("type") == "hidden"
    }
    return browser.post(BULK, **{**hidden, **offered(page), **fields})


def test_preview_changes_nothing_and_offers_only_allowed_items_with_the_reason_of_the_others(
    fleet: Fleet, admin: Browser
) -> None:
    plane = fleet.plane
    placed = fleet.placed
    position = plane.last_position()
    page = admin.open(preview_of("stop", fleet.active[0], placed, "alc-absent", fleet.active[0]))
    assert "Stop 1 of 3 allocations" in page.text
    assert "Stop 1 allocation Back to the list" in page.text
    current = [found["href"] for tag, found in page.tags if tag == "a" and "aria-current" in found]
    assert current == ["/ui/allocations"]
    assert offered(page) == {"item": [fleet.active[0]], "left_out": [placed, "alc-absent"]}
    with plane.client() as client:
        refused = client.get(f"/allocations/{placed}").json()["allowed_actions"]["stop"]
    reason = refused["reason"].replace(f"allocation {placed}", "the allocation")
    assert f"{reason} (code {refused['code']})" in page.text
    assert "alc-absent ▲ not found" in page.text
    assert page.text.count("▲ not allowed") == 1
    assert "Effect on each of them: The slices are stopped" in page.text
    assert "Each one is changed separately" in page.text
    assert re.search(r"Project: defaultSlots: n1/\d \(\S+\)Lease ends: 2", page.text), (
        "each fact is a line of its own"
    )
    assert ("br", {}) in page.tags
    cli, curl = page.attributes("button", "data-copy")
    assert cli == f"sliceplane allocations stop {fleet.active[0]}"
    assert curl.endswith(f"/v1/allocations/{fleet.active[0]}/stop")
    assert plane.last_position() == position


def test_list_that_searches_a_part_of_the_allocations_states_how_far_it_searched(
    fleet: Fleet, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, searched = (
        "/allocations?state=waiting",
        r"Searched back to 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d; the next page",
    )
    assert "Searched" not in admin.open(path).text, "all were searched"
    monkeypatch.setattr(filtered, "__kwdefaults__", {"max_rows_read": 1})
    page = admin.open(path)
    assert "No allocation of this page matches the filters; the next page continues the search." in page.text
    assert re.search(searched, page.text)


def test_item_that_became_forbidden_is_refused_and_the_others_are_done(emptied_plane: RunningPlane) -> None:
    fleet, admin = fleet_in(emptied_plane), logged_in(emptied_plane)
    plane, (first, second, third) = fleet.plane, fleet.active
    page = admin.open(preview_of("renew", first, second, third))
    assert offered(page)["item"] == [first, second, third]
    assert "Renew lease of 3 allocations" in page.text
    assert "2" in page.attributes("input", "value"), "one hour longer than the remaining leases, rounded up"
    with plane.client() as client:
        assert client.delete(f"/allocations/{second}").is_success
    position = plane.last_position()
    wrong = send(admin, page, hours="x")
    assert (wrong.status, "not a number of hours" in wrong.text) == (422, True)
    assert plane.last_position() == position

    result = send(admin, page, hours="9")
    assert "Renew lease: 2 of 3 allocations done" in result.text
    assert "1 allocation was not changed" in result.text
    row, *_ = [each for each in result.text.split("alc-") if each.startswith(second[4:])]
    assert "refused" in row
    leases = plane.rows(
        "select stream_id from ledger.event where type = 'allocation.lease_renewed' and position > %(at)s",
        at=position,
    )
    assert sorted(leases) == sorted((f"allocation-{each}",) for each in (first, third))
    position = plane.last_position()
    assert "Renew lease: 2 of 3 allocations done" in send(admin, page, hours="9").text
    assert plane.last_position() == position, "a form that is sent twice has its effect once"


def test_form_of_items_with_different_leases_is_empty_and_names_the_smallest_and_largest_initial_value(
    emptied_plane: RunningPlane,
) -> None:
    node, browser = admit(emptied_plane, "n1", slots=2), logged_in(emptied_plane)
    short, long = (RunningAllocation(emptied_plane, node, lease_seconds=each * 3600).id for each in (1, 9))
    page = browser.open(preview_of("renew", long, short))
    [hours] = [found for tag, found in page.tags if tag == "input" and found.get("name") == "hours"]
    assert (hours["value"], "required" in hours) == ("", True)
    different = (
        "Hours from now until the lease ends: the initial values of the allocations differ, from 2 to 10."
    )
    assert different in page.text
    alone = browser.open(preview_of("renew", long))
    assert "10" in alone.attributes("input", "value")
    assert "the initial values" not in alone.text


def test_dangerous_action_asks_for_the_number_of_items(emptied_plane: RunningPlane) -> None:
    fleet, admin = fleet_in(emptied_plane), logged_in(emptied_plane)
    page, position = admin.open(preview_of("stop", fleet.active[0])), fleet.plane.last_position()
    for wrong in ("", "2"):
        unconfirmed = send(admin, page, confirm=wrong)
        assert (unconfirmed.status, "not_confirmed" in unconfirmed.text) == (422, True)
        assert offered(unconfirmed)["item"] == [fleet.active[0]]
    assert fleet.plane.last_position() == position
    assert "Stop: 1 of 1 allocation done" in send(admin, page, confirm="1").text


def test_nodes_are_cordoned_with_one_reason_and_opened_again(emptied_plane: RunningPlane) -> None:
    fleet, admin = fleet_in(emptied_plane), logged_in(emptied_plane)
    admit(fleet.plane, "n3")
    path = preview_of("cordon", "n1", "n3", of="/bulk/nodes")
    form = admin.open(path)
    assert "Reason (recorded)" in form.text
    hidden = offered(form)
    fields = {
        str(found["name"]): str(found["value"])
        for tag, found in form.tags
        if tag == "input" and found.get("type") == "hidden"
    }
    refused = admin.post("/bulk/nodes", **{**fields, **hidden, "reason": " "})
    assert (refused.status, "required" in refused.text) == (422, True)
    done = admin.post("/bulk/nodes", **{**fields, **hidden, "reason": HOSTILE})
    assert "Cordon: 2 of 2 nodes done" in done.text
    for name in ("n1", "n3"):
        assert HOSTILE in admin.open(f"/nodes/{name}").text
    again = admin.open(preview_of("cordon", "n1", "n2", of="/bulk/nodes"))
    assert offered(again) == {"item": ["n2"], "left_out": ["n1"]}
    assert "the node is cordoned already ● enrolled" in again.text
    assert "Not possible: the node is cordoned already" in admin.open("/nodes/n1/cordon").text
    assert "/ui/nodes/n1/cordon" not in admin.open("/nodes/n1").attributes("a", "href")
    assert HOSTILE not in admin.open("/nodes/n2").text


@pytest.mark.parametrize(
    "query", ["action=stop", "action=explode&item=a", "action=drain&item=a", "action=stop&" + "&".join(f"item={n}" for n in range(51))],
    ids=["empty", "unknown", "not_offered", "too_many"],
)  # fmt: skip
def test_wrong_selection_is_refused(admin: Browser, query: str) -> None:
    assert admin.open(f"{BULK}?{query}").status == 422


def test_role_without_the_right_to_change_can_choose_and_executes_nothing(
    fleet: Fleet, admin: Browser
) -> None:
    plane = fleet.plane
    auditor = logged_in(plane, issue(plane, "reader", "auditor").secret)
    listed = auditor.open("/allocations")
    [release] = [found for tag, found in listed.tags if tag == "button" and found.get("value") == "release"]
    assert "disabled" in release
    assert "allocations:write" in listed.text
    page = auditor.open(preview_of("release", fleet.active[0]))
    assert (offered(page)["item"], "role_missing" in page.text) == ([], True)
    csrf = auditor.open("/allocations").attributes("input", "value")
    position = plane.last_position()
    token = next(
        str(found["value"]) for tag, found in listed.tags if tag == "input" and found.get("name") == "csrf"
    )
    assert token in csrf
    forced = auditor.post(
        BULK, csrf=token, action="release", item=fleet.active[0], confirm="1", idempotency_key="x"
    )
    assert ("0 of 1 allocation done" in forced.text, "role_missing" in forced.text) == (True, True)
    assert plane.last_position() == position
    other = logged_in(plane, issue(plane, "other", projects=["other"]).secret)
    assert offered(other.open(preview_of("release", fleet.active[0])))["item"] == []
    position = plane.last_position()
    foreign = admin.post(BULK, action="release", item=fleet.active[0], confirm="1")
    assert (foreign.status, plane.last_position()) == (403, position)


def test_rows_are_chosen_by_keyboard_and_all_at_once(visitor: Visitor, running_plane: RunningPlane) -> None:
    for n in range(1, 5):
        admit(running_plane, f"n{n}")
    page = visitor.page
    visitor.open("/nodes")
    page.get_by_text("0 of 4 rows chosen").wait_for()
    cordon = page.get_by_role("button", name="Cordon…", exact=True)
    assert cordon.is_disabled()
    page.get_by_label("Choose n1").focus()
    page.keyboard.press("Space")
    page.get_by_text("1 of 4 rows chosen").wait_for()
    assert cordon.is_enabled()
    page.get_by_label("Choose n3").click(modifiers=["Shift"])
    page.get_by_text("3 of 4 rows chosen").wait_for()
    page.get_by_label("Choose all nodes of this page").focus()
    page.keyboard.press("Space")
    page.get_by_text("4 of 4 rows chosen").wait_for()
    page.keyboard.press("Space")
    page.get_by_label("Choose n2").check()
    page.get_by_label("Choose n4").check()
    cordon.press("Enter")
    page.get_by_role("heading", name="Cordon 2 nodes").wait_for()
    page.get_by_label("Reason").fill("fan")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Cordon: 2 of 2 nodes done").wait_for()
    with running_plane.client() as client:
        cordoned = [each["id"] for each in client.get("/nodes").json()["items"] if each["cordoned"]]
    assert cordoned == ["n2", "n4"]
