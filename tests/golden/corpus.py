"""What every stored shape looks like, held against a catalog: the objections name all that does not fit.

Three files, each keyed by stored name and version (`slot.claimed/1`):

- `facts.json`: an example of each version ever written, today's included. An entry stays for ever.
- `released.json`: SHA-256 of each example's canonical JSON, so that none is changed on the way. An example gets its
  line with the commit that brings it, because a row of its shape may be stored from then on.
- `read_today.json`: what each example of an older version reads as, in today's shape. So an upcaster that changes its
  mind is seen, although it is history that it changes.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from events.catalog import CATALOG
from events.shapes import Rewrite, Shape, Shapes, UnreadableFact
from events.upcasts import UPCASTS

_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True)
class Corpus:
    """The three files, and the catalog that must read them."""

    catalog: Mapping[str, Shape]
    upcasts: Mapping[tuple[str, int], Rewrite]
    stored: Mapping[str, object]
    released: Mapping[str, str]
    read_today: Mapping[str, object]

    def objections(self) -> Iterator[str]:
        """Everything that does not fit, a sentence each; nothing when every shape ever stored is readable."""
        shapes = Shapes(self.catalog, self.upcasts)
        readable = {
            f"{name}/{version}": (name, version)
            for name, shape in self.catalog.items()
            for version in range(1, shape.version + 1)
        }
        for key in sorted(readable.keys() | self.stored.keys() | self.released.keys()):
            if key not in self.stored:
                yield f"{key} has no example in facts.json"
            elif key not in readable:
                yield f"{key} has an example in facts.json, and nothing reads it"
            else:
                yield from self._objections_to(key, *readable[key], shapes)

    def _objections_to(self, key: str, name: str, version: int, shapes: Shapes) -> Iterator[str]:
        stored, shape = canonical(self.stored[key]), self.catalog[name]
        if key not in self.released:
            yield f'{key} is new and lacks its line in released.json, "{key}": "{digest(stored)}"'
        elif self.released[key] != digest(stored):
            yield f"{key} was released with another example, and no example ever changes"
        try:
            fact = shapes.decode(name, version, stored)
        except UnreadableFact as unreadable:
            yield str(unreadable)
            return
        today = canonical(fact)
        if version < shape.version:
            yield from self._objections_to_upcast(key, today)
        elif today != stored:
            yield f"{key} reads back as {today}, not as the {stored} of facts.json"
        if version == shape.written and shapes.encode(fact) != (name, version, stored):
            yield f"{key} is written as {shapes.encode(fact)}, not as the {stored} of facts.json"

    def _objections_to_upcast(self, key: str, today: str) -> Iterator[str]:
        if key not in self.read_today:
            yield f'{key} is of an older version and lacks its line in read_today.json, "{key}": {today}'
        elif today != canonical(self.read_today[key]):
            yield f"{key} reads as {today}, not as the {canonical(self.read_today[key])} of read_today.json"


def canonical(shape: object) -> str:
    """The bytes that the ledger would hold, as text."""
    return msgspec.json.encode(shape, order="sorted").decode()


def digest(stored: str) -> str:
    return hashlib.sha256(stored.encode()).hexdigest()


def corpus() -> Corpus:
    """That of this repository."""
    stored, released, read_today = (
        json.loads((_FOLDER / name).read_text(encoding="utf-8"))
        for name in ("facts.json", "released.json", "read_today.json")
    )
    return Corpus(CATALOG, UPCASTS, stored, released, read_today)
