"""The one table from refusals to HTTP: RFC 9457 `application/problem+json`, with every reason at once."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from control_plane.decisions.refusals import (
    Conflict,
    Forbidden,
    Gone,
    Malformed,
    NotYetKnown,
    Objection,
    Refused,
    Unauthorised,
    UnknownName,
)
from events.errors import KeyBusy, KeyReused

log = structlog.get_logger()
MEDIA_TYPE: Final = "application/problem+json"
URN: Final = "urn:sliceplane:problem:"


class Kind(NamedTuple):
    """A problem type: its URN's last word, its status and its title."""

    name: str
    status: int
    title: str


KINDS: Final[dict[type[Refused], Kind]] = {
    Malformed: Kind("malformed", 422, "The request is malformed"),
    UnknownName: Kind("unknown-name", 404, "Something named does not exist"),
    Gone: Kind("gone", 410, "What it would go on from is no longer there"),
    Conflict: Kind("conflict", 409, "The state of things forbids it"),
    NotYetKnown: Kind("not-yet-known", 503, "It cannot be told yet"),
    Unauthorised: Kind("unauthorised", 401, "Nobody is known by these credentials"),
    Forbidden: Kind("forbidden", 403, "You may not do this"),
}
_BY_NAME: Final = {kind.__name__: kind for kind in KINDS}


class ReasonBody(BaseModel):
    """One reason; `field` is a JSON pointer into the request body, where there is one."""

    code: str
    message: str
    field: str | None = None


class Problem(BaseModel):
    """RFC 9457, extended by `reasons` and `request_id`."""

    type: str
    title: str
    status: int
    detail: str
    reasons: list[ReasonBody]
    request_id: str


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    kind.status: {
        "model": Problem,
        "description": f"{URN}{kind.name}: {kind.title}",
        "content": {MEDIA_TYPE: {}},
    }
    for kind in KINDS.values()
}


def problem(request: Request, kind: Kind, objections: Iterable[Objection], **headers: str) -> JSONResponse:
    """The answer to a refused request."""
    reasons = [ReasonBody(**objection._asdict()) for objection in objections]
    body = Problem(
        type=f"{URN}{kind.name}",
        title=kind.title,
        status=kind.status,
        detail="; ".join(reason.message for reason in reasons),
        reasons=reasons,
        request_id=request.state.request_id,
    )
    if kind is KINDS[Unauthorised]:
        headers["WWW-Authenticate"] = "Bearer"
    if kind is KINDS[NotYetKnown]:
        headers["Retry-After"] = "1"
    log.info("request_refused", status=kind.status, reasons=[reason.code for reason in reasons])
    return JSONResponse(body.model_dump(), kind.status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every refusal of the application a problem."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return _refusal(request, [error])

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        return _refusal(request, [_refused(one) for one in error.errors()])

    @app.exception_handler(KeyReused)
    async def reused(request: Request, _error: KeyReused) -> JSONResponse:
        why = "this Idempotency-Key was used with another body; use a new key for a new request"
        return problem(request, KINDS[Conflict], [Objection("idempotency_key_reused", why)])

    @app.exception_handler(KeyBusy)
    async def busy(request: Request, _error: KeyBusy) -> JSONResponse:
        why = "the first request with this Idempotency-Key is still being answered"
        objection = Objection("idempotency_key_busy", why)
        return problem(request, KINDS[Conflict], [objection], **{"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        log.error("request_broke", path=request.url.path, exc_info=error)
        kind = Kind("internal-error", 500, "This is a fault of Sliceplane")
        why = (
            "the request could not be carried out; the control plane's log has the cause under its request id"
        )
        return problem(request, kind, [Objection("internal_error", why)])

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        kind = Kind(error.detail.lower().replace(" ", "-"), error.status_code, error.detail)
        why = f"{request.method} {request.url.path}: {error.detail}"
        return problem(request, kind, [Objection(kind.name.replace("-", "_"), why)])


def _refusal(request: Request, refusals: list[Refused]) -> JSONResponse:
    """Every objection in one answer; the status is that of the kind which must be mended first."""
    worst = min((type(refusal) for refusal in refusals), key=list(KINDS).index)
    objections = [objection for refusal in refusals for objection in refusal.objections]
    return problem(request, KINDS[worst], objections)


def _refused(error: dict[str, Any]) -> Refused:
    """A refusal out of one of Pydantic's errors; one that a decision made has its kind in the context."""
    where = [str(part) for part in error["loc"] if part != "body"]
    field = "/" + "/".join(where) if where else None
    kind = _BY_NAME.get(str(error.get("ctx", {}).get("refusal")), Malformed)
    return kind(Objection(str(error["type"]), str(error["msg"]).removeprefix("Value error, "), field))
