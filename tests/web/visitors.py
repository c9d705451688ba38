"""A user of the console in Chromium."""

from dataclasses import dataclass, field

from playwright.sync_api import BrowserContext, Page


@dataclass
class Visitor:
    """A logged-in user in Chromium. `faults` are errors of scripts, violations of the policy, and foreign requests."""

    context: BrowserContext
    page: Page
    url: str
    faults: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(f"{self.url}/ui{path}")

    def watch(self) -> None:
        """Record the faults of the page from now on."""
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda shown: self._note(shown.type, shown.text))
        self.page.on("request", lambda sent: self._note_foreign(sent.url))

    def _note(self, kind: str, text: str) -> None:
        if kind == "error":
            self.faults.append(text)

    def _note_foreign(self, url: str) -> None:
        if not url.startswith(f"{self.url}/ui"):
            self.faults.append(f"request to {url}")
