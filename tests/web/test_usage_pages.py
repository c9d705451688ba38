"""Usage, billing periods, budgets and reservations in the web console."""

import asyncio
import csv
import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from control_plane.web.pages.project_actions import PERIOD
from control_plane.web.rendering import money, slot_hours
from control_plane.web.visits import Visit
from tests.api.access.principals import create_project, issue
from tests.api.allocations.billing import MILLISECOND, close, get, grant_lease, granted_at, text, until_known
from tests.api.broken_nodes import accepted_allocation
from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.web.browsing import Browser, logged_in


def running_in(plane: RunningPlane) -> RunningAllocation:
    """Create an active allocation of the project red with the label team=a."""
    create_project(plane, "red")
    create_project(plane, "blue")
    found = RunningAllocation(plane, admit(plane, "n1"), project="red", labels={"team": "a"})
    until_known(plane)
    return found


@pytest.fixture(scope="module")
def running(shared_plane: RunningPlane) -> RunningAllocation:
    return running_in(shared_plane)


def shown_time(stamp: str) -> str:
    """Return a time of the API as pages show it."""
    return stamp.replace("T", " ").removesuffix("Z")


@pytest.fixture
def admin(running: RunningAllocation) -> Browser:
    return logged_in(running.plane)


@pytest.mark.parametrize("group", ["project", "sku", "label:team"])
def test_each_figure_of_the_usage_links_to_its_entries_and_they_link_to_their_events(
    running: RunningAllocation, admin: Browser, group: str
) -> None:
    page = admin.open("/usage", group_by=group)
    kind, _, label = group.partition(":")
    assert f'<option value="{kind}" selected>' in page.response.text
    if label:
        chosen = admin.open("/usage", group_by=kind, group_label=label)
        assert "By label team Usage by label team Label team Slot-hours" in chosen.text
    own = {"project": "/ui/projects/red", "sku": "/ui/skus/lab.small"}
    links = {*page.attributes("a", "href")} & {*own.values()}
    assert links == {own[group]} if group in own else not links, "a group links to its page if it has one"
    targets = [each for each in page.attributes("a", "href") if each.startswith("/ui/usage/entries")]
    assert len(targets) == 2, "the total and the only group must link to their entries"
    for target in targets:
        entries = admin.open(target.removeprefix("/ui"))
        assert running.id[-6:] in entries.text
        named = "project red" if "project=red" in target else "all projects"
        assert f"Usage entries of {named}" in entries.text
        assert re.search(r"Total: <?0\.\d\d USD, <?0\.\d\d slot-hours, ", entries.text)
        assert "/ui/projects/red" in entries.attributes("a", "href")
        assert "/ui/skus/lab.small" in entries.attributes("a", "href")
        assert "</a> <a" in entries.response.text, "each event is a line of its own, without commas"
        events = [each for each in entries.attributes("a", "href") if each.startswith("/ui/events/")]
        [entry] = get(running.plane, "/usage/entries")["items"]
        assert events == [f"/ui/events/{each['position']}" for each in entry["events"]]
        for event, listed in zip(events, entry["events"], strict=True):
            shown = admin.open(event.removeprefix("/ui"))
            assert f"Event {listed['position']} {listed['type']}" in shown.text


def test_usage_is_downloaded_as_csv_and_focus_and_a_refused_download_is_a_page(
    running: RunningAllocation, admin: Browser
) -> None:
    files = {"?format=csv&project=red": "usage.csv", "?format=focus&period=open": "usage-open.focus.csv"}
    for query, name in files.items():
        response = admin.client.get(f"/ui/usage/export{query}")
        assert response.headers["content-disposition"] == f'attachment; filename="{name}"'
        assert response.headers["content-type"].startswith("text/csv")
        [row] = csv.DictReader(io.StringIO(response.text))
        assert running.id in row.values()
    shown = admin.open("/usage").text
    assert (
        "A FOCUS file has exactly one billing period. Choose a period under Period to download it." in shown
    )
    assert re.search(r"All usage until [\d-]+ [\d:]+ \(ledger position \d+\)", shown)
    assert re.search(r"Only label +Group by .*Label to group by", shown)
    refused = admin.open("/usage/export?format=focus")
    assert (refused.status, "name it, such as" in refused.text) == (422, True)
    assert "content-disposition" not in refused.response.headers
    assert (
        'filename="usage.csv"'
        in admin.client.get("/ui/usage/export", params={"project": "red", "sku": "lab.small"}).headers[
            "content-disposition"
        ]
    )


def test_closed_period_is_listed_with_the_event_that_closed_it(emptied_plane: RunningPlane) -> None:
    running, admin = running_in(emptied_plane), logged_in(emptied_plane)
    begin = granted_at(running) - timedelta(seconds=1)
    end = begin + timedelta(seconds=1) + MILLISECOND
    form = admin.open("/usage/periods/open/close")
    opened = get(running.plane, "/usage/periods/open")["starts_at"]
    name, starts_at, ends_at = (
        found["value"] or ""
        for tag, found in form.tags
        if tag == "input" and found.get("name") in ("name", "starts_at", "ends_at")
    )
    assert f"Close the billing period {name} " in form.text
    assert re.fullmatch(r"until-[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9]{4}", name), "the month has not ended"
    assert starts_at == opened < ends_at
    # The proposed end is the begin of the present minute, which can be in the present second.
    assert datetime.fromisoformat(ends_at) < datetime.now(UTC)
    month = f"{datetime.fromisoformat(opened):%B %Y}"
    warning = f"{month} has not ended. The proposed end closes a shorter period: usage from {shown_time(ends_at)} on is in"
    assert form.text.index(warning) < form.text.index("Month ends"), "the warning is at the top"
    assert "disabled" not in next(found for tag, found in form.tags if tag == "fieldset"), (
        "a shorter period can be closed now"
    )
    counted = r"([\d-]+ [\d:]+) \(ledger position (\d+)\)"
    until_now = re.search(rf"Usage until now <?[\d.]+ USD, not final: usage until {counted} ", form.text)
    # A minute can begin between the begin of the allocation and the request for the page, but rarely does.
    amount = r"0\.00" if datetime.fromisoformat(ends_at) <= granted_at(running) else r"(?:0\.00|<0\.01)"
    proposed = re.search(
        rf"closed now {amount} USD for the proposed end {counted}\. It is not calculated again",
        form.text,
    )
    assert until_now is not None
    assert proposed is not None, "the allocation began after the proposed end or directly before it"
    assert proposed[1] == shown_time(ends_at) <= until_now[1]
    assert int(until_now[2]) == int(proposed[2]) == get(running.plane, "/usage")["position"]
    current = admin.open("/usage/periods/open").text
    assert "Current billing period" in current
    assert re.search(
        r"Amounts Not final: the usage until [\d-]+ [\d:]+ is counted \(ledger position \d+\)\. ", current
    )
    assert "Usage after the end that is chosen at closing belongs to the next period." in current
    assert "/ui/usage/periods/open/close" in admin.open("/usage/periods/open").attributes("a", "href")
    reader = logged_in(running.plane, issue(running.plane, "billed", projects=["red"]).secret)
    limited = reader.open("/usage/periods/open")
    assert "/ui/usage/periods/open/close" not in limited.attributes("a", "href")
    assert ("Close the billing period…" in limited.text, "usage:write" in limited.text) == (True, True)
    fields = {"name": "first", "starts_at": text(begin), "ends_at": text(end)}
    for wrong in ({}, {"confirm": "close", "starts_at": "tomorrow"}):
        assert admin.submit("/usage/periods/open/close", **{**fields, **wrong}).status == 422
    assert len(get(running.plane, "/usage/periods")["items"]) == 1
    page = admin.submit("/usage/periods/open/close", **fields, confirm="close")
    assert (page.path, "It was closed." in page.text) == ("/ui/usage?notice=close", True)
    closed = get(running.plane, "/usage/periods/first")
    assert f"/ui/events/{closed['position']}" in page.attributes("a", "href")
    shown = admin.open("/usage/periods/first")
    exact = {f"{float(closed['total']['slot_seconds']):,.6f} slot-seconds", closed["total"]["price"]}
    assert exact <= {*shown.attributes("span", "title")}
    assert "slot-seconds" not in shown.text
    assert re.search(r"Total <?\d+\.\d\d USD <?\d+\.\d\d slot-hours ", shown.text), (
        "amounts have two decimals"
    )
    assert "not final" not in shown.text.lower()
    assert "/ui/usage/periods/open/close" not in shown.attributes("a", "href")
    assert "FOCUS (standard billing file)" in shown.text
    assert close(running.plane, "first", begin, end).is_success


def test_form_that_closes_a_period_warns_only_if_its_month_has_not_ended() -> None:
    async def warning(period: dict[str, Any]) -> str | None:
        found = PERIOD.actions["close"].warning
        assert found is not None
        return await found(cast(Visit, None), period)

    begin = f"{datetime.now(UTC):%Y-%m-01T00:00:00Z}"
    for starts_at, allowed, warns in (
        (begin, True, True),
        (begin, False, False),
        ("2026-01-01T00:00:00Z", True, False),
    ):
        period = {"starts_at": starts_at, "allowed_actions": {"close": {"allowed": allowed}}}
        assert (asyncio.run(warning(period)) is not None) is warns, (starts_at, allowed)


def test_form_that_closes_a_period_shows_the_total_of_the_bill_after_closing(
    running_plane: RunningPlane,
) -> None:
    admit(running_plane, "n1")
    allocation = accepted_allocation(running_plane)
    begin = datetime.now(UTC) - timedelta(hours=3)
    until_known(running_plane)
    assert close(running_plane, "old", begin, begin + timedelta(hours=1)).is_success
    grant_lease(running_plane, allocation["id"], begin)
    until_known(running_plane)
    admin = logged_in(running_plane)
    form = admin.open("/usage/periods/open/close")
    shown = form.response.text.partition("Bill if closed now")[2]
    proposed = re.search(r'<span title="([\d.]+)">', shown)
    assert proposed is not None
    values = {
        str(found["name"]): found["value"]
        for tag, found in form.tags
        if tag == "input" and found.get("name") in ("name", "starts_at", "ends_at")
    }
    assert admin.submit("/usage/periods/open/close", **values, confirm="close").status == 200
    bill = get(running_plane, f"/usage/periods/{values['name']}")
    assert float(bill["corrections"]["price"]) > 0
    assert bill["total"]["price"] == proposed[1]


def test_budget_is_shown_as_spent_committed_and_remaining(emptied_plane: RunningPlane) -> None:
    running, admin = running_in(emptied_plane), logged_in(emptied_plane)
    amounts = {"memory_gib": "1.5", "max_lease_hours": "720"}
    limited = admin.submit("/projects/red/limits", budget_per_month="100.00", slots="5", **amounts)
    assert "The limits were recorded." in limited.text
    project = get(running.plane, "/projects/red")
    budget, stored = project["budget"], project["limits"]
    assert (stored["memory_mib"], stored["max_lease_seconds"]) == (1536, 2592000)
    for path in ("/usage", "/projects/red"):
        page = admin.open(path)
        assert "Project Budget (USD) Spent (USD) Committed (USD) Remaining (USD) red 100.00 " in page.text
        assert {budget["committed"], budget["remaining"]} <= {*page.attributes("span", "title")}
    limits = admin.open("/projects/red").text.partition("Limit Used Maximum ")[2]
    assert re.match(r"Slots 1 5 GPUs 0 none vCPUs 1 none Memory [\d.]+ GiB 1.5 GiB Whole public", limits)
    assert "Waiting requests 0 16 default Longest lease applies to each lease 720 hours " in limits
    assert re.search(r"Price per hour \(USD\) <?\d+\.\d\d none ", limits)
    assert re.search(r"Budget per calendar month \(USD\) <?[\d.]+ committed 100.00 ", limits)
    # The budget counts until the same time as the usage by project.
    rows = re.findall(r"red <?[\d.]+ (<?[\d.]+) ", admin.open("/usage").text)
    assert len(rows) == 2
    assert rows[0] == rows[1]
    # A form begins with the present limits, so a change of one limit keeps the others.
    form = admin.open("/projects/red/limits")
    present = {
        found["name"]: found.get("value") for tag, found in form.tags if tag == "input" and "name" in found
    }
    assert (present["budget_per_month"], present["slots"]) == ("100.00", "5")
    assert {name: present[name] for name in amounts} == amounts
    assert "Default limit 16 waiting requests" in form.text
    assert re.search(
        r"In use now Slots: 1 vCPUs: 1 .*Price per hour \(USD\): [\d.]+ Budget per ", form.text
    ), "each amount is an item of a list"
    assert "Price per hour (USD) Budget per calendar month (USD) Set limits" in form.text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("16549.690236", '<span title="16,549.690236">16,549.69</span>'),
        ("20000", '<span title="20,000">20,000.00</span>'),
        ("0.000197", '<span title="0.000197">&lt;0.01</span>'),
        ("-0.000197", '<span title="-0.000197">−&lt;0.01</span>'),
        ("0.000000", '<span title="0.000000">0.00</span>'),
    ],
)
def test_amount_of_money_has_two_decimals_and_its_title_has_all(value: str, shown: str) -> None:
    assert money(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        ("5184000.000000", '<span title="5,184,000.000000 slot-seconds">1,440.00</span>'),
        ("0.001000", '<span title="0.001000 slot-seconds">&lt;0.01</span>'),
    ],
)
def test_slot_hours_have_two_decimals_and_their_title_has_the_exact_slot_seconds(
    seconds: str, shown: str
) -> None:
    assert slot_hours(seconds) == shown


def test_reservation_is_set_changed_and_removed_by_an_admin_only(emptied_plane: RunningPlane) -> None:
    plane = emptied_plane
    admin = logged_in(running_in(plane).plane)

    def reserved() -> list[dict[str, Any]]:
        return list(get(plane, "/reservations")["items"])

    assert "SKU" in admin.open("/projects/red/reserve").text
    for sku, slots, status in (("absent", "1", 404), ("lab.small", "x", 422), ("", "1", 422)):
        assert admin.submit("/projects/red/reserve", sku=sku, slots=slots).status == status
    assert reserved() == []
    page = admin.submit("/projects/red/reserve", sku="lab.small", slots="3")
    assert "The reservation was recorded." in page.text
    [found] = reserved()
    assert (found["slots"], found["used"], found["unused"]) == (3, 1, 2)
    listed = admin.open("/reservations")
    current = [found["href"] for tag, found in listed.tags if tag == "a" and "aria-current" in found]
    assert current == ["/ui/projects"]
    assert "Reserved slots Held by the project Kept from others Missing" in listed.text
    assert f"red lab.small 3 1 2 ▲ {found['short_by']}" in listed.text
    assert "/ui/projects/red/reserve" in listed.attributes("a", "href")
    assert admin.open("/projects/red").attributes("a", "href").count("/ui/projects/red/reserve") == 1
    [change] = [each for each in listed.attributes("a", "href") if "/red/reserve?sku=" in each]
    form = admin.open(change.removeprefix("/ui"))
    assert "3" in form.attributes("input", "value")
    assert "<option selected>lab.small</option>" in form.response.text
    assert "sliceplane reservations set red lab.small 3" in form.text

    owner = logged_in(plane, issue(plane, "owner", projects=["red"]).secret)
    assert "lab.small 3" in owner.open("/reservations").text
    listed = owner.open("/reservations")
    assert not [
        each for each in listed.attributes("a", "href") if "reserve" in each.removeprefix("/ui/reservations")
    ]
    assert "Change… Remove…" in listed.text
    assert "Reserve slots…" in listed.text
    assert "role_missing" in listed.text
    assert owner.submit("/projects/red/reserve", sku="lab.small", slots="9").status == 403
    past = admin.open("/projects/red?at=now-").status, admin.open("/projects/red?at=1s+ago").text
    assert (past[0], "role_missing" in past[1], "Only an admin" in past[1]) == (422, False, False)
    assert "Change…" not in past[1]
    assert "not_confirmed" in admin.submit("/projects/red/unreserve", sku="lab.small").text
    assert admin.submit("/projects/red/unreserve", sku="lab.small", confirm="red").status == 200
    assert reserved() == []


def test_usage_of_other_projects_is_not_shown(running: RunningAllocation) -> None:
    other = logged_in(running.plane, issue(running.plane, "other", projects=["blue"]).secret)
    for path in ("/usage", "/usage/entries", "/usage?project=red", "/reservations", "/usage/export"):
        assert running.id[-6:] not in other.open(path).text
    assert other.open("/projects/red").status == 404
    assert "/ui/usage/periods/open/close" not in other.open("/usage").attributes("a", "href")
    assert other.submit("/usage/periods/open/close", name="x", confirm="close").status == 403
