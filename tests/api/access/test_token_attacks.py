"""Attacks with forged, altered and misused tokens. Each has a twin that differs in one thing and is accepted, so that a
refusal has the intended cause. Keys, discovery and the JWK set are those of a real identity provider.
"""

import base64
import hmac
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from joserfc.jwk import ECKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import json_b64encode, urlsafe_b64decode, urlsafe_b64encode

from deploy.embedded.postgres import PostgresServer
from tests.api.access.issuers import issuer_of
from tests.servers.oidc_provider import AUDIENCE, CLIENT, Provider, compact
from tests.servers.plane import TLS_CONTEXT, RunningPlane, running

CODES: Final = {
    "token_malformed",
    "token_untrusted",
    "token_expired",
    "token_not_yet_valid",
    "token_wrong_audience",
}
"""The only codes that the caller of a refused token receives."""
CANARY: Final = "canary-6d1b8f5c"
"""Identifier in the claims of every token. It must not appear in a response or a log line."""
FOREIGN_RSA: Final = RSAKey.generate_key(2048)
"""RSA key of the attacker, which the provider has not published."""
FOREIGN_EC: Final = ECKey.generate_key("P-256")
Make = Callable[[Provider], str]
MALFORMED, UNTRUSTED, AUDIENCE_WRONG = "token_malformed", "token_untrusted", "token_wrong_audience"


@dataclass(frozen=True)
class Attack:
    """An attack with a token, the reason code with which it is refused, and `twin`: a valid token that differs in one
    thing.
    """

    name: str
    code: str
    token: Make
    twin: Make


def claims(provider: Provider, **changes: Any) -> dict[str, Any]:
    return provider.claims(**{"jti": CANARY, **changes})


def valid(provider: Provider) -> str:
    return provider.sign(claims(provider))


def with_claims(**changes: Any) -> Make:
    return lambda provider: provider.sign(claims(provider, **changes))


def with_header(**changes: Any) -> Make:
    return lambda provider: provider.sign(claims(provider), provider.header(**changes))


def with_times(**offsets: float) -> Make:
    """Return a function that makes a token signed by the provider, with time claims relative to now, in seconds."""

    def make(provider: Provider) -> str:
        now = time.time()
        return provider.sign(claims(provider, **{name: now + offset for name, offset in offsets.items()}))

    return make


def with_payload(change: Callable[[bytes], bytes]) -> Make:
    """Return a function that makes a token with a payload changed by `change` before the provider's key signs it."""
    return lambda provider: provider.sign(change(json.dumps(claims(provider)).encode()))


def with_text(before: str, after: str) -> Make:
    return with_payload(lambda payload: payload.replace(before.encode(), after.encode(), 1))


def parts(token: str) -> list[str]:
    return token.split(".")


def joined(change: Callable[[list[str]], list[str]]) -> Make:
    """Return a function that makes a valid token and changes its parts (header, payload, signature) after the
    signature.
    """
    return lambda provider: ".".join(change(parts(valid(provider))))


def unsigned(algorithm: str, *, signature: str) -> Make:
    def make(provider: Provider) -> str:
        header = json_b64encode(provider.header(alg=algorithm)).decode()
        return f"{header}.{parts(valid(provider))[1]}.{signature}"

    return make


def with_hmac(secret_of: Callable[[Any], bytes]) -> Make:
    """Return a function that makes a token signed with HMAC, with the provider's public key as the secret."""

    def make(provider: Provider) -> str:
        header = json_b64encode(provider.header(alg="HS256"))
        signed = header + b"." + json_b64encode(claims(provider))
        signature = hmac.digest(secret_of(provider.keys["RS256"]), signed, "sha256")
        return (signed + b"." + urlsafe_b64encode(signature)).decode()

    return make


def foreign(**changes: Any) -> Make:
    """Return a function that makes a token signed with the key of the attacker. `changes` are fields of its header."""
    return lambda provider: compact(
        provider.header(**changes), json.dumps(claims(provider)).encode(), "RS256", FOREIGN_RSA
    )


def issued_by(change: Callable[[str], object]) -> Make:
    return lambda provider: provider.sign(claims(provider, iss=change(provider.issuer)))


def of_elliptic_curve(change: Callable[[bytes], bytes] = bytes) -> Make:
    def make(provider: Provider) -> str:
        header, payload, signature = parts(provider.sign(claims(provider), algorithm="ES256"))
        return (
            f"{header}.{payload}.{urlsafe_b64encode(change(urlsafe_b64decode(signature.encode()))).decode()}"
        )

    return make


def as_der(raw: bytes) -> bytes:
    return encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))


def with_other_last_bits(part: str) -> str:
    """Change the unused bits of the last character of an RSA-2048 signature in base64url; its bytes stay the same."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    changed = part[:-1] + alphabet[alphabet.index(part[-1]) + 1]
    assert base64.urlsafe_b64decode(changed + "==") == base64.urlsafe_b64decode(part + "==")
    return changed


def nested(provider: Provider) -> str:
    return provider.sign(valid(provider).encode(), provider.header(cty="JWT"))


def with_exact_header(header: str) -> Make:
    """Return a function that makes a token with exactly this header text, signed with the provider's key."""

    def make(provider: Provider) -> str:
        text = header % {"kid": provider.keys["RS256"].kid}
        signed = f"{urlsafe_b64encode(text.encode()).decode()}.{parts(valid(provider))[1]}"
        signature = JWSRegistry.algorithms["RS256"].sign(signed.encode(), provider.keys["RS256"])
        return f"{signed}.{urlsafe_b64encode(signature).decode()}"

    return make


FULL_TYPE: Final = with_header(typ="application/AT+jwt")
LOGOUT: Final = "http://schemas.openid.net/event/backchannel-logout"
"""Event of a logout token (OpenID Connect Back-Channel Logout, section 2.4)."""
PUBLIC_JWK: Final = FOREIGN_RSA.as_dict(private=False)
ATTACKS: Final = (
    # The algorithm
    Attack("none without a signature", MALFORMED, unsigned("none", signature=""), valid),
    Attack("none with a signature", UNTRUSTED, unsigned("none", signature="AAAA"), valid),
    Attack("none in mixed case", UNTRUSTED, unsigned("nOnE", signature="AAAA"), valid),
    Attack(
        "HS256 with the PEM of the public key", UNTRUSTED, with_hmac(lambda k: k.as_pem(private=False)), valid
    ),
    Attack(
        "HS256 with the JWK of the public key",
        UNTRUSTED,
        with_hmac(lambda k: json.dumps(k.as_dict(private=False)).encode()),
        valid,
    ),
    Attack(
        "HS256 with the modulus",
        UNTRUSTED,
        with_hmac(lambda k: k.as_dict(private=False)["n"].encode()),
        valid,
    ),
    Attack(
        "algorithm that is not configured",
        UNTRUSTED,
        lambda p: compact(p.header(alg="RS384"), json.dumps(claims(p)).encode(), "RS384", p.keys["RS256"]),
        valid,
    ),
    Attack("algorithm in lower case", UNTRUSTED, with_header(alg="rs256"), valid),
    Attack("algorithm that does not fit the key", UNTRUSTED, with_header(alg="ES256"), valid),
    Attack("algorithm missing", MALFORMED, with_header(alg=None), valid),
    Attack("algorithm in a list", MALFORMED, with_header(alg=["RS256"]), valid),
    # The key
    Attack("key of the attacker under the id of the provider's key", UNTRUSTED, foreign(), valid),
    Attack("key of the attacker without an id", UNTRUSTED, foreign(kid=None), with_header(kid=None)),
    Attack("key id that is a path", UNTRUSTED, with_header(kid="../../../../dev/null"), valid),
    Attack("key id that is a URL", UNTRUSTED, with_header(kid="http://127.0.0.1:9/keys"), valid),
    Attack("key id with SQL", UNTRUSTED, with_header(kid="x' union select 'AAAA' --"), valid),
    Attack("key id of a withdrawn key", UNTRUSTED, with_header(kid="rsa-0"), valid),
    Attack("key id of a key of another type", UNTRUSTED, with_header(kid="ec-1"), valid),
    Attack("key id that is empty", UNTRUSTED, with_header(kid=""), valid),
    Attack("key id that is a number", MALFORMED, with_header(kid=1), valid),
    Attack("key in the header", MALFORMED, foreign(jwk=PUBLIC_JWK, kid=None), valid),
    Attack("key in the header beside a valid signature", MALFORMED, with_header(jwk=PUBLIC_JWK), valid),
    Attack("URL of keys in the header", MALFORMED, foreign(jku="http://127.0.0.1:9/keys"), valid),
    Attack("certificate in the header", MALFORMED, foreign(x5c=["AAAA"]), valid),
    Attack("URL of a certificate in the header", MALFORMED, foreign(x5u="http://127.0.0.1:9/c"), valid),
    Attack("critical extension", MALFORMED, with_header(crit=["exp"]), valid),
    Attack("payload that is not encoded", MALFORMED, with_header(b64=False), valid),
    # The signature
    Attack("signature removed", MALFORMED, joined(lambda p: [p[0], p[1], ""]), valid),
    Attack("signature part removed", MALFORMED, joined(lambda p: p[:2]), valid),
    Attack("signature truncated", UNTRUSTED, joined(lambda p: [p[0], p[1], p[2][:-4] + "AA"]), valid),
    Attack(
        "claims replaced after the signature",
        UNTRUSTED,
        lambda p: ".".join(
            [parts(valid(p))[0], json_b64encode(claims(p, sub="root")).decode(), parts(valid(p))[2]]
        ),
        with_claims(sub="root"),
    ),
    Attack("signature of zeros", UNTRUSTED, of_elliptic_curve(lambda _: bytes(64)), of_elliptic_curve()),
    Attack("signature in DER", UNTRUSTED, of_elliptic_curve(as_der), of_elliptic_curve()),
    Attack(
        "second form of the same signature",
        MALFORMED,
        joined(lambda p: [p[0], p[1], with_other_last_bits(p[2])]),
        valid,
    ),
    # The form
    Attack("four parts", MALFORMED, joined(lambda p: [*p, "AAAA"]), valid),
    Attack("encrypted token of five parts", MALFORMED, joined(lambda p: [*p, "AAAA", "AAAA"]), valid),
    Attack("padding", MALFORMED, joined(lambda p: [p[0], p[1], p[2] + "=="]), valid),
    Attack("token in a token", MALFORMED, nested, valid),
    Attack("more than 8 KiB", MALFORMED, with_claims(note="x" * 8192), with_claims(note="x" * 4096)),
    Attack("deeply nested", MALFORMED, with_payload(lambda _: b"[" * 5000), with_claims(note=[[[[1]]]])),
    Attack("claims in a list", MALFORMED, with_payload(lambda p: b"[" + p + b"]"), valid),
    Attack("claims in UTF-16", MALFORMED, with_payload(lambda p: p.decode().encode("utf-16")), valid),
    Attack("bytes that are not UTF-8", MALFORMED, with_text('"sub": "ci"', '"sub": "\\ud800"'), valid),
    Attack("type of a logout token", MALFORMED, with_header(typ="logout+jwt"), with_header(typ="JWT")),
    Attack("full type of an event", MALFORMED, with_header(typ="application/secevent+jwt"), FULL_TYPE),
    Attack("type in upper case", MALFORMED, with_header(typ="LOGOUT+JWT"), with_header(typ="AT+JWT")),
    Attack("type that is empty", MALFORMED, with_header(typ=""), with_header(typ=None)),
    Attack("type in a list", MALFORMED, with_header(typ=["JWT"]), with_header(typ="jwt")),
    Attack(
        "duplicate header",
        MALFORMED,
        with_exact_header('{"alg":"none","alg":"RS256","kid":"%(kid)s"}'),
        with_exact_header('{"alg":"RS256","kid":"%(kid)s"}'),
    ),
    Attack(
        "duplicate claim",
        MALFORMED,
        with_text('"sub": "ci"', '"sub": "ci", "sub": "root"'),
        with_text('"sub": "ci"', '"sub": "ci", "Sub": "root"'),
    ),
    # The use
    Attack("logout token", MALFORMED, with_claims(events={LOGOUT: {}}), with_claims(event={LOGOUT: {}})),
    Attack("events that are null", MALFORMED, with_text('"sub"', '"events": null, "sub"'), valid),
    Attack("refresh token", MALFORMED, with_claims(token_use="refresh"), with_claims(token_use="access")),
    Attack("use in upper case", MALFORMED, with_claims(token_use="ID"), with_claims(token_use="id")),
    Attack("use in a list", MALFORMED, with_claims(token_use=["access"]), with_claims(token_use=None)),
    # The issuer
    Attack("unknown issuer", UNTRUSTED, issued_by(lambda _: "https://evil.example"), valid),
    Attack("issuer with a slash at the end", UNTRUSTED, issued_by(lambda i: f"{i}/"), valid),
    Attack("issuer in upper case", UNTRUSTED, issued_by(str.upper), valid),
    Attack("issuer with full-width digits", UNTRUSTED, issued_by(lambda i: i.replace("1", "１")), valid),
    Attack("issuer with an invisible character", UNTRUSTED, issued_by(lambda i: f"{i}\u200b"), valid),
    Attack("issuer in a list", MALFORMED, issued_by(lambda i: [i]), valid),
    Attack("issuer missing", MALFORMED, with_claims(iss=None), valid),
    # The audience
    Attack("another audience", AUDIENCE_WRONG, with_claims(aud="https://other.example"), valid),
    Attack("audience with a suffix", AUDIENCE_WRONG, with_claims(aud=f"{AUDIENCE}.evil"), valid),
    Attack("audience missing", MALFORMED, with_claims(aud=None), valid),
    Attack("audience in an object", MALFORMED, with_claims(aud={AUDIENCE: 1}), with_claims(aud=[AUDIENCE])),
    Attack(
        "several audiences with a foreign party",
        AUDIENCE_WRONG,
        with_claims(aud=[AUDIENCE, "https://other.example"], azp="other"),
        with_claims(aud=[AUDIENCE, "https://other.example"], azp=CLIENT),
    ),
    Attack(
        "several audiences without a party",
        AUDIENCE_WRONG,
        with_claims(aud=[AUDIENCE, "https://other.example"]),
        with_claims(aud=[AUDIENCE]),
    ),
    # The times; the permitted clock skew is 30 s
    Attack("expired", "token_expired", with_times(iat=-99, exp=-40), with_times(iat=-99, exp=-20)),
    Attack("expired before its issue", MALFORMED, with_times(iat=20, exp=19), with_times(iat=18, exp=19)),
    Attack("expired at its issue", MALFORMED, with_times(iat=0, exp=0), with_times(iat=0, exp=1)),
    Attack("issued too long ago", "token_expired", with_times(iat=-3640), with_times(iat=-3620)),
    Attack("not yet valid", "token_not_yet_valid", with_times(nbf=50), with_times(nbf=20)),
    Attack("issued in the future", "token_not_yet_valid", with_times(iat=50), with_times(iat=20)),
    Attack(
        "issued in the future, valid before",
        "token_not_yet_valid",
        with_times(iat=50, nbf=-50),
        with_times(iat=20, nbf=-50),
    ),
    Attack("expiry missing", MALFORMED, with_claims(exp=None), valid),
    Attack("time of issue missing", MALFORMED, with_claims(iat=None), valid),
    Attack("expiry in a text", MALFORMED, with_claims(exp="9999999999"), with_claims(exp=9999999999)),
    Attack("expiry that is true", MALFORMED, with_claims(exp=True), valid),
    Attack("expiry that is infinite", MALFORMED, with_claims(exp=float("inf")), valid),
    Attack("expiry beyond any number", MALFORMED, with_text('"exp": ', '"exp": 1e400, "x": '), valid),
    Attack("expiry with ten thousand digits", MALFORMED, with_claims(exp=10**4000), valid),
    # The subject
    Attack("subject missing", MALFORMED, with_claims(sub=None), valid),
    Attack("subject that is a number", MALFORMED, with_claims(sub=0), with_claims(sub="0")),
    Attack("subject with a line break", MALFORMED, with_claims(sub="ci\nroot"), with_claims(sub="ci root")),
    Attack("subject that is too long", MALFORMED, with_claims(sub="x" * 256), with_claims(sub="x" * 255)),
    Attack("token bound to a key", UNTRUSTED, with_claims(cnf={"jkt": "AAAA"}), valid),
)


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer, oidc_provider: Provider) -> Iterator[RunningPlane]:
    issuer = issuer_of(oidc_provider, max_token_age_seconds=3600)
    with running(postgres_server, oidc=(issuer,), unauthenticated_per_minute=0) as made:
        yield made


def send(plane: RunningPlane, token: str) -> httpx.Response:
    return httpx.get(
        f"{plane.url}/v1/whoami", headers={"Authorization": f"Bearer {token}"}, verify=TLS_CONTEXT
    )


def codes(answer: httpx.Response) -> list[str]:
    return [each["code"] for each in answer.json()["reasons"]]


def shows(text: str, token: str) -> bool:
    """Return whether a text contains the value of `CANARY`, or a part of the token that has more than 12 characters."""
    return CANARY in text or any(part[:200] in text for part in parts(token) if len(part) > 12)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_forged_token_is_refused_and_not_shown_in_response_or_log_and_the_unaltered_token_is_accepted(
    plane: RunningPlane, oidc_provider: Provider, attack: Attack, capfd: pytest.CaptureFixture[str]
) -> None:
    token, twin = attack.token(oidc_provider), attack.twin(oidc_provider)
    accepted = send(plane, twin)
    assert accepted.is_success, accepted.text
    capfd.readouterr()
    answer = send(plane, token)
    assert (answer.status_code, codes(answer)) == (401, [attack.code])
    assert attack.code in CODES
    logged = capfd.readouterr().err
    assert "token_refused" in logged
    assert not shows(logged, token)
    assert not shows(answer.text, token)


def test_responses_to_different_attacks_with_the_same_reason_code_have_the_same_text(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    texts = {send(plane, attack.token(oidc_provider)).json()["detail"] for attack in ATTACKS}
    assert len(ATTACKS) >= 60
    assert len(texts) == len(CODES)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/whoami?access_token={}", {}),
        ("/v1/whoami?token={}", {}),
        ("/v1/whoami", {"Authorization": "Basic {}"}),
        ("/v1/whoami", {"Authorization": "{}"}),
        ("/v1/whoami", {"X-Access-Token": "{}"}),
        ("/v1/whoami", {"Cookie": "access_token={}"}),
    ],
)
def test_token_outside_the_authorization_header_is_not_used_and_not_logged(
    plane: RunningPlane,
    oidc_provider: Provider,
    capfd: pytest.CaptureFixture[str],
    path: str,
    headers: dict[str, str],
) -> None:
    token = valid(oidc_provider)
    assert send(plane, token).is_success
    capfd.readouterr()
    sent = {name: value.format(token) for name, value in headers.items()}
    answer = httpx.get(f"{plane.url}{path.format(token)}", headers=sent, verify=TLS_CONTEXT)
    assert (answer.status_code, codes(answer)) == (401, ["no_credentials"])
    assert not shows(capfd.readouterr().err + answer.text, token)


def test_scheme_of_the_authorization_header_is_accepted_in_any_case(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    """RFC 9110, section 11.1, requires that case does not matter."""
    headers = {"Authorization": f"bearer {valid(oidc_provider)}"}
    assert httpx.get(f"{plane.url}/v1/whoami", headers=headers, verify=TLS_CONTEXT).is_success


def test_authorization_header_with_two_tokens_is_refused(
    plane: RunningPlane, oidc_provider: Provider
) -> None:
    token = valid(oidc_provider)
    for separator in (" ", ",", ", "):
        assert codes(send(plane, f"{token}{separator}{token}")) == [MALFORMED]


@pytest.mark.parametrize("path", ["reports", "desired-state", "progress"])
def test_token_of_a_caller_is_refused_on_routes_of_nodes(
    plane: RunningPlane, oidc_provider: Provider, path: str
) -> None:
    headers = {"Authorization": f"Bearer {valid(oidc_provider)}"}
    answer = httpx.post(f"{plane.url}/v1/agent/{path}", headers=headers, json={}, verify=TLS_CONTEXT)
    assert (answer.status_code, codes(answer)) == (401, ["unknown_node"])
