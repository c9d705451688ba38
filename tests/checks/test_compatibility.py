"""The check of breaking changes between two OpenAPI documents: one test for each kind of break, and for additions."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from control_plane.api.app import openapi_document
from deploy.checks import openapi
from deploy.checks.compatibility import breaking_changes
from tests.servers.plane import RunningPlane

Json = dict[str, Any]
DOCUMENT: Final[Json] = {
    "openapi": "3.1.0",
    "paths": {
        "/things": {
            "get": {
                "parameters": [
                    {"in": "query", "name": "kind", "schema": {"type": "string", "enum": ["a", "b"]}},
                    {"in": "query", "name": "limit", "required": True, "schema": {"type": "integer"}},
                ],
                "responses": {
                    "200": {
                        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Page"}}}
                    },
                    "404": {"description": "unknown"},
                },
            },
            "post": {
                "requestBody": {
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Create"}}}
                },
                "responses": {"201": {"description": "created"}},
            },
        }
    },
    "components": {
        "schemas": {
            "Page": {
                "type": "object",
                "required": ["items"],
                "properties": {
                    "items": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}},
                    "next": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
            },
            "Thing": {
                "type": "object",
                "required": ["id", "state"],
                "properties": {
                    "id": {"type": "string"},
                    "state": {"type": "string", "enum": ["on", "off"]},
                    "part": {"anyOf": [{"$ref": "#/components/schemas/Thing"}, {"type": "null"}]},
                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            },
            "Create": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "mode": {"type": "string", "enum": ["x", "y"]},
                    "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "rule": {
                        "oneOf": [
                            {"type": "object", "properties": {"kind": {"type": "string", "const": "port"}}},
                            {
                                "type": "object",
                                "properties": {"kind": {"type": "string", "const": "address"}},
                            },
                        ]
                    },
                },
            },
        }
    },
}


def operation(document: Json, method: str) -> Json:
    found: Json = document["paths"]["/things"][method]
    return found


def schema(document: Json, name: str) -> Json:
    found: Json = document["components"]["schemas"][name]
    return found


def fields(document: Json, name: str) -> Json:
    found: Json = schema(document, name)["properties"]
    return found


BREAKS: Final[dict[str, tuple[Callable[[Json], object], str]]] = {
    "removed path": (lambda d: d["paths"].pop("/things"), "/things: the path is removed"),
    "removed operation": (
        lambda d: d["paths"]["/things"].pop("post"),
        "POST /things: the operation is removed",
    ),
    "removed status": (
        lambda d: operation(d, "get")["responses"].pop("404"),
        "GET /things: the response 404 is removed",
    ),
    "removed media type": (
        lambda d: operation(d, "get")["responses"]["200"]["content"].clear(),
        "GET /things: response 200: the media type application/json is removed",
    ),
    "removed parameter": (
        lambda d: operation(d, "get")["parameters"].pop(0),
        "GET /things: the parameter query kind is removed",
    ),
    "parameter becomes required": (
        lambda d: operation(d, "get")["parameters"][0].update(required=True),
        "GET /things: the parameter query kind is required now",
    ),
    "new required parameter": (
        lambda d: operation(d, "get")["parameters"].append(
            {"in": "query", "name": "size", "required": True, "schema": {}}
        ),
        "GET /things: the new parameter query size is required",
    ),
    "narrowed enum of a parameter": (
        lambda d: operation(d, "get")["parameters"][0]["schema"].update(enum=["a"]),
        "GET /things: parameter query kind: the value b is not accepted any more",
    ),
    "changed type of a parameter": (
        lambda d: operation(d, "get")["parameters"][1]["schema"].update(type="boolean"),
        "GET /things: parameter query limit: the type integer is not accepted any more",
    ),
    "body becomes required": (
        lambda d: operation(d, "post")["requestBody"].update(required=True),
        "POST /things: the request needs a body now",
    ),
    "removed body": (
        lambda d: operation(d, "post").pop("requestBody"),
        "POST /things: the request has no body any more",
    ),
    "new required field of a request": (
        lambda d: (fields(d, "Create").update(size={}), schema(d, "Create")["required"].append("size")),
        "POST /things: request: the new field size is required",
    ),
    "field of a request becomes required": (
        lambda d: schema(d, "Create")["required"].append("mode"),
        "POST /things: request: the field mode is required now",
    ),
    "removed field of a request": (
        lambda d: fields(d, "Create").pop("mode"),
        "POST /things: request: the field mode is removed",
    ),
    "narrowed enum of a request": (
        lambda d: fields(d, "Create")["mode"].update(enum=["x"]),
        "POST /things: request.mode: the value y is not accepted any more",
    ),
    "free text of a request becomes an enum": (
        lambda d: fields(d, "Create")["name"].update(enum=["x"]),
        "POST /things: request.name: only x are accepted now",
    ),
    "null is not accepted any more": (
        lambda d: fields(d, "Create").update(count={"type": "integer"}),
        "POST /things: request.count: the type null is not accepted any more",
    ),
    "removed alternative of a request": (
        lambda d: fields(d, "Create")["rule"]["oneOf"].pop(),
        "POST /things: request.rule: the type object kind=address is not accepted any more",
    ),
    "removed field of a response": (
        lambda d: fields(d, "Thing").pop("labels"),
        "GET /things: response 200.items[]: the field labels is removed",
    ),
    "field of a response becomes optional": (
        lambda d: schema(d, "Thing")["required"].remove("state"),
        "GET /things: response 200.items[]: the field state is not always present any more",
    ),
    "changed type of a response": (
        lambda d: fields(d, "Thing").update(id={"type": "integer"}),
        "GET /things: response 200.items[].id: the type integer is new",
    ),
    "null in a response": (
        lambda d: fields(d, "Thing").update(id={"anyOf": [{"type": "string"}, {"type": "null"}]}),
        "GET /things: response 200.items[].id: the type null is new",
    ),
    "new value of an enum in a response": (
        lambda d: fields(d, "Thing")["state"].update(enum=["on", "off", "idle"]),
        "GET /things: response 200.items[].state: the value idle is new",
    ),
    "enum of a response becomes free text": (
        lambda d: fields(d, "Thing")["state"].pop("enum"),
        "GET /things: response 200.items[].state: the values are not limited to on, off any more",
    ),
    "changed type of the values of a mapping": (
        lambda d: fields(d, "Thing")["labels"].update(additionalProperties={"type": "integer"}),
        "GET /things: response 200.items[].labels[]: the type integer is new",
    ),
}
ADDITIONS: Final[dict[str, Callable[[Json], object]]] = {
    "path": lambda d: d["paths"].update({"/others": {}}),
    "operation": lambda d: d["paths"]["/things"].update(delete={}),
    "status": lambda d: operation(d, "get")["responses"].update({"409": {}}),
    "optional parameter": lambda d: operation(d, "get")["parameters"].append(
        {"in": "query", "name": "sort", "schema": {"type": "string"}}
    ),
    "optional field of a request": lambda d: fields(d, "Create").update(size={"type": "integer"}),
    "field of a request that is optional now": lambda d: schema(d, "Create").update(required=[]),
    "value of an enum in a request": lambda d: fields(d, "Create")["mode"].update(enum=["x", "y", "z"]),
    "wider number in a request": lambda d: fields(d, "Create").update(
        count={"anyOf": [{"type": "number"}, {"type": "null"}]}
    ),
    "field of a response": lambda d: fields(d, "Thing").update(size={"type": "integer"}),
    "narrower enum in a response": lambda d: fields(d, "Thing")["state"].update(enum=["on"]),
    "response that is never null now": lambda d: fields(d, "Page").update(next={"type": "string"}),
    "description": lambda d: fields(d, "Thing")["id"].update(description="the id"),
}


def changed(change: Callable[[Json], object]) -> Json:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    assert document != DOCUMENT
    return document


@pytest.mark.parametrize("name", BREAKS)
def test_change_of_the_openapi_document_that_breaks_clients_is_reported_with_its_location(name: str) -> None:
    change, sentence = BREAKS[name]
    assert sentence in breaking_changes(DOCUMENT, changed(change))


@pytest.mark.parametrize("name", ADDITIONS)
def test_addition_that_old_clients_ignore_is_not_reported(name: str) -> None:
    assert breaking_changes(DOCUMENT, changed(ADDITIONS[name])) == []


def test_removal_of_an_addition_is_reported_as_a_breaking_change() -> None:
    unnoticed = [
        name
        for name, change in ADDITIONS.items()
        if name != "description" and not breaking_changes(changed(change), DOCUMENT)
    ]
    assert unnoticed == []


def test_document_of_the_api_has_no_breaking_change_against_itself() -> None:
    document = openapi_document()
    assert breaking_changes(document, document) == []


def test_check_fails_on_a_breaking_change_of_the_api_and_passes_after_it_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    released = openapi_document()
    released["paths"]["/v1/removed"] = {"get": {"responses": {}}}
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(released))
    assert openapi.main([], path) == 1
    assert "/v1/removed: the path is removed" in capsys.readouterr().err
    assert openapi.main(["--write"], path) == 0
    assert openapi.main([], path) == 0
    assert json.loads(path.read_text()) == openapi_document()


def test_running_control_plane_publishes_the_document_that_the_check_compares(
    shared_plane: RunningPlane,
) -> None:
    for _ in range(2):
        assert shared_plane.document() == openapi_document()
