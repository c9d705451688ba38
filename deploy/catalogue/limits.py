"""Descriptions of the limits of a field of a JSON message: minimum, maximum, length, and pattern."""

from collections.abc import Iterable

import annotated_types
from pydantic.fields import FieldInfo


def limits_in_words(metadata: Iterable[object], of_length: str) -> str:
    """Describe the limits of a field, such as `, at most 64 long`. Return an empty string for a field without limits.

    `of_length` is the text after the number of a length limit.
    """
    limits = [text for each in _flat(metadata) if (text := _in_words(each, of_length))]
    opening = "; " if of_length == " of them" else ", "
    return f"{opening}{', '.join(limits)}" if limits else ""


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
