"""The fields of a fact, a task, or a part of such: a line each, or what is missing for one."""

from collections.abc import Collection, Iterable, Iterator
from typing import NewType

from deploy.catalogue import meanings
from deploy.catalogue.types import NoWords, bare, hints_of, in_words, kind_in_words


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = (head, tuple("---" for _ in head), *rows)
    cells = ((cell.replace("|", "\\|").replace("\n\n", " ") for cell in line) for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def fields_of(holder: type, but: Collection[str] = ()) -> str:
    """All of them but the named ones."""
    rows = (
        (f"`{field}`", in_words(field, annotation), _meaning(holder, field, annotation) or "")
        for field, annotation in hints_of(holder).items()
        if field not in but
    )
    return table(("field", "type", "meaning"), rows)


def objections_to(named: str, holder: type, but: Collection[str] = ()) -> Iterator[str]:
    """What a reader would have to guess."""
    if meanings.of_class(holder) is None:
        yield f"{named} has no docstring"
    for field, annotation in hints_of(holder).items():
        if field in but:
            continue
        if _meaning(holder, field, annotation) is None:
            yield f"{named}.{field} has no docstring below it"
        try:
            in_words(field, annotation)
        except NoWords as unknown:
            yield f"{named}.{field}: {unknown}"


def _meaning(holder: type, field: str, limited: object) -> str | None:
    """The field's own docstring. One that is named for its id, or holds a part, may go without."""
    if (own := meanings.of_field(holder, field)) is not None:
        return own
    annotation = bare(limited)
    if isinstance(annotation, NewType) and field == kind_in_words(annotation).replace(" ", "_"):
        return f"Which {field.removesuffix('_id')}."
    return meanings.of_part(annotation)
