"""The OpenAPI document: what FastAPI derives from the routes, with the conventions that all routes have in common, and
an example of each request.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from control_plane.api.examples import BODIES, PARAMETERS, READ_MODEL, sample
from control_plane.api.requests import problems
from control_plane.api.requests.access import EXTENSION
from control_plane.api.requests.commands import REPLAYED
from control_plane.api.requests.state import MAX_KEY

_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": MAX_KEY},
    "description": "A unique text, such as a UUID. A repetition of the request with the same key has no further effect."
    " Keys are scoped by the caller and the path.",
}
_REPLAYED: Final = {
    "description": "`true` if an earlier request with the same Idempotency-Key had the effect.",
    "schema": {"type": "string", "enum": ["true"]},
}
_ETAG: Final = {
    "description": "Version of the resource and digest of the response, for If-Match and If-None-Match.",
    "schema": {"type": "string"},
}
_TAGGED: Final = frozenset({"If-Match", "If-None-Match"})
_CHANGES: Final = frozenset({"delete", "patch", "post", "put"})


def extended(original: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """Return a function that replaces `FastAPI.openapi`. It adds the conventions of all routes to the document that
    `original` (the replaced function) returns.
    """

    def openapi() -> dict[str, Any]:
        document = original()
        if problems.Problem.__name__ in document["components"]["schemas"]:
            return document  # FastAPI returns the same document each time, and it was extended before
        document["components"]["schemas"].update(problems.schemas())
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                _extend(method, path, operation)
        return document

    return openapi


def _extend(method: str, path: str, operation: dict[str, Any]) -> None:
    roles = operation[EXTENSION]["roles"]
    if not roles:
        operation.pop("security", None)
    operation["summary"] = _first_sentence(operation["description"])
    _add_examples(method.upper(), path, operation)
    if method in _CHANGES and roles != ["node"]:
        operation.setdefault("parameters", []).append(_KEY)
        _add_header(operation, REPLAYED, _REPLAYED)
    if _TAGGED & {each["name"] for each in operation.get("parameters", ())}:
        _add_header(operation, "ETag", _ETAG)


def _first_sentence(text: str) -> str:
    return re.split(r"[.;:] ", " ".join(text.split()), maxsplit=1)[0].removesuffix(".")


def _add_examples(method: str, path: str, operation: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            known = PARAMETERS[parameter["name"]]
            of_read_model = path.startswith("/v1/projections/")
            parameter.setdefault("description", known.description)
            parameter["example"] = READ_MODEL if of_read_model else known.example
    if (body := BODIES.get(f"{method} {path}")) is not None:
        operation["requestBody"]["content"]["application/json"]["example"] = body
    source = sample(method, path, anonymous=not operation[EXTENSION]["roles"])
    operation["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": source}]


def _add_header(operation: dict[str, Any], name: str, header: dict[str, Any]) -> None:
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            response.setdefault("headers", {})[name] = header
