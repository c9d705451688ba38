"""Tests of the cached keys of an identity provider: replaced, withdrawn, unreachable, hostile."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey
from structlog.testing import capture_logs

from control_plane.decisions.refusals import IdentityProviderUnavailable
from control_plane.decisions.tokens import TokenRefused
from control_plane.identity import issuer_keys
from control_plane.identity.issuer_keys import MAX_KEYS, usable_keys
from control_plane.identity.oidc import Verifier
from control_plane.identity.provider_client import MAX_ANSWER_BYTES
from deploy.embedded.certificates import ensure
from tests.api.access.issuers import issuer_of
from tests.servers.oidc_provider import Provider, new_keys, running_provider

NO_FITTING_KEY = "the identity provider has no key that fits the token"


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def provider() -> Iterator[Provider]:
    with running_provider() as made:
        yield made


async def outcome(verifier: Verifier, token: str) -> str:
    """Return `accepted`, or the reason why a token is not accepted."""
    try:
        await verifier.verify(token)
    except TokenRefused as refused:
        return refused.cause
    except IdentityProviderUnavailable:
        return "unavailable"
    return "accepted"


def fetches(logs: list[Any]) -> int:
    return sum(each["event"] == "issuer_keys_fetched" for each in logs)


async def test_tokens_with_an_unknown_key_id_cause_at_most_one_fetch_of_provider_keys_in_ten_seconds(
    provider: Provider,
) -> None:
    clock, old = Clock(), replace(provider)
    verifier = Verifier([issuer_of(provider)], elapsed=clock)
    assert await outcome(verifier, old.sign(old.claims())) == "accepted"
    provider.use_keys(new_keys("2"))
    clock.seconds += 9.9
    assert await outcome(verifier, provider.sign(provider.claims())) == NO_FITTING_KEY
    assert await outcome(verifier, old.sign(old.claims())) == "accepted"
    clock.seconds += 0.1
    assert await outcome(verifier, provider.sign(provider.claims())) == "accepted"
    assert await outcome(verifier, old.sign(old.claims())) == NO_FITTING_KEY


async def test_concurrent_requests_with_tokens_of_invented_key_ids_share_one_fetch_of_provider_keys(
    provider: Provider,
) -> None:
    clock = Clock()
    verifier = Verifier([issuer_of(provider)], elapsed=clock)
    with capture_logs() as logs:
        valid = provider.sign(provider.claims())
        results = await asyncio.gather(*(outcome(verifier, valid) for _ in range(50)))
        assert results == ["accepted"] * 50
        assert fetches(logs) == 1
        clock.seconds += 20
        invented = [
            provider.sign(provider.claims(), provider.header(kid=f"invented-{number}"))
            for number in range(100)
        ]
        results = await asyncio.gather(*(outcome(verifier, token) for token in invented))
    assert results == [NO_FITTING_KEY] * 100
    assert fetches(logs) == 2


async def test_cached_provider_keys_are_used_until_their_maximum_age_while_the_identity_provider_is_down(
    provider: Provider,
) -> None:
    clock = Clock()
    verifier = Verifier([issuer_of(provider, keys_max_age_seconds=3600)], elapsed=clock)
    token = provider.sign(provider.claims())
    assert await outcome(verifier, token) == "accepted"
    provider.close()
    unknown = provider.sign(provider.claims(), provider.header(kid="unknown"))
    clock.seconds += 3599
    assert await outcome(verifier, token) == "accepted"
    assert await outcome(verifier, unknown) == "unavailable"
    clock.seconds += 1
    assert await outcome(verifier, token) == "unavailable"
    provider.open()
    assert await outcome(verifier, token) == "unavailable", "the last attempt is not ten seconds old"
    clock.seconds += 10
    assert await outcome(verifier, token) == "accepted"


async def test_provider_keys_older_than_the_refresh_age_are_fetched_again_in_the_background(
    provider: Provider,
) -> None:
    clock, old = Clock(), replace(provider)
    verifier = Verifier([issuer_of(provider)], elapsed=clock)
    token = old.sign(old.claims())
    assert await outcome(verifier, token) == "accepted"
    provider.use_keys(new_keys("2"))
    clock.seconds += 301
    assert await outcome(verifier, token) == "accepted", "the request does not wait for the fetch"
    deadline = time.monotonic() + 20
    while await outcome(verifier, token) == "accepted":
        assert time.monotonic() < deadline, "the withdrawn key is still accepted"
        await asyncio.sleep(0.02)
    assert await outcome(verifier, token) == NO_FITTING_KEY


async def test_identity_provider_is_used_only_if_its_discovery_document_names_exactly_the_configured_issuer(
    provider: Provider,
) -> None:
    issuer = provider.issuer.replace("127.0.0.1", "localhost")
    verifier = Verifier([issuer_of(provider, issuer=issuer)])
    with capture_logs() as logs:
        assert await outcome(verifier, provider.sign(provider.claims(iss=issuer))) == "unavailable"
    assert [each.get("cause") for each in logs] == [
        "the discovery document of the identity provider names a different issuer"
    ]


async def test_trusted_identity_provider_cannot_issue_tokens_of_another_trusted_identity_provider(
    oidc_provider: Provider, provider: Provider
) -> None:
    verifier = Verifier([issuer_of(oidc_provider), issuer_of(provider, name="other")])
    for honest in (oidc_provider, provider):
        assert await outcome(verifier, honest.sign(honest.claims())) == "accepted"
    forged = provider.claims(iss=oidc_provider.issuer)
    assert await outcome(verifier, provider.sign(forged)) == "the signature of the token is wrong"
    unknown = provider.claims(iss=f"{provider.issuer}/")
    assert (
        await outcome(verifier, provider.sign(unknown))
        == "no configured identity provider is the issuer of the token"
    )


async def test_identity_provider_over_tls_is_used_only_if_its_certificate_is_trusted(tmp_path: Path) -> None:
    own, other = (ensure(tmp_path / name, ["127.0.0.1"], datetime.now(UTC)) for name in ("own", "other"))
    with running_provider(own.server, own.server) as provider:
        token = provider.sign(provider.claims())
        for ca_file, expected in (
            (None, "unavailable"),
            (other.ca, "unavailable"),
            (tmp_path / "missing.pem", "unavailable"),
            (own.ca, "accepted"),
        ):
            assert await outcome(Verifier([issuer_of(provider, ca_file=ca_file)]), token) == expected, ca_file


@pytest.mark.filterwarnings("ignore:Key size")
def test_only_public_signature_keys_of_sufficient_size_are_used_from_a_jwk_set() -> None:
    good = [key.as_dict(private=False) for key in new_keys("1").values()]
    bad = [
        OctKey.generate_key(256).as_dict(private=True),
        RSAKey.generate_key(1024).as_dict(private=False),
        RSAKey.generate_key(2048).as_dict(private=True),
        {**good[0], "use": "enc"},
        {**good[0], "key_ops": ["encrypt"]},
        {**good[0], "kid": 5},
        {**good[1], "x": "AAAA"},
        {**good[1], "crv": "P-999"},
        {"kty": "RSA"},
        "key",
    ]
    assert [each.kid for each in usable_keys({"keys": [*bad, *good]})] == ["rsa-1", "ec-1", "ed-1"]


@pytest.mark.parametrize(
    ("new_key", "algorithm", "fits"),
    [
        (partial(RSAKey.generate_key, 2048), "RS256", True),
        (partial(RSAKey.generate_key, 2048), "PS512", True),
        (partial(RSAKey.generate_key, 2048, {"alg": "RS512"}), "RS256", False),
        (partial(RSAKey.generate_key, 2048), "ES256", False),
        (partial(RSAKey.generate_key, 2048), "HS256", False),
        (partial(ECKey.generate_key, "P-256"), "ES256", True),
        (partial(ECKey.generate_key, "P-384"), "ES256", False),
        (partial(ECKey.generate_key, "P-256"), "RS256", False),
        (partial(OKPKey.generate_key, "Ed25519"), "EdDSA", True),
        (partial(OKPKey.generate_key, "Ed25519"), "Ed25519", True),
        (partial(OKPKey.generate_key, "X25519"), "EdDSA", False),
        (partial(OKPKey.generate_key, "Ed25519"), "none", False),
    ],
)
def test_provider_key_verifies_only_signatures_of_algorithms_that_fit_the_type_of_the_key(
    new_key: Callable[[], Key], algorithm: str, fits: bool
) -> None:
    [usable] = usable_keys({"keys": [new_key().as_dict(private=False)]})
    assert usable.fits(algorithm) is fits


@contextmanager
def hostile_provider(answers: dict[str, tuple[int, dict[str, str], bytes]]) -> Iterator[str]:
    """Run an HTTP server that returns a fixed response for each path in `answers`, and never responds to another path.

    Yield the URL of the server, which also replaces the text `URL` in the bodies of the responses.
    """
    url = ""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path not in answers:
                self.rfile.read(1)  # returns when the client closes the connection
                return
            status, headers, body = answers[self.path]
            body = body.replace(b"URL", url.encode())
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # the client may close the connection before the end
                self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


DISCOVERY = "/.well-known/openid-configuration"
BAD_JWKS_URI = "`jwks_uri` in the discovery document of the identity provider is missing or not an https URL"


def document(**fields: object) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps({"issuer": "URL", "jwks_uri": "URL/jwks", **fields}).encode()


@pytest.mark.parametrize(
    ("answers", "cause"),
    [
        ({DISCOVERY: (404, {}, b"")}, "the identity provider answered with status 404"),
        (
            {DISCOVERY: (302, {"Location": "/elsewhere"}, b""), "/elsewhere": document()},
            "the identity provider answered with status 302",
        ),
        ({DISCOVERY: (200, {}, b"<html>")}, "the answer of the identity provider is not JSON"),
        ({DISCOVERY: (200, {}, b"[" * 100_000)}, "the answer of the identity provider is not JSON"),
        ({DISCOVERY: (200, {}, b"[]")}, "the answer of the identity provider is not a JSON object"),
        (
            {DISCOVERY: (200, {}, b"{" + b" " * 300_000)},
            f"the answer of the identity provider has more than {MAX_ANSWER_BYTES} bytes",
        ),
        ({DISCOVERY: document(jwks_uri=None)}, BAD_JWKS_URI),
        ({DISCOVERY: document(jwks_uri="file:///etc/passwd")}, BAD_JWKS_URI),
        ({DISCOVERY: document(jwks_uri="http://192.0.2.1/jwks")}, BAD_JWKS_URI),
        (
            {DISCOVERY: document(), "/jwks": (200, {}, b"{}")},
            "the answer of the identity provider is not a JWK set: it has no list `keys`",
        ),
        (
            {DISCOVERY: document(), "/jwks": (200, {}, b'{"keys": []}')},
            "the JWK set of the identity provider contains no usable key",
        ),
        (
            {DISCOVERY: document(), "/jwks": (200, {}, json.dumps({"keys": [{}] * (MAX_KEYS + 1)}).encode())},
            f"the JWK set of the identity provider has more than {MAX_KEYS} keys",
        ),
        ({}, "TimeoutError"),
        ({DISCOVERY: document()}, "TimeoutError"),
    ],
)
async def test_identity_provider_with_an_unusable_answer_or_no_answer_is_treated_as_unavailable(
    oidc_provider: Provider,
    monkeypatch: pytest.MonkeyPatch,
    answers: dict[str, tuple[int, dict[str, str], bytes]],
    cause: str,
) -> None:
    if cause == "TimeoutError":
        monkeypatch.setattr(issuer_keys, "FETCH_SECONDS", 0.5)
    with hostile_provider(answers) as url, capture_logs() as logs:
        verifier = Verifier([issuer_of(oidc_provider, issuer=url)])
        token = oidc_provider.sign(oidc_provider.claims(iss=url))
        assert await outcome(verifier, token) == "unavailable"
    assert [(each["event"], each["cause"]) for each in logs] == [("issuer_keys_unavailable", cause)]
