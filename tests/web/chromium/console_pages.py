"""Tables of the pages and of the forms of the console, with the scopes that they need.

`test_pages_of_roles` fails if the console has a route that no table contains.
"""

from typing import Final, NamedTuple

from control_plane.web.actions import Resource
from control_plane.web.pages.access_actions import ACCESS, KEY, SERVICE_ACCOUNT, SESSION_OF_CALLER
from control_plane.web.pages.allocation_actions import ALLOCATION, INGRESS
from control_plane.web.pages.catalogue_actions import IMAGE, NEW_IMAGE, NEW_SKU, SKU
from control_plane.web.pages.consoles import CONSOLE
from control_plane.web.pages.fleet_actions import NEW_NODE, NODE, SLOT, TASK
from control_plane.web.pages.project_actions import NEW_PROJECT, PERIOD, PROJECT
from control_plane.web.pages.read_model_actions import PROJECTION, VERIFICATIONS
from tests.api.requests.test_examples import World


class Page(NamedTuple):
    """A page. `scope` is the scope of its content (empty: none); a page that is `owned` belongs to a project."""

    path: str
    scope: str = ""
    owned: bool = False


class Forms(NamedTuple):
    """The forms of the actions on a kind of resource, below the path `base`. `read` is the scope that shows a form, and
    `write` the scope that enables it. `refusal_of_read` is the status for a caller that may not read the resource.
    """

    base: str
    resource: Resource
    read: str
    write: str
    owned: bool = False
    refusal_of_read: int = 403


PAGES: Final = (
    Page("/"),
    Page("/search?q=absent"),
    Page("/nodes", "fleet:read"),
    Page("/nodes/{node}", "fleet:read"),
    Page("/nodes/{node}/slots/{index}", "fleet:read"),
    Page("/allocations", "allocations:read"),
    Page("/allocations/new", "catalogue:read"),
    Page("/allocations/{allocation}", "allocations:read", owned=True),
    Page("/allocations/{allocation}/placement", "allocations:read", owned=True),
    Page("/allocations/{allocation}/timeline?level=routine", "allocations:read", owned=True),
    Page("/allocations/{allocation}/console", "allocations:read", owned=True),
    Page("/allocations/{allocation}/display", "allocations:read", owned=True),
    Page("/allocations/{allocation}/terminal", "allocations:read", owned=True),
    Page("/history"),
    Page("/history?kind=allocation&name={allocation}", "events:read", owned=True),
    Page("/history?kind=node&name={node}", "fleet:read"),
    Page("/history?kind=address&name={address}", "fleet:read"),
    Page("/events", "events:read"),
    Page("/events/{position}", "events:read", owned=True),
    Page("/tasks", "tasks:read"),
    Page("/tasks/{task}", "tasks:read", owned=True),
    Page("/usage", "usage:read"),
    Page("/usage/entries", "usage:read"),
    Page("/usage/periods/{period}", "usage:read"),
    Page("/reservations", "projects:read"),
    Page("/projects", "projects:read"),
    Page("/projects/{project}", "projects:read", owned=True),
    Page("/skus", "catalogue:read"),
    Page("/skus/{sku}", "catalogue:read"),
    Page("/images", "catalogue:read"),
    Page("/images/{image}", "catalogue:read"),
    Page("/bulk/allocations?action=renew&item={allocation}", "allocations:read"),
    Page("/bulk/nodes?action=cordon&item={node}", "fleet:read"),
    Page("/access/keys", "access:read"),
    Page("/access/keys/{key}", "access:read"),
    Page("/access/service-accounts", "access:read"),
    Page("/access/service-accounts/{account}", "access:read"),
    Page("/access/sessions"),
    Page("/access/console-sessions", "fleet:write"),
    Page("/projections", "fleet:read"),
    Page("/verifications", "fleet:read"),
    Page("/verifications/{verification}", "fleet:read"),
)
FORMS: Final = (
    Forms("/nodes/{node}", NODE, "fleet:read", "fleet:write"),
    Forms("/nodes/{node}/slots/{index}", SLOT, "fleet:read", "fleet:write"),
    Forms("/allocations/{allocation}", ALLOCATION, "allocations:read", "allocations:write", owned=True),
    Forms("/allocations/{allocation}/ingress/{ingress}", INGRESS, "allocations:read", "allocations:write", owned=True),
    Forms("/tasks/{task}", TASK, "tasks:read", "tasks:write", owned=True),
    Forms("/usage/periods/open", PERIOD, "usage:read", "usage:write"),
    Forms("/projects/{project}", PROJECT, "projects:read", "projects:write", owned=True),
    Forms("/access/keys/{key}", KEY, "access:read", "access:write"),
    Forms("/access/service-accounts/{account}", SERVICE_ACCOUNT, "access:read", "access:write"),
    # A caller reads its own sessions without a scope; one of another caller does not exist for it.
    Forms("/access/sessions/{session}", SESSION_OF_CALLER, "access:read", "access:write", refusal_of_read=404),
    Forms("/access/console-sessions/{console}", CONSOLE, "fleet:write", "fleet:write"),
    Forms("/access/new", ACCESS, "access:read", "access:write"),
    Forms("/new/nodes", NEW_NODE, "fleet:read", "fleet:write"),
    Forms("/new/projects", NEW_PROJECT, "projects:read", "projects:write"),
    Forms("/skus/{sku}", SKU, "catalogue:read", "catalogue:write"),
    Forms("/images/{image}", IMAGE, "catalogue:read", "catalogue:write"),
    Forms("/new/skus", NEW_SKU, "catalogue:read", "catalogue:write"),
    Forms("/new/images", NEW_IMAGE, "catalogue:read", "catalogue:write"),
    Forms("/projections/{projection}", PROJECTION, "fleet:read", "fleet:write"),
    Forms("/verifications/new", VERIFICATIONS, "fleet:read", "fleet:write"),
)  # fmt: skip
TESTED_ELSEWHERE: Final = {
    "GET ": "it leads to the overview",
    "GET /login": "test_logins",
    "POST /login": "test_logins",
    "GET /login/{provider}": "test_provider_logins",
    "GET /login/{provider}/return": "test_provider_logins",
    "POST /logout": "test_visits",
    "GET /allocations/{allocation}/watch": "test_in_chromium",
    "GET /allocations/{allocation}/serial-log": "test_hostile_evidence: it waits for the answer of a node",
    "GET /usage/export": "test_usage_pages: it is a file",
    "GET /requests/{request}": "test_pages: a caller sees the parts that it may read",
    "POST /allocations/new": "test_every_action",
    "POST /allocations/new/preview": "test_islands",
    "POST /allocations/{allocation}/console-sessions": "test_console_page",
    "POST /allocations/{allocation}/terminal-sessions": "test_console_page",
    "POST /bulk/allocations": "test_every_action",
    "POST /bulk/nodes": "test_every_action",
}
"""Routes that are not opened as each role, with the tests that use them."""


def open_console_session(world: World) -> dict[str, str]:
    """Request a console session, and record it as connected for a day: only a connected session is listed and cut."""
    names = {**world.console()}
    query = """
        update work.console set state = 'connected', seen_at = clock_timestamp() + interval '1 day'
        where console_id = %(console)s returning 1
    """
    assert world.plane.rows(query, **names)
    return names
