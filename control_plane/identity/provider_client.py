"""HTTP requests to an identity provider, with its metadata document (OpenID Connect Discovery 1.0, section 3).

The provider is trusted to name callers, but not to use the memory of this server: answers are limited in size, and
redirects are not followed.
"""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx

from control_plane.decisions.issuers import Issuer, is_loopback

MAX_ANSWER_BYTES: Final = 256 * 1024
UNREACHABLE: Final = (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError)
"""Errors of a request that the provider did not answer."""


class FetchFailed(Exception):
    """The provider did not return a usable answer. The message names the cause and contains no text from the
    provider.
    """


class ProviderAnswer(NamedTuple):
    """An answer of the provider: its HTTP status, and its body, a JSON object."""

    status: int
    document: dict[str, Any]


class ProviderClient:
    """Requests to one provider. `seconds` is the time that a request may take to make progress."""

    def __init__(self, issuer: Issuer, seconds: float) -> None:
        self._issuer, self._seconds = issuer, seconds
        self._context: ssl.SSLContext | None = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[httpx.AsyncClient]:
        """Yield an HTTP client that verifies the provider with the configured CA."""
        if self._context is None:
            ca_file = self._issuer.ca_file
            self._context = (
                httpx.create_ssl_context()
                if ca_file is None
                else ssl.create_default_context(cafile=str(ca_file))
            )
        async with httpx.AsyncClient(
            verify=self._context, timeout=2 * self._seconds, headers={"Accept-Encoding": "identity"}
        ) as client:
            yield client

    async def metadata(self, client: httpx.AsyncClient) -> dict[str, Any]:
        """Return the metadata of the provider. Raises `FetchFailed` and `UNREACHABLE`."""
        url = f"{self._issuer.issuer.rstrip('/')}/.well-known/openid-configuration"
        found = (await json_object(client, "GET", url)).document
        if found.get("issuer") != self._issuer.issuer:
            raise FetchFailed("the discovery document of the identity provider names a different issuer")
        return found

    def endpoint(self, metadata: Mapping[str, Any], name: str) -> str:
        """Return the URL of an endpoint. Raises `FetchFailed` unless it is protected at least as well as the URL of the
        issuer: by HTTPS, or by plain HTTP on the loopback interface if the issuer uses plain HTTP too. The URL has only
        printable ASCII characters and no fragment (RFC 6749, section 3.1), so that a query string can be added to it.
        """
        url = metadata.get(name)
        if not isinstance(url, str) or not _is_trustworthy(url, self._issuer.issuer):
            raise FetchFailed(
                f"`{name}` in the discovery document of the identity provider is missing or not an https URL"
            )
        return url


def _is_trustworthy(url: str, issuer: str) -> bool:
    if not (url.isascii() and url.isprintable()) or " " in url or "#" in url:
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme == "https" or (
            parts.scheme == "http" and issuer.startswith("http:") and is_loopback(parts.hostname or "")
        )
    except ValueError:
        return False


async def json_object(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    form: Mapping[str, str] | None = None,
    statuses: tuple[int, ...] = (httpx.codes.OK,),
) -> ProviderAnswer:
    """Send a request and return the answer, a JSON object. Raises `FetchFailed` if the HTTP status is not one of
    `statuses` or the body is unusable, and one of the exceptions in `UNREACHABLE` if the provider does not answer.
    """
    raw = bytearray()
    async with client.stream(method, url, data=form) as answer:
        if answer.status_code not in statuses:
            raise FetchFailed(f"the identity provider answered with status {answer.status_code}")
        # The raw bytes: a compressed answer could be small here and large in memory.
        async for chunk in answer.aiter_raw():
            raw += chunk
            if len(raw) > MAX_ANSWER_BYTES:
                raise FetchFailed(
                    f"the answer of the identity provider has more than {MAX_ANSWER_BYTES} bytes"
                )
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        raise FetchFailed("the answer of the identity provider is not JSON") from None
    if not isinstance(found, dict):
        raise FetchFailed("the answer of the identity provider is not a JSON object")
    return ProviderAnswer(answer.status_code, found)
