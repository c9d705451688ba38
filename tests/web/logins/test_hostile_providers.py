"""Tests of logins at identity providers that behave badly, and of clients that misuse the return from a provider to the
console.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from control_plane.decisions.issuers import Issuer
from control_plane.identity import code_login
from deploy.embedded.postgres import PostgresServer
from tests.api.access.issuers import issuer_of
from tests.servers.oidc_provider import AUDIENCE, Provider
from tests.servers.plane import ADMIN_KEY, RunningPlane, running
from tests.waiting import until
from tests.web.browsing import Browser, Page
from tests.web.logins.test_provider_logins import sent_back, visit

SESSION: Final = "sliceplane_session"
LOGIN: Final = "sliceplane_login"


@dataclass
class HostileProvider:
    """An identity provider of which a test decides the responses."""

    issuer: str
    metadata: dict[str, Any] = field(default_factory=dict)
    """Fields of the provider's metadata that replace or complete those of a usable provider."""
    answer: bytes = b"{}"
    """Body of the response to a request that exchanges an authorization code for a token."""
    status: int = 200
    released: Event = field(default_factory=Event)
    """Set if the provider responds to authorization codes at once."""
    waiting: int = 0
    """Number of authorization codes that the provider has received."""

    def document(self) -> bytes:
        usable = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/auth",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
        }
        return json.dumps({**usable, **self.metadata}).encode()


@contextmanager
def hostile_provider() -> Iterator[HostileProvider]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(200, provider.document())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            provider.waiting += 1
            provider.released.wait(30)
            self.reply(provider.status, provider.answer)

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", f"{provider.issuer}/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:
                return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = HostileProvider(f"http://127.0.0.1:{server.server_address[1]}")
    provider.released.set()
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield provider
    finally:
        provider.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def shared_hostile() -> Iterator[HostileProvider]:
    with hostile_provider() as made:
        yield made


@pytest.fixture
def hostile(shared_hostile: HostileProvider) -> HostileProvider:
    shared_hostile.metadata, shared_hostile.answer, shared_hostile.status = {}, b"{}", 200
    return shared_hostile


@pytest.fixture(scope="module")
def plane(
    postgres_server: PostgresServer, oidc_provider: Provider, shared_hostile: HostileProvider
) -> Iterator[RunningPlane]:
    """A control plane that trusts a usable provider, and a hostile one as `evil`."""
    corp = issuer_of(oidc_provider, login_scope="openid slices")
    with running(postgres_server, oidc=(corp, evil(shared_hostile, corp))) as made:
        with made.client() as admin:
            assert admin.post("/projects", json={"id": "vision"}).is_success
        yield made


def evil(provider: HostileProvider, corp: Issuer) -> Issuer:
    return corp.model_copy(update={"issuer": provider.issuer, "name": "evil", "audience": AUDIENCE})


def begun(browser: Browser, provider: str = "evil") -> dict[str, str]:
    """Begin a login, and return the query parameters with which the console redirects the browser to the provider."""
    browser.client.follow_redirects = False
    answer = browser.client.get(f"/ui/login/{provider}")
    browser.client.follow_redirects = True
    assert answer.status_code == 303, answer.text
    return {name: value for name, [value] in parse_qs(urlsplit(answer.headers["location"]).query).items()}


def returned(browser: Browser, provider: str = "evil") -> Page:
    """Begin a login, and open the address to which the provider sends the browser back, with an authorization code."""
    state = begun(browser, provider)["state"]
    return browser.open(f"/login/{provider}/return", code="any", state=state)


def token_answer(token: str) -> bytes:
    return json.dumps({"access_token": token, "token_type": "Bearer"}).encode()


def test_token_of_another_provider_or_an_api_key_in_the_place_of_a_token_starts_no_session(
    plane: RunningPlane, hostile: HostileProvider, oidc_provider: Provider
) -> None:
    for credential in (oidc_provider.user_token("alice"), ADMIN_KEY):
        hostile.answer = token_answer(credential)
        browser = Browser(plane)
        page = returned(browser)
        assert (page.status, SESSION in browser.client.cookies) == (503, False)
        assert "evil" in page.text


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, token_answer("\ud800")),
        (200, token_answer("é")),
        (200, token_answer("a\r\nX-Other: b")),
        (200, token_answer("")),
        (200, token_answer("a." * 200_000)),
        (200, b'{"access_token": ["a"]}'),
        (200, b"[" * 200_000),
        (200, b"\xff\xfe"),
        (200, b"1" * 10_000),
        (302, b"{}"),
        (400, b"<html>"),
        (500, b"{}"),
    ],
    ids=[
        "surrogate",
        "not-ascii",
        "header",
        "empty",
        "large",
        "list",
        "deep",
        "binary",
        "digits",
        "redirect",
        "html",
        "error",
    ],
)
def test_login_with_an_unusable_token_response_is_refused_with_the_name_of_the_provider(
    plane: RunningPlane, hostile: HostileProvider, status: int, answer: bytes
) -> None:
    hostile.status, hostile.answer = status, answer
    browser = Browser(plane)
    page = returned(browser)
    assert (page.status, SESSION in browser.client.cookies) == (503, False), page.text
    assert "identity provider evil" in page.text


@pytest.mark.parametrize(
    "metadata",
    [
        {"authorization_endpoint": "https://evil.example/\ud800"},
        {"authorization_endpoint": "https://evil.example/\r\nSet-Cookie: a=b"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "http://evil.example/auth"},
        {"authorization_endpoint": "https://[::1/auth"},
        {"authorization_endpoint": ["https://evil.example"]},
        {"issuer": "https://other.example"},
    ],
)
def test_login_is_refused_if_the_metadata_of_the_provider_has_an_unusable_endpoint_or_issuer(
    postgres_server: PostgresServer, oidc_provider: Provider, metadata: dict[str, Any]
) -> None:
    with hostile_provider() as provider:
        provider.metadata = metadata
        own = evil(provider, issuer_of(oidc_provider))
        with running(postgres_server, oidc=(own,)) as plane:
            page = Browser(plane).open("/login/evil")
    assert page.status == 503, page.text
    assert "identity provider evil" in page.text
    assert "location" not in page.response.headers


def test_login_with_an_authorization_code_of_another_browser_starts_no_session(plane: RunningPlane) -> None:
    attacker, victim = Browser(plane), Browser(plane)
    code = parse_qs(urlsplit(sent_back(attacker, "alice")).query)["code"][0]
    own = sent_back(victim, "bob")
    page = visit(victim, re.sub(r"code=[^&]*", f"code={quote(code)}", own))
    assert (page.status, SESSION in victim.client.cookies) == (503, False)
    assert "does not accept the code" in page.text


def test_login_state_of_one_provider_is_refused_at_the_return_address_of_another_provider(
    plane: RunningPlane,
) -> None:
    browser = Browser(plane)
    state = begun(browser, "corp")["state"]
    page = browser.open("/login/evil/return", code="any", state=state)
    assert (page.status, "not begun in this browser" in page.text) == (400, True)


@pytest.mark.parametrize("issuer", ["", "&iss=https%3A%2F%2Fother.example"], ids=["missing", "other"])
def test_return_without_the_issuer_that_the_provider_announces_is_refused(
    plane: RunningPlane, issuer: str
) -> None:
    browser = Browser(plane)
    url = sent_back(browser, "alice")
    assert "iss=" in url
    page = visit(browser, re.sub(r"&iss=[^&]*", "", url) + issuer)
    assert (page.status, SESSION in browser.client.cookies) == (403, False)


def test_login_replaces_the_cookie_that_the_browser_had_before(plane: RunningPlane) -> None:
    browser = Browser(plane)
    host = urlsplit(plane.url).hostname or ""
    for name, value in ((SESSION, "ss_chosen"), (LOGIN, "chosen")):
        browser.client.cookies.set(name, value, domain=host, path="/ui")
    assert visit(browser, sent_back(browser, "alice")).status == 200
    values = {each.name: each.value for each in browser.client.cookies.jar if each.path == "/ui"}
    assert values.keys() == {SESSION}
    assert values[SESSION] != "ss_chosen"


def test_logins_at_a_slow_provider_are_limited_and_do_not_delay_others(
    plane: RunningPlane, hostile: HostileProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 3
    monkeypatch.setattr(code_login, "MOST_EXCHANGES", most)
    # The logins must not end before the last one has begun.
    monkeypatch.setattr(code_login, "LOGIN_SECONDS", 60.0)
    hostile.released.clear()
    hostile.waiting, browsers = 0, [Browser(plane) for _ in range(most + 2)]
    states = [begun(each)["state"] for each in browsers]

    def arrive(browser: Browser, state: str) -> Page:
        return browser.open("/login/evil/return", code="any", state=state)

    with ThreadPoolExecutor(len(browsers)) as at_once:
        slow = [at_once.submit(arrive, *each) for each in zip(browsers[:most], states, strict=False)]
        until(lambda: hostile.waiting == most, "the logins wait for the provider")
        for browser, state in zip(browsers[most:], states[most:], strict=True):
            page = arrive(browser, state)
            assert (page.status, "evil are in progress" in page.text) == (503, True)
        other = Browser(plane)
        assert visit(other, sent_back(other, "alice")).status == 200
        hostile.released.set()
        assert {each.result().status for each in slow} == {503}
    assert hostile.waiting == most
    assert "are in progress" not in returned(Browser(plane)).text
