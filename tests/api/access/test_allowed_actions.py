"""`allowed_actions` of every view agree with the responses of the routes, for each role and in each state.

Requests for actions change nothing: a database trigger rejects every event that is caused with the keys of the test.
The trigger counts the rejected events in a sequence, which a rollback does not reset. The request of an allowed action
is therefore answered with status 503 and counted, unless it would cause no event.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import httpx
import psycopg
import pytest

from control_plane.api.examples import BODIES, READ_MODEL
from control_plane.decisions.access import Scope
from tests.api.access.principals import (
    Key,
    client_of,
    create_account,
    create_project,
    expire,
    issue,
    key_of_account,
)
from tests.api.catalogue.entries import CHANGES, CONTENTS
from tests.api.node import SLOT, admit, batch, survey
from tests.api.requests.test_examples import World
from tests.api.scripted_node import VERIFIED
from tests.servers.plane import RunningPlane
from tests.waiting import until

View = dict[str, Any]
Requests = Mapping[str, tuple[str, str, object]]
TEXT: Final = {"reason": "test"}
SKU: Final = "lab.small"
OWN: Final = "p-own"
"""A project of the callers, in which only the test of the actions on projects allocates."""
PREVENTED: Final = """
create sequence public.prevented;
create function public.prevent() returns trigger language plpgsql security definer as $$
begin
  perform nextval('public.prevented');
  raise exception 'events of this key are prevented' using errcode = 'disk_full';
end $$;
create trigger prevent before insert on ledger.event
  for each row when (new.actor like 'key:dry-%') execute function public.prevent();
"""
LIMITED: Final = [scope.value for scope in Scope if scope.endswith(":read")] + ["allocations:write"]


@dataclass(frozen=True)
class Subject:
    """A resource: the path of its view, the path of its list, how to find its view in a response, and the request of
    each of its actions, with a path relative to that of the view.
    """

    path: str
    listed: str
    requests: Requests
    of_view: Callable[[View], View] = lambda view: view
    key: str = "id"


def allocation(made: View) -> Subject:
    requests: Requests = {
        "start": ("POST", "/start", None),
        "stop": ("POST", "/stop", None),
        "release": ("DELETE", "", None),
        "report_fault": ("POST", "/fault", {"fault": "a GPU fell off the bus"}),
        "renew_lease": ("POST", "/lease", {"lease_seconds": 7200}),
        "open_ingress": ("POST", "/ingress", {"port": 80}),
        "open_terminal": ("POST", "/terminal-sessions", {"origin": "https://cloud.example.com"}),
    }
    return Subject(f"/allocations/{made['id']}", "/allocations?limit=200", requests)


def ingress(made: View) -> Subject:
    name = made["ingress"]
    requests: Requests = {"close": ("DELETE", f"/ingress/{name}", None)}
    path = f"/allocations/{made['allocation']}"
    return Subject(path, "/allocations?limit=200", requests, lambda view: view["ingress"][0])


def project(name: str) -> Subject:
    requests: Requests = {
        "describe": ("PATCH", "", {"description": "x"}),
        "set_limits": ("PUT", "/limits", {"slots": 8}),
        "archive": ("POST", "/archive", TEXT),
        "erase": ("DELETE", "/personal-data", TEXT),
    }
    return Subject(f"/projects/{name}", "/projects?limit=200", requests)


def entry(path: str, name: str) -> Subject:
    requests: Requests = {
        "publish": ("PUT", "", {**CONTENTS[path], **CHANGES[path]}),
        "retire": ("POST", "/retire", TEXT),
    }
    return Subject(f"/{path}/{name}", f"/{path}?limit=200", requests, key="name")


def key(made: Key) -> Subject:
    requests: Requests = {
        "rotate": ("POST", "/rotate", {"overlap_seconds": 60}),
        "revoke": ("POST", "/revoke", TEXT),
    }
    return Subject(f"/keys/{made.id}", "/keys?limit=200", requests)


def service_account(name: str) -> Subject:
    requests: Requests = {"disable": ("POST", "/disable", TEXT), "enable": ("POST", "/enable", None)}
    return Subject(f"/service-accounts/{name}", "/service-accounts?limit=200", requests)


def session(name: str) -> Subject:
    requests: Requests = {"end": ("POST", "/end", TEXT)}
    return Subject(f"/sessions/{name}", "/sessions?limit=200", requests)


def node(name: str) -> Subject:
    requests: Requests = {
        "remove": ("DELETE", "", None),
        "reopen_enrolment": ("POST", "/enrolment", None),
        "revoke": ("POST", "/revoke", TEXT),
        "readmit": ("POST", "/readmit", TEXT),
        "cordon": ("POST", "/cordon", TEXT),
        "uncordon": ("POST", "/uncordon", TEXT),
        "drain": ("POST", "/drain", TEXT),
        "configure": ("PUT", "/network", {}),
        "set_public_addresses": ("PUT", "/public-addresses", {"addresses": []}),
    }
    return Subject(f"/nodes/{name}", "/nodes?limit=200", requests)


def slot(place: Mapping[str, str], *skus: str) -> Subject:
    """Return the subject of a slot. `skus` are the SKUs in its request for approval. That request must name SKUs if the
    slot is approved and its hardware has not changed.
    """
    requests: Requests = {
        "approve": ("POST", "/approve", {"skus": skus} if skus else None),
        "force_release": ("POST", "/force-release", TEXT),
        "retire": ("POST", "/retire", TEXT),
        "reprovision": ("POST", "/reprovision", TEXT),
        "readmit": ("POST", "/readmit", TEXT),
    }
    name, index = place["node"], place["index"]
    return Subject(f"/nodes/{name}/slots/{index}", f"/slots?node={name}&limit=200", requests)


def task(name: str) -> Subject:
    requests: Requests = {"retry": ("POST", "/retry", None), "cancel": ("POST", "/cancel", None)}
    return Subject(f"/tasks/{name}", "/tasks?limit=200", requests)


def projection() -> Subject:
    requests: Requests = {
        "rebuild": ("POST", "/rebuild", None),
        "retry": ("POST", "/retry", None),
        "skip": ("POST", "/skip", BODIES["POST /v1/projections/{name}/skip"]),
    }
    return Subject(f"/projections/{READ_MODEL}", "/projections", requests, key="name")


class States:
    """Resources in every state on which the allowed actions depend."""

    def __init__(self, world: World) -> None:
        self.world, self.plane = world, world.plane

    def allocations(self) -> Iterator[Subject]:
        public: dict[str, object] = {"network_mode": "public-nat"}
        yield allocation(self.world.active(gateway_access=True))
        yield allocation(self.world.allocation())
        yield allocation(self.world.allocation(**public))
        yield allocation(self.world.active(**public))
        for path in ((), ("stopped",), ("stopped", "start")):
            made = self.world.active(**public)
            self.send("POST", f"/allocations/{made['id']}/stop")
            if "stopped" in path:
                self.world.node.report(made, "slice.stopped", forced=False)
            if "start" in path:
                self.send("POST", f"/allocations/{made['id']}/start")
            yield allocation(made)
        failed = self.world.allocation(**public)
        self.world.node.report_failed(failed)
        yield allocation(failed)
        released = self.world.allocation(**public)
        self.send("DELETE", f"/allocations/{released['id']}")
        yield allocation(released)
        self.world.node.report_removed(released)
        yield allocation(released)

    def ingresses(self) -> Iterator[Subject]:
        made = dict(self.world.open_ingress())
        yield ingress(made)
        self.send("DELETE", f"/allocations/{made['allocation']}/ingress/{made['ingress']}")
        yield ingress(made)

    def projects(self) -> Iterator[Subject]:
        yield project(OWN)
        made = self.world.allocation(project=OWN)
        yield project(OWN)
        self.send("DELETE", f"/allocations/{made['id']}")
        self.world.node.report_removed(made)
        self.send("POST", f"/projects/{OWN}/archive", TEXT)
        yield project(OWN)

    def keys(self) -> Iterator[Subject]:
        made = issue(self.plane, "ci", "auditor")
        yield key(made)
        self.send("POST", f"/keys/{made.id}/rotate", {"overlap_seconds": 3600})
        yield key(made)
        self.send("POST", f"/keys/{made.id}/revoke", TEXT)
        yield key(made)
        expired = issue(self.plane, "ci", "auditor", lifetime_seconds=3600)
        yield key(expired)
        expire(self.plane, expired)
        yield key(expired)
        of_account = key_of_account(self.plane, create_account(self.plane, "robot", "auditor"))
        yield key(of_account)
        self.send("POST", "/service-accounts/robot/disable", TEXT)
        yield key(of_account)

    def service_accounts(self) -> Iterator[Subject]:
        name = create_account(self.plane, "worker", "auditor")
        yield service_account(name)
        self.send("POST", f"/service-accounts/{name}/disable", TEXT)
        yield service_account(name)

    def sessions(self) -> Iterator[Subject]:
        with self.plane.client() as client:
            started = client.post("/sessions", json={}).json()["id"]
        yield session(started)
        self.send("POST", f"/sessions/{started}/end", TEXT)
        yield session(started)

    def nodes(self) -> Iterator[Subject]:
        yield node(self.world.registered()["node"])
        enrolled = self.world.enrolled()["node"]
        yield node(enrolled)
        self.send("POST", f"/nodes/{enrolled}/revoke", TEXT)
        yield node(enrolled)
        yield node(self.world.excluded()["node"])
        yield node(self.world.cordoned()["node"])

    def slots(self) -> Iterator[Subject]:
        discovered = self.world.discovered()
        yield slot(discovered)
        self.send("POST", f"/nodes/{discovered['node']}/slots/0/approve")
        yield slot(discovered, SKU)
        self.send("POST", f"/nodes/{discovered['node']}/slots/0/retire", TEXT)
        yield slot(discovered)
        made = self.world.allocation()
        place = {"node": "lab-a", "index": made["slots"][0]["slot_id"].partition("/")[2]}
        yield slot(place, SKU)
        self.send("DELETE", f"/allocations/{made['id']}")
        yield slot(place, SKU)
        self.world.node.report(made, "slice.removal_incomplete", leftovers=["tap tap0"])
        yield slot(place, SKU)
        yield slot(self.world.excluded(), SKU)
        small = f"lab-{uuid4().hex[:8]}"
        admit(self.plane, small, approve=False, memory_mib=1)
        yield slot({"node": small, "index": "0"})
        yield slot(self.shrunk())

    def shrunk(self) -> Mapping[str, str]:
        """Return a free slot that became too small for every SKU after its approval."""
        name = f"lab-{uuid4().hex[:8]}"
        node = admit(self.plane, name)
        smaller = survey(slots=[{**SLOT, "memory_mib": 1}])
        answer = node.post("/reports", json=batch(str(uuid4()), (1, smaller)))
        assert answer.is_success, answer.text
        return {"node": name, "index": "0"}

    def entries(self) -> Iterator[Subject]:
        for path in CONTENTS:
            made = entry(path, self.world.entry(path))
            yield made
            self.send("POST", f"{made.path}/retire", TEXT)
            yield made

    def tasks(self) -> Iterator[Subject]:
        yield task(self.world.task()["task_id"])
        yield task(self.world.failed_task()["task_id"])
        done = self.world.task()["task_id"]
        operation = self.world.scripted.newest_operation(done)
        self.world.scripted.report("operation.done", operation_id=operation, result=VERIFIED)
        self.world.scripted.await_state(done, "done")
        yield task(done)
        cancelled = self.world.task()["task_id"]
        self.send("POST", f"/tasks/{cancelled}/cancel")
        self.world.scripted.await_state(cancelled, "cancelled")
        yield task(cancelled)
        for kind in ("slice.apply", "slice.stop", "slice.remove"):
            yield from self.orders(kind)
        yield from self.cancelled_order()

    def orders(self, kind: str) -> Iterator[Subject]:
        made = self.world.active() if kind == "slice.stop" else self.world.allocation()
        if kind == "slice.stop":
            self.send("POST", f"/allocations/{made['id']}/stop")
        if kind == "slice.remove":
            self.send("DELETE", f"/allocations/{made['id']}")
        query = "select order_id::text from work.task where allocation_id = %(name)s and kind = %(kind)s"
        until(lambda: bool(self.plane.rows(query, name=made["id"], kind=kind)), f"{kind} is derived")
        [(order,)] = self.plane.rows(query, name=made["id"], kind=kind)
        self.world.scripted.await_state(order, "sent")
        yield task(order)
        match kind:
            case "slice.apply":
                self.world.node.report_ready(made, order=order)
            case "slice.stop":
                self.world.node.report(made, "slice.stopped", order=order, forced=False)
            case _:
                self.world.node.report(made, "slice.removed", order=order, absent=["machine"])
        until(lambda: self.world.scripted.task(order)["ended_at"] is not None, f"{kind} has ended")
        yield task(order)

    def cancelled_order(self) -> Iterator[Subject]:
        made = self.world.allocation()
        query = "select order_id::text from work.task where allocation_id = %(name)s"
        until(lambda: bool(self.plane.rows(query, name=made["id"])), "the order of the bring-up is derived")
        [(order,)] = self.plane.rows(query, name=made["id"])
        self.send("POST", f"/tasks/{order}/cancel")
        until(lambda: self.world.scripted.task(order)["ended_at"] is not None, "the bring-up is cancelled")
        yield task(order)

    def projections(self) -> Iterator[Subject]:
        yield projection()
        self.world.stopped_projection()
        yield projection()
        self.world.resume_projections()

    def send(self, method: str, path: str, body: object = None) -> None:
        answer = self.world.send(method, path, body)
        assert answer.is_success, answer.text


@dataclass(frozen=True)
class Caller:
    """A caller with a key for which the database rejects every event."""

    name: str
    client: httpx.Client


@pytest.fixture(scope="module")
def world(shared_plane: RunningPlane) -> World:
    return World(shared_plane)


@pytest.fixture(scope="module")
def callers(shared_plane: RunningPlane) -> Iterator[list[Caller]]:
    create_project(shared_plane, OWN)
    keys = {
        "admin": issue(shared_plane, "dry-admin", "admin"),
        "auditor": issue(shared_plane, "dry-auditor", "auditor"),
        "caller": issue(shared_plane, "dry-caller", "caller", projects=["default", OWN]),
        "limited": issue(shared_plane, "dry-limited", "admin", scopes=LIMITED),
        "bound": issue(shared_plane, "dry-bound", "admin", projects=["default", OWN]),
    }
    with psycopg.connect(shared_plane.database.admin_dsn, autocommit=True) as conn:
        conn.execute(PREVENTED)
    made = [Caller(name, client_of(shared_plane, each)) for name, each in keys.items()]
    yield made
    for each in made:
        each.client.close()


KINDS: Final = {
    "allocations": (
        States.allocations,
        {
            "wrong_state",
            "already_failed",
            "ingress_needs_public_nat",
            "no_slot_held",
            "no_gateway_access",
        },
    ),
    "ingresses": (States.ingresses, set()),
    "projects": (States.projects, {"project_archived", "project_in_use"}),
    "entries of the catalogue": (States.entries, set()),
    "keys": (States.keys, {"key_not_active", "key_replaced", "service_account_not_active"}),
    "service accounts": (States.service_accounts, set()),
    "sessions": (States.sessions, set()),
    "nodes": (States.nodes, {"node_enrolled", "not_cordoned", "not_excluded"}),
    "slots": (
        States.slots,
        {"not_awaiting_proof", "not_excluded", "no_fitting_sku", "sku_does_not_fit", "slot_not_free"},
    ),
    "tasks": (
        States.tasks,
        {
            *("task_finished", "task_in_progress", "task_succeeded", "not_retriable"),
            *("stop_not_cancellable", "removal_not_cancellable"),
        },
    ),
    "projections": (States.projections, {"projection_not_stopped", "not_stopped_at_position"}),
}
"""States of each kind of resource, and the codes with which these states refuse an action."""
ROLES: Final = 3
"""Number of callers that differ in their role; the others are limited to scopes or projects."""
DENIED: Final = {"role_missing", "scope_missing", "limited_to_projects"}


@pytest.mark.parametrize("kind", KINDS)
def test_allowed_actions_agree_with_the_routes_for_every_role_and_state(
    world: World, callers: list[Caller], kind: str
) -> None:
    states, expected = KINDS[kind]
    seen: set[str | None] = set()
    last: Subject | None = None
    for number, subject in enumerate(states(States(world))):
        # A scope or a limit to projects has the same effect in every state.
        for caller in callers if number == 0 else callers[:ROLES]:
            seen |= compared(world.plane, caller, subject)
        last = subject
    assert last is not None
    for caller in callers[:2]:
        shown = last.of_view(caller.client.get(last.path).json())
        assert in_list(caller, last)["allowed_actions"] == shown["allowed_actions"]
    assert None in seen, "an action is allowed in some state"
    assert seen - DENIED - {None} == expected
    assert "role_missing" in seen


def compared(plane: RunningPlane, caller: Caller, subject: Subject) -> set[str | None]:
    """Compare `allowed_actions` as a caller sees them with the responses to its requests. Return the codes of refused
    actions, and None for allowed ones; return the empty set if the caller must not read the resource.
    """
    shown = caller.client.get(subject.path)
    if shown.status_code == 403:
        assert caller.client.get(subject.listed).status_code == 403
        return set()
    if shown.status_code == 404:
        assert caller.name in ("caller", "bound")
        return set()
    assert shown.is_success, shown.text
    actions = subject.of_view(shown.json())["allowed_actions"]
    assert actions.keys() == subject.requests.keys()
    codes: set[str | None] = set()
    attempts = prevented(plane)
    for action, (method, path, body) in subject.requests.items():
        answer = caller.client.request(method, subject.path + path, json=body)
        where = (caller.name, subject.path, action, actions[action], answer.status_code, answer.text)
        codes.add(actions[action].get("code"))
        if actions[action]["allowed"]:
            assert actions[action] == {"allowed": True}
            assert answer.is_success or answer.status_code == 503, where
            attempts += answer.status_code == 503
        else:
            reason = answer.json()["reasons"][0]
            assert answer.status_code in (403, 409), where
            stated = {"allowed": False, "code": reason["code"], "reason": reason["message"]}
            assert actions[action] == stated, where
    assert prevented(plane) == attempts, "each response 503 is that of a prevented append"
    return codes


def in_list(caller: Caller, subject: Subject) -> View:
    answer = caller.client.get(subject.listed)
    assert answer.is_success, answer.text
    name = caller.client.get(subject.path).json()[subject.key]
    [found] = [each for each in answer.json()["items"] if each[subject.key] == name]
    return subject.of_view(found)


def prevented(plane: RunningPlane) -> int:
    [(value,)] = plane.rows("select last_value + is_called::int from public.prevented")
    return int(value)


def test_view_of_the_past_has_no_allowed_actions(world: World, callers: list[Caller]) -> None:
    made = world.allocation()
    at = {"at": f"position:{world.plane.last_position()}"}
    for path in (f"/allocations/{made['id']}", "/nodes/lab-a"):
        assert callers[0].client.get(path).json()["allowed_actions"]
        assert callers[0].client.get(path, params=at).json()["allowed_actions"] is None
    for path in ("/allocations", "/nodes", "/slots"):
        items = callers[0].client.get(path, params={**at, "limit": 200}).json()["items"]
        assert {str(each["allowed_actions"]) for each in items} == {"None"}


def test_change_with_the_etag_of_a_view_for_another_role_is_accepted(
    world: World, callers: list[Caller]
) -> None:
    path = f"/nodes/{world.registered()['node']}"
    _, auditor, *_ = callers
    tag, own = auditor.client.get(path).headers["ETag"], world.send("GET", path).headers["ETag"]
    assert tag != own, "the digest depends on the actions"
    assert tag.partition(".")[0] == own.partition(".")[0], "the version does not"
    with world.plane.client(**{"If-Match": tag}) as admin:
        assert admin.post(path + "/revoke", json=TEXT).is_success
        assert admin.post(path + "/revoke", json=TEXT).status_code == 412
