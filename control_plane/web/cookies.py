"""Cookies of the web console, and the tokens that protect its forms from other sites (CSRF).

The cookie of a logged-in browser has the secret of a session (`/v1/sessions`). The control plane stores only a hash of
it. The session ends after its idle time, its lifetime, a logout, or the revocation of its API key, which the browser
does not store. The browser sends the cookie only to the console, and only with requests from the console's own pages.

The token of a form is derived from the cookie, which other sites cannot read. Before the login, a random cookie takes
the place of the session.
"""

import hmac
import secrets
from hashlib import sha256
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

ROOT: Final = "/ui"
SESSION: Final = "sliceplane_session"
LOGIN: Final = "sliceplane_login"


def new_login() -> str:
    """Return a random value for the cookie `LOGIN`."""
    return secrets.token_urlsafe(32)


def form_token(secret: str) -> str:
    """Return the token of the forms on the pages of a browser with the cookie value `secret`."""
    return hmac.new(secret.encode(), b"sliceplane console form", sha256).hexdigest()


def is_form_token(token: str, secret: str) -> bool:
    return hmac.compare_digest(token.encode(), form_token(secret).encode())


def login_state(secret: str, provider: str, target: str) -> str:
    """Return the state (RFC 6749, section 10.12) of a login at an identity provider: it binds the browser with the
    cookie value `secret` to the provider, and to the page that is shown afterwards.
    """
    text = f"sliceplane login at {provider} for {target}"
    return hmac.new(secret.encode(), text.encode(), sha256).hexdigest()


def code_verifier(secret: str, provider: str) -> str:
    """Return the code verifier (RFC 7636) of a login at an identity provider."""
    return hmac.new(secret.encode(), f"sliceplane verifier for {provider}".encode(), sha256).hexdigest()


def set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Set a cookie that ends with the browser's session, and that scripts cannot read."""
    secure = request.url.scheme == "https"
    response.set_cookie(name, value, path=ROOT, secure=secure, httponly=True, samesite="strict")


def delete_cookie(response: Response, name: str) -> None:
    response.delete_cookie(name, path=ROOT, httponly=True, samesite="strict")
