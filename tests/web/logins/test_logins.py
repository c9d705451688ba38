"""Login to the web console: the session of a browser, its end, and the protection of forms from other sites."""

import httpx
import pytest

from deploy.embedded.postgres import PostgresServer
from tests.api.access.principals import expire, issue
from tests.servers.plane import ADMIN_KEY, TLS_CONTEXT, RunningPlane, running
from tests.web.browsing import Browser, logged_in, page_of

SESSION, LOGIN = "sliceplane_session", "sliceplane_login"


@pytest.fixture(scope="module")
def plane(shared_plane: RunningPlane) -> RunningPlane:
    return shared_plane


def sessions(plane: RunningPlane) -> dict[str, str]:
    """Return the states of the sessions that logins at the console have started, by the id of the session."""
    with plane.client() as admin:
        listed = admin.get("/sessions", params={"limit": 500}).json()["items"]
    return {each["id"]: each["state"] for each in listed if each["label"] == "web console"}


def test_login_exchanges_the_api_key_for_a_session_cookie_and_returns_to_the_requested_page(
    plane: RunningPlane,
) -> None:
    browser, before = Browser(plane), set(sessions(plane))
    asked = browser.open("/tasks?state=failed")
    assert asked.path == "/ui/login?next=%2Fui%2Ftasks%3Fstate%3Dfailed&notice=needed"
    assert "This browser is not logged in" in asked.text
    page = browser.log_in(ADMIN_KEY, "/login?next=%2Fui%2Ftasks%3Fstate%3Dfailed")
    assert (page.status, page.path) == (200, "/ui/tasks?state=failed")
    [made] = page.response.history
    cookie = made.headers["set-cookie"].lower()
    assert cookie.startswith(f"{SESSION}=ss_")
    assert all(part in cookie for part in ("; httponly", "; samesite=strict", "; path=/ui"))
    assert "secure" not in cookie
    secret = browser.client.cookies[SESSION]
    pages = [page, browser.open("/"), browser.open("/allocations/new")]
    assert not [each for each in pages if ADMIN_KEY in each.response.text or secret in each.response.text]
    assert list(set(sessions(plane)) - before) != []


def test_cookie_is_secure_if_the_browser_uses_tls(
    plane: RunningPlane, postgres_server: PostgresServer
) -> None:
    with running(postgres_server, trusted_proxies=("127.0.0.1/32",)) as behind_proxy:
        secure = {"X-Forwarded-Proto": "https"}
        answer = httpx.get(f"{behind_proxy.url}/ui/login", headers=secure, verify=TLS_CONTEXT)
    assert "; secure" in answer.headers["set-cookie"].lower()


@pytest.mark.parametrize("key", ["sp_wrong", "", "clé", "ss_wrong"])
def test_login_with_a_wrong_key_shows_the_reason_and_starts_no_session(plane: RunningPlane, key: str) -> None:
    browser, before = Browser(plane), sessions(plane)
    page = browser.log_in(key)
    assert page.status in (401, 422)
    assert ("unknown" in page.text) is (page.status == 401)
    assert SESSION not in browser.client.cookies
    assert sessions(plane) == before


@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example/", "/ui//../v1", "/ui/\\evil", "/ui/logout", "javascript:x"],
)
def test_login_never_leads_to_another_site(plane: RunningPlane, target: str) -> None:
    browser = Browser(plane)
    browser.client.follow_redirects = False
    page = browser.submit(str(httpx.URL("/login", params={"next": target})), key=ADMIN_KEY)
    assert page.status == 303
    location = page.response.headers["location"]
    assert location.startswith("/ui/")
    assert "\\" not in location
    assert "log" not in location


def test_logout_ends_the_session_in_the_control_plane_and_in_the_browser(plane: RunningPlane) -> None:
    browser, before = logged_in(plane), sessions(plane)
    secret = browser.client.cookies[SESSION]
    page = browser.submit("/logout", of="/")
    assert (page.path, SESSION in browser.client.cookies) == ("/ui/login?notice=left", False)
    assert "You are logged out." in page.text
    [ended] = [
        each for each, state in sessions(plane).items() if state == "ended" and before[each] == "active"
    ]
    browser.client.cookies.set(SESSION, secret, path="/ui")
    assert browser.open("/").path.startswith("/ui/login?next=%2Fui%2F"), ended


@pytest.mark.parametrize(
    "change",
    [
        "expires_at = now()",
        "started_at = now() - interval '3601 s'",
        "ended = 'lost'",
    ],
    ids=["lifetime", "idle time", "revocation"],
)
def test_page_opened_with_an_ended_or_expired_session_redirects_to_the_login(
    plane: RunningPlane, change: str
) -> None:
    before = set(sessions(plane))
    browser = logged_in(plane)
    [own] = set(sessions(plane)) - before
    plane.rows(f"update read.session set {change} where session_id = %(own)s returning 1", own=own)
    page = browser.open("/allocations")
    assert page.path == "/ui/login?next=%2Fui%2Fallocations&notice=ended"
    assert "ended or expired" in page.text
    assert SESSION not in browser.client.cookies
    sent = browser.post("/nodes/n1/cordon?reason=test", reason="test")
    assert sent.path == "/ui/login?next=%2Fui%2Fnodes%2Fn1%2Fcordon%3Freason%3Dtest&notice=needed"


def test_session_is_refused_after_its_api_key_has_expired(plane: RunningPlane) -> None:
    key = issue(plane, "leaving", "auditor")
    browser = logged_in(plane, key.secret)
    expire(plane, key)
    assert browser.open("/").path.startswith("/ui/login")


def test_api_key_in_the_cookie_is_not_a_login(plane: RunningPlane) -> None:
    browser = Browser(plane)
    browser.client.cookies.set(SESSION, ADMIN_KEY, path="/ui")
    assert browser.open("/").path.startswith("/ui/login")


def test_form_without_the_token_of_this_login_is_refused_and_changes_nothing(plane: RunningPlane) -> None:
    browser, other = logged_in(plane), logged_in(plane)
    foreign = next(
        found["value"]
        for tag, found in other.open("/").tags
        if tag == "input" and found.get("name") == "csrf"
    )
    position = plane.last_position()
    for path in (
        "/logout",
        "/allocations/new",
        "/allocations/alc-x/release",
        "/nodes/n1/cordon",
        "/tasks/x/retry",
    ):
        for token in ({}, {"csrf": ""}, {"csrf": "é"}, {"csrf": foreign}):
            page = browser.post(path, **token)
            assert (page.status, "does not belong to the present login" in page.text) == (403, True), path
    assert plane.last_position() == position
    assert browser.open("/").path == "/ui/"


def test_login_form_of_another_browser_is_refused(plane: RunningPlane) -> None:
    browser, other = Browser(plane), Browser(plane)
    browser.open("/login")
    token = next(found["value"] for tag, found in other.open("/login").tags if found.get("name") == "csrf")
    assert browser.post("/login", csrf=token, key=ADMIN_KEY).status == 403
    assert (
        page_of(
            httpx.post(f"{plane.url}/ui/login", data={"csrf": token, "key": ADMIN_KEY}, verify=TLS_CONTEXT)
        ).status
        == 400
    )


def test_form_that_is_too_long_or_not_encoded_in_utf_8_is_refused(plane: RunningPlane) -> None:
    browser = logged_in(plane)
    assert browser.post("/logout", csrf="x" * 300_000).status == 413
    answer = browser.client.post("/ui/logout", content=b"\xff=%ff&" * 200)
    assert page_of(answer).status == 400
