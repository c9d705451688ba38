"""Conversion between facts and stored rows of all schema versions (LED-5).

A type has versions 1 to n, and all are readable: a row of the newest version is decoded directly; a row of an older
version is first converted by a chain of upcasters. An unknown version was written by a newer release.

Old and new releases run side by side during an upgrade, and an old release cannot read the shapes of a new one. So a
release that introduces a new shape reads it and continues to write the previous one (`Shape.still_written`); the next
release writes the new shape. A fact that is encoded in the older shape is decoded again before it is written: if
information was lost, the fact is refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from events.facts import Fact, Unreadable

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object as decoded: strings, integers, booleans, nulls, lists and further objects."""
Rewrite: TypeAlias = Callable[[JsonObject], JsonObject]
"""A pure function that converts the stored form of a fact to the next or the previous schema version of its event type.
"""

_NAME: Final = re.compile(r"[a-z][a-z_]*\.[a-z][a-z_]*")
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
MISREAD: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that a function over JSON raises if the JSON does not have the expected structure."""


class Shape(NamedTuple):
    """The newest shape of one event type: its version and its class.

    `still_written`, if given, converts a fact to the previous version, which is the one that this release writes.
    """

    version: int
    fact: type[Fact]
    still_written: Rewrite | None = None

    @property
    def written(self) -> int:
        """Schema version in which this release writes the event type."""
        return self.version if self.still_written is None else self.version - 1


class UnknownFact(LookupError):
    """The ledger has an event type or version that is unknown to this release; a newer release wrote the event."""

    def __init__(self, type_: str, schema_version: int) -> None:
        super().__init__(f"a newer release wrote the unknown event type {type_!r} version {schema_version}")
        self.type, self.schema_version = type_, schema_version


class UnreadableFact(msgspec.ValidationError):
    """A stored row, or the result of an upcaster for it, does not have the shape of its version."""

    def __init__(self, type_: str, schema_version: int, reason: str) -> None:
        super().__init__(f"{type_} version {schema_version} cannot be read: {reason}")
        self.type, self.schema_version = type_, schema_version


class NotYetWritable(ValueError):
    """The fact contains information that cannot be represented in the schema version that this release still writes."""

    def __init__(self, type_: str, schema_version: int) -> None:
        super().__init__(
            f"{type_} is still written as version {schema_version}, which cannot represent this fact; the next release can write it"
        )
        self.type, self.schema_version = type_, schema_version


class BrokenCatalog(ValueError):
    """The table of event shapes and the table of upcasters are inconsistent; `objections` lists every problem."""

    def __init__(self, objections: Sequence[str]) -> None:
        super().__init__("; ".join(objections))
        self.objections = tuple(objections)


class Shapes:
    """Encoder and decoder for the facts of a catalog. Raises `BrokenCatalog` unless every version can be read."""

    def __init__(self, catalog: Mapping[str, Shape], upcasts: Mapping[tuple[str, int], Rewrite]) -> None:
        if objections := tuple(_objections(catalog, upcasts)):
            raise BrokenCatalog(objections)
        self._written = {
            shape.fact: (name, shape.written, shape.still_written) for name, shape in catalog.items()
        }
        self.readers = {
            (name, version): _reader(name, version, shape, upcasts)
            for name, shape in catalog.items()
            for version in range(1, shape.version + 1)
        }
        """Decoders by stored name and version; each raises any of `MISREAD`, which `decode` converts to
        `UnreadableFact`.
        """

    def name_of(self, fact: Fact) -> str:
        """Return the stored name of a fact."""
        return fact.type if isinstance(fact, Unreadable) else self._written[type(fact)][0]

    def encode(self, fact: Fact) -> tuple[str, int, str]:
        """Return a fact's stored name, written schema version and canonical JSON. Raises `NotYetWritable`."""
        name, version, rewrite = self._written[type(fact)]
        data = _ENCODER.encode(fact).decode()
        if rewrite is not None:
            data = _ENCODER.encode(rewrite(msgspec.json.decode(data, type=JsonObject))).decode()
            if self.decode(name, version, data) != fact:
                raise NotYetWritable(name, version)
        return name, version, data

    def decode(self, type_: str, schema_version: int, data: str) -> Fact:
        """Return the fact of a stored row. Raises `UnknownFact` and `UnreadableFact`."""
        try:
            read = self.readers[type_, schema_version]
        except KeyError:
            raise UnknownFact(type_, schema_version) from None
        try:
            return read(data)
        except MISREAD as error:
            raise UnreadableFact(type_, schema_version, _why(error)) from error


def _reader(
    name: str, version: int, shape: Shape, upcasts: Mapping[tuple[str, int], Rewrite]
) -> Callable[[str], Fact]:
    if version == shape.version:
        return msgspec.json.Decoder(shape.fact).decode
    chain = tuple((older, upcasts[name, older]) for older in range(version, shape.version))
    return partial(_read_older, chain, shape.fact)


def _read_older(chain: Sequence[tuple[int, Rewrite]], fact: type[Fact], data: str) -> Fact:
    shape = msgspec.json.decode(data, type=JsonObject)
    for older, upcast in chain:
        try:
            shape = upcast(shape)
        except MISREAD as error:
            raise ValueError(f"the upcaster from version {older} failed: {_why(error)}") from error
        if not isinstance(shape, dict):
            raise TypeError(
                f"the upcaster from version {older} returned a {type(shape).__name__} instead of a JSON object"
            )
    return msgspec.convert(shape, fact)


def _why(error: Exception) -> str:
    return f"{type(error).__name__} {error}" if isinstance(error, LookupError) else str(error)


def _objections(catalog: Mapping[str, Shape], upcasts: Mapping[tuple[str, int], Rewrite]) -> Iterator[str]:
    readable_as: dict[type[Fact], str] = {}
    for name, shape in catalog.items():
        if (other := readable_as.setdefault(shape.fact, name)) != name:
            yield f"{shape.fact.__name__} is stored both as {other} and as {name}"
        yield from _objections_to(name, shape)
        for older in range(1, shape.version):
            if (name, older) not in upcasts:
                yield f"{name} version {older} has no upcaster to version {older + 1}"
    for name, older in upcasts:
        if name not in catalog:
            yield f"there is an upcaster of {name}, which is not in the catalog"
        elif not 1 <= older < catalog[name].version:
            yield f"{name} has an upcaster from version {older}, but its newest version is {catalog[name].version}"


def _objections_to(name: str, shape: Shape) -> Iterator[str]:
    if not _NAME.fullmatch(name):
        yield f"{name!r} is not a valid event type such as slot.claimed"
    if shape.version < 1:
        yield f"{name} has version {shape.version}; versions begin at 1"
    if shape.still_written is not None and shape.version == 1:
        yield f"{name} has no version before 1 that could still be written; remove still_written"
