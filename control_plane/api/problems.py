"""The one table from refusals to HTTP: RFC 9457 `application/problem+json`, with every reason at once."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.routing import Match

from control_plane.api.edge import escaped_text
from control_plane.api.invalid import refusal_of
from control_plane.decisions.refusals import (
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    Malformed,
    NotYetKnown,
    Objection,
    Refused,
    Throttled,
    Unauthorised,
    UnknownName,
    UnsupportedMediaType,
)
from control_plane.outage import DATABASE_AWAY
from control_plane.redis_nodes import RedisAway
from events.errors import KeyBusy, KeyReused, UnreadableEvent

log = structlog.get_logger()
MEDIA_TYPE: Final = "application/problem+json"
URN: Final = "urn:sliceplane:problem:"
_METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")


class Kind(NamedTuple):
    """A problem type: its URN's last word, its status and its title."""

    name: str
    status: int
    title: str


KINDS: Final[dict[type[Refused], Kind]] = {
    BadRequest: Kind("bad-request", 400, "The body is not valid JSON"),
    UnsupportedMediaType: Kind("unsupported-media-type", 415, "The media type of the body is not supported"),
    Malformed: Kind("malformed", 422, "The request is malformed"),
    UnknownName: Kind("unknown-name", 404, "Something named does not exist"),
    Gone: Kind("gone", 410, "What it would go on from is no longer there"),
    Conflict: Kind("conflict", 409, "The state of things forbids it"),
    NotYetKnown: Kind("not-yet-known", 503, "It cannot be told yet"),
    Throttled: Kind("throttled", 429, "Too many requests"),
    Unauthorised: Kind("unauthorised", 401, "Nobody is known by these credentials"),
    Forbidden: Kind("forbidden", 403, "You may not do this"),
}
BROKEN: Final = Kind("internal-error", 500, "This is a fault of Sliceplane")
DATABASE: Final = Kind("database-away", 503, "The database does not answer")
REDIS: Final = Kind("queues-away", 503, "The nodes' queues do not answer")
UNREADABLE: Final = Kind("unreadable-event", 503, "An event that this rests on cannot be read")
OTHERS: Final = (BROKEN, DATABASE, REDIS, UNREADABLE)
"""What befalls a request, and is no refusal."""


class ReasonBody(BaseModel):
    """One reason. `field` is a JSON pointer (RFC 6901) into the request body; `parameter` names a parameter of the
    query, the path or the header.
    """

    code: str
    message: str
    field: str | None = None
    parameter: str | None = None


class Problem(BaseModel):
    """RFC 9457, extended by `reasons` and `request_id`."""

    type: str
    title: str
    status: int
    detail: str
    reasons: list[ReasonBody]
    request_id: str


def _told(kinds: Iterable[Kind]) -> dict[str, Any]:
    description = "; ".join(f"{URN}{kind.name}: {kind.title}" for kind in kinds)
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}


def schemas() -> dict[str, Any]:
    """The schemas that the problems of the OpenAPI document refer to, by their names."""
    _, found = models_json_schema([(Problem, "serialization")], ref_template="#/components/schemas/{model}")
    return dict(found["$defs"])


_ALL: Final = (*KINDS.values(), *OTHERS)
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: _told(kind for kind in _ALL if kind.status == status)
    for status in sorted({kind.status for kind in _ALL})
}


def problem(request: Request, kind: Kind, objections: Iterable[Objection], **headers: str) -> JSONResponse:
    """The answer to a refused request."""
    reasons = [ReasonBody(**objection._asdict()) for objection in objections]
    body = Problem(
        type=f"{URN}{kind.name}",
        title=kind.title,
        status=kind.status,
        detail="; ".join(_with_field(reason) for reason in reasons),
        reasons=reasons,
        request_id=request.state.request_id,
    )
    if kind is KINDS[Unauthorised]:
        headers["WWW-Authenticate"] = "Bearer"
    if kind.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "1"
    log.info("request_refused", status=kind.status, reasons=[reason.code for reason in reasons])
    return JSONResponse(body.model_dump(), kind.status, headers, MEDIA_TYPE)


def _with_field(reason: ReasonBody) -> str:
    return f"{reason.field}: {reason.message}" if reason.field else reason.message


def install(app: FastAPI) -> None:
    """Make every refusal of the application a problem."""
    _install_absences(app)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return _refusal(request, [error])

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        return _refusal(request, [refusal_of(one, error.body) for one in error.errors()])

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
        why = (
            "the request could not be carried out; the control plane's log has the cause under its request id"
        )
        return problem(request, BROKEN, [Objection("internal_error", why)])

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == HTTPStatus.BAD_REQUEST:
            why = "the body is not valid JSON in UTF-8, or is nested too deeply"
            return problem(request, KINDS[BadRequest], [Objection("invalid_json", why)])
        kind = Kind(error.detail.lower().replace(" ", "-"), error.status_code, error.detail)
        why = f"{request.method} {escaped_text(request.url.path)}: {error.detail}"
        headers = (
            {"Allow": _allowed(app, request)} if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else {}
        )
        return problem(request, kind, [Objection(kind.name.replace("-", "_"), why)], **headers)


def _allowed(app: FastAPI, request: Request) -> str:
    """The methods of all routes of a path, as the `Allow` header lists them (RFC 9110, section 10.2.1)."""
    found = {
        method
        for method in _METHODS
        for route in app.routes
        if route.matches({**request.scope, "method": method})[0] is Match.FULL
    }
    return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))


def _install_absences(app: FastAPI) -> None:
    """Tell plainly what cannot be had now, and may be had in a moment."""

    @app.exception_handler(UnreadableEvent)
    async def unreadable(request: Request, error: UnreadableEvent) -> JSONResponse:
        log.error("event_unreadable", position=error.position, error=str(error))
        return problem(request, UNREADABLE, [Objection("unreadable_event", str(error))])

    @app.exception_handler(RedisAway)
    async def without_queues(request: Request, error: RedisAway) -> JSONResponse:
        log.warning("redis_away", error=str(error))
        why = "Redis does not answer, which keeps the nodes' queues; ask again"
        return problem(request, REDIS, [Objection("queues_away", why)])

    async def without_database(request: Request, error: Exception) -> JSONResponse:
        log.warning("database_away", error=str(error))
        why = (
            "Postgres did not answer in time, ended the connection or has none to give; whether something was changed is not"
            " known: ask again, with the same Idempotency-Key"
        )
        return problem(request, DATABASE, [Objection("database_away", why)])

    for away in DATABASE_AWAY:
        app.add_exception_handler(away, without_database)


def _refusal(request: Request, refusals: list[Refused]) -> JSONResponse:
    """Every objection in one answer; the status is that of the kind which must be mended first."""
    worst = min((type(refusal) for refusal in refusals), key=list(KINDS).index)
    objections = [objection for refusal in refusals for objection in refusal.objections]
    waits = [refusal.retry_after for refusal in refusals if isinstance(refusal, Throttled)]
    headers = {"Retry-After": str(max(waits))} if waits else {}
    return problem(request, KINDS[worst], objections, **headers)
