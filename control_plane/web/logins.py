"""Login and logout of the web console.

A login exchanges an API key, or a token of an identity provider, for a session of the API. Only the session's secret
reaches the browser, in a cookie. A logout ends the session.

For a token, the browser is sent to the identity provider and returns with a code, which this server exchanges for the
token. The state of such a login is derived from the login cookie, so the server stores nothing for it. Browsers do not
send this cookie with the return from another site. The first answer to the return is therefore a page that requests the
same address once more, as a request of the console itself.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hmac import compare_digest
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from control_plane.identity.code_login import CodeLogin, LoginFailed
from control_plane.web.calls import Api
from control_plane.web.cookies import (
    LOGIN,
    ROOT,
    SESSION,
    code_verifier,
    delete_cookie,
    form_token,
    login_state,
    new_login,
    set_cookie,
)
from control_plane.web.rendering import page
from control_plane.web.visits import Visit, read_form, see_other

LABEL: Final = "web console"
"""Label of the sessions that the console starts."""
_NOTICES: Final = {
    "needed": "This browser is not logged in, or was logged out. Log in to open the page.",
    "ended": "The session has ended or expired. Log in again.",
    "left": "You are logged out.",
}


_NO_COOKIE: Final = "The browser sent no cookie. Allow cookies, and log in again."
_UNKNOWN_PROVIDER: Final = (
    "There is no identity provider of this name. Choose one of the list, or enter an API key."
)


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
            notice=_NO_COOKIE,
        )
    form = await read_form(request, expected)
    key = form.text("key")
    if not key or not key.isascii() or not key.isprintable():
        return _form(request, HTTPStatus.UNPROCESSABLE_ENTITY, notice="Enter an API key, such as sp_...")
    return await _start_session(request, key, _local(request.query_params.get("next", "")))


async def leave_for_provider(request: Request) -> Response:
    """Send the browser to an identity provider, where the user logs in."""
    if (provider := _provider(request)) is None:
        return _form(request, HTTPStatus.NOT_FOUND, notice=_UNKNOWN_PROVIDER)
    name, login = request.path_params["provider"], request.cookies.get(LOGIN) or new_login()
    target = _local(request.query_params.get("next", ""))
    state = f"{login_state(login, name, target)}.{urlsafe_b64encode(target.encode()).decode()}"
    try:
        url = await provider.authorization_url(_return_url(request), state, code_verifier(login, name))
    except LoginFailed as error:
        return _form(request, HTTPStatus.SERVICE_UNAVAILABLE, notice=_sentence(error))
    response = see_other(url)
    set_cookie(request, response, LOGIN, login)
    return response


async def return_from_provider(request: Request) -> Response:
    """Start a session for a user with the code with which the identity provider has sent the browser back."""
    if (provider := _provider(request)) is None:
        return _form(request, HTTPStatus.NOT_FOUND, notice=_UNKNOWN_PROVIDER)
    name, login, query = request.path_params["provider"], request.cookies.get(LOGIN), request.query_params
    if login is None:
        if "again" in query:
            return _form(request, HTTPStatus.BAD_REQUEST, notice=_NO_COOKIE)
        url = f"{request.url.path}?{request.url.query}&again=1"
        return page(request, "continue.html", HTTPStatus.OK, url=url, user=None, at=None, notice=None)
    target = _target(query.get("state", ""), login, name)
    if target is None:
        notice = "This login was not begun in this browser, or it was completed already. Log in again."
        return _form(request, HTTPStatus.BAD_REQUEST, notice=notice)
    code = query.get("code", "")
    try:
        if not code or not await provider.is_from(query.get("iss")):
            notice = f"The identity provider {name} refused the login."
            return _form(request, HTTPStatus.FORBIDDEN, notice=notice)
        token = await provider.token(code, _return_url(request), code_verifier(login, name))
    except LoginFailed as error:
        return _form(request, HTTPStatus.SERVICE_UNAVAILABLE, notice=_sentence(error))
    return await _start_session(request, token, target)


async def _start_session(request: Request, credential: str, target: str) -> Response:
    """Start a session with an API key or a token, and return the redirection to a page."""
    api: Api = request.app.state.api
    started = await api.call(request, credential, "POST", "/v1/sessions", body={"label": LABEL})
    if started.status == HTTPStatus.UNAUTHORIZED:
        # What follows the reason in the message, and the hint, name the header Authorization.
        reason, _, _ = started.json["reasons"][0]["message"].partition(";")
        return _form(
            request, started.status, notice=f"The login was refused: {reason}. Enter another key or token."
        )
    if not started.is_success:
        return _form(request, started.status, refused=started.json)
    response = see_other(target)
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


def _provider(request: Request) -> CodeLogin | None:
    found: CodeLogin | None = request.app.state.providers.get(request.path_params["provider"])
    return found


def _return_url(request: Request) -> str:
    """Return the redirect URI of a login (RFC 6749, section 3.1.2). It must be registered at the identity provider."""
    name = request.path_params["provider"]
    return f"{request.url.scheme}://{request.url.netloc}{ROOT}/login/{quote(name, safe='')}/return"


def _target(state: str, login: str, provider: str) -> str | None:
    """Return the URL of the page to show after a login, which `state` contains; None if the state was not made for this
    browser (its login cookie is `login`) and this provider.
    """
    code, _, encoded = state.partition(".")
    try:
        target = urlsafe_b64decode(encoded.encode()).decode()
    except ValueError:
        return None
    expected = login_state(login, provider, target)
    return _local(target) if compare_digest(code.encode(), expected.encode()) else None


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def _form(request: Request, status: int, *, notice: str | None = None, refused: object = None) -> Response:
    login = request.cookies.get(LOGIN) or new_login()
    target = _local(request.query_params.get("next", ""))
    providers = [*request.app.state.providers]
    values = {
        "csrf": form_token(login),
        "next": target,
        "refused": refused,
        "notice": notice,
        "providers": providers,
    }
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
