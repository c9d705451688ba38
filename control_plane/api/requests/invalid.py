"""Translation of Pydantic's validation errors into the API's reason codes, messages and JSON pointers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic_core.core_schema import ErrorType

from control_plane.api.requests.request_checks import escaped_text, json_pointer, shortened
from control_plane.decisions.refusals import BadRequest, Malformed, Objection, Refused

_PYDANTIC: Final = frozenset(get_args(ErrorType))
_BY_NAME: Final = {kind.__name__: kind for kind in Refused.__subclasses__()}
_LIMITS: Final = {
    "greater_than": ("the value must be greater than", "gt"),
    "greater_than_equal": ("the value must be at least", "ge"),
    "less_than": ("the value must be less than", "lt"),
    "less_than_equal": ("the value must be at most", "le"),
}
_LENGTHS: Final = {
    "string_too_short": ("too_short", "the value must have at least {min_length} characters"),
    "string_too_long": ("too_long", "the value must have at most {max_length} characters"),
    "too_short": ("too_short", "the list must have at least {min_length} items, but has {actual_length}"),
    "too_long": ("too_long", "the list must have at most {max_length} items"),
}
_TYPES: Final = {
    "string": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "model_attributes": "an object",
    "mapping": "an object",
    "datetime": "a time such as 2026-11-21T09:30:00Z (RFC 3339)",
    "uuid": "a UUID",
    "timezone": "a time with a zone, such as 2026-11-21T09:30:00Z",
}
_SHOWN: Final = 64
"""Maximum number of characters of an invalid value that a message quotes."""
_PARAMETERS: Final = frozenset({"query", "path", "header", "cookie"})


def refusal_of(error: Mapping[str, Any], body: Any) -> Refused:
    """Return the exception that refuses a request with this JSON body, for one Pydantic error.

    If a validator of `bodies` refused the value of one field, the context of the error contains the class of the
    exception to return. If a validator of a whole object refused it, the context contains the name of the field that
    has to change.
    """
    kind = error["type"]
    location, *path = error["loc"]
    if kind == "json_invalid":
        reason = f"the body is not valid JSON: {error['ctx']['error']}, at byte {path[0]}"
        return BadRequest(Objection("invalid_json", reason))
    field = None
    if location not in _PARAMETERS:
        own = error.get("ctx", {}).get("field")
        field = pointer(path, body, error) + ("" if own is None else json_pointer([own]))
    parameter = str(path[0]) if location in _PARAMETERS and path else None
    describe = _quoted if parameter is not None else _kind_of
    code, message = _reason(error, describe) if kind in _PYDANTIC else (str(kind), str(error["msg"]))
    named = message if parameter is None else f"parameter {parameter}: {message}"
    refused_as = _BY_NAME.get(str(error.get("ctx", {}).get("refusal")), Malformed)
    return refused_as(Objection(code, escaped_text(named), field, parameter))


def pointer(path: Sequence[str | int], body: Any, error: Mapping[str, Any]) -> str:
    """Return the JSON pointer (RFC 6901) of the value that an error concerns.

    `path` is the location in Pydantic's error. It also contains union tags, which do not exist in the body and are left
    out of the pointer.
    """
    found = _resolved(list(path), body, error)
    parts = path if found is None else found
    return json_pointer(parts)


def _resolved(path: list[str | int], value: Any, error: Mapping[str, Any]) -> list[str | int] | None:
    if not path:
        return [] if value is error["input"] or value == error["input"] else None
    part, rest = path[0], path[1:]
    if error["type"] == "missing" and not rest:
        return [part] if isinstance(value, dict) else None
    if error["type"] == "extra_forbidden" and not rest and isinstance(value, dict):
        return [part]
    inside = isinstance(value, dict) and part in value
    inside = inside or (isinstance(value, list) and isinstance(part, int) and part < len(value))
    if inside and (found := _resolved(rest, value[part], error)) is not None:
        return [part, *found]
    return _resolved(rest, value, error)


def _reason(error: Mapping[str, Any], describe: Callable[[Any], str]) -> tuple[str, str]:
    """Return the reason code and the message for an error of one of Pydantic's own error types, not for an error type
    that a validator of the API defines.

    `describe` formats a value that has a wrong type or does not match a pattern. It must not quote a value from a body,
    because the value may be a secret in the wrong field.
    """
    kind, context = str(error["type"]), error.get("ctx", {})
    if kind in _LIMITS:
        words, key = _LIMITS[kind]
        return "out_of_range", f"{words} {context[key]}, not {_quoted(error['input'])}"
    if kind in _LENGTHS:
        code, words = _LENGTHS[kind]
        return code, words.format(**context)
    if kind.endswith(("_type", "_parsing", "_from_float", "_aware")) or kind in {
        "dict_type",
        "int_parsing_size",
    }:
        expected = _TYPES.get(kind.partition("_")[0], _TYPES.get(kind.rpartition("_")[0], "of another type"))
        return "wrong_type", f"the value must be {expected}, not {describe(error['input'])}"
    if kind == "string_pattern_mismatch":
        return "invalid_value", f"{describe(error['input'])} must match the pattern {context['pattern']}"
    return _other_reason(kind, error, context)


def _other_reason(kind: str, error: Mapping[str, Any], context: Mapping[str, Any]) -> tuple[str, str]:
    match kind:
        case "missing":
            return "required", "the value is required, but missing"
        case "extra_forbidden":
            return "unknown_field", f"{_quoted(error['loc'][-1])} is not a field of this request"
        case "literal_error" | "enum":
            return (
                "unknown_value",
                f"unknown value {_quoted(error['input'])}; choose one of {context['expected']}",
            )
        case "union_tag_invalid":
            return (
                "unknown_value",
                f"unknown value {_quoted(context['tag'])}; choose one of {context['expected_tags']}",
            )
        case "union_tag_not_found":
            return "required", "the value must be an object, and its field 'kind' must not be null"
        case "value_error" | "assertion_error":
            return "invalid_value", str(context.get("error", error["msg"]))
        case _:
            return (
                "invalid_value",
                "the value is not valid for this field; see /openapi.json for the valid values",
            )


def _quoted(value: Any) -> str:
    """Return a value as a quotation in an error message, shortened to `_SHOWN` characters."""
    return shortened(repr(value), _SHOWN)


def _kind_of(value: Any) -> str:
    """Return the JSON type of a value in the words of an error message, such as `a string`."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case list() | tuple():
            return "a list"
        case _:
            return "an object"
