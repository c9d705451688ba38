"""Names that other programs rely on, collected from the code: one sorted list of lines for each kind of name.

The kinds are event types and fields, refusal codes, JSON fields that the Python client reads, log events, and metrics.
The lists are recorded in docs/names/, so that a change shows which names it adds, renames or removes.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from control_plane.client import (
    access_answers,
    answers,
    catalogue_answers,
    history_answers,
    projection_answers,
)
from control_plane.decisions.codes import CODES
from deploy.setup.repository import ROOT
from events.catalog import CATALOG

PRODUCT: Final = ("control_plane", "deploy", "events", "node_agent", "read_models", "tasks")
_METRIC: Final = re.compile(r"([a-z]+)\.[a-z0-9_{}.]+")
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical", "exception"})


def events() -> Iterator[str]:
    """Yield a line for each event type with its version, and a line for each of its fields with the field's type."""
    for name, shape in CATALOG.items():
        yield f"{name}/{shape.version}"
        for field in msgspec.structs.fields(shape.fact):
            yield f"{name}/{shape.version} {field.encode_name}"


def codes() -> Iterator[str]:
    """Yield a line for each refusal code of the API, with its class and a link to its section in docs/codes.md."""
    for code, meaning in CODES.items():
        yield f"{code}: {meaning.refusal_class}, docs/codes.md#{code}"


def client_fields() -> Iterator[str]:
    """Yield each JSON field that the Python client reads from the API's answers."""
    for module in (access_answers, answers, catalogue_answers, history_answers, projection_answers):
        for name, kind in vars(module).items():
            if (
                isinstance(kind, type)
                and issubclass(kind, msgspec.Struct)
                and kind.__module__ == module.__name__
            ):
                for field in msgspec.structs.fields(kind):
                    yield f"{name}.{field.encode_name}"


def log_events() -> Iterator[str]:
    """Yield a line for each log event of the product: the package that writes the log event, and its name."""
    for path in _modules(PRODUCT):
        for call in _calls(path):
            if (
                isinstance(call.func, ast.Attribute)
                and call.func.attr in _LEVELS
                and _is_log(call.func.value)
            ):
                for event in _constants(call):
                    yield f"{path.relative_to(ROOT).parts[0]} {event}"


def metrics() -> Iterator[str]:
    """Yield the name of each metric of the benchmarks; `{}` stands for a computed part of a name."""
    modules = [*_modules(("bench",))]
    benches = {path.stem for path in modules}
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = _pattern(node) if isinstance(node, ast.Constant | ast.JoinedStr) else ""
            if (found := _METRIC.fullmatch(name)) and found[1] in benches:
                yield name


LISTS: Final[Mapping[str, Callable[[], Iterator[str]]]] = MappingProxyType(
    {
        "client_fields": client_fields,
        "codes": codes,
        "events": events,
        "log_events": log_events,
        "metrics": metrics,
    }
)
"""Name of the recorded file, without its suffix, to the function that collects its lines."""


def text_of(name: str) -> str:
    """Return the content of one file in docs/names/: the collected lines, sorted and without duplicates."""
    return "".join(f"{line}\n" for line in sorted({*LISTS[name]()}))


def _modules(packages: tuple[str, ...]) -> Iterator[Path]:
    for package in packages:
        yield from sorted((ROOT / package).rglob("*.py"))


def _calls(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node


def _is_log(value: ast.expr) -> bool:
    return (isinstance(value, ast.Name) and value.id in {"log", "_log"}) or (
        isinstance(value, ast.Attribute) and value.attr in {"log", "_log"}
    )


def _constants(call: ast.Call) -> Iterator[str]:
    if call.args and isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str):
        yield call.args[0].value


def _pattern(value: ast.expr) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_pattern(part) for part in parts)
        case _:
            return "{}"
