"""Tests of logins to the web console at an identity provider, by the authorization code grant with PKCE."""

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser as Chromium

from deploy.embedded.postgres import PostgresServer
from tests.api.access.issuers import issuer_of
from tests.servers.oidc_provider import Provider, running_provider
from tests.servers.plane import RunningPlane, running
from tests.web.browsing import Browser, Page, page_of

LOGIN = "/login/corp?next=%2Fui%2Fallocations"


@pytest.fixture(scope="module")
def plane(postgres_server: PostgresServer, oidc_provider: Provider) -> Iterator[RunningPlane]:
    oidc = (issuer_of(oidc_provider, login_scope="openid slices"),)
    with running(postgres_server, oidc=oidc) as made:
        with made.client() as admin:
            assert admin.post("/projects", json={"id": "vision"}).is_success
        yield made


def log_in_at_provider(browser: Browser, page: httpx.Response, user: str) -> httpx.Response:
    """Log in at the provider and consent. Return the provider's redirection to the console, which is not followed."""
    while "/ui/login/" not in page.headers.get("location", ""):
        if page.is_redirect:
            page = browser.client.get(str(page.url.join(page.headers["location"])))
            continue
        [form, *_] = re.findall(r'action="([^"]+)"', page.text)
        fields = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page.text))
        page = browser.client.post(
            str(page.url.join(form)), data={**fields, "login": user, "password": "any"}
        )
    return page


def sent_back(browser: Browser, user: str, path: str = LOGIN) -> str:
    """Return the URL with which the provider sends the browser back after the login of a user."""
    browser.client.follow_redirects = False
    return log_in_at_provider(browser, browser.client.get(f"/ui{path}"), user).headers["location"]


def visit(browser: Browser, url: str) -> Page:
    browser.client.follow_redirects = True
    return page_of(browser.client.get(url))


def test_user_logs_in_at_the_provider_and_returns_to_the_requested_page(plane: RunningPlane) -> None:
    browser = Browser(plane)
    assert "Log in with corp" in browser.open("/login").text
    page = visit(browser, sent_back(browser, "alice"))
    assert (page.status, page.path) == (200, "/ui/allocations")
    assert "user:corp/alice" in page.text
    with plane.client() as admin:
        [session, *_] = [
            each for each in admin.get("/sessions").json()["items"] if each["actor"] == "user:corp/alice"
        ]
    assert (session["credential_kind"], session["projects"]) == ("token", ["vision"])
    assert browser.open("/allocations/new").status == 200


def test_each_authorization_request_has_its_own_pkce_challenge_and_state_parameter(
    plane: RunningPlane,
) -> None:
    answers = []
    for _ in range(2):
        browser = Browser(plane)
        browser.client.follow_redirects = False
        url = browser.client.get(f"/ui{LOGIN}").headers["location"]
        answers.append({name: value for name, [value] in parse_qs(urlsplit(url).query).items()})
    one, other = answers
    assert (one["response_type"], one["code_challenge_method"], one["client_id"]) == (
        "code",
        "S256",
        "sliceplane",
    )
    assert one["redirect_uri"] == f"{plane.url}/ui/login/corp/return"
    assert one["state"] != other["state"]
    assert one["code_challenge"] != other["code_challenge"]


def test_return_in_another_browser_with_another_state_or_a_second_time_starts_no_session(
    plane: RunningPlane,
) -> None:
    browser, other = Browser(plane), Browser(plane)
    other.open("/login")
    url = sent_back(browser, "alice")
    for wrong in (url.replace("state=", "state=0"), re.sub(r"state=[^&]*", "", url), f"{url}x"):
        assert visit(browser, wrong).status in (400, 403), wrong
    page = visit(other, url)
    assert (page.status, "not begun in this browser" in page.text) == (400, True)
    assert "sliceplane_session" not in other.client.cookies
    assert visit(browser, url).path == "/ui/allocations"
    again = visit(browser, f"{url}&again=1")
    assert (again.status, "The browser sent no cookie" in again.text) == (400, True)


def test_return_from_another_site_without_the_cookie_is_requested_once_more(plane: RunningPlane) -> None:
    url = sent_back(Browser(plane), "alice")
    other = Browser(plane)
    page = visit(other, url)
    [refresh] = page.attributes("meta", "content")[2:]
    assert refresh == f"0; url={urlsplit(url).path}?{urlsplit(url).query}&again=1"
    page = visit(other, f"{url}&again=1")
    assert (page.status, "sent no cookie" in page.text) == (400, True)


def test_user_without_a_grant_and_a_refused_login_see_the_reason(plane: RunningPlane) -> None:
    browser = Browser(plane)
    page = visit(browser, sent_back(browser, "mallory"))
    assert (page.status, "sliceplane_session" in browser.client.cookies) == (403, False)
    url = re.sub(r"code=[^&]*", "error=access_denied", sent_back(browser, "alice"))
    page = visit(browser, url)
    assert (page.status, "The identity provider corp refused the login." in page.text) == (403, True)
    assert browser.open("/login/absent").status == 404
    other = Browser(plane)
    assert visit(other, sent_back(other, "alice", "/login/corp?next=//evil.example/")).path == "/ui/"


def test_provider_that_does_not_respond_is_named_and_asked_at_most_every_ten_seconds(
    postgres_server: PostgresServer,
) -> None:
    with running_provider() as provider, running(postgres_server, oidc=(issuer_of(provider),)) as plane:
        provider.close()
        browser = Browser(plane)
        page = browser.open("/login/corp")
        assert (page.status, "The provider corp" in page.text) == (503, False)
        assert "identity provider corp is not possible now: it does not respond" in page.text
        provider.open()
        assert browser.open("/login/corp").status == 503
        assert browser.open("/login").status == 200


def test_user_logs_in_at_a_provider_on_another_site_in_chromium(
    plane: RunningPlane, chromium: Chromium
) -> None:
    """The browser's name for the console makes the provider another site, from which strict cookies are not sent."""
    page = chromium.new_context().new_page()
    page.goto(f"{plane.url.replace('127.0.0.1', 'localhost')}/ui/login?next=/ui/allocations")
    page.get_by_role("link", name="Log in with corp").click()
    page.locator("[name=login]").fill("alice")
    page.locator("[name=password]").fill("any")
    page.locator("button[type=submit]").click()
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("heading", name="Allocations").wait_for()
    assert "user:corp/alice" in page.inner_text("header")
