"""A user of the console in Chromium."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from playwright.sync_api import Browser, BrowserContext, Page

_FOREIGN: Final = (
    "img, iframe, object, embed, base, math, marquee, dialog, template, script:not([src$='console.js'])"
)
"""Elements that no page of the console has."""


@dataclass
class Visitor:
    """A logged-in user in Chromium. `faults` are errors of scripts, violations of the policy, and foreign requests."""

    context: BrowserContext
    page: Page
    url: str
    faults: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(f"{self.url}/ui{path}")

    def text_of(self, path: str) -> str:
        """Open a page, check that no text on it has opened or closed an element or run as a script, and return what it
        shows.
        """
        self.open(path)
        # The end of the page is where the server put it.
        self.page.locator("body > footer").wait_for()
        assert self.page.title().endswith("· Sliceplane"), path
        assert self.page.locator(_FOREIGN).count() == 0, path
        return self.page.locator("main").inner_text()

    def log_in(self, key: str) -> None:
        """Enter an API key into the form of the login, which the page shows, and send the form."""
        self.page.locator("#key:focus").wait_for()
        self.page.keyboard.type(key)
        self.page.keyboard.press("Enter")

    def new_page(self) -> Page:
        """Open another tab, and record its faults too."""
        page = self.context.new_page()
        self._watch(page)
        return page

    def watch(self) -> None:
        """Record the faults of the page from now on."""
        self._watch(self.page)

    def _watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda shown: self._note(shown.type, shown.text))
        page.on("request", lambda sent: self._note_foreign(sent.url))

    def _note(self, kind: str, text: str) -> None:
        if kind == "error":
            self.faults.append(text)

    def _note_foreign(self, url: str) -> None:
        if not url.startswith(f"{self.url}/ui"):
            self.faults.append(f"request to {url}")


@contextmanager
def visiting(browser: Browser, url: str, key: str) -> Iterator[Visitor]:
    """Log in with an API key in a browser context of its own, which is closed when the `with` block ends."""
    with closing(browser.new_context(viewport={"width": 1280, "height": 800})) as context:
        made = Visitor(context, context.new_page(), url)
        made.watch()
        made.open("/")
        made.log_in(key)
        made.page.get_by_role("heading", name="Overview").wait_for()
        yield made
