"""Descriptions of the types of fields, for the generated documentation pages of events and tasks.

`pointing` makes example events for the same pages: each field contains its own path, so that a text computed from such
an event, for example a claim, shows from which fields it is computed.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NewType,
    Self,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

import msgspec
from pydantic import AwareDatetime, BaseModel

from deploy.catalogue.limits import limits_in_words
from events.facts import Record

F = TypeVar("F", bound=msgspec.Struct)

_SPELLED: Final = {"Id": "id", "Ipv4": "IPv4", "Mac": "MAC", "Sku": "SKU", "Ssh": "SSH"}
_PLAIN: Final = {
    str: "text",
    int: "whole number",
    bool: "true or false",
    datetime: "time",
    AwareDatetime: "time",
    UUID: "UUID",
}
_UNITS: Final = {
    (int, "seconds"): "whole number of seconds",
    (int, "mib"): "whole number of MiB",
    (str, "sha256"): "SHA-256, hexadecimal",
}


class NoDescription(LookupError):
    """The generator of the documentation pages has no description for the type of a field."""


def in_words(field: str, annotation: Any) -> str:
    """Return the description of a field's type, such as `whole number of seconds`. The last word of the field's name
    determines the unit. Raises `NoDescription`.
    """
    if isinstance(annotation, NewType):
        return kind_in_words(annotation)
    if unit := _UNITS.get((annotation, field.rpartition("_")[2])):
        return unit
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if isinstance(annotation, type) and issubclass(annotation, tuple):
        return f"list: {', '.join(getattr(annotation, '_fields', ()))}"
    if is_part(annotation):
        return f"[{part_in_words(annotation)}](#{part_in_words(annotation).replace(' ', '-')})"
    return _generic_in_words(field, annotation)


def _generic_in_words(field: str, annotation: Any) -> str:
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is Annotated:
            of_them = " of them" if get_origin(arguments[0]) is tuple else " long"
            return in_words(field, arguments[0]) + limits_in_words(arguments[1:], of_them)
        case origin if origin is UnionType or origin is Union:
            return " or ".join("null" if a is NoneType else in_words(field, a) for a in arguments)
        case origin if origin is tuple and arguments[1:] == (...,):
            return f"list: {in_words(field, arguments[0])}"
        case origin if origin is dict:
            return f"object: {in_words('', arguments[0])} to {in_words('', arguments[1])}"
        case origin if origin is Literal:
            return "one of " + ", ".join(f"`{choice}`" for choice in arguments)
        case _:
            raise NoDescription(f"the type {annotation!r} has no description; add one to {__name__}")


def kind_in_words(kind: NewType) -> str:
    """Return the name of a value type as words: `MacAddress` becomes `MAC address`."""
    parts = re.findall(r"[A-Z][a-z0-9]*", kind.__name__)
    return " ".join(_SPELLED.get(part, part.lower()) for part in parts)


def is_part(annotation: object) -> TypeGuard[type]:
    """Return whether a type is a class with fields of its own."""
    return isinstance(annotation, type) and issubclass(annotation, Record | BaseModel)


def bare(annotation: Any) -> Any:
    """Return a field's type without the limits that an `Annotated` type adds, such as a maximum length."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def hints_of(holder: type) -> dict[str, Any]:
    """Return the type of each field of a class, including the limits of the fields of a Pydantic model."""
    if not issubclass(holder, BaseModel):
        return get_type_hints(holder)
    return {
        name: Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        for name, field in holder.model_fields.items()
    }


def part_in_words(record: type) -> str:
    """Return the name of a class as words: `SlotNetwork` becomes `slot network`."""
    return " ".join(re.findall(r"[A-Z][a-z0-9]*", record.__name__)).lower()


def parts_of(holder: type) -> Iterator[type]:
    """Yield the classes with fields of their own that occur in the field types of an event or task, recursively."""
    for leaf in _leaves_of(holder):
        if is_part(leaf):
            yield leaf
            yield from parts_of(leaf)


def kinds_of(holder: type) -> Iterator[NewType]:
    """Yield the value types (`NewType`) that occur in the field types of a class."""
    yield from (leaf for leaf in _leaves_of(holder) if isinstance(leaf, NewType))


def _leaves_of(holder: type) -> Iterator[Any]:
    for annotation in hints_of(holder).values():
        yield from _leaves(annotation)


def _leaves(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Annotated:
        yield from _leaves(get_args(annotation)[0])
    elif arguments := get_args(annotation):
        for argument in arguments:
            yield from _leaves(argument)
    else:
        yield annotation


class _NumberField(int):
    """An integer that is formatted as the path of its field, such as `{rule.port}`."""

    path: str

    def __new__(cls, path: str) -> Self:
        number = super().__new__(cls, 0)
        number.path = path
        return number

    def __format__(self, _spec: str) -> str:
        return f"{{{self.path}}}"


def pointing(struct: type[F], path: str = "") -> F:
    """Return an instance of an event class in which each text field contains its path, such as `{network.subnet}`. Each
    integer in the instance is formatted as its path too.

    A text that is computed from the instance therefore contains the paths of the fields from which it is computed.
    `path` is the prefix of all paths.
    """
    hints = get_type_hints(struct)
    return struct(**{name: _pointing(hints[name], path + name) for name in struct.__struct_fields__})


def _pointing(annotation: Any, path: str) -> Any:
    if isinstance(annotation, NewType):
        return _pointing(annotation.__supertype__, path)
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return pointing(annotation, f"{path}.")
    values = {
        str: f"{{{path}}}",
        int: _NumberField(path),
        bool: False,
        datetime: datetime(2000, 1, 1, tzinfo=UTC),
        UUID: UUID(int=0),
    }
    if annotation in values:
        return values[annotation]
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is tuple:
            return (_pointing(arguments[0], f"{path}[]"),)
        case origin if origin is dict:
            return {}
        case origin if origin is Literal:
            return arguments[0]
        case _:
            return _pointing(next(a for a in arguments if a is not NoneType), path)
