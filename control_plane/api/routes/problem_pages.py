"""`/problems`: pages about problem types and reason codes. The field `type` of a problem refers to its page.

A browser, which accepts HTML, gets a page; every other client gets JSON.
"""

from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from control_plane.api.requests.access import EVERYONE, AuthenticatedRoute
from control_plane.api.requests.problem_types import ALL
from control_plane.api.requests.problems import PROBLEMS
from control_plane.api.views.problem_pages import (
    CodeView,
    ProblemIndexView,
    ProblemTypeView,
    code_view,
    html,
    index_view,
    type_view,
)
from control_plane.decisions.codes import CODES
from control_plane.decisions.refusals import Objection, UnknownName

HTML: Final = "text/html"
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content-Security-Policy of the pages: they load nothing, and their style sheet is a part of the page."""
_FORMS: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {HTML: {"schema": {"type": "string"}}}}}
router = APIRouter(prefix="/problems", tags=["problems"], responses=_FORMS, route_class=AuthenticatedRoute)


@router.get("", response_model=ProblemIndexView, openapi_extra=EVERYONE)
async def list_problems(request: Request) -> Response:
    """Return all problem types and reason codes of this release, as JSON or as an HTML page."""
    return _answer(request, index_view())


@router.get("/codes/{code}", response_model=CodeView, responses={404: PROBLEMS[404]}, openapi_extra=EVERYONE)
async def show_code(request: Request, code: str) -> Response:
    """Return the meaning of a reason code, as JSON or as an HTML page."""
    if code not in CODES:
        raise UnknownName(Objection("unknown_code", f"no reason has the code {code[:64]!r}; see /problems"))
    return _answer(request, code_view(code))


@router.get(
    "/{problem}", response_model=ProblemTypeView, responses={404: PROBLEMS[404]}, openapi_extra=EVERYONE
)
async def show_problem(request: Request, problem: str) -> Response:
    """Return the cause and the fix of a problem type with an example, as JSON or as an HTML page."""
    if problem not in ALL:
        reason = f"no problem type is named {problem[:64]!r}; see /problems"
        raise UnknownName(Objection("unknown_problem", reason))
    return _answer(request, type_view(ALL[problem]))


def _answer(request: Request, view: ProblemTypeView | CodeView | ProblemIndexView) -> Response:
    varies = {"Vary": "Accept"}
    if accepts_html(request.headers.get("accept", "")):
        return HTMLResponse(html(view), headers={**varies, "Content-Security-Policy": _POLICY})
    return Response(view.model_dump_json(), headers=varies, media_type="application/json")


def accepts_html(accept: str) -> bool:
    """Return whether an `Accept` header (RFC 9110, section 12.5.1) names HTML, and does not prefer JSON."""
    quality = {HTML: 0.0, "application/json": 0.0}
    for part in accept.split(","):
        media_type, *parameters = [each.strip().lower() for each in part.split(";")]
        if media_type in quality:
            quality[media_type] = _quality(parameters)
    return 0 < quality[HTML] >= quality["application/json"]


def _quality(parameters: list[str]) -> float:
    for each in parameters:
        name, _, value = each.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
