"""Verification of OIDC tokens: the only path from the text of a token to its holder."""

import time
from collections.abc import Callable, Sequence

from control_plane.decisions.issuers import Issuer
from control_plane.decisions.tokens import TokenHolder, TokenRefused, holder_of, read_token
from control_plane.identity.issuer_keys import IssuerKeys


class Verifier:
    """Verifies the tokens of the identity providers that the operator trusts. Used by one event loop.

    `now` returns seconds since 1970, `elapsed` is a monotonic clock in seconds.
    """

    def __init__(
        self,
        issuers: Sequence[Issuer],
        now: Callable[[], float] = time.time,
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._issuers = {each.issuer: (each, IssuerKeys(each, elapsed)) for each in issuers}

    async def verify(self, token: str) -> TokenHolder:
        """Return the holder of a token.

        Raises `TokenRefused`, `Forbidden` if no grant matches, and `IdentityProviderUnavailable`.
        """
        shown = read_token(token)
        issuer, keys = self._issuers.get(shown.issuer, (None, None))
        if issuer is None or keys is None:
            raise TokenRefused(
                "token_untrusted", "no configured identity provider is the issuer of the token"
            )
        if shown.algorithm not in issuer.algorithms:
            raise TokenRefused(
                "token_untrusted", "the algorithm of the token is not permitted for its issuer"
            )
        key = await keys.key_for(shown)
        if not key.verify(shown):
            raise TokenRefused("token_untrusted", "the signature of the token is wrong")
        return holder_of(shown.claims, issuer, self._now())
