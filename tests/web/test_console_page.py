"""The page of a serial console, in Chromium, with an agent with a simulated host."""

from pathlib import Path

from playwright.sync_api import Browser

from tests.road.conftest import running_site
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.waiting import until
from tests.web.visitors import Visitor


def test_admin_types_into_the_serial_console_of_a_slice_and_closes_it(
    emptied_plane: RunningPlane, tmp_path: Path, chromium: Browser
) -> None:
    with running_site(emptied_plane, tmp_path) as site, chromium.new_context() as context:
        allocation = site.create()
        site.await_state(allocation, "active")
        visitor = Visitor(context, context.new_page(), emptied_plane.url)
        visitor.watch()
        page = visitor.page
        visitor.open(f"/allocations/{allocation}/console")
        page.keyboard.type(ADMIN_KEY)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Open the console").click()
        page.get_by_text("Connected.").wait_for()
        terminal = page.get_by_role("textbox", name="Terminal")
        terminal.press_sequentially("root")
        terminal.press("Enter")
        until(lambda: "login: root\n" in terminal.inner_text(), "the guest echoes the input")
        page.get_by_role("button", name="Close").click()
        page.get_by_text("The connection is closed.").wait_for()
        client = emptied_plane.client()
        until(lambda: client.get("/console-sessions").json()["items"] == [], "the session has ended")
        assert visitor.faults == []
