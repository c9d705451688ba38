"""Markdown tables of the fields of an event, a task or a nested type, and the list of missing descriptions."""

from collections.abc import Collection, Iterable, Iterator
from typing import NewType

from deploy.catalogue import meanings
from deploy.catalogue.types import NoDescription, bare, hints_of, in_words, kind_in_words


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table with this header row and these rows."""
    lines = (head, tuple("---" for _ in head), *rows)
    cells = ((cell.replace("|", "\\|").replace("\n\n", " ") for cell in line) for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def fields_of(holder: type, but: Collection[str] = ()) -> str:
    """Return the Markdown table of a class's fields, except those in `but`."""
    rows = (
        (f"`{field}`", in_words(field, annotation), _meaning(holder, field, annotation) or "")
        for field, annotation in hints_of(holder).items()
        if field not in but
    )
    return table(("field", "type", "meaning"), rows)


def objections_to(named: str, holder: type, but: Collection[str] = ()) -> Iterator[str]:
    """Yield a message for each description that a class or one of its fields lacks."""
    if meanings.of_class(holder) is None:
        yield f"{named} has no docstring"
    for field, annotation in hints_of(holder).items():
        if field in but:
            continue
        if _meaning(holder, field, annotation) is None:
            yield f"{named}.{field} has no docstring below it"
        try:
            in_words(field, annotation)
        except NoDescription as unknown:
            yield f"{named}.{field}: {unknown}"


def _meaning(holder: type, field: str, limited: object) -> str | None:
    """Return the description of a field: its docstring, else one derived from its id type or its nested type."""
    if (own := meanings.of_field(holder, field)) is not None:
        return own
    annotation = bare(limited)
    if isinstance(annotation, NewType) and field == kind_in_words(annotation).replace(" ", "_"):
        return f"The {field.removesuffix('_id')}."
    return meanings.of_part(annotation)
