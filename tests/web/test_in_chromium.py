"""The web console in Chromium: the live page, forms by keyboard, and hostile texts that would run in a browser."""

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import ADMIN_KEY, RunningPlane

_WIDTHS = (1280, 390)
_HOSTILE = "<img src=x onerror=\"document.title='run'\">"


@pytest.fixture
def chromium() -> Iterator[Browser]:
    """Chromium of the Debian package `chromium`. Each test has its own: Chromium starts processes when a page needs
    them, and they would count as left behind by that test.
    """
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs Debian's package chromium, which ./dev does not install")
    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root.
        arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        with closing(playwright.chromium.launch(executable_path=program, args=arguments)) as browser:
            yield browser


@dataclass
class Visitor:
    """A logged-in user in Chromium. `faults` are errors of scripts, violations of the policy, and foreign requests."""

    context: BrowserContext
    page: Page
    url: str
    faults: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(f"{self.url}/ui{path}")


@pytest.fixture
def visitor(chromium: Browser, running_plane: RunningPlane) -> Iterator[Visitor]:
    with closing(chromium.new_context(viewport={"width": 1280, "height": 800})) as context:
        made = Visitor(context, context.new_page(), running_plane.url)
        made.page.on("pageerror", lambda error: made.faults.append(str(error)))
        made.page.on("console", lambda shown: _note(made, shown.type, shown.text))
        made.page.on("request", lambda sent: _note_foreign(made, sent.url))
        made.open("/")
        made.page.keyboard.type(ADMIN_KEY)
        made.page.keyboard.press("Enter")
        made.page.wait_for_url("**/ui/")
        yield made
        assert made.faults == []


def _note(visitor: Visitor, kind: str, text: str) -> None:
    if kind == "error":
        visitor.faults.append(text)


def _note_foreign(visitor: Visitor, url: str) -> None:
    if not url.startswith(f"{visitor.url}/ui"):
        visitor.faults.append(f"request to {url}")


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
             f"/history?kind=allocation&name={running.id}")  # fmt: skip
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
    page.wait_for_url("**/ui/login?*")
    visitor.faults.clear()
