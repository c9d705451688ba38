"""The only mapping of refusals to HTTP responses (RFC 9457 `application/problem+json`), which list the reasons."""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.routing import Match

from control_plane.api.audit.entries import entry_of
from control_plane.api.requests.invalid import refusal_of
from control_plane.api.requests.problem_types import (
    ALL,
    BROKEN,
    DATABASE,
    KINDS,
    MOST_REASONS,
    PROTOCOL,
    REDIS,
    UNREADABLE,
    ProblemType,
)
from control_plane.api.requests.request_checks import escaped_text
from control_plane.api.views.placement_views import NodeGroupView, OutlookView, group_views, outlook_view
from control_plane.api.views.quota_views import ExceededLimitView, exceeded_views
from control_plane.decisions.misplaced_secrets import without_encoded_secrets, without_secrets
from control_plane.decisions.placing.explanation import Unplaced
from control_plane.decisions.quotas import NotAdmitted
from control_plane.decisions.refusals import (
    BadRequest,
    Conflict,
    Objection,
    Refused,
    Throttled,
    Unauthorised,
)
from control_plane.outage import DATABASE_UNAVAILABLE
from control_plane.queues.redis_nodes import RedisUnavailable
from events.ledger.errors import KeyBusy, KeyReused, UnreadableEvent

log = structlog.get_logger()
MEDIA_TYPE: Final = "application/problem+json"
_METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")


class ReasonBody(BaseModel):
    """One reason for a problem. `field` is a JSON pointer (RFC 6901) into the request body; `parameter` names a query
    parameter, a path parameter or a header.
    """

    code: str
    message: str
    field: str | None = None
    parameter: str | None = None


class Problem(BaseModel):
    """Problem details (RFC 9457), extended by `reasons`, `hint` (what the caller can do) and `request_id`. `type` is
    the path of a page on this server that describes the problem. Two more members are present if no node is suitable
    for an allocation: `placement` has every registered node that the request permits, in exactly one group for each
    SKU, and `outlook` what is possible instead. `exceeded` is present if the request would exceed quotas, and has each
    of these limits.
    """

    type: str
    title: str
    status: int
    detail: str
    hint: str
    reasons: list[ReasonBody]
    request_id: str
    placement: list[NodeGroupView] | None = None
    outlook: OutlookView | None = None
    exceeded: list[ExceededLimitView] | None = None


def _response(kinds: Iterable[ProblemType]) -> dict[str, Any]:
    description = "; ".join(f"{kind.url}: {kind.title}" for kind in kinds)
    schema = {"$ref": f"#/components/schemas/{Problem.__name__}"}
    return {"description": description, "content": {MEDIA_TYPE: {"schema": schema}}}


def schemas() -> dict[str, Any]:
    """Return the schemas that the problem responses of the OpenAPI document refer to, by name."""
    _, found = models_json_schema([(Problem, "serialization")], ref_template="#/components/schemas/{model}")
    return dict(found["$defs"])


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: _response(kind for kind in ALL.values() if kind.status == status)
    for status in sorted({kind.status for kind in ALL.values()})
}


def problem(
    request: Request,
    kind: ProblemType,
    objections: Iterable[Objection],
    *,
    unplaced: Unplaced | None = None,
    not_admitted: NotAdmitted | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> JSONResponse:
    """Build the problem response of a refused or failed request, and log it. `unplaced` is the refusal of a request for
    which no node is suitable, and `not_admitted` that of a request that would exceed limits.

    The problem lists the first `MOST_REASONS` objections. If there are more, its `detail` states that.
    """
    found = list(islice(objections, MOST_REASONS + 1))
    reasons = [_shown(objection) for objection in found[:MOST_REASONS]]
    details = [_with_field(reason) for reason in reasons]
    if len(found) > MOST_REASONS:
        details.append(f"there are more reasons; only the first {MOST_REASONS} are listed")
    body = Problem(
        type=kind.url,
        title=kind.title,
        status=kind.status,
        detail="; ".join(details),
        hint=kind.fix,
        reasons=reasons,
        request_id=request.state.request_id,
        placement=None if unplaced is None else group_views(unplaced.groups),
        outlook=None if unplaced is None else outlook_view(unplaced.outlook),
        exceeded=exceeded_views(not_admitted.exceeded) if not_admitted and not_admitted.exceeded else None,
    )
    if kind is KINDS[Unauthorised]:
        headers = {**headers, "WWW-Authenticate": "Bearer"}
    if kind.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers = {**headers, "Retry-After": "1"}
    entry = entry_of(request)
    entry.reasons = tuple(dict.fromkeys(reason.code for reason in reasons))
    entry.route = entry.route or getattr(request.scope.get("route"), "path", None)
    log.info("request_refused", status=kind.status, reasons=[reason.code for reason in reasons])
    return JSONResponse(
        body.model_dump(mode="json", exclude=_absent(body, unplaced)),
        kind.status,
        headers,
        MEDIA_TYPE,
    )


def _absent(body: Problem, unplaced: Unplaced | None) -> set[str]:
    """Return the members that are not present in a problem."""
    absent = {"placement", "outlook"} if unplaced is None else set()
    return absent if body.exceeded else {*absent, "exceeded"}


def _shown(objection: Objection) -> ReasonBody:
    """Return an objection with its secrets omitted: it may quote a value of the request that contains a secret."""
    texts = objection._asdict()
    return ReasonBody(**{name: text and without_secrets(text) for name, text in texts.items()})


def _with_field(reason: ReasonBody) -> str:
    return f"{reason.field}: {reason.message}" if reason.field else reason.message


def install(app: FastAPI) -> None:
    """Install the exception handlers that turn every refusal and failure of the application into a problem."""
    _install_outages(app)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return _refusal(request, [error])

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        # One error more than a problem lists, so that the problem states that there are more.
        errors = islice(error.errors(), MOST_REASONS + 1)
        return _refusal(request, [refusal_of(one, error.body) for one in errors])

    @app.exception_handler(KeyReused)
    async def reused(request: Request, _error: KeyReused) -> JSONResponse:
        reason = (
            "this Idempotency-Key was used with a different request body; use a new key for a new request"
        )
        return problem(request, KINDS[Conflict], [Objection("idempotency_key_reused", reason)])

    @app.exception_handler(KeyBusy)
    async def busy(request: Request, _error: KeyBusy) -> JSONResponse:
        reason = (
            "the first request with this Idempotency-Key is still in progress; retry later with the same key"
        )
        objection = Objection("idempotency_key_in_use", reason)
        return problem(request, KINDS[Conflict], [objection], headers={"Retry-After": "1"})

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        log.error("request_failed", path=without_encoded_secrets(request.url.path), exc_info=error)
        reason = (
            "the request failed; the control plane's log has the cause under the request id of this response"
        )
        return problem(request, BROKEN, [Objection("internal_error", reason)])

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == HTTPStatus.BAD_REQUEST:
            reason = "the body is not valid JSON in UTF-8, or is nested too deeply"
            return problem(request, KINDS[BadRequest], [Objection("invalid_json", reason)])
        kind = PROTOCOL.get(error.status_code, BROKEN)
        reason = f"the request {request.method} {escaped_text(request.url.path)} was refused: {error.detail}"
        headers = (
            {"Allow": _allowed(app, request)} if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED else {}
        )
        return problem(request, kind, [Objection(kind.example.code, reason)], headers=headers)


def _allowed(app: FastAPI, request: Request) -> str:
    """Return the methods that a path supports, in the form of the `Allow` header (RFC 9110, section 10.2.1)."""
    found = {
        method
        for method in _METHODS
        for route in app.routes
        if route.matches({**request.scope, "method": method})[0] is Match.FULL
    }
    return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))


def _install_outages(app: FastAPI) -> None:
    """Install the handlers of outages: an unreadable event, Redis down, the database down."""

    @app.exception_handler(UnreadableEvent)
    async def unreadable(request: Request, error: UnreadableEvent) -> JSONResponse:
        log.error("ledger_event_unreadable", position=error.position, error=str(error))
        return problem(request, UNREADABLE, [Objection("unreadable_event", str(error))])

    @app.exception_handler(RedisUnavailable)
    async def without_queues(request: Request, error: RedisUnavailable) -> JSONResponse:
        log.warning("redis_unavailable", error=str(error))
        reason = "Redis, which stores the nodes' task queues, does not respond; retry"
        return problem(request, REDIS, [Objection("queues_unavailable", reason)])

    async def without_database(request: Request, error: Exception) -> JSONResponse:
        log.warning("database_unavailable", error=str(error))
        reason = (
            "Postgres timed out, closed the connection or has no connection available, so the outcome of the request is"
            " unknown; retry with the same Idempotency-Key"
        )
        return problem(request, DATABASE, [Objection("database_unavailable", reason)])

    for away in DATABASE_UNAVAILABLE:
        app.add_exception_handler(away, without_database)


def _refusal(request: Request, refusals: list[Refused]) -> JSONResponse:
    """Return one response with the objections of all refusals. Its status is that of the refusal class that comes first
    in `KINDS`.
    """
    worst = min((_kind_of(refusal) for refusal in refusals[:MOST_REASONS]), key=list(KINDS).index)
    objections = [objection for refusal in refusals for objection in refusal.objections]
    waits = [refusal.retry_after for refusal in refusals if isinstance(refusal, Throttled)]
    headers = {"Retry-After": str(max(waits))} if waits else {}
    unplaced = next((refusal for refusal in refusals if isinstance(refusal, Unplaced)), None)
    not_admitted = next((refusal for refusal in refusals if isinstance(refusal, NotAdmitted)), None)
    return problem(
        request, KINDS[worst], objections, unplaced=unplaced, not_admitted=not_admitted, headers=headers
    )


def _kind_of(refusal: Refused) -> type[Refused]:
    """Return the class of a refusal that has a problem type: its own, or the closest of its base classes."""
    return next(each for each in type(refusal).__mro__ if each in KINDS)
