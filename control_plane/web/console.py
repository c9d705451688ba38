"""The web console: server-rendered pages below `/ui`, in the program of the API.

Every page is made from responses of the API (`control_plane.web.calls`), with the credential of the user's session. A
page works without scripts; the script of all pages refreshes those that show something live, and copies texts. The
terminal and the display of a slice have scripts of their own, without which they do not work.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import structlog
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from control_plane.identity.code_login import CodeLogin
from control_plane.web.actions import Resource, act_on, page_of
from control_plane.web.bulk import Bulk, execute, preview
from control_plane.web.calls import Api, Refusal, path_of, url_of
from control_plane.web.cookies import ROOT, SESSION, delete_cookie
from control_plane.web.logins import (
    leave_for_provider,
    log_in,
    log_out,
    return_from_provider,
    show_login,
)
from control_plane.web.pages import (
    access,
    allocations,
    catalogue,
    consoles,
    events,
    history,
    new_allocation,
    nodes,
    overview,
    read_models,
    requests,
    search,
    tasks,
    usage,
)
from control_plane.web.pages.access_actions import ACCESS, KEY, SERVICE_ACCOUNT, SESSION_OF_CALLER
from control_plane.web.pages.allocation_actions import ALLOCATION, INGRESS
from control_plane.web.pages.bulk_actions import ALLOCATIONS, NODES
from control_plane.web.pages.catalogue_actions import IMAGE, NEW_IMAGE, NEW_SKU, SKU
from control_plane.web.pages.fleet_actions import NEW_NODE, NODE, SLOT, TASK
from control_plane.web.pages.project_actions import NEW_PROJECT, PERIOD, PROJECT
from control_plane.web.pages.read_model_actions import PROJECTION, VERIFICATIONS
from control_plane.web.rendering import POLICY, STATIC, page
from control_plane.web.visits import Visit, problem

log = structlog.get_logger()
_HEADERS: Final = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
_NOT_STORED: Final = "no-store"
_REVALIDATED: Final = "no-cache"
Page = Callable[[Visit], Awaitable[Response]]


class Console:
    """ASGI application that serves the console below `/ui`, and passes every other request to the API. `providers` are
    the identity providers at which users can log in, by name.
    """

    def __init__(self, api: ASGIApp, providers: Mapping[str, CodeLogin]) -> None:
        self._api = api
        self._pages = _application(Api(api), providers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{ROOT}/"):
            await self._pages(scope, receive, _secured(scope, send))
        else:
            await self._api(scope, receive, send)


def _secured(scope: Scope, send: Send) -> Send:
    stored = _REVALIDATED if scope["path"].startswith(f"{ROOT}/static/") else _NOT_STORED

    async def send_secured(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            headers.setdefault("Content-Security-Policy", POLICY)
            headers["Cache-Control"] = stored
        await send(message)

    return send_secured


def _application(api: Api, providers: Mapping[str, CodeLogin]) -> Starlette:
    handlers = {Refusal: _refused, HTTPException: _missing, Exception: _broken}
    application = Starlette(routes=[*routes()], exception_handlers=handlers)  # type: ignore[arg-type]  # Starlette's type does not bind a handler to its exception
    application.state.api = api
    application.state.providers = providers
    return application


def routes() -> Sequence[BaseRoute]:
    """Return the routes of the pages, of the forms, and of the files that pages need."""
    return [
        Route(ROOT, lambda _request: RedirectResponse(f"{ROOT}/")),
        Mount(f"{ROOT}/static", StaticFiles(directory=STATIC)),
        Route(f"{ROOT}/login", show_login),
        Route(f"{ROOT}/login", log_in, methods=["POST"]),
        Route(f"{ROOT}/login/{{provider}}", leave_for_provider),
        Route(f"{ROOT}/login/{{provider}}/return", return_from_provider),
        _page("/logout", log_out, "POST"),
        _page("/", overview.show),
        _page("/search", search.show),
        _page("/nodes", nodes.show_list),
        _page("/nodes/{node}", nodes.show),
        *_actions("/nodes/{node}/{action}", NODE),
        _page("/nodes/{node}/slots/{index}", nodes.show_slot),
        *_actions("/nodes/{node}/slots/{index}/{action}", SLOT),
        _page("/allocations", allocations.show_list),
        _page("/allocations/new", new_allocation.show),
        _page("/allocations/new", new_allocation.create, "POST"),
        _page("/allocations/new/preview", new_allocation.preview, "POST"),
        _page("/allocations/{allocation}", allocations.show),
        _page("/allocations/{allocation}/placement", allocations.show_placement),
        _page("/allocations/{allocation}/timeline", allocations.show_timeline),
        _page("/allocations/{allocation}/serial-log", allocations.show_serial_log),
        _page("/allocations/{allocation}/console", consoles.show_serial_console),
        _page("/allocations/{allocation}/display", consoles.show_display),
        _page("/allocations/{allocation}/terminal", consoles.show_terminal),
        _page("/allocations/{allocation}/terminal-sessions", consoles.open_terminal, "POST"),
        _page("/allocations/{allocation}/console-sessions", consoles.open_session, "POST"),
        Route(f"{ROOT}/allocations/{{allocation}}/watch", _Watch()),
        *_actions("/allocations/{allocation}/{action}", ALLOCATION),
        *_actions("/allocations/{allocation}/ingress/{ingress}/{action}", INGRESS),
        _page("/history", history.show),
        _page("/events", events.show_list),
        _page("/events/{position:int}", events.show),
        _page("/requests/{request}", requests.show),
        _page("/tasks", tasks.show_list),
        _page("/tasks/{task}", tasks.show),
        *_actions("/tasks/{task}/{action}", TASK),
        _page("/usage", usage.show),
        _page("/usage/entries", usage.show_entries),
        _page("/usage/export", usage.download),
        *_actions("/usage/periods/open/{action}", PERIOD),
        _page("/usage/periods/{period}", usage.show_period),
        _page("/reservations", usage.show_reservations),
        _page("/projects", catalogue.show_projects),
        _page("/projects/{project}", usage.show_project),
        *_actions("/projects/{project}/{action}", PROJECT),
        _page("/skus", catalogue.show_skus),
        _page("/skus/{sku}", catalogue.show_sku),
        *_actions("/skus/{sku}/{action}", SKU),
        _page("/images", catalogue.show_images),
        _page("/images/{image}", catalogue.show_image),
        *_actions("/images/{image}/{action}", IMAGE),
        # Not below /nodes or /projects: there, the path would be that of a node or project with the name `new`.
        *_actions("/new/nodes/{action}", NEW_NODE),
        *_actions("/new/projects/{action}", NEW_PROJECT),
        *_actions("/new/skus/{action}", NEW_SKU),
        *_actions("/new/images/{action}", NEW_IMAGE),
        *_bulk("/bulk/allocations", ALLOCATIONS),
        *_bulk("/bulk/nodes", NODES),
        _page("/access/keys", access.show_keys),
        _page("/access/keys/{key}", access.show_key),
        *_actions("/access/keys/{key}/{action}", KEY),
        _page("/access/service-accounts", access.show_service_accounts),
        _page("/access/service-accounts/{account}", access.show_service_account),
        *_actions("/access/service-accounts/{account}/{action}", SERVICE_ACCOUNT),
        _page("/access/sessions", access.show_sessions),
        *_actions("/access/sessions/{session}/{action}", SESSION_OF_CALLER),
        _page("/access/console-sessions", consoles.show_sessions),
        *_actions("/access/console-sessions/{console}/{action}", consoles.CONSOLE),
        *_actions("/access/new/{action}", ACCESS),
        _page("/projections", read_models.show_projections),
        *_actions("/projections/{projection}/{action}", PROJECTION),
        _page("/verifications", read_models.show_verifications),
        *_actions("/verifications/new/{action}", VERIFICATIONS),
        _page("/verifications/{verification}", read_models.show_verification),
    ]


def _page(path: str, show: Page, method: str = "GET") -> Route:
    """Return the route of a page for logged-in users."""

    async def respond(request: Request) -> Response:
        secret = request.cookies.get(SESSION)
        if secret is None:
            return _to_login(request, "needed")
        request.state.visit = visit = await _visit_of(request, secret)
        return _to_login(request, "ended") if visit is None else await show(visit)

    return Route(f"{ROOT}{path}", respond, methods=[method])


async def _visit_of(request: Request, secret: str) -> Visit | None:
    """Return the visit of a browser with the cookie value `secret`; None if it is not the secret of a session. Raises
    `Refusal`.
    """
    api: Api = request.app.state.api
    answer = await api.call(request, secret, "GET", "/v1/whoami")
    if not answer.is_success:
        raise Refusal(answer.json)
    if answer.json["credential_kind"] != "session":
        # A cookie with an API key would neither become idle nor end with a logout.
        return None
    return Visit(request, api, secret, answer.json)


def _actions(path: str, resource: Resource) -> Sequence[Route]:
    """Return the routes of the actions on a kind of resource: the form, and what it is sent to."""
    return [_page(path, page_of(resource)), _page(path, act_on(resource), "POST")]


def _bulk(path: str, bulk: Bulk) -> Sequence[Route]:
    """Return the routes of the actions on several resources: the preview, and what its form is sent to."""
    return [_page(path, preview(bulk)), _page(path, execute(bulk), "POST")]


class _Watch:
    """Event stream of an allocation for the script of the allocation's page: the watch of the API, with the session of
    the browser.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        secret = request.cookies.get(SESSION)
        if secret is None:
            await _to_login(request, "needed")(scope, receive, send)
            return
        path = path_of("allocations", scope["path_params"]["allocation"], "watch")
        url = url_of(path, {"after": request.query_params.get("after")})
        api: Api = request.app.state.api
        await api.stream(request, secret, url, send, receive)


def _to_login(request: Request, notice: str) -> Response:
    """Return the redirection to the login page, which returns to the requested page afterwards. A form has the address
    of the page that shows it.
    """
    wanted = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    query = urlencode({"next": wanted, "notice": notice})
    response = RedirectResponse(f"{ROOT}/login?{query}", HTTPStatus.SEE_OTHER)
    delete_cookie(response, SESSION)
    return response


async def _refused(request: Request, refusal: Refusal) -> Response:
    """Return the page of a refusal; the login page if the session is no longer valid."""
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        return _to_login(request, "ended")
    visit: Visit | None = getattr(request.state, "visit", None)
    if visit is not None:
        return visit.render("problem.html", refusal.status, problem=refusal.problem)
    return page(
        request, "problem.html", refusal.status, problem=refusal.problem, user=None, at=None, notice=None
    )


async def _missing(request: Request, error: HTTPException) -> Response:
    status = HTTPStatus(error.status_code)
    wanted = request.url.path if request.method == "GET" else f"{request.url.path} for {request.method}"
    advice = "Log in and choose a page from the menu."
    secret = request.cookies.get(SESSION)
    if secret is not None:
        with suppress(Refusal):
            request.state.visit = await _visit_of(request, secret)
    if getattr(request.state, "visit", None) is not None:
        advice = "Choose a page from the menu."
    message = f"There is no page {wanted}. {advice}"
    return await _refused(request, problem(status, status.name.lower(), message, ""))


async def _broken(request: Request, error: Exception) -> Response:
    log.error("console_page_failed", path=request.url.path, exc_info=error)
    message = "the page could not be made; the log of the API program has the cause"
    hint = "Try again; if it fails again, report the time and the path to the operator."
    return await _refused(request, problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", message, hint))
