"""Deep links, the back button, reloads, two tabs and expired sessions, in Chromium."""

import re

from playwright.sync_api import Page

from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.web.visitors import Visitor

_EXPIRE = "update read.session set expires_at = now() where ended is null returning 1"
_INTERRUPTED = {"code": "host_rebooted", "message": "the host rebooted"}
_RELOADS = 5


def test_deep_link_leads_through_the_login_to_the_page_with_its_filters_and_its_time(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    running = RunningAllocation(running_plane, admit(running_plane, "n1"))
    own = f"/allocations/{running.id}"
    for path in (
        "/events?type=node.registered&level=important",
        f"{own}/timeline?level=routine",
        f"{own}?at=position%3A{running_plane.last_position()}",
    ):
        visitor.context.clear_cookies()
        visitor.open(path)
        assert "/ui/login?next=" in visitor.page.url
        visitor.log_in(ADMIN_KEY)
        visitor.page.wait_for_url(f"**/ui{path}")


def test_back_button_and_reload_after_an_action_repeat_nothing_and_show_the_present(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    admit(running_plane, "n1")
    page = visitor.page
    visitor.open("/nodes/n1")
    page.get_by_role("link", name="Cordon…").click()
    page.get_by_label("Reason").fill("fan")
    page.get_by_role("button", name="Cordon").click()
    page.get_by_text("The node was cordoned.").wait_for()
    position = running_plane.last_position()
    page.reload()
    page.get_by_text("The node was cordoned.").wait_for()
    page.go_back()
    page.get_by_role("heading", name="Cordon").wait_for()
    page.go_back()
    # The browser stores no page, so the state before the action is not shown again.
    page.get_by_role("link", name="Uncordon…").wait_for()
    page.go_forward()
    page.go_forward()
    page.get_by_text("The node was cordoned.").wait_for()
    assert running_plane.last_position() == position


def test_reload_of_the_page_with_a_new_secret_issues_no_other_key_and_the_back_button_does_not_show_it(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    page = visitor.page
    visitor.open("/access/new/issue-key")
    page.get_by_label("Name of the owner").fill("robot")
    page.locator("[name=projects]").fill("default")
    page.get_by_role("button", name="Issue an API key").click()
    secret = page.locator(".copyable code").inner_text()
    position = running_plane.last_position()
    page.reload()
    assert page.locator(".copyable code").inner_text() == secret
    assert running_plane.last_position() == position
    page.get_by_role("link", name="Continue").click()
    page.get_by_role("heading", name=re.compile("API key robot-")).wait_for()
    assert secret not in page.content()


def test_page_that_is_reloaded_in_the_middle_of_its_stream_misses_no_event(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    running = RunningAllocation(running_plane, admit(running_plane, "n1"))
    page = visitor.page
    visitor.open(f"/allocations/{running.id}")
    page.get_by_text("Live: this page updates itself").wait_for()
    for _ in range(_RELOADS):
        running.report("slice.interrupted", reason=_INTERRUPTED)
        page.reload(wait_until="commit")
        running.report_ready()
    page.get_by_role("heading", name="active").wait_for()
    page.get_by_text("Live: this page updates itself").wait_for()
    running.report("slice.interrupted", reason=_INTERRUPTED)
    page.get_by_role("heading", name="starting").wait_for()
    visitor.open(f"/allocations/{running.id}/timeline?level=routine")
    interrupted = page.locator("code", has_text="allocation.slice_interrupted")
    assert interrupted.count() == _RELOADS + 1


def test_two_tabs_show_the_same_state_and_a_logout_in_one_ends_both(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    running = RunningAllocation(running_plane, admit(running_plane, "n1"))
    first, second, form = visitor.page, visitor.new_page(), visitor.new_page()
    for each in (first, second):
        each.goto(f"{visitor.url}/ui/allocations/{running.id}")
        each.get_by_text("Live: this page updates itself").wait_for()
    form.goto(f"{visitor.url}/ui/nodes/n1/cordon")
    _release(first, running.id)
    for each in (first, second):
        each.get_by_role("heading", name="releasing").wait_for()
    running.report("slice.removed", absent=["port", "lease"])
    for each in (first, second):
        each.get_by_role("heading", name="released").wait_for()

    first.locator(".account summary").click()
    first.get_by_role("button", name="Log out").click()
    first.get_by_text("You are logged out.").wait_for()
    second.reload()
    second.get_by_label("API key or token").wait_for()
    visitor.log_in(ADMIN_KEY)
    first.get_by_role("heading", name="Overview").wait_for()
    position = running_plane.last_position()
    form.get_by_label("Reason").fill("of the session before")
    form.get_by_role("button", name="Cordon").click()
    form.get_by_text("does not belong to the present login").wait_for()
    assert running_plane.last_position() == position
    visitor.faults[:] = [each for each in visitor.faults if " 403 " not in each]


def _release(page: Page, name: str) -> None:
    page.get_by_role("link", name="Release…", exact=True).click()
    page.get_by_label("to confirm").fill(name[-6:])
    page.get_by_role("button", name="Release").click()
    page.get_by_text("The release was requested.").wait_for()


def test_form_of_an_expired_session_changes_nothing_and_leads_to_the_login(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    admit(running_plane, "n1")
    page = visitor.page
    visitor.open("/nodes/n1/cordon")
    page.get_by_label("Reason").fill("too late")
    assert running_plane.rows(_EXPIRE)
    position = running_plane.last_position()
    page.get_by_role("button", name="Cordon").click()
    page.get_by_text("ended or expired").wait_for()
    assert running_plane.last_position() == position


def test_preview_in_an_expired_session_leads_to_the_login_and_back_to_the_form(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    page = visitor.page
    visitor.open("/allocations/new")
    assert running_plane.rows(_EXPIRE)
    page.get_by_label("Lease, in hours").fill("2")
    page.get_by_text("ended or expired").wait_for()
    visitor.log_in(ADMIN_KEY)
    page.wait_for_url("**/ui/allocations/new")
