"""Breaking changes between two OpenAPI documents. Pure: documents come in, sentences go out.

A change breaks if a client that was written against the old document can fail against the new one. A request may permit
more than before, and a response less. These changes break a client:

- a path, an operation, a response status or a media type is removed;
- a field of a response is removed, or is no longer always present;
- a request has a new required field, parameter or body, or an existing one becomes required;
- a field or parameter that a request may have is removed;
- a type or enum becomes narrower in a request, or wider in a response.

Descriptions, examples and limits of values are not compared. Schemas refer to each other, also to themselves; a pair of
schemas is compared once.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

Json = Mapping[str, Any]
_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


def breaking_changes(old: Json, new: Json) -> list[str]:
    """Return a sentence for each change from `old` to `new` that can break a client, in the order of the document."""
    return list(dict.fromkeys(_Comparison(old, new).all()))


class _Comparison:
    """The comparison of two OpenAPI documents, of which each pair of schemas is compared once."""

    def __init__(self, old: Json, new: Json) -> None:
        self._old, self._new = old, new
        self._seen: set[tuple[str, str, bool]] = set()

    def all(self) -> Iterator[str]:
        for path, operations in self._old.get("paths", {}).items():
            if path not in self._new.get("paths", {}):
                yield f"{path}: the path is removed"
                continue
            now = self._new["paths"][path]
            for method in _METHODS:
                if method in operations:
                    where = f"{method.upper()} {path}"
                    if method in now:
                        yield from self._operation(where, operations[method], now[method])
                    else:
                        yield f"{where}: the operation is removed"

    def _operation(self, where: str, old: Json, new: Json) -> Iterator[str]:
        yield from self._parameters(where, _parameters(old), _parameters(new))
        yield from self._body(where, old.get("requestBody"), new.get("requestBody"))
        for status, response in old.get("responses", {}).items():
            if status not in new.get("responses", {}):
                yield f"{where}: the response {status} is removed"
            else:
                what = f"{where}: response {status}"
                yield from self._contents(what, response, new["responses"][status], sent=False)

    def _parameters(self, where: str, old: Mapping[str, Json], new: Mapping[str, Json]) -> Iterator[str]:
        for name, parameter in old.items():
            if name not in new:
                yield f"{where}: the parameter {name} is removed"
                continue
            if new[name].get("required") and not parameter.get("required"):
                yield f"{where}: the parameter {name} is required now"
            what = f"{where}: parameter {name}"
            yield from self._schemas(
                what, parameter.get("schema", {}), new[name].get("schema", {}), sent=True
            )
        for name in new.keys() - old.keys():
            if new[name].get("required"):
                yield f"{where}: the new parameter {name} is required"

    def _body(self, where: str, old: Json | None, new: Json | None) -> Iterator[str]:
        if new is None:
            if old is not None:
                yield f"{where}: the request has no body any more"
            return
        if new.get("required") and not (old or {}).get("required"):
            yield f"{where}: the request needs a body now"
        if old is not None:
            yield from self._contents(f"{where}: request", old, new, sent=True)

    def _contents(self, where: str, old: Json, new: Json, *, sent: bool) -> Iterator[str]:
        for media, content in old.get("content", {}).items():
            if media not in new.get("content", {}):
                yield f"{where}: the media type {media} is removed"
            else:
                now = new["content"][media]
                yield from self._schemas(where, content.get("schema", {}), now.get("schema", {}), sent=sent)

    def _schemas(self, where: str, old: Json, new: Json, *, sent: bool) -> Iterator[str]:
        """Yield the breaking changes between two schemas: of a part of a request if `sent`, else of a response."""
        pair = (repr(old), repr(new), sent)
        if "'$ref'" in pair[0] or "'$ref'" in pair[1]:  # also inside a union: it may lead back to this schema
            if pair in self._seen:
                return
            self._seen.add(pair)
        old, new = _resolved(self._old, old), _resolved(self._new, new)
        before, after = _alternatives(self._old, old), _alternatives(self._new, new)
        yield from _types(where, before, after, sent=sent)
        for kind, one in before.items():
            if kind in after:
                yield from self._alike(where, one, after[kind], sent=sent)

    def _alike(self, where: str, old: Json, new: Json, *, sent: bool) -> Iterator[str]:
        """Compare two schemas of the same type."""
        yield from _enums(where, old, new, sent=sent)
        yield from self._objects(where, old, new, sent=sent)
        for name in ("items", "additionalProperties"):
            if isinstance(old.get(name), Mapping) and isinstance(new.get(name), Mapping):
                yield from self._schemas(f"{where}[]", old[name], new[name], sent=sent)

    def _objects(self, where: str, old: Json, new: Json, *, sent: bool) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        required_before, required_after = set(old.get("required", ())), set(new.get("required", ()))
        for name, field in before.items():
            if name not in after:
                yield f"{where}: the field {name} is removed"
                continue
            if sent and name in required_after - required_before:
                yield f"{where}: the field {name} is required now"
            if not sent and name in required_before - required_after:
                yield f"{where}: the field {name} is not always present any more"
            yield from self._schemas(f"{where}.{name}", field, after[name], sent=sent)
        for name in sorted(after.keys() - before.keys()):
            if sent and name in required_after:
                yield f"{where}: the new field {name} is required"


def _parameters(operation: Json) -> dict[str, Json]:
    """Return the parameters of an operation, by location (such as `query`) and name. The API has no parameters by
    reference.
    """
    return {f"{each['in']} {each['name']}": each for each in operation.get("parameters", ())}


def _resolved(document: Json, schema: Json) -> Json:
    """Return the schema that a reference refers to, with the fields beside the reference."""
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = {**found, **{name: value for name, value in schema.items() if name != "$ref"}}
    return schema


def _alternatives(document: Json, schema: Json) -> dict[str, Json]:
    """Return the alternatives of a schema by their types. A schema without a type permits everything; its type is
    `any`.

    The alternatives of a union of objects are named by their discriminating constant, if they have one.
    """
    found: dict[str, Json] = {}
    for union in ("anyOf", "oneOf"):
        for each in schema.get(union, ()):
            found |= _alternatives(document, _resolved(document, each))
    if found:
        return found
    kinds = schema.get("type", "any")
    named = [kinds] if isinstance(kinds, str) else list(kinds)
    return {f"{kind}{_tag(schema)}": schema for kind in named}


def _tag(schema: Json) -> str:
    constants = (
        f"{name}={field['const']}" for name, field in schema.get("properties", {}).items() if "const" in field
    )
    return "".join(f" {each}" for each in constants)


def _types(where: str, before: Mapping[str, Json], after: Mapping[str, Json], *, sent: bool) -> Iterator[str]:
    if sent and "any" not in after:
        for kind in _missing(before, after):
            yield f"{where}: the type {kind} is not accepted any more"
    if not sent and "any" not in before:
        for kind in _missing(after, before):
            yield f"{where}: the type {kind} is new"


def _missing(kinds: Mapping[str, Json], among: Mapping[str, Json]) -> Iterator[str]:
    """Yield each type of `kinds` that `among` does not contain. Every integer is also a number."""
    for kind in kinds:
        if kind not in among and not (kind == "integer" and "number" in among):
            yield kind


def _enums(where: str, old: Json, new: Json, *, sent: bool) -> Iterator[str]:
    before, after = _values(old), _values(new)
    narrow, wide = (after, before) if sent else (before, after)
    if narrow is None:
        return
    if wide is None:
        yield (
            f"{where}: only {', '.join(map(str, narrow))} are accepted now"
            if sent
            else (f"{where}: the values are not limited to {', '.join(map(str, narrow))} any more")
        )
        return
    for value in wide:
        if value not in narrow:
            what = "is not accepted any more" if sent else "is new"
            yield f"{where}: the value {value} {what}"


def _values(schema: Json) -> list[Any] | None:
    """Return the values that a schema permits; None: all of its type."""
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return None if values is None else list(values)
