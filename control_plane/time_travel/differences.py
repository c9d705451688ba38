"""Differences between two JSON values, field by field."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

Scalar: TypeAlias = str | int | float | bool | None
Json: TypeAlias = Scalar | Sequence["Json"] | Mapping[str, "Json"]


class Difference(NamedTuple):
    """A field that differs between two JSON values.

    `path` is a JSON pointer (RFC 6901). A value is None if the field is missing on that side.
    """

    path: str
    before: Scalar
    after: Scalar


def differences(before: Json, after: Json) -> list[Difference]:
    """Return every field that differs between two JSON values, in order. Empty lists and objects have no fields."""
    was, became = dict(_fields("", before)), dict(_fields("", after))
    return [
        Difference(path, was.get(path), became.get(path))
        for path in dict.fromkeys((*was, *became))
        if was.get(path) != became.get(path)
    ]


def _fields(path: str, value: Json) -> Iterator[tuple[str, Scalar]]:
    match value:
        case str() | int() | float() | None:
            yield path, value
        case Mapping():
            for name, part in value.items():
                yield from _fields(f"{path}/{name.replace('~', '~0').replace('/', '~1')}", part)
        case _:
            for index, part in enumerate(value):
                yield from _fields(f"{path}/{index}", part)
