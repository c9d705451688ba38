"""Descriptions of problem types and reason codes, as JSON views and as HTML pages.

The pages need nothing from other servers: they have no script, and their style sheet is part of the page.
"""

import json
from collections.abc import Iterable
from html import escape
from typing import Any, Final

from pydantic import BaseModel

from control_plane.api.requests.problem_types import ALL, PATH, ProblemType
from control_plane.decisions.codes import ADVICE, CODES

CODES_PATH: Final = f"{PATH}/codes"
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:48rem;margin:2rem auto;padding:0 1rem}"
    "pre{background:#f3f3f3;padding:1rem;overflow:auto}dt{font-weight:600;margin-top:.5rem}dd{margin-left:1rem}"
)


class ProblemTypeView(BaseModel):
    """A problem type: why it occurs (`cause`), what the caller can do (`fix`), and an example of a response."""

    type: str
    title: str
    status: int
    cause: str
    fix: str
    example: dict[str, Any]


class CodeView(BaseModel):
    """A reason code: its class, its meaning, and what the caller can do (`advice`)."""

    code: str
    url: str
    refusal_class: str
    meaning: str
    advice: str


class ProblemIndexView(BaseModel):
    """All problem types and all reason codes of this release."""

    types: list[ProblemTypeView]
    codes: list[CodeView]


def type_view(kind: ProblemType) -> ProblemTypeView:
    """Return the view of a problem type."""
    reason = kind.example
    example = {
        "type": kind.url,
        "title": kind.title,
        "status": kind.status,
        "detail": f"{reason.field}: {reason.message}" if reason.field else reason.message,
        "hint": kind.fix,
        "reasons": [reason._asdict()],
        "request_id": "req-01933b2f6f7e7d0c8a3f5b1c2d3e4f50",
    }
    return ProblemTypeView(
        type=kind.url, title=kind.title, status=kind.status, cause=kind.cause, fix=kind.fix, example=example
    )


def code_view(code: str) -> CodeView:
    """Return the view of a reason code. Raises `KeyError` for an unknown code."""
    meaning = CODES[code]
    return CodeView(
        code=code,
        url=f"{CODES_PATH}/{code}",
        refusal_class=meaning.refusal_class,
        meaning=meaning.meaning,
        advice=ADVICE[meaning.refusal_class],
    )


def index_view() -> ProblemIndexView:
    """Return the views of all problem types and codes, sorted by name."""
    return ProblemIndexView(
        types=[type_view(ALL[name]) for name in sorted(ALL)],
        codes=[code_view(code) for code in sorted(CODES)],
    )


def html(view: ProblemTypeView | CodeView | ProblemIndexView) -> str:
    """Return a view as an HTML page."""
    match view:
        case ProblemTypeView():
            return _page(f"{view.status} {view.title}", _type_parts(view))
        case CodeView():
            return _page(view.code, _code_parts(view))
        case ProblemIndexView():
            return _page("Problems", _index_parts(view))


def _type_parts(view: ProblemTypeView) -> Iterable[str]:
    yield f"<p>{escape(view.cause)}</p>"
    yield f"<h2>What to do</h2>\n<p>{escape(view.fix)}</p>"
    yield f"<h2>Example</h2>\n<pre>{escape(json.dumps(view.example, indent=2))}</pre>"
    for reason in view.example["reasons"]:
        code = reason["code"]
        yield f"<p>Its reason code is {_link(f'{CODES_PATH}/{code}', code)}.</p>"


def _code_parts(view: CodeView) -> Iterable[str]:
    yield f"<p>{escape(view.meaning)}</p>"
    yield f"<h2>What to do</h2>\n<p>{escape(view.advice)}</p>"
    yield f"<p>Class: {escape(view.refusal_class)}.</p>"


def _index_parts(view: ProblemIndexView) -> Iterable[str]:
    yield "<h2>Types</h2>\n<ul>"
    for kind in view.types:
        yield f"<li>{_link(kind.type, f'{kind.status} {kind.title}')}</li>"
    yield "</ul>\n<h2>Reason codes</h2>\n<dl>"
    for code in view.codes:
        yield f"<dt>{_link(code.url, code.code)}</dt>\n<dd>{escape(code.meaning)}</dd>"
    yield "</dl>"


def _link(path: str, text: str) -> str:
    return f'<a href="{escape(path)}">{escape(text)}</a>'


def _page(title: str, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n{body}\n"
        f"<p>{_link(PATH, 'All problems')}</p>\n</body>\n</html>\n"
    )
