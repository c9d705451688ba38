"""Docstrings of modules, classes, fields and value types, including strings below an assignment.

Python keeps the docstring of a class, but not the string below a field or below a `NewType`; those are read from the
source.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Final, NewType

from pydantic import BaseModel

from events.facts import Record

_STREAM: Final = "Stream: "


def of_module(module: ModuleType) -> str:
    """Return the docstring of a module of event types, without the sentence that names their stream."""
    about, _, _ = (module.__doc__ or "").partition(_STREAM)
    _, _, further = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
    return "\n\n".join(part for part in (about.strip(), in_lines(further)) if part)


def stream_of_module(module: ModuleType) -> str | None:
    """Return the event stream named in the docstring of a module of event types, such as `node-<node_id>`."""
    first, _, _ = (module.__doc__ or "").partition("\n\n")
    _, named, rest = first.partition(_STREAM)
    return rest.split("`")[1] if named and rest.count("`") >= 2 else None  # noqa: PLR2004 (a pair)


def of_class(cls: type) -> str | None:
    # Only the class's own docstring: a wire type without one would inherit that of its base class.
    own = cls.__dict__.get("__doc__")
    return in_lines(inspect.cleandoc(own)) if own else None


def of_field(holder: type, field: str) -> str | None:
    """Return the docstring of a class's field, which stands below the field in the class that declares it."""
    for cls in holder.__mro__:
        if field in inspect.get_annotations(cls):
            return _below_fields(cls.__module__).get((cls.__qualname__, field))
    return None


def of_kind(kind: NewType) -> str | None:
    """Return the docstring of a `NewType`, which stands below its definition."""
    return _below_fields(kind.__module__ or "").get(("", kind.__name__))


def of_part(annotation: object) -> str | None:
    """Return the first sentence of a type's docstring, or None if the type has no fields of its own."""
    if isinstance(annotation, type) and issubclass(annotation, Record | BaseModel):
        return first_sentence(of_class(annotation) or "")
    return None


def first_sentence(text: str) -> str:
    return text.partition("\n\n")[0].partition(". ")[0].removesuffix(".") + "."


def in_lines(text: str) -> str:
    """Join the lines of each paragraph of a text, so that each paragraph is one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip())


@cache
def _below_fields(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings below assignments, by class and field name; the class name is empty at module level."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    bodies = [("", tree.body)]
    bodies += [(node.name, node.body) for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        (cls, name): in_lines(inspect.cleandoc(text)) for cls, body in bodies for name, text in _pairs(body)
    }


def _pairs(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for named, below in pairwise(body):
        match named, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, text
            case _:
                pass
