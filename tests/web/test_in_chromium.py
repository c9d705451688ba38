"""The web console in Chromium: the live page, forms by keyboard, and hostile texts that would run in a browser."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

from tests.api.node import admit, allocate
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.web.axe import violations
from tests.web.hostile_texts import HOSTILE_TEXTS, not_shown
from tests.web.visitors import Visitor

_LABELS = 16
"""Number of hostile labels of an allocation."""
_WIDTHS = (1280, 390)
_OVERLAPS = """
() => {
  const shown = [...document.querySelectorAll(".top a, .top summary, .top button, .top input")].filter(
    (each) => each.checkVisibility() && each.getClientRects().length);
  const boxes = shown.map((each) => [each.textContent || each.name, each.getBoundingClientRect()]);
  return boxes.flatMap(([name, a], at) => boxes.slice(at + 1).filter(([, b]) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1
  ).map(([other]) => [name, other]));
}
"""
"""Script that returns the pairs of links and fields of the header that overlap."""
_FITS = """
(field) => {
  const [style, drawing] = [getComputedStyle(field), document.createElement("canvas").getContext("2d")];
  drawing.font = style.font;
  const space = field.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  return drawing.measureText(field.placeholder).width <= space;
}
"""
"""Script that returns whether the placeholder of a field fits into it."""
_EDGES = """
() => {
  const box = (selector) => document.querySelector(selector).getBoundingClientRect();
  return {
    header: box(".top").height, brand: box(".brand").left, heading: box("h1").left, name: box(".account span").height
  };
}
"""
"""Script that returns heights and left edges of the header and of the heading below it."""
_PLACES = """
(all) => all.map((each) => each.getBoundingClientRect()).map((box) => [Math.round(box.left), Math.round(box.top)])
"""
"""Script that returns the left and top edges of elements."""
_HOSTILE = "<img src=x onerror=\"document.title='run'\">"


def test_page_of_an_allocation_follows_its_events_until_it_is_released_by_keyboard(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    node = admit(running_plane, "n1")
    running = RunningAllocation(running_plane, node, labels={_HOSTILE: _HOSTILE})
    page = visitor.page
    visitor.open(f"/allocations/{running.id}")
    page.get_by_text("Live: this page updates itself").wait_for()
    running.report(
        "slice.interrupted", reason={"code": "host_rebooted", "message": f"the host {_HOSTILE} rebooted"}
    )
    page.get_by_role("heading", name="starting").wait_for()
    running.report_ready()
    page.get_by_role("heading", name="active").wait_for()
    assert f"the host {_HOSTILE} rebooted" in page.locator("main").inner_text()
    assert page.title().startswith(f"Allocation {running.id}")

    page.get_by_role("link", name="Release…", exact=True).focus()
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
    page.get_by_text("Live: this page updates itself").wait_for()
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
    paths = ("/", "/nodes", "/nodes/n1", "/allocations", own, f"{own}/release", "/allocations/new", "/skus", "/skus/lab.small",
             "/images", "/images/lab-guest", "/new/skus/publish-sku", "/new/images/publish-image",
             f"/history?kind=allocation&name={running.id}", "/access/keys", "/access/service-accounts", "/access/sessions",
             "/access/new/issue-key", "/new/nodes/register-node", "/projections", "/verifications")  # fmt: skip
    for width in _WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        for path in paths:
            visitor.open(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
    visitor.open(own)
    page.get_by_text("Live: this page updates itself").wait_for()
    with running_plane.client() as admin:
        [session] = [
            each["id"] for each in admin.get("/sessions").json()["items"] if each["state"] == "active"
        ]
        assert admin.post(f"/sessions/{session}/end", json={"reason": "lost"}).is_success
    # Each refresh of the page leads to the login, and a later one interrupts the navigation of an earlier one.
    page.get_by_label("API key or token").wait_for()
    assert "/ui/login?" in page.url
    visitor.faults.clear()


def test_checks_of_the_overview_and_scopes_of_a_form_are_in_columns(visitor: Visitor) -> None:
    for path, cells in (("/", "#checks li > .quiet"), ("/access/new/issue-key", "[value$=':write']")):
        for width in _WIDTHS:
            visitor.page.set_viewport_size({"width": width, "height": 800})
            visitor.open(path)
            found = visitor.page.locator(cells).evaluate_all(_PLACES)
            assert len(found) > 4, path
            assert len({left for left, _ in found}) == 1, (path, width)
            assert len({top for _, top in found}) == len(found), (path, width)


def test_header_is_one_row_in_wide_windows_and_its_fields_never_overlap(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("/")
    page.get_by_text("Views", exact=True).wait_for()
    account, menu = page.locator(".account"), page.get_by_text("Menu", exact=True)
    user = account.locator("summary")
    field = page.get_by_role("searchbox")
    for width in (1920, 1265, *_WIDTHS):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(_OVERLAPS) == [], width
        assert menu.is_visible() is (width == 390), width
        tops = [menu if width == 390 else page.get_by_role("link", name="Overview"), field, user]
        rows = [
            each.evaluate("(it) => it.closest('nav, form, details').getBoundingClientRect().top")
            for each in tops
        ]
        assert (max(rows) - min(rows) < 20) is (width > 390), width
        assert width <= 390 or field.evaluate(_FITS), f"the placeholder is complete at {width} pixels"
        edges = page.evaluate(_EDGES)
        assert edges["header"] < (110 if width == 390 else 50), f"the header is low at {width} pixels"
        assert edges["brand"] == edges["heading"] or width in (1265, 1280), (
            f"{width}: one column with the content"
        )
        assert edges["name"] < 30, f"the name is one line at {width} pixels"
        assert width < 1920 or user.evaluate("(it) => it.scrollWidth <= it.clientWidth"), (
            "the name is complete"
        )
        assert user.get_attribute("title") == user.inner_text()
        user.press("Enter")
        shown = account.get_by_role("definition").first
        assert shown.inner_text() == user.inner_text()
        assert shown.evaluate("(it) => it.getBoundingClientRect().right <= innerWidth"), width
        account.get_by_role("button", name="Log out").focus()
        page.keyboard.press("Escape")
        assert user.evaluate("(it) => it === document.activeElement && !it.parentElement.open"), width
        user.press("Enter")
        field.focus()
        assert not account.evaluate("(it) => it.open"), "a menu that the focus leaves is closed"


def test_links_of_the_header_are_behind_a_menu_that_the_keyboard_opens_in_narrow_windows(
    visitor: Visitor, packages: Path
) -> None:
    page = visitor.page
    visitor.open("/nodes")
    link, menu = page.get_by_role("link", name="Tasks", exact=True), page.get_by_text("Menu", exact=True)
    assert (link.is_visible(), menu.is_visible()) == (True, False)
    page.set_viewport_size({"width": 390, "height": 800})
    assert (link.is_visible(), menu.is_visible()) == (False, True)
    assert violations(page, packages) == []
    page.keyboard.press("Tab")
    while not menu.evaluate("(it) => it === document.activeElement"):
        assert not page.evaluate("document.activeElement.closest('main')"), "the menu is before the content"
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    link.wait_for()
    assert violations(page, packages) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Escape")
    link.wait_for(state="hidden")
    page.keyboard.press("Enter")
    link.click()
    page.get_by_role("heading", name="Tasks").wait_for()


def test_no_page_runs_or_is_broken_by_one_of_a_hundred_hostile_texts(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    assert len(set(HOSTILE_TEXTS)) >= 100
    running = RunningAllocation(running_plane, admit(running_plane, "n1"), labels=dict(_labels(0)))
    with running_plane.client() as client:
        for first in range(_LABELS, len(HOSTILE_TEXTS), _LABELS):
            waiting = allocate(running_plane, wait_for_capacity=True, labels=dict(_labels(first)))
            assert waiting.is_success, waiting.text
        texts = [" | ".join(HOSTILE_TEXTS[at : at + 6]) for at in range(0, len(HOSTILE_TEXTS), 6)]
        for action, text in zip(cycle(("cordon", "uncordon")), texts, strict=False):
            assert client.post(f"/nodes/n1/{action}", json={"reason": text}).is_success, text
            assert client.patch("/projects/default", json={"description": text}).is_success, text
            running.report("slice.interrupted", reason={"code": "host_rebooted", "message": text})
            running.report("slice.ready", address=running.slot["private_ip"], port=22, banner=text[:255])
        listed = [each["id"] for each in client.get("/allocations", params={"limit": 100}).json()["items"]]
        tail = running_plane.last_position()
    pages = (
        "/", "/nodes", "/nodes/n1", "/projects", "/projects/default", "/allocations", "/tasks",
        "/events?type=node.cordoned", "/events?type=allocation.slice_interrupted", "/events?project=default", f"/events/{tail}",
        "/history?kind=node&name=n1", f"/history?kind=allocation&name={running.id}", f"/allocations/{running.id}/timeline",
        *(f"/allocations/{each}" for each in listed),
    )  # fmt: skip
    shown = " ".join(visitor.text_of(path) for path in pages)
    assert not_shown(shown, HOSTILE_TEXTS) == []


def _labels(first: int) -> Iterator[tuple[str, str]]:
    """Yield labels with the hostile texts from `first` on as names and values."""
    for number, text in enumerate(HOSTILE_TEXTS[first : first + _LABELS], first):
        yield f"{text[:55]} {number}", text[:255]
