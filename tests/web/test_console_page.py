"""Tests of the pages of serial consoles and displays in Chromium, with an agent that has a simulated host."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext

from node_agent.lab.simulated.display import COLOURS, HEIGHT, WIDTH
from tests.api.access.principals import issue
from tests.road.conftest import Site, running_site
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.waiting import until
from tests.web.axe import violations
from tests.web.browsing import logged_in
from tests.web.visitors import Visitor

_POLICY_REPORTS = """
window.reports = [];
document.addEventListener('securitypolicyviolation', (event) => window.reports.push(event.violatedDirective));
"""
_PIXELS = """() => {
  const canvas = document.querySelector('[data-display] canvas');
  if (!canvas || !canvas.width) return null;
  const [red, green, blue] = canvas.getContext('2d').getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data;
  return [canvas.width, canvas.height, red << 16 | green << 8 | blue];
}"""


@dataclass
class Consoles:
    """The serial console and the display of one active allocation, and a browser in which an admin is logged in."""

    site: Site
    visitor: Visitor
    allocation: str

    def show(self, page: str) -> None:
        """Open a page of the allocation: `page` is `console` or `display`."""
        self.visitor.open(f"/allocations/{self.allocation}/{page}?slot=0")

    def start(self) -> None:
        self.visitor.page.get_by_role("button", name="Open", exact=True).click()
        self.await_state("Connected with sim-a/")

    def await_state(self, text: str) -> None:
        self.visitor.page.locator("[data-console-state]").get_by_text(text).wait_for()

    def open(self) -> list[dict[str, Any]]:
        with self.site.plane.client() as client:
            items: list[dict[str, Any]] = client.get("/console-sessions").json()["items"]
        return items

    def await_colour(self, number: int) -> None:
        """Wait until the page shows the simulated display in its colour `number`."""
        expected = [WIDTH, HEIGHT, COLOURS[number]]
        until(lambda: self.visitor.page.evaluate(_PIXELS) == expected, f"the display has colour {number}")

    def end(self) -> str:
        """Wait until no session is open, and return the reason code with which the last session ended."""
        until(lambda: self.open() == [], "no session is open")
        query = "select (data::jsonb)->'reason'->>'code' from ledger.event where type = 'console.disconnected' order by position desc limit 1"
        return str(self.site.plane.rows(query)[0][0])


@pytest.fixture
def site(emptied_plane: RunningPlane, tmp_path: Path) -> Iterator[Site]:
    with running_site(emptied_plane, tmp_path) as made:
        yield made


@pytest.fixture
def consoles(site: Site, chromium: Browser) -> Iterator[Consoles]:
    with chromium.new_context(viewport={"width": 1280, "height": 900}) as context:
        made = consoles_in(context, site)
        yield made
        assert made.visitor.page.evaluate("window.reports") == []
        assert made.visitor.faults == []


def consoles_in(context: BrowserContext, site: Site) -> Consoles:
    """Log in, and return the consoles of a new active allocation."""
    allocation = site.create()
    site.await_state(allocation, "active")
    context.add_init_script(_POLICY_REPORTS)
    visitor = Visitor(context, context.new_page(), site.plane.url)
    visitor.watch()
    visitor.open(f"/allocations/{allocation}")
    visitor.log_in(ADMIN_KEY)
    visitor.page.get_by_role("heading", name=allocation).wait_for()
    return Consoles(site, visitor, allocation)


def test_terminal_shows_the_login_and_what_is_typed_and_a_closed_session_is_opened_again(
    consoles: Consoles,
) -> None:
    page = consoles.visitor.page
    page.get_by_role("link", name="Serial console").click()
    consoles.await_state("No session is open.")
    rows = page.locator(".xterm-rows")
    consoles.start()
    until(lambda: "login: " in rows.inner_text(), "the terminal shows the login")
    page.keyboard.type("root")
    until(lambda: "login: root" in rows.inner_text().replace("\xa0", " "), "the guest echoes the input")
    # Shift and Tab leave the terminal, which gets every other key.
    page.keyboard.press("Shift+Tab")
    assert not page.evaluate("document.activeElement.closest('[data-terminal]')")
    page.get_by_role("button", name="Close").click()
    consoles.await_state("Closed by you.")
    assert consoles.end() == "closed_by_caller"
    page.get_by_role("button", name="Open again").click()
    consoles.await_state("Connected with")
    until(lambda: "root" not in rows.inner_text(), "the terminal is empty")


def test_terminal_shows_24_bit_colours_without_violating_the_content_security_policy(
    consoles: Consoles,
) -> None:
    page = consoles.visitor.page
    consoles.show("console")
    consoles.start()
    # The guest echoes control sequences as a program would send them: a colour of 24 bits is a style of its own.
    page.locator(".xterm-helper-textarea").evaluate(
        "(area) => { const data = new DataTransfer(); data.setData('text/plain', '\\x1b[38;2;200;220;40mcoloured');"
        " area.dispatchEvent(new ClipboardEvent('paste', {clipboardData: data, bubbles: true})); }"
    )
    coloured = page.locator(".xterm-rows span", has_text="coloured")
    coloured.wait_for()
    assert coloured.evaluate("each => getComputedStyle(each).color") == "rgb(200, 220, 40)"


def test_reload_ends_the_session(consoles: Consoles) -> None:
    consoles.show("console")
    consoles.start()
    [former] = consoles.open()
    consoles.visitor.page.reload()
    assert consoles.end() == "closed_by_caller"
    consoles.start()
    assert consoles.open()[0]["id"] != former["id"]


def test_session_ends_within_five_seconds_after_the_browser_is_killed(site: Site, chromium: Browser) -> None:
    consoles = consoles_in(chromium.new_context(), site)
    consoles.show("console")
    consoles.start()
    found = chromium.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
    [program] = [each["id"] for each in found["processInfo"] if each["type"] == "browser"]
    os.kill(program, signal.SIGKILL)
    until(lambda: consoles.open() == [], "no session is open", 5)
    assert consoles.end() == "closed_by_caller"


def test_display_is_drawn_and_gets_keys_pasted_text_and_ctrl_alt_del(consoles: Consoles) -> None:
    page = consoles.visitor.page
    page.get_by_role("link", name="Display").click()
    consoles.await_state("No session is open.")
    assert page.get_by_role("button", name="Send Ctrl-Alt-Del").is_disabled()
    consoles.start()
    consoles.await_colour(0)
    page.get_by_role("button", name="Send Ctrl-Alt-Del").click()
    consoles.await_colour(3)  # each of the three keys changes the colour
    page.keyboard.press("a")
    consoles.await_colour(0)
    # The keys are a, Shift with B, and Enter.
    page.get_by_label("Paste as keys").fill("aB\n")
    page.get_by_role("button", name="Type into the display").click()
    is_typed = "document.activeElement.tagName == 'CANVAS'"
    until(lambda: page.evaluate(is_typed), "the text is typed, and the display has the focus again")
    consoles.await_colour(0)
    page.keyboard.press("a")
    consoles.await_colour(1)
    # The three keys change the colour, and their release gives the focus back.
    page.keyboard.press("Control+Alt+Shift")
    assert page.evaluate("document.activeElement.hasAttribute('data-console-close')")


def test_display_that_is_open_is_refused_unless_it_is_opened_as_a_second_viewer(consoles: Consoles) -> None:
    consoles.show("display")
    consoles.start()
    other = consoles.visitor.context.new_page()
    other.goto(consoles.visitor.page.url)
    other.get_by_role("button", name="Open", exact=True).click()
    other.get_by_text("Ended: ").get_by_text("open it as shared").wait_for()
    other.get_by_label("Open as a second viewer").check()
    other.get_by_role("button", name="Open again").click()
    other.get_by_text("Connected with").wait_for()
    assert len(consoles.open()) == 2


def test_open_session_is_listed_and_cut_and_its_page_shows_the_reason(consoles: Consoles) -> None:
    consoles.show("display")
    consoles.start()
    [listed] = consoles.open()
    admin = logged_in(consoles.site.plane)
    sessions = admin.open("/access/console-sessions").text
    assert (listed["id"] in sessions, "Past sessions are in the events." in sessions) == (True, True)
    own = f"/access/console-sessions/{listed['id']}"
    done = admin.submit(f"{own}/cut", reason="maintenance of the rack")
    assert done.path.startswith("/ui/access/console-sessions?notice=cut")
    consoles.await_state("maintenance of the rack")
    assert consoles.visitor.page.locator("canvas").count() == 0
    assert consoles.end() == "cut"
    assert admin.open(f"{own}/cut").status == 404


def test_release_of_the_allocation_ends_the_session_with_the_reason(consoles: Consoles) -> None:
    consoles.show("console")
    consoles.start()
    with consoles.site.plane.client() as client:
        assert client.delete(f"/allocations/{consoles.allocation}").is_success
    consoles.await_state("Ended: ")
    consoles.visitor.page.get_by_role("button", name="Open again").click()
    consoles.await_state("Refused: ")
    consoles.visitor.faults[:] = [each for each in consoles.visitor.faults if "409" not in each]


@pytest.mark.parametrize("role", ["caller", "auditor"])
def test_console_is_disabled_with_the_reason_for_a_role_that_may_not_open_it(site: Site, role: str) -> None:
    allocation = site.create()
    limits = {"projects": ["default"]} if role == "caller" else {}
    user = logged_in(site.plane, issue(site.plane, role, role, **limits).secret)
    page = user.open(f"/allocations/{allocation}")
    assert "the scope fleet:write is missing" in page.text
    assert "/console?" not in "".join(page.attributes("a", "href"))
    for kind in ("console", "display"):
        shown = user.open(f"/allocations/{allocation}/{kind}")
        assert "the scope fleet:write is missing" in shown.text
        assert shown.attributes("button", "data-console-open") == []
    assert user.open("/access/console-sessions").status == 403
    refused = user.submit(
        f"/allocations/{allocation}/console-sessions",
        of=f"/allocations/{allocation}",
        kind="serial",
        slot="0",
    )
    assert refused.status == 403


def test_session_is_not_requested_without_the_token_of_the_form(running_plane: RunningPlane) -> None:
    refused = logged_in(running_plane).post("/allocations/alc-1/console-sessions", kind="serial")
    assert (refused.status, "foreign_form" in refused.response.text) == (403, True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_open_consoles_do_not_violate_a_rule_of_axe(consoles: Consoles, packages: Path, scheme: str) -> None:
    page = consoles.visitor.page
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # the type of the parameter is a literal
    found = {}
    for name in ("console", "display"):
        consoles.show(name)
        consoles.start()
        found[name] = violations(page, packages)
        consoles.visitor.open("/access/console-sessions")
        found[f"list after {name}"] = violations(page, packages)
    assert not any(found.values()), found
