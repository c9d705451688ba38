"""Pages of projections and verifications in the web console, and their live progress in Chromium."""

import re

from tests.api.access.principals import issue
from tests.projections.plane_requests import create_history
from tests.projections.test_stopped_projections import append_unknown_event, stopped_at
from tests.servers.plane import RunningPlane
from tests.waiting import until
from tests.web.browsing import logged_in
from tests.web.visitors import Visitor


def test_stopped_projection_shows_the_event_and_continues_when_it_is_skipped(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    unknown = append_unknown_event(running_plane)
    until(lambda: stopped_at(running_plane, "holdings") == unknown, "the projection 'holdings' has stopped")
    admin = logged_in(running_plane)
    page = admin.open("/projections")
    assert "slot.painted" in page.text
    assert "Lag (positions)" in page.text
    assert re.search(r"lag \d+ positions?, \d+\.\d s", admin.open("/").text), "the overview has the same unit"
    assert f"/ui/events/{unknown}" in page.attributes("a", "href")
    skip = "/projections/holdings/skip"
    assert f"/ui{skip}" in page.attributes("a", "href")
    assert str(unknown) in admin.open(skip).attributes("input", "value")
    wrong = admin.submit(skip, position=str(unknown - 1), reason="newer", confirm="holdings")
    assert wrong.status == 409
    skipped = admin.submit(skip, position=str(unknown), reason="newer", confirm="holdings")
    assert "The event is skipped." in skipped.text
    until(lambda: stopped_at(running_plane, "holdings") is None, "the projection 'holdings' goes on")
    page = admin.open("/projections")
    assert f"/ui{skip}" not in page.attributes("a", "href")
    assert page.text.count("Skip event: the read model is not stopped; there is no event to skip") == 1


def test_overview_states_that_the_slots_over_time_are_not_available_while_their_read_model_lags(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    notice = "The slots over time are not available now"
    admin = logged_in(running_plane)
    until(lambda: notice not in admin.open("/").text, "the read model has the newest events")
    assert "Slots in the last 24 hours" in admin.open("/").text
    append_unknown_event(running_plane)
    until(lambda: notice in admin.open("/").text, "the overview states that its read model lags")
    page = admin.open("/")
    assert (
        page.status,
        "Slots in the last 24 hours" in page.text,
        "Important changes in the last hour" in page.text,
    ) == (
        200,
        False,
        True,
    )
    owner = logged_in(running_plane, issue(running_plane, "owner", projects=["default"]).secret)
    assert notice not in owner.open("/").text, "the chart is no part of the page of a caller"


def test_projections_and_verifications_are_read_only_for_an_auditor(running_plane: RunningPlane) -> None:
    auditor = logged_in(running_plane, issue(running_plane, "reader", "auditor").secret)
    for path in ("/projections", "/verifications"):
        page = auditor.open(path)
        assert page.status == 200
        forms = ("/ui/projections/", "/ui/verifications/new/")
        assert not [each for each in page.attributes("a", "href") if each.startswith(forms)]
    for path in ("/projections/nodes/rebuild", "/verifications/new/verify"):
        refused = auditor.submit(path)
        assert (refused.status, "role_missing" in refused.text) == (403, True)
    assert auditor.open("/verifications/absent").status == 404
    assert "No verifications." in auditor.open("/verifications").text


def test_verification_that_finds_a_difference_shows_the_row_and_the_advice(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    hostile = "<script>alert(1)</script>"
    running_plane.rows("update read.node set hostname = %(h)s returning 1", h=hostile)
    admin = logged_in(running_plane)
    started = admin.submit("/verifications/new/verify")
    found = started.path.partition("?")[0].removeprefix("/ui")
    until(lambda: "1 table differs" in admin.open(found).text, "the verification has a result")
    page = admin.open(found)
    assert ("hostname" in page.text, hostile in page.text) == (True, True)
    assert hostile not in page.response.text
    assert "rebuild the read models" in page.text


def test_progress_of_a_verification_and_of_a_rebuild_is_shown_until_its_end_without_a_reload(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    create_history(running_plane)
    page = visitor.page
    visitor.open("/verifications/new/verify")
    page.get_by_role("button", name="Start a verification").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="equal").wait_for()
    page.get_by_text("all tables are equal to the replayed ledger").wait_for()
    page.locator("[data-in-progress]").wait_for(state="detached")

    visitor.open("/projections/nodes/rebuild")
    page.get_by_role("button", name="Rebuild").click()
    page.get_by_text("The rebuild was requested.").wait_for()
    page.locator("[data-in-progress]").wait_for(state="detached")
    assert page.locator("progress").count() == 0
    assert re.search(r"nodes\s+●\s+live", page.locator("tbody").inner_text())
