"""Every operation of the OpenAPI document has a summary, a description and an example that a control plane accepts."""

import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Final
from uuid import uuid4

import httpx
import psycopg
import pytest

from control_plane.api.examples import BODIES, PARAMETERS, READ_MODEL
from control_plane.api.requests.access import EXTENSION
from tests.api.access.principals import create_account, create_project, issue, session_of
from tests.api.broken_nodes import Node, accepted_allocation
from tests.api.catalogue.entries import create
from tests.api.node import admit, as_node, enrol, enrolment, register_node, renewal
from tests.api.scripted_node import ScriptedNode
from tests.servers.plane import ADMIN_KEY, TLS_CONTEXT, RunningPlane
from tests.waiting import until

Operation = dict[str, Any]
Names = Mapping[str, str]
REPLAYED: Final = "idempotent-replayed"
REASON: Final = {"code": "because", "message": "of the test"}


KEEP_STOP: Final = """
create or replace function public.keep_stop() returns trigger language plpgsql as $$
begin
  new.stopped_at := old.stopped_at; new.stopped_since := old.stopped_since; new.error := old.error;
  return new;
end $$;
create or replace trigger keep_stop before update on read.checkpoint
  for each row when (old.stopped_at is not null) execute function public.keep_stop();
"""
"""SQL that creates a trigger which keeps a read model marked as stopped; its projector would clear the mark at the next
event.
"""


class World:
    """Resources in the states that the examples need. Each method returns the path parameters of one request."""

    def __init__(self, plane: RunningPlane) -> None:
        self.plane = plane
        self.node = Node(plane, "lab-a", slots=24)
        self.scripted = ScriptedNode(plane, "lab-a", self.node.client)
        self.agent = admit(plane, "lab-h")
        admit(plane, "lab-x")
        for each in ("lab-a", "lab-x"):
            addresses = [{"address": f"203.0.113.{9 if each == 'lab-a' else 10}", "use": "ports"}]
            assert self.send("PUT", f"/nodes/{each}/public-addresses", {"addresses": addresses}).is_success

    def send(self, method: str, path: str, body: object = None) -> httpx.Response:
        with self.plane.client() as admin:
            return admin.request(method, path, json=body)

    def allocation(self, **fields: object) -> dict[str, Any]:
        return accepted_allocation(self.plane, node="lab-a", **fields)

    def active(self, **fields: object) -> dict[str, Any]:
        made = self.allocation(**fields)
        query = "select order_id::text from work.task where allocation_id = %(name)s and kind = 'slice.apply'"
        until(lambda: bool(self.plane.rows(query, name=made["id"])), "the allocation has an order")
        [(order,)] = self.plane.rows(query, name=made["id"])
        self.node.report_ready(made, order=order)
        return made

    def any(self) -> Names:
        return {"allocation": self.allocation()["id"]}

    def running(self) -> Names:
        return {"allocation": self.active()["id"]}

    def with_gateway_access(self) -> Names:
        return {"allocation": self.active(gateway_access=True)["id"]}

    def stopped(self) -> Names:
        made = self.active()
        assert self.send("POST", f"/allocations/{made['id']}/stop").is_success
        self.node.report(made, "slice.stopped", forced=False)
        return {"allocation": made["id"]}

    def public(self) -> Names:
        return {"allocation": self.active(network_mode="public-nat")["id"]}

    def gateway_access(self) -> Names:
        return {"allocation": self.active(gateway_access=True)["id"]}

    def open_ingress(self) -> Names:
        names = self.public()
        answer = self.send("POST", f"/allocations/{names['allocation']}/ingress", {"port": 80})
        return {**names, "ingress": answer.json()["id"]}

    def registered(self) -> Names:
        name = f"lab-{uuid4().hex[:8]}"
        register_node(self.plane, name)
        return {"node": name}

    def enrolled(self) -> Names:
        names = self.registered()
        enrol(self.plane, names["node"], self.new_token(names["node"]))
        return names

    def new_token(self, node: str) -> str:
        return str(self.send("POST", f"/nodes/{node}/enrolment").json()["enrolment_token"])

    def discovered(self) -> Names:
        name = f"lab-{uuid4().hex[:8]}"
        admit(self.plane, name, approve=False)
        return {"node": name, "index": "0"}

    def approved(self) -> Names:
        names = self.discovered()
        assert self.send("POST", f"/nodes/{names['node']}/slots/0/approve").is_success
        return names

    def releasing(self) -> Names:
        made = self.allocation()
        assert self.send("DELETE", f"/allocations/{made['id']}").is_success
        return {"node": "lab-a", "index": made["slots"][0]["slot_id"].partition("/")[2]}

    def sealed(self) -> Names:
        position = PARAMETERS["position"].example
        heads = "select 1 from ledger.tree_head where size >= %(position)s"
        until(lambda: bool(self.plane.rows(heads, position=position)), "the position is sealed")
        return {"position": position}

    def open_period(self) -> Names:
        return {"period": "open"}

    def ended_period(self) -> Names:
        return {"period": "2026-10"}

    def excluded(self) -> Names:
        for table in ("read.node", "read.slot"):
            self.plane.rows(
                f"update {table} set excluded = %(reason)s where node_id = 'lab-x' returning 1",
                reason='{"code": "bring_ups_failed", "message": "three bring-ups failed"}',
            )
        return {"node": "lab-x", "index": "0"}

    def cordoned(self) -> Names:
        node = self.registered()
        assert self.send("POST", f"/nodes/{node['node']}/cordon", {"reason": "update"}).is_success
        return node

    def console(self) -> Names:
        made = self.send("POST", f"/allocations/{self.active()['id']}/console-sessions", {})
        return {"console": made.json()["id"]}

    def key(self) -> Names:
        return {"key": issue(self.plane, "ci", "auditor").id}

    def named_account(self) -> Names:
        create_account(self.plane, "trainer", "auditor")
        return {}

    def session(self) -> Names:
        return {"session": session_of(self.plane, ADMIN_KEY).id}

    def account(self) -> Names:
        name = f"a-{uuid4().hex[:8]}"
        create_account(self.plane, name, "auditor")
        return {"account": name}

    def project(self) -> Names:
        name = f"p-{uuid4().hex[:8]}"
        create_project(self.plane, name)
        return {"project": name}

    def stopped_projection(self) -> Names:
        position = BODIES["POST /v1/projections/{name}/skip"]["position"]
        until(self.is_not_rebuilding, "the rebuild has ended")
        with psycopg.connect(self.plane.database.admin_dsn, autocommit=True) as conn:
            conn.execute(KEEP_STOP)
            conn.execute(
                "update read.checkpoint set stopped_at = %s, stopped_since = now(), error = 'x' where name = %s",
                [position, READ_MODEL],
            )
        return {"name": READ_MODEL}

    def resume_projections(self) -> None:
        """Resume the read model that `stopped_projection` stopped, so that the control plane is ready again."""
        with psycopg.connect(self.plane.database.admin_dsn, autocommit=True) as conn:
            conn.execute("drop trigger if exists keep_stop on read.checkpoint")
            conn.execute("update read.checkpoint set stopped_at = null, stopped_since = null, error = null")

    def is_not_rebuilding(self) -> bool:
        return self.send("GET", f"/projections/{READ_MODEL}").json()["rebuild"] is None

    def task(self) -> Names:
        return {"task_id": self.scripted.request_task("node.verify", node_id="lab-a")}

    def failed_task(self) -> Names:
        task = self.task()["task_id"]
        operation = self.scripted.newest_operation(task)
        self.scripted.report("operation.failed", operation_id=operation, reason=REASON)
        return {"task_id": task}

    def parked(self) -> Names:
        stream = f"task-{uuid4()}"
        self.plane.rows(
            "insert into work.parked (stream_id, since, error) values (%(s)s, now(), 'x') returning 1",
            s=stream,
        )
        return {"stream": stream}

    def verification(self) -> Names:
        return {"verification": self.send("POST", "/verifications").json()["id"]}

    def read_model(self) -> Names:
        return {"name": READ_MODEL}

    def reservable(self) -> Names:
        return {**self.project(), **self.sku()}

    def sku(self) -> Names:
        return {"sku": self.entry("skus")}

    def image(self) -> Names:
        return {"image": self.entry("images")}

    def app_profile(self) -> Names:
        return {"app_profile": self.entry("app-profiles")}

    def entry(self, path: str) -> str:
        """Create an entry of the catalogue, and return its name."""
        with self.plane.client() as admin:
            return str(create(admin, path)["name"])

    def slot(self) -> Names:
        return {"node": "lab-a", "index": "0", "kind": "slot", "name": "lab-a/0"}

    def page(self) -> Names:
        return {name: PARAMETERS[name].example for name in ("problem", "code", "check")}


PREPARED: Final[Mapping[str, Callable[[World], Names]]] = {
    "PUT /v1/projects/{project}/reservations/{sku}": World.reservable,
    "DELETE /v1/projects/{project}/reservations/{sku}": World.reservable,
    "DELETE /v1/allocations/{allocation}": World.any,
    "POST /v1/allocations/{allocation}/stop": World.running,
    "POST /v1/allocations/{allocation}/terminal-sessions": World.with_gateway_access,
    "POST /v1/allocations/{allocation}/start": World.stopped,
    "POST /v1/allocations/{allocation}/lease": World.running,
    "POST /v1/allocations/{allocation}/ssh-certificates": World.gateway_access,
    "POST /v1/allocations/{allocation}/fault": World.running,
    "POST /v1/allocations/{allocation}/ingress": World.public,
    "DELETE /v1/allocations/{allocation}/ingress/{ingress}": World.open_ingress,
    "DELETE /v1/nodes/{node}": World.registered,
    "POST /v1/nodes/{node}/enrolment": World.registered,
    "POST /v1/nodes/{node}/revoke": World.enrolled,
    "POST /v1/nodes/{node}/readmit": World.excluded,
    "POST /v1/nodes/{node}/cordon": World.registered,
    "POST /v1/nodes/{node}/uncordon": World.cordoned,
    "POST /v1/nodes/{node}/drain": World.registered,
    "POST /v1/nodes/{node}/slots/{index}/approve": World.discovered,
    "POST /v1/nodes/{node}/slots/{index}/force-release": World.releasing,
    "POST /v1/nodes/{node}/slots/{index}/readmit": World.excluded,
    "POST /v1/nodes/{node}/slots/{index}/retire": World.approved,
    "POST /v1/nodes/{node}/slots/{index}/reprovision": World.approved,
    "PUT /v1/nodes/{node}/network": World.registered,
    "PUT /v1/nodes/{node}/public-addresses": World.registered,
    "POST /v1/projections/{name}/skip": World.stopped_projection,
    "POST /v1/projections/{name}/retry": World.stopped_projection,
    "POST /v1/principals/revoke": World.named_account,
    "POST /v1/tasks/{task_id}/retry": World.failed_task,
    "POST /v1/tasks/{task_id}/cancel": World.task,
    "GET /v1/audit/consistency": World.sealed,
    "POST /v1/usage/periods/{period}/close": World.ended_period,
}
"""Operations that need a resource in a particular state."""
BY_PARAMETER: Final[Mapping[str, Callable[[World], Names]]] = {
    "allocation": World.any,
    "project": World.project,
    "key": World.key,
    "account": World.account,
    "console": World.console,
    "session": World.session,
    "task_id": World.task,
    "stream": World.parked,
    "verification": World.verification,
    "period": World.open_period,
    "node": World.slot,
    "kind": World.slot,
    "sku": World.sku,
    "image": World.image,
    "app_profile": World.app_profile,
    "name": World.read_model,
    "problem": World.page,
    "code": World.page,
    "check": World.page,
    "position": World.sealed,
}
"""Resources of all other operations, by their first path parameter."""


@pytest.fixture(scope="module")
def document(shared_plane: RunningPlane) -> dict[str, Any]:
    found: dict[str, Any] = shared_plane.document()
    return found


@pytest.fixture(scope="module")
def operations(document: dict[str, Any]) -> dict[str, Operation]:
    """Every operation, by method and path."""
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def test_every_operation_has_a_summary_a_description_and_an_example(
    document: dict[str, Any], operations: dict[str, Operation]
) -> None:
    assert document["openapi"].startswith("3.1")
    assert len(operations) > 60
    for name, operation in operations.items():
        assert 10 < len(operation["summary"]) < 140, name
        assert operation["description"], name
        assert operation["x-codeSamples"][0]["source"].startswith("curl "), name
        for parameter in operation.get("parameters", ()):
            assert parameter["in"] != "path" or {"description", "example"} <= parameter.keys(), name
        if operation.get("requestBody", {}).get("required"):
            assert operation["requestBody"]["content"]["application/json"]["example"], name
    assert {*BODIES} <= {*operations}
    assert [each for each in PARAMETERS if f"{{{each}}}" not in " ".join(operations)] == []


def test_every_code_sample_is_a_shell_command_with_the_example(operations: dict[str, Operation]) -> None:
    for name, operation in operations.items():
        words = shlex.split(operation["x-codeSamples"][0]["source"])
        assert ("-X" in words) is not name.startswith("GET "), name
        assert ("-d" in words) is (name in BODIES), name
        anonymous = not operation[EXTENSION]["roles"]
        assert ("Authorization: Bearer $SLICEPLANE_API_KEY" in words) is not anonymous, name
        assert not any("{" in word for word in words if word.startswith("$SLICEPLANE_URL"))


def test_control_plane_accepts_every_example_and_replays_every_change(
    shared_plane: RunningPlane, operations: dict[str, Operation]
) -> None:
    world, replays = World(shared_plane), 0
    for name, operation in operations.items():
        if operation[EXTENSION]["roles"] == ["node"] or name in ANSWERED_BY_NODES:
            continue
        method, path = name.split()
        replays += accept_example(world, method, path, operation)
        if PREPARED.get(name) is World.stopped_projection:
            world.resume_projections()
    assert replays > 25


ANSWERED_BY_NODES = (
    "GET /v1/allocations/{allocation}/serial-log",
    "POST /v1/console-sessions/{console}/connect",
)
"""Operations that ask a node, which these tests do not run, or need a ticket (`tests.api.nodes.test_serial_logs`,
`tests.road.test_consoles`)."""
WITHOUT_CHANGE = ("POST /v1/placements/preview",)
"""Operations with a body that change nothing, so that there is no response to replay."""


def accept_example(world: World, method: str, path: str, operation: Operation) -> bool:
    """Send the example of an operation. If it is a change, send it twice, check that the second response is a replay,
    and return True.
    """
    first = re.search(r"{(\w+)}", path)
    prepare = PREPARED.get(f"{method} {path}") or (BY_PARAMETER[first[1]] if first else None)
    url = world.plane.url + path.format(**(prepare(world) if prepare else {}))
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    headers = {} if method == "GET" else {"Idempotency-Key": str(uuid4())}
    with world.plane.client(**headers) as admin:
        with admin.stream(method, url, json=content.get("example")) as answer:
            assert answer.status_code < 300, (method, url, answer.read())
            assert str(answer.status_code) in operation["responses"]
            if method == "GET" or f"{method} {path}" in WITHOUT_CHANGE:
                return False
            answer.read()
        again = admin.request(method, url, json=content.get("example"))
    assert REPLAYED not in answer.headers, (method, path)
    assert (again.status_code, again.headers.get(REPLAYED)) == (answer.status_code, "true"), (method, path)
    return True


def test_control_plane_accepts_every_example_of_an_agent(
    shared_plane: RunningPlane, operations: dict[str, Operation]
) -> None:
    admit(shared_plane, "lab-j")
    agents = [each for each, op in operations.items() if op[EXTENSION]["roles"] == ["node"]]
    agents.remove("POST /v1/agent/streams/{stream_id}/open")  # needs a requested stream
    made = {
        "POST /v1/agent/enroll": enrolment("lab-k", register_node(shared_plane, "lab-k")).model_dump(),
        "POST /v1/agent/sessions": renewal("lab-j", 1, "next").model_dump(),
    }
    with closing(as_node(shared_plane, "lab-j")) as node:
        for name in sorted(agents, key=lambda each: each in made):
            body = BODIES[name]
            if name in made:
                refused = node.post(shared_plane.url + name.split()[1], json=body)
                assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (
                    401,
                    "wrong_proof",
                ) or (refused.json()["reasons"][0]["code"] == "unknown_node")
                assert body.keys() == made[name].keys()
                body = made[name]
            answer = node.post(shared_plane.url + name.split()[1], json=body)
            assert answer.is_success, (name, answer.text)
    assert len(agents) == 8


def test_example_of_every_path_parameter_in_the_openapi_document_is_found_or_answered_as_unknown(
    shared_plane: RunningPlane, operations: dict[str, Operation]
) -> None:
    with shared_plane.client() as admin:
        for name, operation in operations.items():
            method, path = name.split()
            if method != "GET" or "{" not in path:
                continue
            examples = {
                each["name"]: each["example"] for each in operation["parameters"] if each["in"] == "path"
            }
            with admin.stream("GET", shared_plane.url + path.format(**examples)) as answer:
                if answer.status_code != 200:
                    answer.read()
                    codes = [each["code"] for each in answer.json()["reasons"]]
                    assert answer.status_code == 404, (name, answer.text)
                    assert all(code.startswith("unknown_") for code in codes), name


def test_documentation_page_may_load_and_send_nothing_outside_its_server(shared_plane: RunningPlane) -> None:
    page = httpx.get(f"{shared_plane.url}/docs", verify=TLS_CONTEXT)
    assert re.findall(r"(?:https?:)?//[\w.-]+", page.text) == []
    policy = dict(each.strip().split(" ", 1) for each in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert not re.search(r"\*|https?:", page.headers["content-security-policy"])
    [sheet] = re.findall(r'href="([^"]+\.css)"', page.text)
    loaded = re.findall(r"url\(([^)]+)\)", httpx.get(f"{shared_plane.url}{sheet}", verify=TLS_CONTEXT).text)
    assert all(each.strip("\"'").startswith("data:") for each in loaded)
