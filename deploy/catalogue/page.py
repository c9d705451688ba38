"""Generator of docs/events.md from the catalogue of event types, their classes, docstrings and claims.

Streams are listed in the order in which the catalogue first mentions them, and so are the events of each stream. A
missing description is an error: `Unexplained` lists all missing descriptions at once.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

from deploy.catalogue import frame, meanings
from deploy.catalogue.fields import fields_of, objections_to, table
from deploy.catalogue.types import kind_in_words, kinds_of, part_in_words, parts_of, pointing
from events.catalog import CATALOG
from events.claims import Claim, claims_of
from events.facts import Record
from events.ledger import tables
from events.shapes import Rewrite, Shape
from events.upcasts import UPCASTS


class Unexplained(ValueError):
    """A generated page lacks descriptions, because docstrings are missing in the sources; `objections` lists them."""

    def __init__(self, objections: Iterable[str]) -> None:
        self.objections = tuple(objections)
        super().__init__("\n".join(self.objections))


@dataclass(frozen=True)
class Page:
    """Generator of the Markdown page that describes all event types of a catalogue."""

    catalog: Mapping[str, Shape]
    upcasts: Mapping[tuple[str, int], Rewrite]

    def text(self) -> str:
        """Return the complete page of events in Markdown. Raises `Unexplained` if an event or a field has no
        explanation.
        """
        if objections := (*_objections_to_envelope(), *self._objections()):
            raise Unexplained(objections)
        sections = [
            frame.HEAD,
            *self._contents(),
            frame.ENVELOPE_HEAD,
            _envelope(),
            frame.CLAIMS_HEAD,
            self._claims(),
        ]
        for stream, modules in self._streams().items():
            sections += [
                f"## Stream `{stream}`\n",
                *(f"{meanings.of_module(module)}\n" for module in modules),
            ]
            sections += [self._event(name) for name in self._events(modules)]
        sections += [
            frame.PARTS_HEAD,
            *(_part(part) for part in self._parts()),
            frame.KINDS_HEAD,
            self._kinds(),
        ]
        return "\n".join([*sections, frame.TAIL])

    def _objections(self) -> Iterator[str]:
        for module in dict.fromkeys(_module(shape) for shape in self.catalog.values()):
            if meanings.stream_of_module(module) is None:
                yield f"{module.__name__} does not name its stream: begin its docstring with '... Stream: `name`.'"
        for name, shape in self.catalog.items():
            yield from objections_to(f"{name}: {shape.fact.__qualname__}", shape.fact)
        for part in self._parts():
            yield from objections_to(part.__qualname__, part)
        for (name, older), upcast in self.upcasts.items():
            if not upcast.__doc__:
                yield f"{name} version {older}: the upcaster has no docstring that describes the difference"

    def _streams(self) -> dict[str, list[ModuleType]]:
        streams: dict[str, list[ModuleType]] = {}
        for module in dict.fromkeys(_module(shape) for shape in self.catalog.values()):
            streams.setdefault(meanings.stream_of_module(module) or "", []).append(module)
        return streams

    def _events(self, modules: Iterable[ModuleType]) -> Iterator[str]:
        for module in modules:
            yield from (name for name, shape in self.catalog.items() if _module(shape) is module)

    def _parts(self) -> list[type[Record]]:
        found = (part for shape in self.catalog.values() for part in parts_of(shape.fact))
        return sorted(dict.fromkeys(found), key=lambda part: part.__name__)

    def _kinds(self) -> str:
        holders = [*(shape.fact for shape in self.catalog.values()), *self._parts()]
        found = {
            kind_in_words(kind): meanings.of_kind(kind) for holder in holders for kind in kinds_of(holder)
        }
        return table(
            ("kind", "written as"), ((kind, meaning) for kind, meaning in sorted(found.items()) if meaning)
        )

    def _contents(self) -> Iterator[str]:
        for stream, modules in self._streams().items():
            rows = (
                (_link(name), meanings.first_sentence(meanings.of_class(self.catalog[name].fact) or ""))
                for name in self._events(modules)
            )
            yield table((f"stream `{stream}`", "meaning"), rows)

    def _claims(self) -> str:
        links: dict[Claim, tuple[list[str], list[str]]] = {}
        for name, shape in self.catalog.items():
            for names, claims in enumerate(claims_of(pointing(shape.fact))):
                for claim in claims:
                    links.setdefault(claim, ([], []))[names].append(_link(name))
        rows = (
            (f"`{kind}`", f"`{value}`", ", ".join(takers) or "-", ", ".join(freers) or "-")
            for (kind, value), (takers, freers) in links.items()
        )
        return table(("claim", "on", "taken by", "freed by"), rows)

    def _event(self, name: str) -> str:
        shape = self.catalog[name]
        takes, frees = claims_of(pointing(shape.fact))
        about = [*self._versions(name, shape), *_claimed("Takes", takes), *_claimed("Frees", frees)]
        head = f"### `{name}`\n\n{meanings.of_class(shape.fact)}\n\n{' '.join(about)}\n\n"
        return head + fields_of(shape.fact)

    def _versions(self, name: str, shape: Shape) -> Iterator[str]:
        yield f"Version {shape.version}, `{shape.fact.__qualname__}`."
        if shape.still_written is not None:
            yield f"This release writes version {shape.written}."
        for older in range(shape.version - 1, 0, -1):
            about = meanings.in_lines(self.upcasts[name, older].__doc__ or "")
            # The first sentence describes the function; the others describe how the version differs.
            yield about.partition(". ")[2] or f"Version {older}: {about}"


def page() -> Page:
    """Return the generator of docs/events.md, the page of all event types of the product."""
    return Page(CATALOG, UPCASTS)


def _module(shape: Shape) -> ModuleType:
    return sys.modules[shape.fact.__module__]


def _objections_to_envelope() -> Iterator[str]:
    columns = tables.event.columns.keys()
    for column in sorted(frame.ENVELOPE.keys() ^ set(columns)):
        yield f"the column {column} of ledger.event is missing or superfluous in the descriptions of {frame.__name__}"


def _envelope() -> str:
    columns = [column.name for column in tables.event.columns]
    return table(("column", "meaning"), ((f"`{name}`", frame.ENVELOPE[name]) for name in columns))


def _part(part: type[Record]) -> str:
    return f"### {part_in_words(part).capitalize()}\n\n{meanings.of_class(part)}\n\n{fields_of(part)}"


def _link(name: str) -> str:
    return f"[`{name}`](#{name.replace('.', '')})"


def _claimed(verb: str, claims: Iterable[Claim]) -> Iterator[str]:
    if named := " and ".join(f"`{kind}` on `{value}`" for kind, value in claims):
        yield f"{verb} the claim {named}."
