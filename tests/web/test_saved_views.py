"""Saved views of the console in Chromium."""

import json

from tests.api.access.principals import issue
from tests.api.node import admit
from tests.servers.plane import RunningPlane
from tests.web.visitors import Visitor

HOSTILE = "<img src=x onerror=\"document.title='run'\">"


def test_page_with_its_filters_is_saved_under_a_name_and_found_again_until_it_is_removed(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    admit(running_plane, "n1")
    page = visitor.page
    views = page.locator("[data-views]")
    visitor.open("/tasks?state=done&node=n1&cursor=&notice=retry")
    for name in (HOSTILE, "b", "b"):
        if views.get_attribute("open") != "":
            views.locator("summary").press("Enter")
        views.get_by_label("Name").fill(name)
        page.keyboard.press("Enter")
        views.get_by_role("link", name=name, exact=True).wait_for()
    assert views.get_by_role("link").count() == 2, "a name that is saved again replaces its address"
    page.keyboard.press("Escape")
    assert not views.get_by_role("link").first.is_visible()

    visitor.open("/nodes")
    views.locator("summary").click()
    views.get_by_role("link", name=HOSTILE, exact=True).click()
    page.wait_for_url("**/ui/tasks?state=done&node=n1")
    assert page.get_by_label("State").input_value() == "done"
    assert page.title().startswith("Tasks")
    views.locator("summary").click()
    assert views.locator("[aria-current=page]").count() == 2
    views.get_by_role("button", name=f"Remove view {HOSTILE}").click()
    visitor.open("/nodes")
    views.locator("summary").click()
    assert views.get_by_role("link").all_inner_texts() == ["b"]
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 800})
        box = views.locator("> div").bounding_box()
        assert box is not None
        assert (box["x"] >= 0, box["x"] + box["width"] <= width) == (True, True), width


def test_views_are_kept_for_each_caller_apart_and_an_address_outside_of_the_console_is_not_shown(
    visitor: Visitor, running_plane: RunningPlane
) -> None:
    page = visitor.page
    views = page.locator("[data-views]")
    actor = str(views.get_attribute("data-views"))
    foreign = [{"name": "a", "url": "javascript:alert(1)"}, {"name": "b", "url": "//example.com/"}, 7,
               {"name": "c", "url": "/ui/nodes"}]  # fmt: skip
    store = "([key, value]) => localStorage.setItem(key, value)"
    page.evaluate(store, [f"sliceplane.views.{actor}", json.dumps(foreign)])
    visitor.open("/nodes")
    views.locator("summary").click()
    assert views.get_by_role("link").all_inner_texts() == ["c"]
    page.evaluate(store, [f"sliceplane.views.{actor}", "{broken"])
    visitor.open("/nodes")
    views.locator("summary").click()
    assert views.get_by_role("link").count() == 0
    views.get_by_label("Name").fill("mine")
    page.keyboard.press("Enter")
    views.get_by_role("link", name="mine").wait_for()

    other = issue(running_plane, "other", "auditor")
    page.locator(".account summary").click()
    page.get_by_role("button", name="Log out").click()
    visitor.log_in(other.secret)
    page.get_by_role("heading", name="Overview").wait_for()
    views.locator("summary").click()
    assert views.get_by_role("link").count() == 0
