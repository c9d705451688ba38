"""The web console in Chromium: the live page, forms by keyboard, and hostile texts that would run in a browser."""

from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.web.visitors import Visitor

_WIDTHS = (1280, 390)
_HOSTILE = "<img src=x onerror=\"document.title='run'\">"


def test_page_of_an_allocation_follows_its_events_until_it_is_released_by_keyboard(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    node = admit(running_plane, "n1")
    running = RunningAllocation(running_plane, node, labels={_HOSTILE: _HOSTILE})
    page = visitor.page
    visitor.open(f"/allocations/{running.id}")
    page.get_by_text("Live", exact=True).wait_for()
    running.report(
        "slice.interrupted", reason={"code": "host_rebooted", "message": f"the host {_HOSTILE} rebooted"}
    )
    page.get_by_role("heading", name="starting").wait_for()
    running.report_ready()
    page.get_by_role("heading", name="active").wait_for()
    assert f"the host {_HOSTILE} rebooted" in page.locator("main").inner_text()
    assert page.title().startswith(f"Allocation {running.id}")

    page.get_by_role("link", name="Release…").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Release").wait_for()
    page.get_by_label("to confirm").fill(running.id[-6:])
    page.get_by_role("button", name="Release").focus()
    page.keyboard.press("Enter")
    page.get_by_text("The release was requested.").wait_for()
    page.get_by_role("heading", name="releasing").wait_for()
    running.report("slice.removed", absent=["port", "lease"])
    page.get_by_role("heading", name="released").wait_for()


def test_selected_text_is_not_replaced_by_a_live_update(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    running = RunningAllocation(running_plane, admit(running_plane, "n1"))
    page = visitor.page
    visitor.open(f"/allocations/{running.id}")
    page.get_by_text("Live", exact=True).wait_for()
    page.get_by_role("heading", name="active").locator("code").select_text()
    running.report("slice.interrupted", reason={"code": "host_rebooted", "message": "the host rebooted"})
    page.get_by_text("paused while you select").wait_for()
    assert page.evaluate("document.getSelection().toString()") == running.id
    page.evaluate("document.getSelection().removeAllRanges()")
    page.get_by_role("heading", name="starting").wait_for()


def test_pages_fit_into_the_window_and_a_session_that_ended_leads_to_the_login(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    running = RunningAllocation(running_plane, admit(running_plane, "n1"), labels={"a" * 63: "b" * 255})
    page = visitor.page
    own = f"/allocations/{running.id}"
    paths = ("/", "/nodes", "/nodes/n1", "/allocations", own, f"{own}/release", "/allocations/new", "/skus", "/images",
             f"/history?kind=allocation&name={running.id}", "/access/keys", "/access/service-accounts", "/access/sessions",
             "/access/new/issue-key", "/projections", "/verifications")  # fmt: skip
    for width in _WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        for path in paths:
            visitor.open(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
    visitor.open(own)
    page.get_by_text("Live", exact=True).wait_for()
    with running_plane.client() as admin:
        [session] = [
            each["id"] for each in admin.get("/sessions").json()["items"] if each["state"] == "active"
        ]
        assert admin.post(f"/sessions/{session}/end", json={"reason": "lost"}).is_success
    # Each refresh of the page leads to the login, and a later one interrupts the navigation of an earlier one.
    page.get_by_label("API key or token").wait_for()
    assert "/ui/login?" in page.url
    visitor.faults.clear()
