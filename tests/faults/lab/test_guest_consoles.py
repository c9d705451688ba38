"""The serial console and the display of a real guest in Chromium, and the end of a session if a program that carries it
is killed (ING-5).
"""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, Page

from tests import matrix
from tests.faults.programs import NODE, Lab
from tests.waiting import until
from tests.web.visitors import Visitor

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(300)]
SECONDS: Final = 30.0
# The size of the display, the number of its colours, and the number of pixels that do not have the most frequent one.
_PICTURE: Final = """() => {
  const canvas = document.querySelector('[data-display] canvas');
  if (!canvas || !canvas.width) return null;
  const found = new Map(), {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4) {
    const colour = data[at] << 16 | data[at + 1] << 8 | data[at + 2];
    found.set(colour, (found.get(colour) || 0) + 1);
  }
  return [canvas.width, canvas.height, found.size, data.length / 4 - Math.max(...found.values())];
}"""


# The number of characters in a line of the terminal, from the width of its rows and of a character.
_COLUMNS: Final = """async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const rows = document.querySelector('.xterm-rows'), measured = document.querySelector('.xterm-char-measure-element');
  return Math.round(rows.getBoundingClientRect().width / (measured.getBoundingClientRect().width / measured.textContent.length));
}"""


@dataclass
class GuestConsoles:
    """The consoles of a guest, and an admin in Chromium."""

    lab: Lab
    visitor: Visitor
    allocation: str

    @property
    def page(self) -> Page:
        return self.visitor.page

    def start(self, page: str) -> str:
        """Open the page `console` or `display` and a session on it, and return the id of the session."""
        self.visitor.open(f"/allocations/{self.allocation}/{page}?slot=0")
        self.page.get_by_role("button", name="Open", exact=True).click()
        state = self.page.locator("[data-console-state]")
        shown = state.get_by_text(re.compile("^(Connected|Ended|Refused)")).inner_text()
        assert shown.startswith(f"Connected with {NODE}/"), shown
        return shown.rpartition("session ")[2].rstrip(".")

    def terminal(self) -> str:
        return self.page.locator(".xterm-rows").inner_text().replace("\xa0", " ")

    def run(self, command: str, expected: str) -> None:
        """Type a command into the open terminal, and wait until it shows a text."""
        self.page.keyboard.type(f"{command}\n")
        until(lambda: expected in self.terminal(), f"the terminal shows {expected!r}", SECONDS)

    def log_in(self) -> None:
        """Log in at the open serial console; the lab's guest asks for no password."""
        prompt = re.compile(r"# *$")

        def is_logged_in() -> bool:
            self.page.keyboard.press("Enter")
            return prompt.search(self.terminal().rstrip("\n ")) is not None

        until(is_logged_in, "the guest shows its prompt", SECONDS)

    def open(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.lab.call("GET", "/console-sessions")["items"]
        return items

    def end_of(self, console: str) -> str:
        """Wait until no session is open or stored, and return the code of the reason with which `console` ended."""
        until(lambda: self.open() == [] and not self.is_stored(console), "no session is open", SECONDS)
        ends = self.lab.facts("console.disconnected")
        [code] = [each["reason"]["code"] for each in ends if each["console_id"] == console]
        return str(code)

    def is_stored(self, console: str) -> bool:
        """Return whether the database has a row of the session."""
        with psycopg.connect(self.lab.stack.admin_dsn) as conn:
            query = "select from work.console where console_id = %s"
            return conn.execute(query, [console]).fetchone() is not None

    def is_carried(self, since: datetime) -> bool:
        """Return whether a console can be opened: every process of the API serves, and the node has sent a heartbeat
        after the given time.
        """
        for url in self.lab.stack.api_urls:
            try:
                httpx.get(f"{url}/healthz", verify=self.lab.stack.trusted, timeout=5)
            except httpx.TransportError:
                return False
        node = self.lab.call("GET", f"/nodes/{NODE}")
        return node["state"] == "enrolled" and datetime.fromisoformat(node["seen_at"]) > since

    def listeners(self) -> dict[str, list[str]]:
        """Return the addresses on which processes of the node listen for TCP connections, by program."""
        found: dict[str, list[str]] = {}
        for line in self.lab.node.run(["ss", "-Hltnp"]).stdout.splitlines():
            program = re.search(r'users:\(\("([^"]+)"', line)
            found.setdefault(program[1] if program else "", []).append(line.split()[3])
        return found


@pytest.fixture(scope="module")
def allocation(lab: Lab) -> Iterator[str]:
    until(lab.is_ready, "the node is ready", 60)
    made = lab.create(gateway_access=True)
    try:
        lab.await_state(made, "active")
        yield made
    finally:
        lab.release_all(made)


@pytest.fixture
def consoles(lab: Lab, allocation: str, chromium: Browser) -> Iterator[GuestConsoles]:
    # The node connects to the first API process, and the browser to the second one.
    url = lab.stack.api_urls[1]
    with chromium.new_context(viewport={"width": 1280, "height": 900}, ignore_https_errors=True) as context:
        visitor = Visitor(context, context.new_page(), url)
        visitor.open(f"/allocations/{allocation}")
        visitor.log_in(lab.key)
        visitor.page.get_by_role("heading", name=allocation).wait_for()
        visitor.watch()
        yield GuestConsoles(lab, visitor, allocation)
        assert visitor.faults == []


def test_guest_login_and_commands_work_at_its_serial_console_in_the_browser(consoles: GuestConsoles) -> None:
    console = consoles.start("console")
    consoles.log_in()
    consoles.page.keyboard.type("echo $(id -un) at $(hostname) on $(tty)\n")
    expected = f"root at {consoles.allocation} on /dev/ttyS0"
    until(lambda: expected in consoles.terminal(), "the guest shows its name", SECONDS)
    consoles.page.get_by_role("button", name="Close").click()
    assert consoles.end_of(console) == "closed_by_caller"


def test_terminal_in_the_browser_is_a_shell_of_a_private_slice_with_the_size_of_the_page(
    consoles: GuestConsoles,
) -> None:
    console = consoles.start("terminal")
    consoles.run("echo $(id -un) at $(hostname) on $(tty)", f"root at {consoles.allocation} on /dev/pts/")
    [listed] = consoles.open()
    assert (listed["id"], listed["kind"], listed["state"]) == (console, "terminal", "connected")
    for width in (1280, 800):
        consoles.page.set_viewport_size({"width": width, "height": 900})
        columns = consoles.page.evaluate(_COLUMNS)
        consoles.run("stty size | sed 's/.* /columns /'", f"columns {columns}")
    consoles.run("exit 3", "")
    state = consoles.page.locator("[data-console-state]")
    state.get_by_text("Ended: the shell has ended with exit status 3.").wait_for()
    assert consoles.end_of(console) == "shell_ended"


def test_boot_screen_of_a_guest_is_shown_in_the_browser_and_qemu_listens_on_no_address(
    consoles: GuestConsoles,
) -> None:
    before = consoles.listeners()
    console = consoles.start("display")

    def is_drawn() -> bool:
        picture = consoles.page.evaluate(_PICTURE)
        return picture is not None and picture[2] > 1 and picture[3] > 100

    until(is_drawn, "the display shows a picture with text", SECONDS)
    during = consoles.listeners()
    consoles.page.get_by_role("button", name="Close").click()
    assert consoles.end_of(console) == "closed_by_caller"
    # Programs that restart meanwhile listen on other ports; QEMU never listens.
    assert [
        each for found in (before, during, consoles.listeners()) for each in found if "qemu" in each
    ] == []


def kill_agent(consoles: GuestConsoles) -> None:
    consoles.lab.signal("agent", signal.SIGKILL)


def kill_api_of_node(consoles: GuestConsoles) -> None:
    consoles.lab.signal("api", signal.SIGKILL)


def kill_api_of_caller(consoles: GuestConsoles) -> None:
    consoles.lab.signal("api-2", signal.SIGKILL)


def close_browser(consoles: GuestConsoles) -> None:
    consoles.page.close()


KILLS: Final = {
    "agent": (kill_agent, "closed_by_node"),
    "api-of-node": (kill_api_of_node, "closed_by_node"),
    "api-of-caller": (kill_api_of_caller, "api_process_ended"),
    "browser": (close_browser, "closed_by_caller"),
}
# The usual run has each program once, and each kind twice.
_CASES: Final = [
    (kind, name)
    for number, name in enumerate(KILLS)
    for kind in (("console", "display") if matrix.is_full() else (("console", "display")[number % 2],))
]


@pytest.mark.parametrize(("kind", "name"), _CASES, ids=["-".join(each) for each in _CASES])
def test_console_session_ends_when_a_program_that_carries_it_is_killed_and_the_console_can_be_opened_again(
    consoles: GuestConsoles, kind: str, name: str
) -> None:
    kill, end = KILLS[name]
    console = consoles.start(kind)
    kill(consoles)
    assert consoles.end_of(console) == end
    ended = datetime.now(UTC)
    until(lambda: consoles.is_carried(ended), "the programs that carry a session are available again", 60)
    reached = Visitor(consoles.visitor.context, consoles.visitor.context.new_page(), consoles.visitor.url)
    again = GuestConsoles(consoles.lab, reached, consoles.allocation)
    other = again.start(kind)
    reached.page.close()
    assert again.end_of(other) == "closed_by_caller"
    consoles.visitor.faults.clear()
