"""Every problem type and reason code has a page on the server, for people and for programs, without credentials."""

import re
from html.parser import HTMLParser

import httpx
import pytest

from control_plane.api.requests.problem_types import ALL, ProblemType
from control_plane.api.routes.problem_pages import accepts_html
from control_plane.decisions.codes import ADVICE, CODES, RefusalClass
from tests.servers.plane import TLS_CONTEXT, RunningPlane

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
SENTENCE = re.compile(r"[A-Z].*\.", re.DOTALL)


class References(HTMLParser):
    """Collects the values of all attributes of a page that refer to something that a browser loads or opens."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]


def get(plane: RunningPlane, path: str, accept: str) -> httpx.Response:
    return httpx.get(f"{plane.url}{path}", headers={"Accept": accept}, verify=TLS_CONTEXT)


@pytest.mark.parametrize("kind", ALL.values(), ids=list(ALL))
def test_every_problem_type_has_a_cause_a_fix_and_an_example_with_a_known_code(kind: ProblemType) -> None:
    assert SENTENCE.fullmatch(kind.cause)
    assert SENTENCE.fullmatch(kind.fix)
    assert kind.example.message
    assert kind.example.code in CODES


def test_every_class_of_reason_codes_has_advice_on_what_to_do() -> None:
    assert ADVICE.keys() == set(RefusalClass)


def test_type_of_each_problem_leads_to_its_page_as_html_and_as_json(shared_plane: RunningPlane) -> None:
    for kind in ALL.values():
        page, view = get(shared_plane, kind.url, BROWSER), get(shared_plane, kind.url, "application/json")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["vary"] == view.headers["vary"] == "Accept"
        assert kind.title in page.text
        shown = view.json()
        assert (shown["type"], shown["status"], shown["cause"], shown["fix"]) == (
            kind.url,
            kind.status,
            kind.cause,
            kind.fix,
        )
        assert shown["example"]["type"] == kind.url


def test_pages_about_problems_load_nothing_and_link_only_to_pages_that_exist(
    shared_plane: RunningPlane,
) -> None:
    left, seen = ["/problems"], set[str]()
    while left:
        path = left.pop()
        answer = get(shared_plane, path, BROWSER)
        assert answer.status_code == 200, path
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        page = References(answer.text)
        assert not page.tags & {"script", "link", "img", "iframe", "object"}
        assert all(each.startswith("/problems") for each in page.found)
        seen.add(path)
        left += {*page.found} - seen - {*left}
    assert seen == {
        "/problems",
        *(kind.url for kind in ALL.values()),
        *(f"/problems/codes/{code}" for code in CODES),
    }


def test_problem_of_a_refused_request_refers_to_its_page_and_has_the_fix_as_a_hint(
    shared_plane: RunningPlane,
) -> None:
    for method, path in (("GET", "/v1/nodes"), ("PUT", "/v1/nodes"), ("GET", "/v2"), ("GET", "/problems/x")):
        answer = httpx.request(method, f"{shared_plane.url}{path}", verify=TLS_CONTEXT)
        described = get(shared_plane, answer.json()["type"], "application/json").json()
        assert (described["status"], described["title"], described["fix"]) == (
            answer.status_code,
            answer.json()["title"],
            answer.json()["hint"],
        )


@pytest.mark.parametrize("path", ["/problems/no-such-type", "/problems/codes/no_such_code"])
def test_request_for_the_page_of_an_unknown_problem_type_is_answered_with_a_problem(
    shared_plane: RunningPlane, path: str
) -> None:
    answer = get(shared_plane, path, BROWSER)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json, text/html;q=0.5", False),
        ("text/html;q=0.9, application/json;q=0.1", True),
        ("text/html;q=0", False),
        ("text/html;q=x", False),
    ],
)
def test_problem_page_is_html_only_for_a_client_that_accepts_html_and_does_not_prefer_json(
    accept: str, html: bool
) -> None:
    assert accepts_html(accept) is html
