"""The limits of a wire type's field in plain words: smallest and largest, how long, and how written."""

from collections.abc import Iterable

import annotated_types
from pydantic.fields import FieldInfo


def limits_in_words(metadata: Iterable[object], of_length: str) -> str:
    """What stands behind a field's type, or nothing. `of_length` is what is said behind a length."""
    said = [words for each in _flat(metadata) if (words := _in_words(each, of_length))]
    opening = "; " if of_length == " of them" else ", "
    return f"{opening}{', '.join(said)}" if said else ""


def _flat(metadata: Iterable[object]) -> Iterable[object]:
    for each in metadata:
        yield from each.metadata if isinstance(each, FieldInfo) else (each,)


def _in_words(limit: object, of_length: str) -> str | None:
    match limit:
        case annotated_types.Ge(ge=least):
            return f"at least {least}"
        case annotated_types.Gt(gt=least):
            return f"more than {least}"
        case annotated_types.Le(le=most):
            return f"at most {most}"
        case annotated_types.Lt(lt=most):
            return f"less than {most}"
        case annotated_types.MinLen(min_length=least):
            return f"at least {least}{of_length}"
        case annotated_types.MaxLen(max_length=most):
            return f"at most {most}{of_length}"
        case _:
            pattern = getattr(limit, "pattern", None)
            return None if pattern is None else f"`{pattern}`"
