"""Golden examples of every event shape that was ever stored, checked against the event catalog.

Three files, each keyed by stored name and version (`slot.claimed/1`):

- `facts.json`: an example of each version ever written, including the current one. An entry is kept permanently.
- `released.json`: SHA-256 of each example's canonical JSON, so that no example can change unnoticed. The commit that
  adds an example adds its line here, because events of this shape may be stored from then on.
- `read_today.json`: each example of an older version, converted to the current shape by the upcasters. It detects a
  changed result of an upcaster, because such a change alters the meaning of stored events.
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
    """Content of the three golden files of event examples, and the event catalog that must decode these examples."""

    catalog: Mapping[str, Shape]
    upcasts: Mapping[tuple[str, int], Rewrite]
    stored: Mapping[str, object]
    released: Mapping[str, str]
    read_today: Mapping[str, object]

    def objections(self) -> Iterator[str]:
        """Yield one sentence per mismatch between the examples and the catalog. Yield nothing if every event shape ever
        stored is readable.
        """
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
                yield f"{key} has an example in facts.json, but the catalog cannot decode it"
            else:
                yield from self._objections_to_example(key, *readable[key], shapes)

    def _objections_to_example(self, key: str, name: str, version: int, shapes: Shapes) -> Iterator[str]:
        stored, shape = canonical(self.stored[key]), self.catalog[name]
        if key not in self.released:
            yield f'{key} is new; add its line to released.json: "{key}": "{digest(stored)}"'
        elif self.released[key] != digest(stored):
            yield f"{key} differs from its released example; a released example must never change"
        try:
            fact = shapes.decode(name, version, stored)
        except UnreadableFact as unreadable:
            yield str(unreadable)
            return
        today = canonical(fact)
        if version < shape.version:
            yield from self._objections_to_upcast_result(key, today)
        elif today != stored:
            yield f"{key} decodes to {today}; facts.json contains {stored}"
        if version == shape.written and shapes.encode(fact) != (name, version, stored):
            yield f"{key} is encoded as {shapes.encode(fact)}; facts.json contains {stored}"

    def _objections_to_upcast_result(self, key: str, today: str) -> Iterator[str]:
        if key not in self.read_today:
            yield f'{key} is an older version; add its line to read_today.json: "{key}": {today}'
        elif today != canonical(self.read_today[key]):
            yield f"{key} decodes to {today}; read_today.json contains {canonical(self.read_today[key])}"


def canonical(shape: object) -> str:
    """Return the canonical JSON text of an event, as the ledger stores it."""
    return msgspec.json.encode(shape, order="sorted").decode()


def digest(stored: str) -> str:
    return hashlib.sha256(stored.encode()).hexdigest()


def corpus() -> Corpus:
    """Return the golden corpus of this repository, with the product's event catalog."""
    stored, released, read_today = (
        json.loads((_FOLDER / name).read_text(encoding="utf-8"))
        for name in ("facts.json", "released.json", "read_today.json")
    )
    return Corpus(CATALOG, UPCASTS, stored, released, read_today)
