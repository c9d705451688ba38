"""The calls of the client match the OpenAPI document: every operation has a call, with its parameters and body."""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import msgspec
import pytest

from control_plane.api.app import openapi_document
from control_plane.client import bodies, calls, catalogue
from control_plane.client.bodies import Body
from control_plane.client.catalogue import Entries
from control_plane.client.exchange import Call, ListCall, Prepared, WatchCall, prepare

EXAMPLES: Final[dict[str, Any]] = {
    "kind": "allocation",
    "labels": {"team": "a"},
    "body": {
        "create_allocation": bodies.CreateAllocation(sku="s", ssh_authorized_keys=["k"]),
        "request_console": bodies.NewConsole(),
        "request_terminal": bodies.NewTerminal(origin="https://cloud.example.com"),
        "approve_slot": bodies.ApproveSlot(skus=["s"]),
        "preview_placement": bodies.CreateAllocation(sku="s", ssh_authorized_keys=["k"]),
        "add_ingress": bodies.OpenPort(port=22),
        "set_public_addresses": bodies.NodeAddresses(addresses=[]),
        "drain_node": bodies.DrainNode(reason="r"),
        "renew_lease": bodies.RenewLease(lease_seconds=60),
        "report_fault": bodies.ReportFault(fault="f"),
        "configure_node": bodies.ConfigureNode(bridge="b", l2_domain="d"),
        "close_billing_period": bodies.ClosePeriod(),
        "request_task": bodies.RequestTask(kind="node.verify", node_id="n"),
        "skip_event": bodies.SkipEvent(position=1, reason="r"),
        "create_project": bodies.CreateProject(id="p"),
        "set_reservation": bodies.SetReservation(slots=2),
        "set_project_limits": bodies.SetProjectLimits(slots=8),
        "set_principal_limits": bodies.SetPrincipalLimits(actor="key:x", slots=8),
        "create_service_account": bodies.CreateServiceAccount(id="a", role="auditor"),
        "issue_key": bodies.IssueKey(name="n", role="caller"),
        "rotate_key": bodies.RotateKey(),
        "start_session": bodies.StartSession(),
        "revoke_principal": bodies.RevokePrincipal(actor="user:corp/alice", reason="r"),
    },
}
ENTRIES: Final[dict[str, Entries[Any]]] = {
    "skus": catalogue.SKUS,
    "images": catalogue.IMAGES,
    "app-profiles": catalogue.APP_PROFILES,
}
CONTENTS: Final[dict[str, Body]] = {
    "skus": bodies.SkuContent(vcpus=1, memory_mib=96),
    "images": bodies.ImageContent(format="kernel"),
    "app-profiles": bodies.AppProfileContent(fabrics=["ib"]),
}
WITHOUT_A_CALL: Final = {
    ("GET", "/healthz"),
    ("GET", "/readyz/{check}"),
    ("GET", "/problems"),
    ("GET", "/problems/{problem}"),
    ("GET", "/problems/codes/{code}"),
    ("GET", "/v1/audit/export"),
    ("POST", "/v1/console-sessions/{console}/connect"),
    ("GET", "/v1/usage/export"),
}
"""Operations for load balancers and readers of documentation, and files, which `Client.download` reads, and the request
of a WebSocket. The operations of nodes, below /v1/agent, are not for clients either.
"""
VARIANTS: Final[dict[tuple[str, str], tuple[str | None, ...]]] = {("drift", "node_name"): (None, "lab-a")}
"""Values of optional arguments with which a call of the client requests another path of the API."""


@cache
def document() -> dict[str, Any]:
    return openapi_document()


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, found in vars(calls).items():
        is_own = inspect.isfunction(found) and found.__module__ == calls.__name__
        if is_own and name != "event_filters" and not name.startswith("_"):
            yield name, found


def made(name: str, function: Callable[..., Any]) -> Iterator[Call[Any] | ListCall[Any] | WatchCall[Any]]:
    """Call a function of `calls` with examples of all arguments, and yield the result; call it once per variant."""
    arguments: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "body":
            arguments["body"] = EXAMPLES["body"][name]
        elif parameter.name == "filters":
            names = ("streams", "types", "projects", "actors", "correlations", "ids")
            every: dict[str, Any] = {each: ["x"] for each in names}
            arguments["filters"] = calls.event_filters(after="1.1", **every)
        elif parameter.name == "limit":
            arguments["limit"] = 1
        elif (name, parameter.name) not in VARIANTS:
            arguments[parameter.name] = EXAMPLES.get(parameter.name, "lab-a/0" if "slot" in name else "x-1")
    for variants in [values for (owner, _), values in VARIANTS.items() if owner == name] or [(None,)]:
        for value in variants:
            yield function(**arguments, **({"node_name": value} if name == "drift" else {}))


def sent(call: Call[Any] | ListCall[Any] | WatchCall[Any]) -> Prepared:
    match call:
        case Call():
            return prepare(call, "key")
        case ListCall():
            return prepare(Call("GET", call.path, object, {**call.params, "cursor": "c", "limit": 1}), "")
        case WatchCall():
            return prepare(Call("GET", call.path, object, call.params), "")


def of_catalogue() -> Iterator[tuple[str, Call[Any] | ListCall[Any]]]:
    """Yield each call of `Entries` for each kind of entry of the catalogue, with a name for the call."""
    for word, entries in ENTRIES.items():
        content = CONTENTS[word]
        yield f"{word} all", entries.all(state="offered", at="position:1")
        yield f"{word} one", entries.one("x", version=1, at="position:1")
        yield f"{word} versions", entries.versions("x")
        yield f"{word} create", entries.create("x", content)
        yield f"{word} publish", entries.publish("x", content)
        yield f"{word} retire", entries.retire("x", "r")


CALLS: Final = [(name, sent(call)) for name, function in functions() for call in made(name, function)]
OF_CATALOGUE: Final = [(name, sent(call)) for name, call in of_catalogue()]


def operation_of(request: Prepared) -> tuple[str, str]:
    """Return method and path of the operation that a request reaches; the path with most fixed parts wins."""
    fitting = [
        path
        for path, operations in document()["paths"].items()
        if request.method.lower() in operations
        and re.fullmatch(
            re.sub(r"\\{\w+?(?::path)?\\}", "[^/]+", re.escape(path)), request.path.replace("lab-a/0", "x")
        )
    ]
    assert fitting, f"no operation has the path of {request.method} {request.path}"
    return request.method, min(fitting, key=lambda path: path.count("{"))


def schema_of(reference: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = reference
    if "$ref" in reference:
        found = document()["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
    return found


def test_every_operation_for_clients_in_the_openapi_document_has_a_call() -> None:
    every = {
        (method.upper(), path)
        for path, operations in document()["paths"].items()
        for method in operations
        if not path.startswith("/v1/agent")
    }
    assert every - {operation_of(request) for _, request in [*CALLS, *OF_CATALOGUE]} == WITHOUT_A_CALL


@pytest.mark.parametrize(
    ("name", "request_"), [*CALLS, *OF_CATALOGUE], ids=[name for name, _ in [*CALLS, *OF_CATALOGUE]]
)
def test_call_sends_only_parameters_that_its_operation_has(name: str, request_: Prepared) -> None:
    method, path = operation_of(request_)
    declared = {each["name"] for each in document()["paths"][path][method.lower()].get("parameters", ())}
    lists_without_pages = {"cursor", "limit"} if "cursor" not in declared else set()
    assert request_.params.keys() - lists_without_pages <= declared


@pytest.mark.parametrize(
    ("name", "request_"),
    [each for each in CALLS if each[1].content],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_fields_of_the_body_of_a_call_are_those_of_its_operation(name: str, request_: Prepared) -> None:
    method, path = operation_of(request_)
    content = document()["paths"][path][method.lower()]["requestBody"]["content"]["application/json"]
    schema = schema_of(content["schema"])
    if "oneOf" in schema or "anyOf" in schema:
        found = [*map(schema_of, schema.get("oneOf", schema.get("anyOf", ())))]
        objects = [each for each in found if "properties" in each]
        ports = [each for each in objects if each["properties"].get("kind", {}).get("const") == "port"]
        [schema] = ports or objects
    body = EXAMPLES["body"].get(name) or bodies.Because(reason="r")
    if name == "register_node":
        body = bodies.RegisterNode(id="n")
    if name == "describe_project":
        body = bodies.DescribeProject(description="d")
    if name == "request_ssh_certificate":
        body = bodies.RequestSshCertificate(public_key="k")
    assert body_fields(type(body)) == set(schema["properties"])
    required = {field.encode_name for field in msgspec.structs.fields(type(body)) if field.required}
    assert required == set(schema.get("required", ()))


@pytest.mark.parametrize("word", [*CONTENTS])
def test_fields_of_the_content_of_a_catalogue_entry_are_those_of_its_operation(word: str) -> None:
    method, path = operation_of(sent(ENTRIES[word].publish("x", CONTENTS[word])))
    operation = document()["paths"][path][method.lower()]
    schema = schema_of(operation["requestBody"]["content"]["application/json"]["schema"])
    kind = type(CONTENTS[word])
    assert body_fields(kind) == set(schema["properties"])
    required = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
    assert required == set(schema.get("required", ()))


def body_fields(kind: type[Body]) -> set[str]:
    tag = {"kind"} if kind in (bodies.OpenPort, bodies.OpenAddress) else set()
    return {field.encode_name for field in msgspec.structs.fields(kind)} | tag
