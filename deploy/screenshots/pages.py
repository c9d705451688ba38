"""The pages of the web console of which `./dev screenshots` makes pictures.

Paths with ids are found by requests to the API. A page of a resource that does not exist is left out.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from deploy.embedded.client import Api

_FIXED: Final = {
    "overview": "/",
    "nodes": "/nodes",
    "nodes-unreachable": "/nodes?state=unreachable",
    "nodes-excluded": "/nodes?excluded=true",
    "nodes-none": "/nodes?name=absent&cordoned=true",
    "allocations": "/allocations",
    "allocations-waiting": "/allocations?state=waiting",
    "allocations-none": "/allocations?label=none%3Dnone",
    "new-allocation": "/allocations/new",
    "history-empty": "/history",
    "events": "/events",
    "events-important": "/events?level=important",
    "tasks": "/tasks",
    "tasks-failed": "/tasks?state=failed",
    "usage": "/usage",
    "usage-entries": "/usage/entries",
    "period": "/usage/periods/open",
    "period-close": "/usage/periods/open/close",
    "reservations": "/reservations",
    "projects": "/projects",
    "skus": "/skus",
    "images": "/images",
    "keys": "/access/keys",
    "key-issue": "/access/new/issue-key",
    "node-register": "/new/nodes/register-node",
    "project-create": "/new/projects/create-project",
    "sku-publish": "/new/skus/publish-sku",
    "image-publish": "/new/images/publish-image",
    "service-accounts": "/access/service-accounts",
    "sessions": "/access/sessions",
    "console-sessions": "/access/console-sessions",
    "projections": "/projections",
    "verifications": "/verifications",
    "search-none": "/search?q=absent",
    "missing": "/absent",
}
"""Pages without an id in their paths, by the name of the picture."""
LOGIN: Final = "login"


class ConsolePage(NamedTuple):
    """A page of the web console: the first part of the file names of its screenshots, and its path below `/ui`."""

    name: str
    path: str


def pages(api: Api) -> list[ConsolePage]:
    """Return the pages with something to show, in the order of the menu. The login page is not among them."""
    found = [ConsolePage(name, path) for name, path in _FIXED.items()]
    for pages_of in (_allocations, _fleet, _events, _billing, _catalogue, _access):
        found += pages_of(api)
    return found


def _allocations(api: Api) -> Iterator[ConsolePage]:
    for state in ("active", "released", "failed", "waiting", "stopped"):
        for each in _first(api, "/allocations", state=state):
            yield ConsolePage(f"allocation-{state}", f"/allocations/{each['id']}")
    for each in _first(api, "/allocations", state="active"):
        own = f"/allocations/{each['id']}"
        for name in ("release", "renew", "report-fault", "placement", "timeline", "serial-log"):
            yield ConsolePage(f"allocation-{name}", f"{own}/{name}")
        for name in ("console", "display"):
            yield ConsolePage(f"allocation-{name}", f"{own}/{name}?slot=0")
        selected = [("action", "release"), ("item", each["id"]), ("item", "alc-absent")]
        yield ConsolePage("bulk-allocations", f"/bulk/allocations?{urlencode(selected)}")
    for each in _first(api, "/allocations", state="stopped"):
        yield ConsolePage("allocation-start", f"/allocations/{each['id']}/start")
    for each in _first(api, "/allocations", state="released"):
        history = {"kind": "allocation", "name": each["id"]}
        yield ConsolePage("history-allocation", f"/history?{urlencode(history)}")
        asked = {**history, "compared": each["requested_at"]}
        yield ConsolePage("history-difference", f"/history?{urlencode(asked)}")
        for slot in each["slots"][:1]:
            address = {"kind": "address", "name": slot["private_ip"]}
            yield ConsolePage("history-address", f"/history?{urlencode(address)}")


def _fleet(api: Api) -> Iterator[ConsolePage]:
    for each in _first(api, "/nodes", limit="1"):
        node = f"/nodes/{quote(each['id'])}"
        yield ConsolePage("node", node)
        yield ConsolePage("node-drain", f"{node}/drain")
        yield ConsolePage("node-past", f"{node}?{urlencode({'at': each['seen_at']})}")
        yield ConsolePage("slot", f"{node}/slots/0")
        yield ConsolePage("slot-force-release", f"{node}/slots/0/force-release")
        yield ConsolePage("bulk-nodes", f"/bulk/nodes?action=cordon&item={quote(each['id'])}")
    for each in _first(api, "/events", type="slot.devices_granted"):
        node, _, index = each["data"]["slot_id"].partition("/")
        yield ConsolePage("slot-devices", f"/nodes/{quote(node)}/slots/{index}")
    for each in _first(api, "/drift"):
        yield ConsolePage("node-drift", f"/nodes/{quote(each['node_id'])}")
    for each in _first(api, "/nodes", excluded="true"):
        yield ConsolePage("node-excluded", f"/nodes/{quote(each['id'])}")
        yield ConsolePage("node-readmit", f"/nodes/{quote(each['id'])}/readmit")
    for each in _first(api, "/tasks"):
        yield ConsolePage("task", f"/tasks/{each['id']}")
    for each in _first(api, "/tasks", kind="node.verify", state="failed"):
        yield ConsolePage("task-failed", f"/tasks/{each['id']}")
        yield ConsolePage("task-retry", f"/tasks/{each['id']}/retry")


def _events(api: Api) -> Iterator[ConsolePage]:
    for name, kind in (("event", "allocation.activated"), ("event-root", "allocation.requested")):
        for each in _first(api, "/events", type=kind, order="desc"):
            yield ConsolePage(name, f"/events/{each['position']}")
    for each in _first(api, "/verifications"):
        yield ConsolePage("verification", f"/verifications/{each['id']}")


def _billing(api: Api) -> Iterator[ConsolePage]:
    for each in _first(api, "/reservations"):
        project = f"/projects/{quote(each['project'])}"
        yield ConsolePage("project", project)
        for name in ("limits", "reserve", "archive", "erase"):
            yield ConsolePage(f"project-{name}", f"{project}/{name}")


def _catalogue(api: Api) -> Iterator[ConsolePage]:
    for kind in ("sku", "image"):
        for each in _first(api, f"/{kind}s"):
            entry = f"/{kind}s/{quote(each['name'])}"
            yield ConsolePage(kind, entry)
            yield ConsolePage(f"{kind}-version", f"{entry}/publish-version")
            yield ConsolePage(f"{kind}-retire", f"{entry}/retire-{kind}")


def _access(api: Api) -> Iterator[ConsolePage]:
    for each in _first(api, "/keys"):
        yield ConsolePage("key", f"/access/keys/{quote(each['id'])}")
        yield ConsolePage("key-rotate", f"/access/keys/{quote(each['id'])}/rotate")
    for each in _first(api, "/service-accounts"):
        yield ConsolePage("service-account", f"/access/service-accounts/{quote(each['id'])}")


def _first(api: Api, path: str, **query: str) -> list[dict[str, Any]]:
    """Return a list with the first resource at an API path, or an empty list if there is none."""
    found: list[dict[str, Any]] = api.get(path, **{"limit": "1", **query})["items"]
    return found[:1]
