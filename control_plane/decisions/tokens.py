"""Decisions about OIDC tokens: from the text of a token to its holder, or to the reason why it is refused.

Order: form and header, before anything of the token is trusted; the signature (`control_plane.identity.oidc`), with the
key that `iss` and `kid` select; then claims, revocation and grants. A caller without a signing key of a provider
therefore learns only that its token is malformed or untrusted.

Headers that name keys or change the meaning of others (such as `jwk`, `jku`, `x5u`, `crit` and `b64`) are refused and
never used: `kid` is compared with the ids of the provider's keys, and nothing else selects a key.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.parse import quote, unquote

from control_plane.decisions.access import Principal, Role, Within, scopes_of
from control_plane.decisions.issuers import Grant, Issuer
from control_plane.decisions.refusals import Forbidden, Objection
from events.values import LABEL

MAX_BYTES: Final = 8192
MAX_SUBJECT: Final = 255
"""Maximum length of a subject, as OpenID Connect Core sets it (section 2), also in its safe form."""
USER_ACTOR: Final = re.compile(r"user:[a-z][a-z0-9-]{0,30}/(?:[A-Za-z0-9_.~@|:+=!*,;$-]|%[0-9A-F]{2}){1,255}")
"""Form of an actor that holds tokens."""
KEY_ACTOR: Final = re.compile(r"key:[a-z][a-z0-9-]{0,63}")
SERVICE_ACCOUNT_ACTOR: Final = re.compile(rf"service-account:{LABEL.pattern}")
_SAFE: Final = "_.~@|:+=!*,;$-"
_TOKEN_ID: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_PART: Final = re.compile(r"[A-Za-z0-9_-]+")
_REFUSED_HEADERS: Final = frozenset({"crit", "jku", "jwk", "x5u", "x5c", "b64", "zip", "enc", "cty", "epk"})
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""Types of access and ID tokens (RFC 7519, RFC 9068). A provider signs other types, such as logout tokens, with the
same key."""
_USES: Final = ("access", "id")
"""Values of the claim `token_use` in access and ID tokens of Amazon Cognito, which signs all tokens with one key."""
_LAST_TIME: Final = 253402300800  # year 10000
_RANKS: Final = (Role.ADMIN, Role.AUDITOR, Role.CALLER)

REASONS: Final = MappingProxyType(
    {
        "token_malformed": "the token is not a signed JWT that this server accepts; request a new token",
        "token_untrusted": "the token was not issued by an identity provider that this server trusts",
        "token_expired": "the token has expired; request a new token",
        "token_not_yet_valid": "the token is not valid yet; check the clocks of this server and of the identity provider",
        "token_wrong_audience": "the token was issued for a different service; request one with the audience of this server",
        "principal_revoked": "tokens of this caller that were issued until now are revoked; request a new token",
    }
)
"""Message that the caller of a refused token receives with each code. Only the log has the exact cause, because it
would help an attacker.
"""


class TokenRefused(Exception):
    """A token is refused. `code` is one of `REASONS`; `cause` is a static text for the log."""

    def __init__(self, code: str, cause: str) -> None:
        super().__init__(cause)
        self.code, self.cause = code, cause


@dataclass(frozen=True, slots=True)
class ShownToken:
    """The parts of a token before its signature is verified. Only `kid`, `algorithm` and `issuer` may be used then, to
    select a key."""

    algorithm: str
    kid: str | None
    issuer: str
    claims: dict[str, Any]
    signed: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """The holder of a verified token. `issued_at` and `expires_at` are in seconds since 1970: the token is accepted
    before `expires_at`, which includes the clock skew.
    """

    principal: Principal
    issued_at: float
    expires_at: float
    issuer: Issuer
    token_id: str | None = None
    """The claim `jti`; None if the token has none, or one that may not be recorded, such as a very long text."""

    @property
    def earliest_issue(self) -> float:
        """The earliest time at which the token may have been issued by the clock of this server, in seconds since
        1970."""
        return self.issued_at - self.issuer.clock_skew_seconds

    def credential(self, token_sha256: str) -> str:
        """Return the id of the token in the access log and in events. It contains nothing that could be presented."""
        return f"{self.issuer.name}/{self.token_id or token_sha256[:16]}"


def issuer_of(actor: str) -> str:
    """Return the name of the identity provider of an actor that holds tokens."""
    return actor.removeprefix("user:").partition("/")[0]


def has_form_of_token(secret: str) -> bool:
    """Return whether a bearer secret is a token. API keys contain no dot."""
    return "." in secret


def read_token(token: str) -> ShownToken:
    """Split a token into its parts without trusting it. Raises `TokenRefused`."""
    if len(token) > MAX_BYTES:
        raise TokenRefused("token_malformed", "the token is longer than 8 KiB")
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004  # RFC 7515, section 3.1; an encrypted token has five
        raise TokenRefused("token_malformed", "the token does not have three parts")
    header, claims, signature = map(_decoded, parts)
    fields = _object(header)
    algorithm, kid, kind = fields.get("alg"), fields.get("kid"), fields.get("typ", "JWT")
    if _REFUSED_HEADERS & fields.keys():
        raise TokenRefused("token_malformed", "the token has a header field that is not permitted")
    if not isinstance(algorithm, str) or not (kid is None or isinstance(kid, str)):
        raise TokenRefused("token_malformed", "header alg or kid is not a string")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRefused("token_malformed", "header typ is not that of an access or ID token")
    read = _object(claims)
    return ShownToken(algorithm, kid, _text(read, "iss"), read, f"{parts[0]}.{parts[1]}".encode(), signature)


def _decoded(part: str) -> bytes:
    """Decode base64url without padding (RFC 7515, section 2). Raises `TokenRefused` unless the text is the canonical
    form of its value.
    """
    if not _PART.fullmatch(part):
        raise TokenRefused("token_malformed", "a part of the token is empty or not base64url")
    try:
        decoded = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except (binascii.Error, ValueError):
        raise TokenRefused("token_malformed", "a part of the token is not base64url") from None
    if base64.urlsafe_b64encode(decoded).rstrip(b"=") != part.encode():
        raise TokenRefused("token_malformed", "a part of the token is not in canonical base64url")
    return decoded


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw.decode(), object_pairs_hook=_distinct, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise TokenRefused(
            "token_malformed", "a part of the token is not JSON in UTF-8 with distinct names"
        ) from None
    if not isinstance(found, dict):
        raise TokenRefused("token_malformed", "a part of the token is not a JSON object")
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises `ValueError` for duplicate names, because parsers differ in which value they use."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate name")
    return found


def _no_constant(_name: str) -> None:
    raise ValueError("NaN and Infinity are not JSON")


def _text(claims: dict[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise TokenRefused("token_malformed", f"claim {name} is missing or not a string")
    return value


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused("token_malformed", f"claim {name} is missing or not a number")
    # A comparison accepts integers of any size, and is false for NaN.
    if not 0 <= value < _LAST_TIME:
        raise TokenRefused("token_malformed", f"claim {name} is not a time")
    return float(value)


def holder_of(claims: dict[str, Any], issuer: Issuer, now: float) -> TokenHolder:
    """Return the holder of a token with a verified signature. `now` is in seconds since 1970.

    Raises `TokenRefused`, and `Forbidden` if no grant of the provider matches.
    """
    if claims.get("iss") != issuer.issuer:
        raise TokenRefused("token_untrusted", "claim iss is not the URL of the configured issuer")
    if "cnf" in claims:
        # The token is bound to a key of its holder (RFC 7800). This server does not verify the proof of possession, so
        # the token must not be accepted from a caller that only has the token.
        raise TokenRefused("token_untrusted", "claim cnf binds the token to a key, which is not supported")
    _check_use(claims)
    _check_audience(claims, issuer)
    issued_at, expires_at = _check_times(claims, issuer, now)
    actor = f"user:{issuer.name}/{_safe(_text(claims, 'sub'))}"
    role, projects = _granted(claims, issuer.grants)
    principal = Principal(actor, role, scopes_of(role, frozenset()), projects)
    return TokenHolder(principal, issued_at, expires_at, issuer, _token_id(claims))


def _check_use(claims: dict[str, Any]) -> None:
    """Refuse tokens that the provider signs for another use, whatever the type in their header is. Raises
    `TokenRefused`.
    """
    if "events" in claims:
        raise TokenRefused("token_malformed", "token of a security event, such as a logout token (RFC 8417)")
    if "token_use" in claims and claims["token_use"] not in _USES:
        raise TokenRefused("token_malformed", "claim token_use is not that of an access or ID token")


def _token_id(claims: dict[str, Any]) -> str | None:
    found = claims.get("jti")
    return found if isinstance(found, str) and _TOKEN_ID.fullmatch(found) else None


def _check_audience(claims: dict[str, Any], issuer: Issuer) -> None:
    given = claims.get("aud")
    audiences = [given] if isinstance(given, str) else given
    if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
        raise TokenRefused("token_malformed", "claim aud is missing or not a list of strings")
    if issuer.audience not in audiences:
        raise TokenRefused(
            "token_wrong_audience", "the claim aud of the token does not contain the audience of this server"
        )
    # A token for several services could be replayed by any of them, so it must name the client that requested it.
    permitted = {issuer.audience, issuer.client_id, *issuer.authorised_parties} - {None}
    party = claims.get("azp")
    if len(audiences) > 1 and not (isinstance(party, str) and party in permitted):
        raise TokenRefused(
            "token_wrong_audience",
            "the token has several audiences, and its claim azp does not name a permitted client",
        )


def _check_times(claims: dict[str, Any], issuer: Issuer, now: float) -> tuple[float, float]:
    """Return when the token was issued, and from when on it is refused. Raises `TokenRefused`."""
    skew = issuer.clock_skew_seconds
    expires, issued = _time(claims, "exp"), _time(claims, "iat")
    begins = _time(claims, "nbf") if "nbf" in claims else issued
    if expires <= issued:
        raise TokenRefused("token_malformed", "claim exp is not later than claim iat")
    if expires + skew <= now:
        raise TokenRefused("token_expired", "claim exp has passed")
    if issued + issuer.max_token_age_seconds + skew <= now:
        raise TokenRefused("token_expired", "the token was issued too long ago")
    if begins - skew > now:
        raise TokenRefused("token_not_yet_valid", "claim nbf lies in the future")
    if issued - skew > now:
        raise TokenRefused("token_not_yet_valid", "claim iat lies in the future")
    return issued, min(expires, issued + issuer.max_token_age_seconds) + skew


def _safe(subject: str) -> str:
    """Return a subject in the form in which the ledger records it. Different subjects have different forms: characters
    outside a safe set are percent-encoded, so that none looks like another."""
    if not subject.isprintable():
        raise TokenRefused("token_malformed", "claim sub has characters that are not printable")
    safe = quote(subject, safe=_SAFE)
    if len(safe) > MAX_SUBJECT:
        raise TokenRefused("token_malformed", "claim sub is too long")
    return safe


def is_recorded_form(actor: str) -> bool:
    """Return whether an actor that holds tokens has the form in which the ledger records it: only the unsafe characters
    of its subject are percent-encoded.
    """
    subject = actor.partition("/")[2]
    try:
        return _safe(unquote(subject)) == subject
    except TokenRefused:
        return False


def _granted(claims: dict[str, Any], grants: Iterable[Grant]) -> tuple[Role, Within]:
    """Return the highest role that a grant gives to the claims: admin, then auditor, then caller. The projects are
    those of all matching grants of that role. Raises `Forbidden`.
    """
    matching = [each for each in grants if each.value in _values(claims, each.path)]
    for role in _RANKS:
        limits = [each.limits for each in matching if each.role is role]
        if limits:
            return role, None if None in limits else frozenset().union(*cast(list[frozenset[Any]], limits))
    reason = (
        "the identity provider grants this caller no role; ask the operator for one of the configured claims"
    )
    raise Forbidden(Objection("no_grant", reason))


def _values(claims: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    found: Any = claims
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, str):
        yield from found.split(" ") if path == ("scope",) else (found,)
    elif isinstance(found, list):
        yield from (each for each in found if isinstance(each, str))


def refuse_expired(holder: TokenHolder, now: float) -> None:
    """Refuse a token that was valid before and may have expired since. `now` is in seconds since 1970. Raises
    `TokenRefused`."""
    if holder.expires_at <= now:
        raise TokenRefused("token_expired", "the token expired after it was verified")


def refuse_revoked(holder: TokenHolder, revoked_at: datetime) -> None:
    """Refuse a token that may have been issued before its holder was revoked: the clock of the provider may be ahead by
    the permitted skew. Raises `TokenRefused`."""
    if holder.earliest_issue <= revoked_at.timestamp():
        raise TokenRefused("principal_revoked", "the token was issued before its holder was revoked")
