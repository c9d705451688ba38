"""Generator of docs/codes.md, which lists every refusal code of the API by class, with its meaning."""

from collections.abc import Iterator
from typing import Final

from control_plane.decisions.codes import ADVICE, CODES, RefusalClass

_HEAD: Final = """# Refusal codes

Generated from `control_plane/decisions/codes.py` by `./dev names`; do not edit.

A refused request gets a body of type `application/problem+json` (RFC 9457) with up to 20 reasons in `reasons`. Each reason
has a `code` of this page. A code belongs to exactly one of four classes. A running control plane describes its codes at
`/problems/codes/CODE`, and the types of its problems at `/problems`.
"""


def text() -> str:
    """Return the page docs/codes.md in Markdown."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for refusal_class in RefusalClass:
        yield f"## {refusal_class.value.capitalize()}\n\n{ADVICE[refusal_class]}\n"
        for code, meaning in sorted(CODES.items()):
            if meaning.refusal_class is refusal_class:
                yield f"### {code}\n\n{meaning.meaning}\n"
