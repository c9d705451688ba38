"""Pages of API keys, service accounts and sessions in the web console, as each role."""

import re
from typing import Any

import pytest

from tests.api.access.principals import create_account, create_project, issue, key_of_account
from tests.servers.plane import RunningPlane
from tests.web.browsing import Browser, Page, logged_in

HOSTILE = "<script>alert(1)</script>\"'"


@pytest.fixture(scope="module")
def plane(shared_plane: RunningPlane) -> RunningPlane:
    create_project(shared_plane, "other")
    create_account(shared_plane, "batch", projects=["other"], description=HOSTILE)
    return shared_plane


@pytest.fixture
def admin(plane: RunningPlane) -> Browser:
    return logged_in(plane)


def secret_of(page: Page) -> str:
    [secret] = page.attributes("button", "data-copy")
    return secret


def accepts(plane: RunningPlane, secret: str) -> bool:
    with plane.client(Authorization=f"Bearer {secret}") as client:
        return client.get("/whoami").is_success


def test_issued_key_is_accepted_and_only_the_response_to_its_form_has_the_secret(
    plane: RunningPlane, admin: Browser
) -> None:
    fields: dict[str, Any] = {
        "name": "robot",
        "role": "caller",
        "projects": "other",
        "scopes": ["allocations:read", "events:read"],
        "days": "2",
    }
    form = admin.open("/access/new/issue-key")
    boxes = [found for tag, found in form.tags if tag == "input" and found.get("name") == "scopes"]
    assert {"access:write", "allocations:read"} < {found["value"] for found in boxes}
    assert not [found for found in boxes if "checked" in found]
    groups = [found["aria-label"] for _, found in form.tags if found.get("role") == "group"]
    assert groups == sorted({(found["value"] or "").partition(":")[0] for found in boxes}), (
        "a row for each resource"
    )
    for role in ("caller creates, changes and reads", "admin reads and changes", "auditor reads everything"):
        assert f"Role {role}" in form.text
    assert "Scopes (if none is ticked, the key has every scope of its role)" in form.text
    assert "access read write allocations read write audit read catalogue read write " in form.text
    issued = admin.submit("/access/new/issue-key", **fields, idempotency_key="issue-1")
    assert (issued.status, issued.response.headers["cache-control"]) == (201, "no-store")
    secret = secret_of(issued)
    assert accepts(plane, secret)
    again = admin.submit("/access/new/issue-key", **fields, idempotency_key="issue-1")
    assert secret_of(again) == secret, "a form that is sent twice issues one key"

    [target] = [each for each in issued.attributes("a", "href") if "/access/keys/robot-" in each]
    page = admin.open(target.removeprefix("/ui"))
    for text in ("robot", "caller", "other", "Scopes allocations:read, events:read ", "in 1 d"):
        assert text in page.text, text
    for path in (target.removeprefix("/ui"), "/access/keys"):
        assert secret not in admin.open(path).response.text

    assert admin.submit(f"{target.removeprefix('/ui')}/revoke-key", reason="lost").status == 422
    confirm = target.rpartition("/")[2]
    revoked = admin.submit(f"{target.removeprefix('/ui')}/revoke-key", reason=HOSTILE, confirm=confirm)
    assert ("The API key was revoked." in revoked.text, HOSTILE in revoked.text) == (True, True)
    assert not accepts(plane, secret)
    assert confirm in admin.open("/access/keys?state=revoked").text
    assert "Last used (up to 1 min late)" in admin.open("/access/keys").text
    assert confirm not in admin.open("/access/keys?state=active").text


def test_rotated_key_has_a_successor_with_a_secret_of_its_own(plane: RunningPlane, admin: Browser) -> None:
    old = issue(plane, "rotated", projects=["other"])
    form = admin.open(f"/access/keys/{old.id}/rotate").text
    assert "never past its own expiry. The secret of the new key is shown once." in form
    assert "Last used not recorded yet" in form
    assert "You are logged in with this key." not in form
    assert admin.submit(f"/access/keys/{old.id}/rotate", hours="0").status == 422, "it is not confirmed"
    rotated = admin.submit(f"/access/keys/{old.id}/rotate", hours="0", confirm=old.id)
    assert accepts(plane, secret_of(rotated))
    assert not accepts(plane, old.secret)
    page = admin.open(f"/access/keys/{old.id}")
    assert "Replaced by rotated-" in page.text
    assert f"/ui/access/keys/{old.id}/rotate" not in page.attributes("a", "href")


def test_key_of_the_login_is_marked_and_its_forms_state_that_the_session_ends(plane: RunningPlane) -> None:
    own, other = issue(plane, "own", "admin"), issue(plane, "second", "admin")
    user = logged_in(plane, own.secret)
    assert f"{own.id} ■ your key" in user.open("/access/keys").text
    assert user.open("/access/keys").text.count("your key") == 1
    page = user.open(f"/access/keys/{own.id}")
    assert "You are logged in with this key. Your session ends when the key is revoked" in page.text
    assert "it is shown up to 1 min late" in page.text
    for action, stated in (("rotate", "with 0 hours, at once"), ("revoke-key", "Your session ends at once")):
        assert stated in user.open(f"/access/keys/{own.id}/{action}").text
        assert "You are logged in" not in user.open(f"/access/keys/{other.id}/{action}").text
    rotated = user.submit(f"/access/keys/{own.id}/rotate", hours="1", confirm=own.id)
    assert accepts(plane, secret_of(rotated))
    assert user.open("/access/keys").status == 200, "the replaced key is accepted for another hour"
    revoked = user.submit(f"/access/keys/{own.id}/revoke-key", reason="old", confirm=own.id)
    assert revoked.path.startswith("/ui/login?")

    account = logged_in(plane, key_of_account(plane, create_account(plane, "robots", "admin")).secret)
    form = account.open("/access/service-accounts/robots/disable")
    assert "You are logged in as this service account." in form.text
    [end] = [
        each for each in account.open("/access/sessions").attributes("a", "href") if each.endswith("/end")
    ][:1]
    assert "it is logged out" in account.open(end.removeprefix("/ui")).text


def test_page_of_a_key_links_the_events_and_logins_of_the_caller_that_it_acts_as(
    plane: RunningPlane, admin: Browser
) -> None:
    own, account = issue(plane, "single", "auditor"), key_of_account(plane, "batch")
    for key, caller, texts in (
        (own, f"key%3A{own.id}", ("Events by this key", "Logins with this key")),
        (
            account,
            "service-account%3Abatch",
            ("Events by service account batch", "Logins of service account batch"),
        ),
    ):
        page = admin.open(f"/access/keys/{key.id}")
        links = {*page.attributes("a", "href")}
        assert {f"/ui/events?actor={caller}", f"/ui/access/sessions?state=any&actor={caller}"} <= links
        assert all(each in page.text for each in texts)


def test_refused_form_of_a_key_keeps_what_was_entered_and_issues_nothing(
    plane: RunningPlane, admin: Browser
) -> None:
    position = plane.last_position()
    for wrong in (
        {"projects": ""},
        {"scopes": "fleet:explode"},
        {"days": "x"},
        {"name": ""},
        {"role": "king"},
    ):
        fields = {"name": "ci", "role": "caller", "projects": "other", "days": "1", **wrong}
        refused = admin.submit("/access/new/issue-key", **fields)
        assert refused.status == 422, wrong
        assert fields["projects"] in refused.attributes("input", "value"), wrong
        checked = [found["value"] for tag, found in refused.tags if tag == "input" and "checked" in found]
        assert checked == fields.get("scopes", "").split(), wrong
    assert plane.last_position() == position


def test_pages_create_a_service_account_issue_its_key_and_disable_and_enable_it(
    plane: RunningPlane, admin: Browser
) -> None:
    created = admin.submit(
        "/access/new/create-service-account", id="nightly", description=HOSTILE, role="auditor"
    )
    assert created.path == "/ui/access/service-accounts/nightly?notice=create-service-account"
    assert HOSTILE in created.text
    form = "/access/new/issue-account-key?service_account=nightly"
    assert f"/ui{form}" in created.attributes("a", "href")
    assert "nightly" in admin.open(form).attributes("input", "value")
    secret = secret_of(admin.submit("/access/new/issue-account-key", name="job", service_account="nightly"))
    assert accepts(plane, secret)
    own = "/access/service-accounts/nightly"
    assert re.search(r"API keys ?Issue a key… .* job-", admin.open(own).text), "the button is above the keys"
    assert (
        "disabled: too loud"
        in admin.submit(f"{own}/disable", reason="too loud").text
        + admin.open("/access/service-accounts").text
    )
    assert not accepts(plane, secret)
    assert "The service account was enabled." in admin.submit(f"{own}/enable").text
    assert accepts(plane, secret)


def test_session_is_ended_and_its_browser_is_led_to_the_login(plane: RunningPlane, admin: Browser) -> None:
    other = logged_in(plane, issue(plane, "guest", projects=["other"]).secret)
    listed = other.open("/access/sessions")
    assert "this browser" in listed.text
    assert " now End session…" in listed.text, "the request of the page is a use of the session"
    [end] = [each for each in listed.attributes("a", "href") if each.endswith("/end")]
    assert "The session was ended." in admin.submit(end.removeprefix("/ui"), reason="lost").text
    assert other.open("/allocations").path.startswith("/ui/login?")


def test_pages_of_access_show_each_role_what_it_may_read_and_disable_what_it_may_not_do(
    plane: RunningPlane,
) -> None:
    auditor = logged_in(plane, issue(plane, "reader", "auditor").secret)
    for path in ("/access/keys", "/access/service-accounts", "/access/service-accounts/batch"):
        page = auditor.open(path)
        assert page.status == 200, path
        assert not [each for each in page.attributes("a", "href") if "/access/new/" in each], path
        assert "access:write" in page.text, path
    position = plane.last_position()
    refused = auditor.submit("/access/new/issue-key", name="x", role="auditor")
    assert (refused.status, "role_missing" in refused.text) == (403, True)
    assert auditor.submit("/access/service-accounts/batch/disable", reason="x").status == 403
    assert plane.last_position() == position

    caller = logged_in(plane, key_of_account(plane, "batch").secret)
    page = caller.open("/access/sessions")
    assert (page.status, "service-account:batch" in page.text) == (200, True)
    assert "/ui/access/keys" not in page.attributes("a", "href")
    for path in ("/access/keys", "/access/service-accounts", "/projections", "/verifications"):
        assert caller.open(path).status == 403, path


@pytest.mark.parametrize("role", ["admin", "auditor"])
def test_pages_work_for_a_caller_with_a_powerful_role_that_is_limited_to_a_project(
    plane: RunningPlane, role: str
) -> None:
    limited = logged_in(plane, issue(plane, f"limited-{role}", role, projects=["other"]).secret)
    for path in (
        "/",
        "/events",
        "/allocations",
        "/allocations/new",
        "/projects/other",
        "/skus",
        "/usage",
        "/tasks",
    ):
        assert limited.open(path).status == 200, path
    projects = limited.open("/projects").text
    assert "Create project… the scope projects:write is missing" in projects
    form = limited.open("/projects/other/reserve")
    assert "disabled" in next(found for tag, found in form.tags if tag == "fieldset")
    assert limited.open("/nodes").status == 403
