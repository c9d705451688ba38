"""Generator of docs/tasks.md from the catalogue of tasks, the wire types and their docstrings.

A missing description is an error: `Unexplained` lists all missing descriptions at once.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pydantic import BaseModel

from deploy.catalogue import meanings
from deploy.catalogue import tasks_frame as frame
from deploy.catalogue.fields import fields_of, objections_to, table
from deploy.catalogue.page import Unexplained
from deploy.catalogue.types import kind_in_words, kinds_of, part_in_words, parts_of
from tasks.catalogue import REFUSALS, TYPES, TaskType, is_order
from tasks.operations import Operation
from tasks.orders import Order

_OMITTED: Final = ("kind", "version", "schema_version", "body")
_ENVELOPES: Final = (Order, Operation)


@dataclass(frozen=True)
class TasksPage:
    """Generator of the Markdown page that describes task types and the meanings of their failure codes."""

    types: tuple[TaskType, ...]
    codes: Mapping[str, str]

    def text(self) -> str:
        """Return the complete page of tasks in Markdown. Raises `Unexplained`."""
        if objections := tuple(self._objections()):
            raise Unexplained(objections)
        sections = [
            *(frame.HEAD, self._contents(), frame.BOUNDS_HEAD, self._bounds()),
            *(frame.REFUSALS_HEAD, self._coded(REFUSALS), frame.FAILURES_HEAD, self._failures()),
            *(self._sort("Orders", orders=True), self._sort("Operations", orders=False)),
            *(frame.ENVELOPES_HEAD, *(_part(envelope) for envelope in _ENVELOPES)),
            *(frame.PARTS_HEAD, *(_part(part) for part in self._parts())),
            *(frame.KINDS_HEAD, self._kinds()),
        ]
        return "\n".join(sections)

    def _objections(self) -> Iterator[str]:
        for type_ in self.types:
            yield from objections_to(f"{type_.kind}: {type_.body.__qualname__}", type_.body, _OMITTED)
            for result in _endings(type_):
                yield from objections_to(f"{type_.kind}: {result.__qualname__}", result, _OMITTED)
        for part in (*_ENVELOPES, *self._parts()):
            yield from objections_to(part.__qualname__, part, _OMITTED)
        used = {*REFUSALS, *(code for type_ in self.types for code in type_.failures)}
        for code in sorted(used ^ self.codes.keys()):
            yield f"the code {code} is missing or superfluous in the descriptions of {frame.__name__}"

    def _contents(self) -> str:
        rows = (
            (_link(type_.kind), meanings.first_sentence(meanings.of_class(type_.body) or ""), type_.serves)
            for type_ in self.types
        )
        return table(("task", "meaning", "requirement"), rows)

    def _bounds(self) -> str:
        rows = (
            (
                _link(type_.kind),
                _time(type_.bounds.time_limit),
                str(type_.bounds.retries or "never"),
                _time(type_.bounds.maximum_age),
                f"{type_.bounds.payload_bytes:,}",
                f"{type_.bounds.credit} {type_.bounds.lane}",
            )
            for type_ in self.types
        )
        return table(("task", "time limit", "retries", "maximum age", "bytes", "credit"), rows)

    def _coded(self, codes: Iterable[str]) -> str:
        return table(("code", "meaning"), ((f"`{code}`", self.codes[code]) for code in codes))

    def _failures(self) -> str:
        codes = dict.fromkeys(code for type_ in self.types for code in type_.failures)
        retryable = frozenset[str]().union(*(type_.retryable for type_ in self.types))
        rows = ((f"`{code}`", self.codes[code], "yes" if code in retryable else "") for code in codes)
        return table(("code", "meaning", "retryable"), rows)

    def _sort(self, head: str, *, orders: bool) -> str:
        chosen = (type_ for type_ in self.types if is_order(type_.kind) is orders)
        return "\n".join([f"## {head}\n", *(_type(type_) for type_ in chosen)])

    def _parts(self) -> list[type]:
        holders: list[type] = [
            *_ENVELOPES,
            *(each for type_ in self.types for each in (type_.body, *_endings(type_))),
        ]
        found = dict.fromkeys(part for holder in holders for part in parts_of(holder))
        described = {*_ENVELOPES, *(type_.body for type_ in self.types)}
        return sorted((part for part in found if part not in described), key=lambda part: part.__name__)

    def _kinds(self) -> str:
        holders: list[type] = [*_ENVELOPES, *(type_.body for type_ in self.types), *self._parts()]
        found = {
            kind_in_words(kind): meanings.of_kind(kind) for holder in holders for kind in kinds_of(holder)
        }
        rows = ((kind, meaning) for kind, meaning in sorted(found.items()) if meaning)
        return table(("kind", "written as"), rows)


def tasks_page() -> TasksPage:
    """Return the generator of docs/tasks.md, the page of all task types of the product."""
    return TasksPage(TYPES, frame.CODES)


def _type(type_: TaskType) -> str:
    failures = ", ".join(f"`{code}`" for code in type_.failures)
    lines = [
        f"### `{type_.kind}`\n",
        f"{meanings.of_class(type_.body)}\n",
        f"Version {type_.version}, `{type_.body.__qualname__}`. Implements {type_.serves}.\n",
        _fields(type_.body),
        *(f"Success is reported as `{result.__qualname__}`. {_ending(result)}" for result in type_.results),
    ]
    if type_.failure_report is not None:
        lines.append(
            f"Failure is reported as `{type_.failure_report.__qualname__}`. {_ending(type_.failure_report)}"
        )
    if failures:
        lines.append(f"Failure codes: {failures}.\n")
    return "\n".join(lines)


def _ending(ending: type[BaseModel]) -> str:
    return f"{meanings.of_class(ending)}\n\n{_fields(ending)}"


def _fields(holder: type[BaseModel]) -> str:
    if not set(holder.model_fields) - set(_OMITTED):
        return "It has no fields.\n"
    return fields_of(holder, _OMITTED)


def _endings(type_: TaskType) -> tuple[type[BaseModel], ...]:
    return type_.results if type_.failure_report is None else (*type_.results, type_.failure_report)


def _part(part: type) -> str:
    return (
        f"### {part_in_words(part).capitalize()}\n\n{meanings.of_class(part)}\n\n{fields_of(part, _OMITTED)}"
    )


def _link(kind: str) -> str:
    return f"[`{kind}`](#{kind.replace('.', '')})"


def _time(span: timedelta) -> str:
    """Return the time span in units, such as `1 h 5 min`."""
    minutes, seconds = divmod(int(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (seconds, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number)
