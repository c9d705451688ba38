"""Every page and every form of the console, as each role, in Chromium.

The API decides what each role reads and changes (`tests.api.access`). These tests check that the pages show its
decision: a page is complete, has the expected status, enables no form that the role may not send, and links no page
that the role may not read.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest
from playwright.sync_api import Browser
from starlette.routing import Route

from control_plane.web.console import routes
from control_plane.web.cookies import ROOT
from tests.api.access.principals import create_project, issue
from tests.api.requests.test_examples import World
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.web.chromium.console_pages import FORMS, PAGES, TESTED_ELSEWHERE, open_console_session
from tests.web.visitors import Visitor, visiting

Names = dict[str, str]
_PRIVATE: Final = "label-of-the-default-project"
_OTHER: Final = "other"
_ROLES: Final[dict[str, dict[str, Any]]] = {
    "admin": {},
    "auditor": {"role": "auditor"},
    "caller": {"role": "caller", "projects": ["default"]},
    "caller of another project": {"role": "caller", "projects": [_OTHER]},
}
_VARIABLE: Final = re.compile(
    r"alc-[0-9a-z]{26}|[0-9a-f]{2}(?::[0-9a-f]{2}){5}|[0-9a-f-]{36}|-[0-9a-f]{8,}|\d+"
)
"""Parts of an address that differ between pages of one kind."""
_READ: Final = """() => ({
  title: document.title,
  last: document.body.lastElementChild.className,
  links: [...document.querySelectorAll('a[href^="/ui/"]')].map((each) => each.getAttribute('href')),
  forms: document.querySelectorAll('main form[method=post] button:not([type=button]):not([disabled])').length,
  html: document.documentElement.outerHTML,
})"""


class Case(NamedTuple):
    """A page as one role: its status, and whether the role may send its form."""

    path: str
    status: int
    sendable: bool = True


@pytest.fixture(scope="module")
def world(shared_plane: RunningPlane) -> World:
    create_project(shared_plane, _OTHER)
    return World(shared_plane)


@pytest.fixture(scope="module")
def names(world: World) -> Names:
    """Return the values of the placeholders in the paths. All resources with a project belong to `default`."""
    own = world.active(network_mode="public-nat", labels={"team": _PRIVATE})
    path = f"/allocations/{own['id']}"
    ingress = world.send("POST", f"{path}/ingress", {"port": 80}).json()["id"]
    task = world.send("GET", f"/tasks?allocation={own['id']}").json()["items"][0]["id"]
    position = world.send("GET", f"{path}/events").json()["items"][0]["position"]
    found = {"allocation": own["id"], "ingress": ingress, "task": task, "position": str(position)}
    found |= {"address": own["slots"][0]["mac_address"], "projection": "allocations", "project": "default"}
    found |= {
        **world.key(),
        **world.session(),
        **world.account(),
        **world.verification(),
        **world.slot(),
        **world.sku(),
        **world.image(),
    }
    return found | {"period": "open", **open_console_session(world)}


def test_every_route_of_the_console_is_visited_by_these_tests_or_named_with_another_test() -> None:
    """A new page fails this test until `PAGES` contains it, and forms of a new kind of resource until `FORMS` does."""
    visited = {f"GET {each.path.partition('?')[0]}" for each in PAGES}
    visited |= {f"{method} {each.base}/{{action}}" for method in ("GET", "POST") for each in FORMS}
    found = {
        f"{method} {each.path_format.removeprefix(ROOT)}"
        for each in routes()
        if isinstance(each, Route)
        for method in each.methods or {"GET"}
    }
    assert {each for each in found if not each.startswith("HEAD ")} == visited | {*TESTED_ELSEWHERE}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", _ROLES)
def test_every_page_is_complete_and_enables_and_links_only_what_the_role_may_do(
    chromium: Browser, world: World, names: Names, role: str
) -> None:
    """Opens all pages and forms as one role, which takes more than 5 s."""
    key = issue(world.plane, "reader", **_ROLES[role]).secret if _ROLES[role] else ADMIN_KEY
    found, linked = dict[str, list[str]](), set[str]()
    with visiting(chromium, world.plane.url, key) as visitor:
        for case in _cases(world, key, names, is_foreign="another" in role):
            wrong, links = _open(visitor, case, is_foreign="another" in role)
            linked.update(links)
            if wrong:
                found[case.path] = wrong
        assert found == {}
        assert [*_refused(visitor, linked)] == []


def _cases(world: World, key: str, names: Names, *, is_foreign: bool) -> list[Case]:
    """Return the pages and forms as the caller with an API key. `is_foreign` is whether it has no access to the project
    `default`.
    """
    with world.plane.client(Authorization=f"Bearer {key}") as client:
        scopes = {"", *client.get("/whoami").json()["scopes"]}

    def status(scope: str, *, owned: bool, refusal_of_read: int = 403) -> int:
        if scope not in scopes:
            return refusal_of_read
        return 404 if owned and is_foreign else 200

    pages = [Case(each.path.format(**names), status(each.scope, owned=each.owned)) for each in PAGES]
    forms = [
        Case(
            f"{each.base.format(**names)}/{action}",
            status(each.read, owned=each.owned, refusal_of_read=each.refusal_of_read),
            each.write in scopes,
        )
        for each in FORMS
        for action in each.resource.actions
    ]
    return [*pages, *forms]


def _open(visitor: Visitor, case: Case, *, is_foreign: bool) -> tuple[list[str], list[str]]:
    """Open a page, and return what is wrong with it, and its links."""
    response = visitor.page.goto(f"{visitor.url}/ui{case.path}", wait_until="domcontentloaded")
    assert response is not None
    shown = visitor.page.evaluate(_READ)
    wrong = [] if response.status == case.status else [f"status {response.status} instead of {case.status}"]
    if not (shown["title"].endswith("· Sliceplane") and shown["last"] == "bottom"):
        wrong.append(f"incomplete, with the title {shown['title']!r}")
    if shown["forms"] and not case.sendable:
        wrong.append("the form can be sent")
    if is_foreign and _PRIVATE in shown["html"]:
        wrong.append("data of another project")
    # Chromium logs each refused page as an error.
    wrong += [each for each in visitor.faults if case.status == 200 or f" {case.status} " not in each]
    visitor.faults.clear()
    return wrong, shown["links"]


def _refused(visitor: Visitor, links: set[str]) -> Iterator[tuple[str, int]]:
    """Yield the links that the console refuses, one of each kind. The page of a serial log would wait for an agent."""
    kinds = {_VARIABLE.sub("*", each): each for each in sorted(links) if "/serial-log" not in each}
    for each in kinds.values():
        status = visitor.context.request.get(f"{visitor.url}{each}").status
        if status != 200:
            yield each, status
