"""The fields of a fact or of a part of facts: a line each, or what is missing for one."""

from collections.abc import Iterable, Iterator
from typing import NewType, get_type_hints

import msgspec

from deploy.catalogue import meanings
from deploy.catalogue.types import NoWords, in_words, kind_in_words


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = (head, tuple("---" for _ in head), *rows)
    cells = ((cell.replace("|", "\\|").replace("\n\n", " ") for cell in line) for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def fields_of(struct: type[msgspec.Struct]) -> str:
    rows = (
        (f"`{field}`", in_words(field, annotation), _meaning(struct, field, annotation) or "")
        for field, annotation in get_type_hints(struct).items()
    )
    return table(("field", "type", "meaning"), rows)


def objections_to(named: str, struct: type[msgspec.Struct]) -> Iterator[str]:
    """What a reader would have to guess."""
    if meanings.of_class(struct) is None:
        yield f"{named} has no docstring"
    for field, annotation in get_type_hints(struct).items():
        if _meaning(struct, field, annotation) is None:
            yield f"{named}.{field} has no docstring below it"
        try:
            in_words(field, annotation)
        except NoWords as unknown:
            yield f"{named}.{field}: {unknown}"


def _meaning(struct: type[msgspec.Struct], field: str, annotation: object) -> str | None:
    """The field's own docstring. One that is named for its id, or holds a part, may go without."""
    if (own := meanings.of_field(struct, field)) is not None:
        return own
    if isinstance(annotation, NewType) and field == kind_in_words(annotation).replace(" ", "_"):
        return f"Which {field.removesuffix('_id')}."
    return meanings.of_part(annotation)
