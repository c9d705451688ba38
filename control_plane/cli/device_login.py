"""Login of a user at an identity provider, by the OAuth 2.0 Device Authorization Grant (RFC 8628).

The control plane lists its identity providers; this request needs no credentials. The user opens a page of the provider
in any browser and enters a code there; this program requests the token from the provider until the user has done so.
Only the provider receives the user's password.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Final, TypeVar

import httpx
import msgspec

from control_plane.cli.failures import NoAccess, Unreachable, WrongUsage
from control_plane.client import calls
from control_plane.client.access_answers import LoginProvider
from control_plane.client.sync import Client
from control_plane.client.trust import trust, why_untrusted

GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL_SECONDS: Final = 5.0
"""Time between two requests for the token, if the provider does not specify it (RFC 8628, section 3.2), and the time by
which it is increased when the provider responds with `slow_down` (section 3.5).
"""
_TIMEOUT: Final = httpx.Timeout(20.0, connect=5.0)
_AGAIN: Final = "log in again: sliceplane login --device"
T = TypeVar("T")


class _Metadata(msgspec.Struct, frozen=True):
    """Metadata of a provider (OpenID Connect Discovery 1.0, section 3)."""

    issuer: str
    token_endpoint: str
    device_authorization_endpoint: str | None = None


class _DeviceCode(msgspec.Struct, frozen=True):
    """Response of the device authorization endpoint (RFC 8628, section 3.2)."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    interval: float | None = None
    verification_uri_complete: str | None = None


class _Token(msgspec.Struct, frozen=True):
    access_token: str


class _Error(msgspec.Struct, frozen=True):
    """Error response of the token endpoint (RFC 6749, section 5.2)."""

    error: str
    error_description: str = ""


@dataclass(frozen=True, slots=True)
class DeviceLogin:
    """Login at an identity provider of the control plane. `provider` is its name; None: the only provider. `ca` (PEM)
    verifies the certificate of the control plane and `provider_ca` that of the provider; None: the system's CAs. `note`
    shows a line to the user.
    """

    provider: str | None
    ca: str | None
    provider_ca: str | None
    note: Callable[[str], None]

    def obtain(self, url: str) -> str:
        """Log the user in, and return the token that the provider issued. Raises a `Failure`."""
        with Client(url, "", ca=self.ca) as client:
            logins = client.run(calls.capabilities()).logins
        chosen = _chosen(logins, self.provider)
        with (
            _reached(chosen),
            httpx.Client(verify=trust(chosen.issuer, self.provider_ca), timeout=_TIMEOUT) as http,
        ):
            metadata = _metadata(http, chosen)
            begun = _begin(http, chosen, metadata)
            self.note(f"open {begun.verification_uri} in a browser and enter the code {begun.user_code}")
            if begun.verification_uri_complete is not None:
                self.note(f"or open {begun.verification_uri_complete} and compare the code")
            self.note(f"waiting for the login at {chosen.name}; Ctrl-C ends it")
            return _await_token(http, chosen, metadata, begun)


def _chosen(logins: tuple[LoginProvider, ...], name: str | None) -> LoginProvider:
    names = ", ".join(each.name for each in logins)
    found = [each for each in logins if name in (None, each.name)]
    if not logins:
        what = "the control plane has no identity provider for logins"
        raise WrongUsage(what, "log in with an API key: sliceplane login")
    if not found:
        raise WrongUsage(f"there is no identity provider {name!r}; the providers are: {names}")
    if len(found) > 1:
        raise WrongUsage(
            "the control plane has several identity providers", f"choose one with --provider: {names}"
        )
    return found[0]


@contextmanager
def _reached(chosen: LoginProvider) -> Iterator[None]:
    """Convert connection errors of the identity provider, raised in the `with` block, to failures of the command."""
    try:
        yield
    except (httpx.TransportError, httpx.InvalidURL) as error:
        if untrusted := why_untrusted(error):
            what = f"cannot verify the certificate of {chosen.issuer}: {untrusted[0]}"
            raise Unreachable(
                what, "specify a file with the CA of the identity provider: --provider-ca FILE"
            ) from error
        raise Unreachable(f"cannot reach the identity provider {chosen.issuer}: {error}", _AGAIN) from error


def _metadata(http: httpx.Client, chosen: LoginProvider) -> _Metadata:
    """Return the metadata of the provider. Raises `Unreachable` if they name another provider, do not offer the device
    login, or name an endpoint without TLS.
    """
    answer = http.get(f"{chosen.issuer.rstrip('/')}/.well-known/openid-configuration")
    found = _read(answer, _Metadata, chosen)
    if found.issuer != chosen.issuer:  # OpenID Connect Discovery 1.0, section 4.3
        raise Unreachable(
            f"the identity provider at {chosen.issuer} returned the metadata of another issuer, {found.issuer}"
        )
    if found.device_authorization_endpoint is None:
        what = f"the identity provider {chosen.name} does not support the device authorization grant"
        raise Unreachable(what, "log in with an API key: sliceplane login")
    scheme = chosen.issuer.partition(":")[0]
    for endpoint in (found.device_authorization_endpoint, found.token_endpoint):
        if not endpoint.startswith(("https://", f"{scheme}://")):
            raise Unreachable(
                f"the metadata of the identity provider {chosen.name} contains an endpoint without TLS: {endpoint}"
            )
    return found


def _begin(http: httpx.Client, chosen: LoginProvider, metadata: _Metadata) -> _DeviceCode:
    # Providers need the audience in different ways. RFC 6749 (section 3.1) has them ignore parameters that they do not
    # know.
    form = {"client_id": chosen.client_id, "scope": chosen.scope, "audience": chosen.audience}
    answer = http.post(metadata.device_authorization_endpoint or "", data=form)
    return _read(answer, _DeviceCode, chosen)


def _await_token(http: httpx.Client, chosen: LoginProvider, metadata: _Metadata, begun: _DeviceCode) -> str:
    """Request the token until the user has logged in. Raises `NoAccess` if the user refuses, or takes too long."""
    form = {"grant_type": GRANT, "client_id": chosen.client_id, "device_code": begun.device_code}
    interval = INTERVAL_SECONDS if begun.interval is None else max(begun.interval, 1.0)
    ends = monotonic() + begun.expires_in
    while monotonic() < ends:
        sleep(interval)
        try:
            answer = http.post(metadata.token_endpoint, data=form)
        except httpx.TimeoutException:
            interval *= 2  # section 3.5
            continue
        if answer.is_success:
            return _read(answer, _Token, chosen).access_token
        match _read(answer, _Error, chosen, of_success=False).error:
            case "authorization_pending":
                pass
            case "slow_down":
                interval += INTERVAL_SECONDS
            case "access_denied":
                raise NoAccess(f"the login at the identity provider {chosen.name} was denied", _AGAIN)
            case "expired_token":
                break
            case error:
                raise NoAccess(f"the identity provider {chosen.name} refused the login: {error}", _AGAIN)
    raise NoAccess(
        f"the code of the device login expired before the login at the identity provider {chosen.name} was complete",
        _AGAIN,
    )


def _read(answer: httpx.Response, kind: type[T], chosen: LoginProvider, *, of_success: bool = True) -> T:
    """Decode a response of the provider. Raises `Unreachable` if its status or body is not the expected one."""
    try:
        if answer.is_success is of_success:
            return msgspec.json.decode(answer.content, type=kind)
        error = msgspec.json.decode(answer.content, type=_Error)
        what = f"{error.error}: {error.error_description}".removesuffix(": ")
    except msgspec.DecodeError:
        what = f"unexpected response with status {answer.status_code}"
    raise Unreachable(f"the identity provider {chosen.name} at {answer.request.url} failed: {what}")
