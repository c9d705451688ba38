"""A browser without scripts: it keeps cookies, follows redirections and sends the forms of pages."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx

from tests.servers.plane import ADMIN_KEY, RunningPlane, http_client


@dataclass
class Page:
    """A page of the console: its response, and what a user sees of it."""

    response: httpx.Response
    text: str = ""
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def path(self) -> str:
        """Path and query of the page after all redirections."""
        return self.response.url.raw_path.decode()

    def attributes(self, tag: str, name: str) -> list[str]:
        """Return the values of an attribute of all elements with this tag."""
        return [found[name] or "" for each, found in self.tags if each == tag and name in found]


_BLOCKS = frozenset({"td", "th", "dt", "dd", "li", "p"})
"""Elements of which a browser shows the text apart from the text before it."""


class _Reader(HTMLParser):
    """Reader of a page. It fails on markup that browsers would have to correct, such as an unclosed attribute."""

    def __init__(self, page: Page) -> None:
        super().__init__(convert_charrefs=True)
        self._page, self._pieces = page, list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._page.tags.append((tag, dict(attrs)))
        if tag in _BLOCKS:
            self._pieces.append(" ")

    def handle_data(self, data: str) -> None:
        self._pieces.append(data)

    def close(self) -> None:
        super().close()
        self._page.text = re.sub(r"\s+", " ", "".join(self._pieces))


def page_of(response: httpx.Response) -> Page:
    page = Page(response)
    reader = _Reader(page)
    reader.feed(response.text)
    reader.close()
    return page


class Browser:
    """A browser with its own cookies."""

    def __init__(self, plane: RunningPlane) -> None:
        self.client = http_client(plane.url, follow_redirects=True)

    def open(self, path: str, **query: str) -> Page:
        return page_of(self.client.get(f"/ui{path}", params=query or None))

    def submit(self, path: str, *, of: str | None = None, **fields: Any) -> Page:
        """Open the page with a form (`of`, else the page that the form is sent to), and send the form with these
        fields.
        """
        form = self.open(of or path)
        hidden = {
            found["name"] or "": found.get("value") or ""
            for tag, found in form.tags
            if tag == "input" and found.get("type") == "hidden" and "name" in found
        }
        return self.post(path, **{**hidden, **fields})

    def post(self, path: str, **fields: Any) -> Page:
        return page_of(self.client.post(f"/ui{path}", data=fields))

    def log_in(self, key: str, path: str = "/login") -> Page:
        return self.submit(path, key=key)


def logged_in(plane: RunningPlane, key: str = ADMIN_KEY) -> Browser:
    """Return a browser that is logged in with an API key."""
    browser = Browser(plane)
    page = browser.log_in(key)
    assert page.path == "/ui/", page.text
    return browser
