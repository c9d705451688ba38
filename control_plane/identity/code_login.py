"""Login of a user at an identity provider in the browser, by the OAuth 2.0 authorization code grant (RFC 6749, section
4.1) with PKCE (RFC 7636), as the public client that the command line uses too.

The browser is sent to the provider, and returns with a code. This server exchanges the code for a token, which must be
one that the API accepts. The user's password is entered at the provider only.
"""

import asyncio
import math
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlencode

import httpx

from control_plane.decisions.issuers import Issuer
from control_plane.decisions.tokens import TokenRefused, read_token
from control_plane.identity.provider_client import (
    UNREACHABLE,
    FetchFailed,
    ProviderAnswer,
    ProviderClient,
    json_object,
)

MOST_EXCHANGES: Final = 16
"""Maximum number of codes of a provider that a process exchanges at a time: each takes a connection to the provider."""
LOGIN_SECONDS: Final = 5.0
"""Time in which the provider must answer."""
_METADATA_SECONDS: Final = 300.0
RETRY_SECONDS: Final = 10.0
"""Time after a failed request for the metadata of the provider until the next one: everyone can begin a login."""


class LoginFailed(Exception):
    """The provider did not issue a token; the message names the provider and the cause."""


class CodeLogin:
    """Logins at one provider. Not thread-safe: used by one event loop. `elapsed` is a monotonic clock in seconds."""

    def __init__(self, issuer: Issuer, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._issuer, self._elapsed = issuer, elapsed
        self._provider = ProviderClient(issuer, LOGIN_SECONDS)
        self._metadata: Mapping[str, Any] = {}
        self._fetch_from = -math.inf
        self._lock = asyncio.Lock()
        self._exchanges = 0

    async def is_from(self, issuer: str | None) -> bool:
        """Return whether a browser that returns with this `iss` (RFC 9207) comes from this provider. None: the browser
        has no `iss`, which only a provider may omit that does not announce it. Raises `LoginFailed`.
        """
        if issuer is None:
            return (await self._known()).get("authorization_response_iss_parameter_supported") is not True
        return issuer == self._issuer.issuer

    async def authorization_url(self, return_url: str, state: str, verifier: str) -> str:
        """Return the URL of the provider to which the browser is sent. The provider sends it back to `return_url` with
        a code and with `state`. `verifier` is a secret that the provider gets with the code. Raises `LoginFailed`.
        """
        challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._issuer.client_id or "",
            "redirect_uri": return_url,
            "scope": self._issuer.login_scope,
            # Providers need the audience in different ways, and ignore parameters that they do not know.
            "audience": self._issuer.audience,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        url = await self._endpoint("authorization_endpoint")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(query)}"

    async def token(self, code: str, return_url: str, verifier: str) -> str:
        """Exchange a code for the token of the user, which names this provider as its issuer. Raises `LoginFailed`."""
        form = {
            "grant_type": "authorization_code",
            "client_id": self._issuer.client_id or "",
            "code": code,
            "redirect_uri": return_url,
            "code_verifier": verifier,
        }
        answer = await self._exchange(await self._endpoint("token_endpoint"), form)
        token = answer.document.get("access_token")
        if answer.status != httpx.codes.OK or not isinstance(token, str):
            raise LoginFailed(
                f"the identity provider {self._issuer.name} does not accept the code of this login, which may have"
                " expired"
            )
        self._refuse_foreign(token)
        return token

    async def _exchange(self, url: str, form: Mapping[str, str]) -> ProviderAnswer:
        # Everyone can return with an invented code. Without this limit, the connections to a slow provider would use up
        # the file descriptors of this process.
        if self._exchanges >= MOST_EXCHANGES:
            raise LoginFailed(
                f"too many logins at the identity provider {self._issuer.name} are in progress; try again in some seconds"
            )
        statuses = (httpx.codes.OK, httpx.codes.BAD_REQUEST, httpx.codes.UNAUTHORIZED)
        self._exchanges += 1
        try:
            async with asyncio.timeout(LOGIN_SECONDS), self._provider.connected() as client:
                return await json_object(client, "POST", url, form, statuses)
        except (FetchFailed, *UNREACHABLE) as error:
            raise self._failed(error) from error
        finally:
            self._exchanges -= 1

    def _refuse_foreign(self, token: str) -> None:
        """Raise `LoginFailed` if another issuer issued the token. Otherwise, a provider could log the user in as a
        caller of another provider. The API verifies the signature and the claims.
        """
        try:
            issuer = read_token(token).issuer
        except TokenRefused as error:
            raise LoginFailed(
                f"the identity provider {self._issuer.name} issued an unusable token: {error}"
            ) from error
        if issuer != self._issuer.issuer:
            raise LoginFailed(f"the identity provider {self._issuer.name} issued a token of another issuer")

    async def _endpoint(self, name: str) -> str:
        metadata = await self._known()
        try:
            return self._provider.endpoint(metadata, name)
        except FetchFailed as error:
            raise self._failed(error) from error

    async def _known(self) -> Mapping[str, Any]:
        """Return the metadata of the provider, and request it if it is not cached. After a failed request, return an
        empty mapping until the next request is permitted. Raises `LoginFailed`.
        """
        try:
            async with self._lock:
                if self._elapsed() >= self._fetch_from:
                    await self._fetch()
            return self._metadata
        except (FetchFailed, *UNREACHABLE) as error:
            raise self._failed(error) from error

    async def _fetch(self) -> None:
        self._metadata, self._fetch_from = {}, self._elapsed() + RETRY_SECONDS
        async with asyncio.timeout(LOGIN_SECONDS), self._provider.connected() as client:
            self._metadata = await self._provider.metadata(client)
        self._fetch_from = self._elapsed() + _METADATA_SECONDS

    def _failed(self, error: Exception) -> LoginFailed:
        responds = isinstance(error, FetchFailed) and self._metadata
        cause = str(error) if responds else "it does not respond as expected; try again in some seconds"
        return LoginFailed(
            f"a login at the identity provider {self._issuer.name} is not possible now: {cause}"
        )
