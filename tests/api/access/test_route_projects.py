"""Tests of every route that is limited to projects, with resources of the caller's own project, of another project and
of an archived project, and with ids of resources that do not exist.

The routes and the bodies of their requests come from the OpenAPI document of a running control plane. Together with
`test_routes.py`, which tests roles and credentials, this is the complete matrix of the access to routes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

import httpx
import pytest

from control_plane.api.requests.access import EXTENSION
from tasks.streams import STREAMS
from tests.api.access.principals import create_project, issue
from tests.api.node import admit, allocate, batch
from tests.servers.plane import RunningPlane
from tests.waiting import until

ABSENT: Final = ["link", "lease", "port", "translation", "machine"]
INGRESS: Final = "ing-0000000000000000000000000a"
OF_NONE: Final = {
    "project": "nowhere",
    "allocation": "alc-0000000000000000000000000a",
    "task": str(UUID(int=1)),
    "position": "999999999",
}
"""Ids of resources that do not exist, by the kind of the resource."""
CATALOGUE: Final = {"skus", "images", "app-profiles"}
"""Path segments of the routes of the catalogue. Entries of the catalogue do not belong to a project."""
ASKS_A_NODE: Final = {"unsupported_by_agent", "slice_not_on_node"}
"""Reason codes that show that a resource exists, from routes that send a request to the node of an allocation."""
UNKNOWN: Final = {"unknown_allocation", "unknown_task", "unknown_project", "unknown_subject", "unknown_event"}
"""Reason codes for resources that do not exist or belong to other projects; a caller cannot distinguish the two."""


@dataclass(frozen=True)
class Route:
    """A route that is limited to projects, with the example of its request body in the OpenAPI document."""

    method: str
    path: str
    filters: frozenset[str]
    roles: frozenset[str]
    body: dict[str, Any] | None

    @property
    def names_a_resource(self) -> bool:
        # A billing period belongs to no project: a caller sees its own part of the bill.
        return "{" in self.path and "{period}" not in self.path

    @property
    def reads(self) -> bool:
        return self.method == "GET"

    def url(self, ids: dict[str, str]) -> str:
        """Return the path and query of a request for the resources with these ids."""
        parts = {
            **ids,
            "task_id": ids["task"],
            "kind": "allocation",
            "name": ids["allocation"],
            "ingress": INGRESS,
            "period": "open",
        }
        query = f"?project={ids['project']}" if "project" in self.filters else ""
        return self.path.format(**parts) + query

    def body_for(self, ids: dict[str, str]) -> dict[str, Any] | None:
        if self.body is None or "project" not in self.body:
            return self.body
        return {**self.body, "project": ids["project"]}


@dataclass(frozen=True)
class Answer:
    """The status of a response, its reason codes if it is a refusal, and its number of items if it is a list."""

    status: int
    codes: frozenset[str] = frozenset()
    items: int | None = None

    @property
    def is_found(self) -> bool:
        return self.status == 200 or (bool(self.codes) and self.codes <= ASKS_A_NODE)

    @property
    def is_unknown(self) -> bool:
        return self.status in (404, 409) and bool(self.codes) and self.codes <= UNKNOWN


@dataclass(frozen=True)
class World:
    """A control plane with three projects (own, other, archived), their resources, and the keys of their callers."""

    plane: RunningPlane
    routes: tuple[Route, ...]
    ids: dict[str, dict[str, str]]
    headers: dict[str, dict[str, str]]

    def send(self, route: Route, principal: str, of: str) -> Answer:
        """Send a request of a principal for the resources of the project `of`, and return the response. If the response
        is a stream of events, read only its headers.
        """
        ids, url = self.ids[of], f"{self.plane.url}{route.url(self.ids[of])}"
        with (
            self.plane.client() as client,
            client.stream(
                route.method, url, headers=self.headers[principal], json=route.body_for(ids)
            ) as answer,
        ):
            media_type = answer.headers.get("content-type", "")
            if not media_type.endswith("json"):
                return Answer(answer.status_code)
            answer.read()
            content = answer.json()
            if answer.is_success:
                return Answer(answer.status_code, items=len(content["items"]) if "items" in content else None)
            return Answer(answer.status_code, frozenset(each["code"] for each in content["reasons"]))

    def events_of(self, project: str) -> int:
        [(count,)] = self.plane.rows(
            "select count(*) from ledger.event where project = %(project)s", project=project
        )
        return int(count)


def routes_of_projects(plane: RunningPlane) -> Iterator[Route]:
    document = plane.document()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            declared = operation[EXTENSION]
            if declared.get("projects") == "own" and path.split("/")[2] not in CATALOGUE:
                content = operation.get("requestBody", {}).get("content", {})
                yield Route(
                    method.upper(),
                    path,
                    frozenset(each["name"] for each in operation["parameters"] if each["in"] == "query"),
                    frozenset(declared["roles"]),
                    content.get("application/json", {}).get("example"),
                )


@pytest.fixture(scope="module")
def world(shared_plane: RunningPlane) -> World:
    node = admit(shared_plane, "n1", slots=8)
    ids, headers = {"none": OF_NONE}, {}
    for name in ("own", "other", "archived"):
        create_project(shared_plane, name)
        headers[name] = issue(shared_plane, name, projects=[name]).headers
        ids[name] = {"project": name, **_resources(shared_plane, name)}
    _archive(shared_plane, node, ids["archived"])
    # No agent runs: a route that asks a node for a stream is refused at once, in place of waiting for the answer.
    shared_plane.rows(
        "update work.node_session set capabilities = array_remove(capabilities, %(streams)s) returning 1",
        streams=STREAMS,
    )
    headers["auditor"] = issue(shared_plane, "auditor", "auditor").headers
    headers["admin"] = issue(shared_plane, "root", "admin").headers
    return World(shared_plane, tuple(routes_of_projects(shared_plane)), ids, headers)


def _resources(plane: RunningPlane, project: str) -> dict[str, str]:
    """Create an allocation in a project; return its id, the id of the task that starts its slice, and the position of
    the first event of the allocation.
    """
    allocation = allocate(plane, project=project).json()["id"]
    found: list[dict[str, Any]] = []

    def has_task() -> bool:
        with plane.client() as admin:
            found[:] = admin.get("/tasks", params={"allocation": allocation}).json()["items"]
        return bool(found)

    until(has_task, "the order is listed")
    [(position,)] = plane.rows(
        "select position from ledger.event where stream_id = %(stream)s and version = 1",
        stream=f"allocation-{allocation}",
    )
    return {"allocation": allocation, "task": found[0]["id"], "position": str(position)}


def _archive(plane: RunningPlane, node: httpx.Client, ids: dict[str, str]) -> None:
    """Release the allocation of a project, report its removal as its node does, and archive the project."""
    with plane.client() as admin:
        released = admin.delete(f"/allocations/{ids['allocation']}")
        assert released.is_success, released.text
        [slot] = released.json()["slots"]
        removed = {"kind": "slice.removed", "slot_id": slot["slot_id"], "allocation_id": ids["allocation"]}
        answer = node.post("/reports", json=batch(str(uuid4()), (1, {**removed, "absent": ABSENT})))
        assert answer.is_success, answer.text
        archived = admin.post(f"/projects/{ids['project']}/archive", json={"reason": "the project has ended"})
        assert archived.is_success, archived.text


def test_openapi_document_marks_exactly_the_expected_groups_of_routes_as_limited_to_own_projects(
    world: World,
) -> None:
    prefixes = {route.path.split("/")[2] for route in world.routes}
    assert prefixes == {
        "allocations",
        "events",
        "history",
        "placements",
        "projects",
        "reservations",
        "tasks",
        "usage",
    }
    assert sum(route.names_a_resource for route in world.routes) >= 13


def test_resource_of_another_project_is_answered_like_one_that_does_not_exist_on_every_route(
    world: World,
) -> None:
    wrong = []
    for route in world.routes:
        other, none = (world.send(route, "own", of) for of in ("other", "none"))
        if route.names_a_resource or not route.reads:
            expected = other == none and other.is_unknown
        else:
            # A filter by a project of others finds nothing, or is refused like one by an unknown project.
            expected = other == none and (
                other.is_unknown or not other.items or "project" not in route.filters
            )
        if not expected:
            wrong.append((route.method, route.path, other, none))
    assert wrong == []


def test_resource_of_the_callers_own_project_is_found_on_every_route(world: World) -> None:
    wrong = []
    # Changes come last, because a released allocation cannot be changed again.
    for route in sorted(world.routes, key=lambda each: not each.reads):
        answers = {
            principal: world.send(route, principal, "own")
            for principal in ("own", "auditor", "admin")
            if principal == "own" or (route.reads and principal in route.roles)
        }
        wrong += [
            (route.method, route.path, principal, answer)
            for principal, answer in answers.items()
            if answer.status in (401, 403) or answer.is_unknown or (route.reads and not answer.is_found)
        ]
    assert wrong == []


def test_resource_of_an_archived_project_is_read_by_its_caller_on_every_route_and_never_changed(
    world: World,
) -> None:
    wrong, before = [], world.events_of("archived")
    for route in world.routes:
        for principal in ("archived", "admin"):
            answer = world.send(route, principal, "archived")
            if route.reads and not answer.is_found:
                wrong.append((route.method, route.path, principal, answer))
            if not route.reads and not route.names_a_resource and "project_archived" not in answer.codes:
                wrong.append((route.method, route.path, principal, answer))
            if not route.reads and answer.status in (401, 403):
                wrong.append((route.method, route.path, principal, answer))
    assert wrong == []
    assert world.events_of("archived") == before


def test_change_is_refused_to_an_auditor_in_every_project(world: World) -> None:
    for route in world.routes:
        if not route.reads:
            for of in world.ids:
                assert world.send(route, "auditor", of) == Answer(403, frozenset({"role_missing"})), (
                    route,
                    of,
                )
