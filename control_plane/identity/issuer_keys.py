"""The public keys of an identity provider: fetched over HTTP, cached and replaced.

The keys are fetched again in the background once they are `_REFRESH_SECONDS` old, and at once if a token names a key
that is not among them, because providers replace their keys. Every caller can invent such names, so the keys
are fetched at most once per `REFETCH_SECONDS`, by one request at a time. If the provider does not respond, the cached
keys are used until their maximum age. Each API process has its own cache.

The provider is trusted to name callers, but not to use the memory or the time of this server: requests are limited in
time, and only usable keys are kept.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, Key, OKPKey, RSAKey, import_key
from joserfc.jws import JWSRegistry

from control_plane.decisions.issuers import Issuer
from control_plane.decisions.refusals import IdentityProviderUnavailable, Objection
from control_plane.decisions.tokens import ShownToken, TokenRefused
from control_plane.identity.provider_client import FetchFailed, ProviderClient, json_object

log = structlog.get_logger()
REFETCH_SECONDS: Final = 10.0
FETCH_SECONDS: Final = 5.0
MAX_KEYS: Final = 64
MIN_RSA_BITS: Final = 2048
_REFRESH_SECONDS: Final = 300.0
_CURVES: Final = {
    "ES256": (ECKey, "P-256"),
    "ES384": (ECKey, "P-384"),
    "ES512": (ECKey, "P-521"),
    "EdDSA": (OKPKey, "Ed25519"),
    "Ed25519": (OKPKey, "Ed25519"),
}


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key of a provider, for signatures with `algorithm`; None: with each algorithm that fits its type."""

    kid: str | None
    algorithm: str | None
    key: Key

    def fits(self, algorithm: str) -> bool:
        """Return whether the key can verify signatures of an algorithm."""
        if self.algorithm not in (None, algorithm):
            return False
        if algorithm in _CURVES:
            kind, curve = _CURVES[algorithm]
            return isinstance(self.key, kind) and self.key.as_dict(private=False).get("crv") == curve
        return algorithm[:2] in ("RS", "PS") and isinstance(self.key, RSAKey)

    def verify(self, token: ShownToken) -> bool:
        """Return whether the token is signed by this key. The caller has checked that the key fits its algorithm."""
        # The registry's own functions would read the header again, with rules of their own.
        return JWSRegistry.algorithms[token.algorithm].verify(token.signed, token.signature, self.key)


class IssuerKeys:
    """Cache of the public keys of one provider. Not thread-safe: used by one event loop.

    `elapsed` is a monotonic clock in seconds.
    """

    def __init__(self, issuer: Issuer, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._issuer, self._elapsed = issuer, elapsed
        self._keys: tuple[IssuerKey, ...] = ()
        self._fetched: float | None = None
        self._attempted: float | None = None
        self._attempts = 0
        self._failed = False
        self._lock = asyncio.Lock()
        self._background: asyncio.Task[None] | None = None
        self._provider = ProviderClient(issuer, FETCH_SECONDS)

    async def key_for(self, token: ShownToken) -> IssuerKey:
        """Return the only key that can have signed a token.

        Raises `TokenRefused` if the provider has no such key, and `IdentityProviderUnavailable` if the present keys of
        the provider could not be fetched.
        """
        if self._age() >= self._issuer.keys_max_age_seconds:
            await self._fetch_once()
            if self._age() >= self._issuer.keys_max_age_seconds:
                raise _unavailable(self._issuer)
        elif self._age() >= min(_REFRESH_SECONDS, self._issuer.keys_max_age_seconds / 2):
            self._fetch_in_background()
        if (found := self._find(token)) is not None:
            return found
        await self._fetch_once()
        if (found := self._find(token)) is not None:
            return found
        if self._failed:
            raise _unavailable(self._issuer)
        raise TokenRefused("token_untrusted", "the identity provider has no key that fits the token")

    def _find(self, token: ShownToken) -> IssuerKey | None:
        """Return the key with the token's `kid`, or without `kid` the only key that fits the token's algorithm."""
        fitting = [
            each
            for each in self._keys
            if each.fits(token.algorithm) and (token.kid is None or each.kid == token.kid)
        ]
        return fitting[0] if len(fitting) == 1 else None

    def _age(self) -> float:
        return float("inf") if self._fetched is None else self._elapsed() - self._fetched

    def _fetch_in_background(self) -> None:
        if self._background is None or self._background.done():
            self._background = asyncio.create_task(self._fetch_once())

    async def _fetch_once(self) -> None:
        """Fetch the keys, unless the last attempt began less than `REFETCH_SECONDS` ago. If a fetch is in progress,
        only wait for its end.
        """
        before = self._attempts
        async with self._lock:
            now = self._elapsed()
            recent = self._attempted is not None and now - self._attempted < REFETCH_SECONDS
            if before != self._attempts or recent:
                return
            self._attempted, self._attempts, self._failed = now, self._attempts + 1, True
            try:
                # Both requests together: the timeouts of httpx are for each read and write.
                async with asyncio.timeout(FETCH_SECONDS):
                    self._keys = await self._fetch()
            except (FetchFailed, httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
                cause = str(error) if isinstance(error, FetchFailed) else type(error).__name__
                log.warning("issuer_keys_unavailable", issuer=self._issuer.name, cause=cause)
                return
            self._fetched, self._failed = self._elapsed(), False
            log.info("issuer_keys_fetched", issuer=self._issuer.name, keys=len(self._keys))

    async def _fetch(self) -> tuple[IssuerKey, ...]:
        async with self._provider.connected() as client:
            document = await self._provider.metadata(client)
            url = self._provider.endpoint(document, "jwks_uri")
            keys = usable_keys((await json_object(client, "GET", url)).document)
        if not keys:
            raise FetchFailed("the JWK set of the identity provider contains no usable key")
        return keys


def usable_keys(document: dict[str, Any]) -> tuple[IssuerKey, ...]:
    """Return the keys of a JWK set (RFC 7517) that can verify signatures. Others, such as keys for encryption or of
    types that this server does not support, are ignored."""
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise FetchFailed("the answer of the identity provider is not a JWK set: it has no list `keys`")
    if len(listed) > MAX_KEYS:
        raise FetchFailed(f"the JWK set of the identity provider has more than {MAX_KEYS} keys")
    return tuple(key for each in listed if (key := _usable(each)) is not None)


def _usable(given: Any) -> IssuerKey | None:
    if not isinstance(given, dict) or given.get("use", "sig") != "sig" or "d" in given:
        return None
    kid, algorithm, kind = given.get("kid"), given.get("alg"), given.get("kty")
    operations = given.get("key_ops", ["verify"])
    named = all(each is None or isinstance(each, str) for each in (kid, algorithm))
    if not named or kind not in ("RSA", "EC", "OKP") or "verify" not in operations:
        return None
    try:
        key = import_key(given)
        fitting = not isinstance(key, RSAKey) or key.raw_value.key_size >= MIN_RSA_BITS
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        return None
    return IssuerKey(kid, algorithm, key) if fitting else None


def _unavailable(issuer: Issuer) -> IdentityProviderUnavailable:
    reason = f"the identity provider {issuer.name} does not respond, so the token cannot be verified; retry"
    return IdentityProviderUnavailable(Objection("identity_provider_unavailable", reason))
