"""Login and logout of the web console.

A login exchanges an API key, or a token of an identity provider, for a session of the API. Only the session's secret
reaches the browser, in a cookie. A logout ends the session.
"""

from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from control_plane.web.calls import Api
from control_plane.web.cookies import (
    LOGIN,
    ROOT,
    SESSION,
    delete_cookie,
    form_token,
    new_login,
    set_cookie,
)
from control_plane.web.rendering import page
from control_plane.web.visits import Visit, read_form, see_other

LABEL: Final = "web console"
"""Label of the sessions that the console starts."""
_NOTICES: Final = {
    "ended": "The session has ended or expired. Log in again.",
    "left": "You are logged out.",
}


async def show_login(request: Request) -> Response:
    """Show the login form."""
    return _form(request, HTTPStatus.OK, notice=_NOTICES.get(request.query_params.get("notice", "")))


async def log_in(request: Request) -> Response:
    """Start a session with the API key of the form, and show the page that was requested before the login."""
    expected = request.cookies.get(LOGIN)
    if expected is None:
        return _form(
            request,
            HTTPStatus.BAD_REQUEST,
            notice="The browser sent no cookie. Allow cookies, and log in again.",
        )
    form = await read_form(request, expected)
    key = form.text("key")
    if not key or not key.isascii() or not key.isprintable():
        return _form(request, HTTPStatus.UNPROCESSABLE_ENTITY, notice="Enter an API key, such as sp_...")
    api: Api = request.app.state.api
    started = await api.call(request, key, "POST", "/v1/sessions", body={"label": LABEL})
    if not started.is_success:
        return _form(request, started.status, refused=started.json)
    response = see_other(_local(request.query_params.get("next", "")))
    set_cookie(request, response, SESSION, started.json["secret"])
    delete_cookie(response, LOGIN)
    return response


async def log_out(visit: Visit) -> Response:
    """End the session of the browser."""
    await visit.form()
    reason = {"reason": "logged out in the web console"}
    await visit.send("POST", "sessions", visit.user["credential"], "end", body=reason)
    response = see_other(f"{ROOT}/login?notice=left")
    delete_cookie(response, SESSION)
    return response


def _form(request: Request, status: int, *, notice: str | None = None, refused: object = None) -> Response:
    login = request.cookies.get(LOGIN) or new_login()
    target = _local(request.query_params.get("next", ""))
    values = {"csrf": form_token(login), "next": target, "refused": refused, "notice": notice}
    response = page(request, "login.html", status, user=None, at=None, **values)
    set_cookie(request, response, LOGIN, login)
    return response


def _local(url: str) -> str:
    """Return `url` if it is a page of the console, else the overview: a link must not lead to another site."""
    is_page = (
        url.startswith(f"{ROOT}/")
        and url.isprintable()
        and "\\" not in url
        and not url.startswith(f"{ROOT}/log")
    )
    return url if is_page else f"{ROOT}/"
