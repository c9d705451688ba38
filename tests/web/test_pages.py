"""Pages of the web console: what each role and project sees, actions, hostile texts, and the security of responses."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from control_plane.web.moments import api_moment
from control_plane.web.pages.allocations import slots_of_endpoints
from tests.api.access.principals import Key, create_account, create_project, issue
from tests.api.api_process import api_process
from tests.api.node import KEY, admit, allocate, batch
from tests.api.reporting import RunningAllocation
from tests.servers.plane import TLS_CONTEXT, RunningPlane
from tests.waiting import until
from tests.web.browsing import Browser, Page, logged_in

HOSTILE: Final = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</textarea><svg/onload=alert(1)>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "\u202etxt.exe \u2028 &lt;b&gt; &#x3c;b&#x3e;",
)
LISTS: Final = (
    "/nodes",
    "/allocations",
    "/tasks",
    "/history",
    "/events",
    "/usage",
    "/usage/entries",
    "/usage/periods/open",
    "/usage/periods/open/close",
    "/reservations",
    "/projects",
    "/skus",
    "/skus/lab.small",
    "/skus/lab.small/publish-version",
    "/skus/lab.small/retire-sku",
    "/images",
    "/images/lab-guest",
    "/images/lab-guest/publish-version",
    "/images/lab-guest/retire-image",
    "/bulk/nodes?action=cordon&item=absent&item=n1",
    "/bulk/allocations?action=release&item=absent&item=other",
    "/access/keys",
    "/access/service-accounts",
    "/access/sessions",
    "/access/new/issue-key",
    "/access/new/issue-account-key",
    "/access/new/create-service-account",
    "/new/nodes/register-node",
    "/new/projects/create-project",
    "/new/skus/publish-sku",
    "/new/images/publish-image",
    "/projections",
    "/projections/nodes/rebuild",
    "/projections/nodes/skip",
    "/verifications",
    "/verifications/new/verify",
    "/search?q=n1",
)


@pytest.fixture(scope="module")
def running(shared_plane: RunningPlane) -> RunningAllocation:
    """An active allocation on node n1, with hostile labels, and a hostile description of a project and reason."""
    node = admit(shared_plane, "n1")
    found = RunningAllocation(
        shared_plane, node, labels={f"{each}{n}": each for n, each in enumerate(HOSTILE)}
    )
    create_project(shared_plane, "other")
    with shared_plane.client() as admin:
        assert admin.patch("/projects/other", json={"description": HOSTILE[0] + HOSTILE[1]}).is_success
        assert admin.post("/nodes/n1/cordon", json={"reason": HOSTILE[1] + HOSTILE[2]}).is_success
        assert admin.post("/nodes/n1/uncordon", json={"reason": HOSTILE[3]}).is_success
    until(lambda: bool(shared_plane.client().get("/allocations").json()["items"]), "the allocation is listed")
    return found


@pytest.fixture
def admin(running: RunningAllocation) -> Browser:
    return logged_in(running.plane)


def pages_of(running: RunningAllocation) -> list[str]:
    """Return the paths of all pages, with the resources that exist."""
    with running.plane.client() as client:
        task = client.get("/tasks").json()["items"][0]["id"]
    own = f"/allocations/{running.id}"
    return [
        "/", *LISTS, "/nodes/n1", "/nodes/n1/drain", "/nodes/n1/slots/0", "/nodes/n1/slots/0/force-release", own,
        f"{own}/release", f"{own}/renew", f"{own}/open-ingress", f"{own}/placement", f"{own}/timeline",
        f"{own}/timeline?level=important&open=3", "/projects/other",
        "/projects/other/limits", "/projects/other/reserve", "/events/1",
        "/allocations/new", f"/tasks/{task}", f"/history?kind=allocation&name={running.id}",
        "/history?kind=slot&name=n1/0", "/history?kind=node&name=n1",
        f"/history?kind=address&name={running.slot['mac_address']}", f"{own}?at=position:12", "/nodes/n1?at=position:12",
    ]  # fmt: skip


def test_every_page_is_shown_with_a_strict_policy_and_without_inline_code(
    admin: Browser, running: RunningAllocation
) -> None:
    for path in [*pages_of(running), "/login", "/static/console.js", "/nodes/absent", "/absent"]:
        page = admin.open(path)
        assert page.status == (404 if path.endswith("absent") else 200), (path, page.text)
        headers = page.response.headers
        policy = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "connect-src", "form-action")} == {
            "'self'"
        }
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")
        if "static" not in path:
            assert_safe(page, path)


def assert_safe(page: Page, path: str) -> None:
    """Check that a page has only the script, the style sheet and the links of the console."""
    scripts = [found for tag, found in page.tags if tag == "script"]
    assert [each["src"] for each in scripts] == ["/ui/static/console.js"], path
    assert [each["defer"] for each in scripts] == [None], path
    assert not [
        found for tag, found in page.tags for name in found if name.startswith("on") or name == "style"
    ]
    assert {tag for tag, _ in page.tags} & {"img", "iframe", "object", "style", "base"} == set(), path
    drawn = {found["class"] for tag, found in page.tags if tag == "svg"}
    assert drawn <= {"chart", "key", "ticks"}, path
    for target in (*page.attributes("a", "href"), *page.attributes("form", "action")):
        assert re.match(r"/ui(/|$)|#main$|#drift$|#checks$|#capacity$|/docs$", target), (path, target)
    ids = [found["id"] for _, found in page.tags if "id" in found]
    assert len(ids) == len(set(ids)), (path, ids)
    labelled = {found["for"] for tag, found in page.tags if tag == "label" and "for" in found}
    assert labelled <= set(ids), path


def test_overview_names_a_sku_without_history_and_shows_its_numbers_in_a_table(
    admin: Browser, running: RunningAllocation, keys: dict[str, Key]
) -> None:
    page = admin.open("/")
    assert "lab.small No history yet. Now: 1 claimed" in page.text
    assert "Table of lab.small" in page.text
    assert "All allocations" in page.text
    assert "All events" in page.text
    # A search of another test leaves an ended allocation.
    assert re.search(r"Allocations (\w+ \d+ )*active 1 ", re.sub("[●○▲■✕] ", "", page.text))
    assert "Table of lab.small" not in logged_in(running.plane, keys["owner"].secret).open("/").text


def test_hostile_labels_descriptions_and_reasons_are_shown_as_text(
    admin: Browser, running: RunningAllocation
) -> None:
    own = f"/allocations/{running.id}"
    for path in (own, "/allocations", f"{own}/release", f"/history?kind=allocation&name={running.id}"):
        page = admin.open(path)
        assert_safe(page, path)
        for text in HOSTILE:
            assert " ".join(text.split()) in page.text, (path, text)
    assert HOSTILE[0] + HOSTILE[1] in admin.open("/projects").text
    assert HOSTILE[1] in admin.open("/nodes/n1").text
    for text in HOSTILE:
        for path in ("/search", "/allocations", "/history", "/nodes", "/tasks"):
            names: tuple[str, ...] = (
                "level",
                "open",
                "q",
                "label",
                "project",
                "name",
                "at",
                "kind",
                "cursor",
                "state",
                "notice",
                "from",
                "node",
            )
            page = admin.open(path, **dict.fromkeys(names, text))
            assert page.status < 500, (path, text)
            assert_safe(page, path)
    names = (
        "sku",
        "slots",
        "reason",
        "port",
        "sources",
        "group_by",
        "period",
        "to",
        "type",
        "actor",
        "stream",
    )
    forms = ("/projects/other/reserve", "/nodes/n1/drain", f"{own}/open-ingress")
    for text in HOSTILE:
        for path in ("/events", "/usage", "/usage/entries", "/usage/export", *forms):
            page = admin.open(path, **dict.fromkeys(names, text))
            assert page.status == (200 if path in forms else 422), (path, text)
            assert_safe(page, path)
            assert path not in forms or text.split()[0] in page.text + "".join(
                page.attributes("input", "value")
            )
        refused = admin.submit("/projects/other/reserve", sku=text, slots="1")
        assert refused.status in {404, 422}, text
        assert_safe(refused, text)
    for name in ("sku", "labels", "ssh_keys", "project", "user_data"):
        page = admin.submit("/allocations/new", **{name: HOSTILE[3], "slot_count": "1", "hours": "1"})
        assert (page.status, HOSTILE[3] in page.response.text) == (422, False)
        assert_safe(page, name)


def test_link_of_a_hostile_label_lists_the_allocation(admin: Browser, running: RunningAllocation) -> None:
    targets = [each for each in admin.open("/allocations").attributes("a", "href") if "label=" in each]
    assert len(targets) == len(HOSTILE)
    for target in targets:
        assert running.id[-6:] in admin.open(target.removeprefix("/ui")).text


@pytest.fixture(scope="module")
def keys(running: RunningAllocation) -> dict[str, Key]:
    plane = running.plane
    return {
        "auditor": issue(plane, "auditor", "auditor"),
        "owner": issue(plane, "owner", projects=["default"]),
        "other": issue(plane, "other", projects=["other"]),
        "limited": issue(plane, "limited", "admin", scopes=["projects:read"]),
    }


def test_each_role_sees_only_what_the_api_returns_to_it(
    running: RunningAllocation, keys: dict[str, Key]
) -> None:
    own, fleet = f"/allocations/{running.id}", ("/nodes", "/nodes/n1")
    expected = {
        "auditor": {own: 200, **dict.fromkeys(fleet, 200), "/history?kind=node&name=n1": 200},
        "owner": {
            own: 200,
            f"{own}/timeline": 200,
            **dict.fromkeys(fleet, 403),
            "/history?kind=node&name=n1": 403,
        },
        "other": {
            own: 404,
            **{f"{own}/{each}": 404 for each in ("placement", "timeline", "console", "display", "terminal")},
            **dict.fromkeys(fleet, 403),
        },
        "limited": {own: 403, "/allocations": 403, "/": 200, "/projects": 200, "/tasks": 403},
    }
    for name, statuses in expected.items():
        browser = logged_in(running.plane, keys[name].secret)
        assert {path: browser.open(path).status for path in statuses} == statuses, name
        overview = browser.open("/")
        assert overview.status == 200
        assert ("Open drift" in overview.text) is (name == "auditor")
        assert (running.id[-6:] in overview.text) is (name in ("auditor", "owner"))
    assert running.id[-6:] not in logged_in(running.plane, keys["other"].secret).open("/allocations").text


def test_action_that_is_not_allowed_is_disabled_with_the_reason_and_refused_if_it_is_sent(
    running: RunningAllocation, keys: dict[str, Key]
) -> None:
    own = f"/allocations/{running.id}"
    auditor, owner = (logged_in(running.plane, keys[name].secret) for name in ("auditor", "owner"))
    page = auditor.open(own)
    assert "role_missing" in page.text
    assert "Serial logs: the scope allocations:write is missing" in page.text
    assert f"/ui{own}/release" not in page.attributes("a", "href")
    position = running.plane.last_position()
    refused = auditor.submit(f"{own}/release", confirm=running.id)
    assert (refused.status, "role_missing" in refused.text, "What to do:" in refused.text) == (
        403,
        True,
        True,
    )
    assert running.plane.last_position() == position
    assert f"/ui{own}/release" in owner.open(own).attributes("a", "href")
    for path in ("/", "/allocations", "/allocations/new"):
        shown = auditor.open(path)
        assert "the scope allocations:write is missing (code scope_missing)" in shown.text
        assert "disabled" in str([found for tag, found in shown.tags if tag == "button"])
        assert "/ui/allocations/new" not in shown.attributes("a", "href")
        assert "scope_missing" not in owner.open(path).text


def test_page_shows_the_ssh_line_and_commands_of_an_active_allocation(
    admin: Browser, running: RunningAllocation
) -> None:
    page = admin.open(f"/allocations/{running.id}")
    assert f"ssh root@{running.slot['private_ip']}" in page.text
    assert f"sliceplane allocations release {running.id}" in page.text
    [curl] = [each for each in page.attributes("button", "data-copy") if "--request DELETE" in each]
    assert curl.endswith(f"{running.plane.url}/v1/allocations/{running.id}")
    assert f"GET /v1/allocations/{running.id}" in page.text
    assert "slice.ready" not in page.text
    assert "allocation.activated" in page.text


def test_page_of_an_active_allocation_shows_the_ssh_line_through_the_gateway_to_each_slice(
    running: RunningAllocation, tmp_path: Path
) -> None:
    gateway = {
        "SLICEPLANE_SSH_GATEWAY_ADDRESS": "ssh.example.com:2222",
        "SLICEPLANE_SSH_GATEWAY_HOST_KEY": KEY,
    }
    line = f"ssh -J {running.id}@ssh.example.com:2222 root@slice"
    with api_process(running.plane, tmp_path / "api.log", **gateway) as api:
        browser = logged_in(api.plane)
        page = browser.open(f"/allocations/{running.id}")
        assert f"{line} Copy through the SSH gateway" in page.text
        assert line in page.attributes("button", "data-copy")
        terminals = page.text.partition("Terminals: ")[2]
        assert terminals.startswith(
            "browser terminals and SSH certificates need gateway_access, which this allocation"
        )
        assert "logins with its SSH keys work, also through the gateway (code no_gateway_access)" in terminals
    assert line not in logged_in(running.plane).open(f"/allocations/{running.id}").text


def test_page_of_the_past_shows_the_state_then_and_offers_no_action(
    admin: Browser, running: RunningAllocation
) -> None:
    [(position,)] = running.plane.rows(
        "select position from ledger.event where type = 'allocation.placed' and stream_id = %(s)s",
        s=f"allocation-{running.id}",
    )
    page = admin.open(f"/allocations/{running.id}?at=position:{position}")
    assert "State as of position:" in page.text
    assert "Actions are available in the present view." in page.text
    assert "views of the past do not have them. Show the present" in page.text
    assert page.attributes("a", "href").count(f"/ui/allocations/{running.id}") == 3, "banner, actions, tasks"
    assert "allocation.placed" in page.text
    assert "allocation.activated" not in page.text
    assert page.attributes("div", "data-live") == []
    list_then = admin.open(f"/allocations?at=position:{running.plane.last_position()}")
    last = running.plane.last_position()
    assert f"/ui/allocations/{running.id}?at=position%3A{last}" in list_then.attributes("a", "href")
    assert re.search(r"n1/0 20\d\d-\d\d-\d\d ", list_then.text), (
        "the end of the lease, and not the time until it"
    )
    assert "Create this list shows the past, which cannot be changed" in list_then.text
    assert "/ui/allocations/new" not in list_then.attributes("a", "href")
    assert "/ui/allocations/new" in admin.open("/allocations").attributes("a", "href")
    present = admin.open("/history?kind=node&name=n1&at=now")
    assert (present.status, "State as of" in present.text) == (200, False)
    unread = admin.open(f"/allocations/{running.id}?at=tomorrow")
    assert (unread.status, "State as of" in unread.text) == (422, False)
    assert "'tomorrow' is not a time or position" in unread.text
    assert "yesterday 10:00, 3h ago, 2026-11-28 10:00 (UTC)" in unread.text


def test_bring_up_that_succeeded_is_not_retried_because_it_has_succeeded(
    admin: Browser, running: RunningAllocation
) -> None:
    def is_done() -> bool:
        return bool(
            running.plane.rows(
                "select 1 from work.task where order_id::text = %(id)s and state = 'done'", id=order
            )
        )

    [(order, node, slot)] = running.plane.rows(
        "select order_id::text, node_id, slot_id from work.task where allocation_id = %(id)s", id=running.id
    )
    until(is_done, "the order is done")
    address = f"/ui/nodes/{node}/slots/{str(slot).removeprefix(f'{node}/')}"
    for path in ("/tasks", f"/tasks/{order}"):
        assert address in admin.open(path).attributes("a", "href"), "the slot of a task links to its page"
    page = admin.open(f"/tasks/{order}").text
    assert "the task has succeeded and cannot be retried (code task_succeeded)" in page
    assert "Sent to the node once" in page
    assert "unknown" not in page
    assert "Attempt –" not in page


def test_ids_of_requests_link_to_their_pages_only_for_callers_that_may_open_them(
    running: RunningAllocation, admin: Browser, keys: dict[str, Key]
) -> None:
    [refused] = [each for each in admin.open("/nodes/absent").attributes("a", "href") if "/requests/" in each]
    until(lambda: admin.open(refused.removeprefix("/ui")).status == 200, "the request is in the access log")
    assert "/v1/nodes/absent" in admin.open(refused.removeprefix("/ui")).text
    page = logged_in(running.plane, keys["owner"].secret).open("/allocations/alc-absent")
    assert re.search(r"Request req-[0-9a-f]{32} ", page.text)
    assert "/ui/requests/" not in str(page.attributes("a", "href")), "the caller may not read the access log"
    [(position,)] = running.plane.rows(
        "select max(position) from ledger.event where type = 'node.uncordoned'"
    )
    [cause] = [
        each for each in admin.open(f"/events/{position}").attributes("a", "href") if "/requests/" in each
    ]
    assert "node.uncordoned" in admin.open(cause.removeprefix("/ui")).text


def test_page_of_skus_explains_the_terms_of_its_placements(admin: Browser) -> None:
    page = admin.open("/skus").text
    for term in (
        "pack Of the suitable nodes",
        "spread Of the suitable nodes",
        "NUMA single ",
        "NUMA any The slice",
    ):
        assert term in page


def test_list_of_projects_shows_why_projects_were_archived_only_if_one_is_archived(
    emptied_plane: RunningPlane,
) -> None:
    browser = logged_in(emptied_plane)
    create_project(emptied_plane, "past")
    assert "Project State Description Allocations" in browser.open("/projects").text
    with emptied_plane.client() as client:
        assert client.post("/projects/past/archive", json={"reason": "it is done"}).is_success
    assert "Description Archived because Allocations" in browser.open("/projects").text
    assert "it is done" in browser.open("/projects").text


def test_logins_and_endpoints_of_an_allocation_with_several_slots_name_the_slot(
    emptied_plane: RunningPlane,
) -> None:
    node, browser = admit(emptied_plane, "n1", slots=3), logged_in(emptied_plane)
    made = allocate(emptied_plane, slot_count=2).json()
    ready = [
        {
            "kind": "slice.ready", "slot_id": each["slot_id"], "allocation_id": made["id"],
            "address": each["private_ip"], "port": 22, "banner": "SSH-2.0-x",
        }
        for each in made["slots"]
    ]  # fmt: skip
    assert node.post("/reports", json=batch(str(uuid4()), *enumerate(ready, 1))).is_success
    page = browser.open(f"/allocations/{made['id']}").text
    for each in ready:
        assert f"ssh root@{each['address']} Copy Slot {each['slot_id']}: only from node n1" in page
        assert f"ssh {each['address']}:22 {each['slot_id']} ● ready" in page
    alone = browser.open(f"/allocations/{RunningAllocation(emptied_plane, node).id}").text
    assert "Copy only from node n1" in alone, "the allocation has one slot"
    assert ":22 slice on n1 " in alone


def test_endpoint_leads_to_the_slot_with_its_address_or_to_that_of_its_ingress_rule() -> None:
    def slot(name: str, private: str, actual: str | None) -> dict[str, str | None]:
        return {
            "slot_id": name,
            "node_id": name.partition("/")[0],
            "private_ip": private,
            "actual_ip": actual,
        }

    def endpoint(
        via: str, node: str, kind: str, address: str, port: int | None
    ) -> dict[str, str | int | None]:
        return {"via": via, "node_id": node, "kind": kind, "address": address, "port": port}

    public = "203.0.113.9"
    allocation = {
        "slots": [slot("a/0", "10.0.0.2", None), slot("b/0", "10.0.0.2", "10.0.0.7")],
        "ingress": [
            {"slot_id": "a/0", "public_address": public, "protocol": "tcp", "public_port": 80},
            {"slot_id": "b/0", "public_address": public, "protocol": "udp", "public_port": 80},
            {"slot_id": "b/0", "public_address": "203.0.113.10", "protocol": None, "public_port": None},
        ],
        "endpoints": [
            endpoint("node", "a", "ssh", "10.0.0.2", 22),
            endpoint("node", "b", "ssh", "10.0.0.7", 22),
            endpoint("public", "a", "tcp", public, 80),
            endpoint("public", "b", "udp", public, 80),
            endpoint("public", "b", "address", "203.0.113.10", None),
            endpoint("node", "a", "ssh", "10.0.0.9", 22),
        ],
    }
    assert slots_of_endpoints(allocation) == ["a/0", "b/0", "a/0", "b/0", "b/0", None]


def test_page_of_an_unknown_path_has_the_menu_only_for_a_logged_in_browser(
    running: RunningAllocation, admin: Browser
) -> None:
    found, anonymous = admin.open("/absent"), Browser(running.plane).open("/absent")
    assert (found.status, "/ui/nodes" in found.attributes("a", "href")) == (404, True)
    assert (
        "Not Found 404 There is no page /ui/absent. Choose a page from the menu. (code not_found)"
        in found.text
    )
    assert (anonymous.status, "/ui/nodes" in anonymous.attributes("a", "href")) == (404, False)
    assert "There is no page /ui/absent. Log in and choose a page from the menu." in anonymous.text
    assert "What to do" not in found.text + anonymous.text
    assert "sliceplane keys issue" in Browser(running.plane).open("/login").text


def test_lists_are_filtered_and_paged(admin: Browser, running: RunningAllocation) -> None:
    assert running.id[-6:] in admin.open("/allocations?state=active&project=default").text
    for query in ("state=failed", "project=other", "label=a=b"):
        assert running.id[-6:] not in admin.open(f"/allocations?{query}").text, query
    assert admin.open("/allocations?state=absent").status == 422
    unmatched = admin.open("/allocations?label=a=b")
    assert "No allocation matches the filters. Show all allocations" in unmatched.text
    assert "bulk" not in unmatched.attributes("form", "id"), "there is no row to choose"
    assert "bulk" in admin.open("/allocations").attributes("form", "id")


def test_search_finds_a_resource_by_id_name_and_address(admin: Browser, running: RunningAllocation) -> None:
    slot = running.slot
    found = {
        running.id: f"/ui/allocations/{running.id}",
        "n1": "/ui/nodes/n1",
        "lab.small": "/ui/skus/lab.small",
        slot["mac_address"]: "/ui/history?kind=address&name=" + slot["mac_address"].replace(":", "%3A"),
        slot["private_ip"]: f"/ui/history?kind=address&name={slot['private_ip']}",
        "14": "/ui/events/14",
        "position:14": "/ui/events/14",
    }
    for text, path in found.items():
        page = admin.open("/search", q=text)
        assert (page.status, page.path) == (200, path)
    for text in ("absent", "9" * 18, "9" * 19):
        assert "Nothing that you may read" in admin.open("/search", q=text).text


def test_search_finds_events_requests_sessions_callers_and_addresses_in_every_form_only_for_callers_that_may_read_them(
    admin: Browser, running: RunningAllocation, keys: dict[str, Key]
) -> None:
    plane, own = running.plane, f"/allocations/{running.id}"
    create_account(plane, "batch", "auditor")
    with plane.client() as client:
        [session] = client.get("/sessions?limit=1&order=desc").json()["items"]
        verification = client.post("/verifications").json()["id"]
        [event, *_] = client.get(f"{own}/events").json()["items"]
        refused = client.get("/nodes/absent").json()["request_id"]
        console = client.post(f"{own}/console-sessions", json={"kind": "serial"}).json()["id"]
    request = next(each for each in event["reason"].split() if each.startswith("req-"))
    mac, key = running.slot["mac_address"], keys["owner"].id
    history = f"/ui/history?kind=address&name={mac.replace(':', '%3A')}"
    found = {
        event["id"]: f"/ui/events/{event['position']}",
        event["correlation_id"]: f"/ui/events?correlation={event['correlation_id']}",
        request: f"/ui/requests/{request}",
        refused: f"/ui/requests/{refused}",
        verification: f"/ui/verifications/{verification}",
        session["id"]: f"/ui/access/sessions?session={session['id']}",
        console: f"/ui/events?stream=console-{console}",
        key: f"/ui/access/keys/{key}",
        "batch": "/ui/access/service-accounts/batch",
        "service-account:batch": "/ui/access/service-accounts/batch",
        mac.upper().replace(":", "-"): history,
        ".".join(mac.replace(":", "")[each : each + 4] for each in (0, 4, 8)): history,
    }
    for text, path in found.items():
        page = admin.open("/search", q=text)
        assert (page.status, page.path) == (200, path), text
    several = admin.open("/search", q="node:n1")
    assert {"/ui/nodes/n1", "/ui/events?actor=node%3An1"} <= {*several.attributes("a", "href")}
    assert "Node n1" in several.text
    owner, other = logged_in(plane, keys["owner"].secret), logged_in(plane, keys["other"].secret)
    for text in (event["id"], event["correlation_id"], request, console):
        assert owner.open("/search", q=text).path == found[text], text
        assert "Nothing that you may read" in other.open("/search", q=text).text, text
    unknown = (
        "req-" + "0" * 32,
        "req-" + "f" * 32,
        "ing-" + "7" * 26,
        "f" * 8 + "-ffff-4fff-8fff-" + "f" * 12,
        "key:x",
    )
    for text in (*unknown, "203.0.113.77", "203.0.113.77:80", "999.0.0.1:80", "n1/0000:1b:00.0"):
        assert "Nothing that you may read" in admin.open("/search", q=text).text, text
    for text in (refused, verification, session["id"], key, "batch", mac, "key:x"):
        assert "Nothing that you may read" in owner.open("/search", q=text).text, text
    page, limited = admin.open(f"/requests/{request}"), owner.open(f"/requests/{request}")
    assert "POST /v1/allocations" in page.text
    assert "completed status 202" in page.text
    assert "Access log" not in limited.text
    for each in (page, limited):
        assert f"/ui/events/{event['position']}" in each.attributes("a", "href")
    assert "unknown_name" not in page.text
    assert other.open(f"/requests/{request}").status == 404
    assert admin.open("/requests/absent").status == 404
    only = admin.open("/access/sessions", session=session["id"]).text
    assert {*re.findall(r"ses-\w{26}", only)} == {session["id"]}


def test_search_finds_an_allocation_and_a_task_by_the_shortened_id(
    admin: Browser, running: RunningAllocation
) -> None:
    task = admin.open("/tasks").attributes("a", "href")
    name = next(each for each in task if each.startswith("/ui/tasks/")).rpartition("/")[2]
    begin, end = running.id[:8], running.id[-6:]
    found = {
        f"{begin}…{end}": f"/ui/allocations/{running.id}",
        f"{begin}...{end}": f"/ui/allocations/{running.id}",
        running.id[:29]: f"/ui/allocations/{running.id}",
        f"{name[:8]}…{name[-4:]}": f"/ui/tasks/{name}",
    }
    for text, path in found.items():
        page = admin.open("/search", q=text)
        assert (page.status, page.path) == (200, path), text
    other = allocate(running.plane, wait_for_capacity=True).json()["id"]
    until(lambda: other in admin.open("/allocations").response.text, "the other allocation is listed")
    listed = admin.open("/search", q=begin)
    assert {f"/ui/allocations/{each}" for each in (running.id, other)} <= {*listed.attributes("a", "href")}
    assert f"Allocation {other}" in listed.text
    with running.plane.client() as client:
        assert client.delete(f"/allocations/{other}").is_success
    for text in (f"{begin}…zzzzzz", "alc-zzzz", "deadbeef-cafe1", f"{begin}…{end}…{end}"):
        assert "Nothing that you may read" in admin.open("/search", q=text).text, text


def test_hints_of_the_search_field_list_what_can_be_found_and_that_a_time_may_follow_the_term(
    admin: Browser,
) -> None:
    [field] = [found for _, found in admin.open("/").tags if found.get("name") == "q"]
    assert field["placeholder"] == "Id, name, IP, MAC, a time"
    for text in (str(field["aria-label"]), str(field["title"])):
        for part in ("id", "name", "ip", "mac", "position", "time may follow"):
            assert part in text.lower()


def test_search_with_a_time_shows_the_resource_at_this_time(
    admin: Browser, running: RunningAllocation
) -> None:
    address, last = running.slot["private_ip"], running.plane.last_position()
    for text, path in {
        address: f"/ui/history?kind=address&name={address}&at=position%3A{last}",
        running.id: f"/ui/allocations/{running.id}?at=position%3A{last}",
        "n1": f"/ui/nodes/n1?at=position%3A{last}",
        "n1/0": f"/ui/history?kind=slot&name=n1%2F0&at=position%3A{last}",
        "lab.small": f"/ui/skus/lab.small?at=position%3A{last}",
        "14": "/ui/events/14",
    }.items():
        page = admin.open("/search", q=f"{text}  position:{last}")
        assert (page.status, page.path) == (200, path)


def test_search_for_a_time_alone_shows_the_events_up_to_it(admin: Browser) -> None:
    assert admin.open("/search", q="2026-11-29 10:00").path == "/ui/events?to=2026-11-29T10%3A00%3A00Z"
    assert admin.open("/search", q="3h  ago").path.startswith("/ui/events?to=20")
    assert "Enter what you look for." in admin.open("/search", q=" ").text


@pytest.mark.parametrize("before", ["", "at ", "AT  ", "+ ", "+"])
@pytest.mark.parametrize(
    "time", ["yesterday 10:00", "2026-11-29 10:00 UTC", "2026-11-29T10:00Z", "2026-11-29 10:00", "tomorrow"]
)
def test_search_reads_a_time_after_at_or_plus_and_explains_the_forms_if_it_cannot(
    admin: Browser, running: RunningAllocation, before: str, time: str
) -> None:
    address = running.slot["private_ip"]
    page = admin.open("/search", q=f"{address} {before}{time}")
    read = api_moment(time, datetime.now(UTC))
    if read:
        # The API refuses a time in the future.
        assert page.path == f"/ui/history?kind=address&name={address}&at={read.replace(':', '%3A')}"
        return
    assert page.status == 422
    assert "“tomorrow” is not a time that can be read" in page.text
    assert "yesterday 10:00, 3h ago, 2026-11-28 10:00 (UTC)" in page.text
    assert "State as of" not in page.text
    [field] = [found for _, found in page.tags if found.get("name") == "q"]
    assert field["value"] == f"{address} {before}{time}"


def test_form_creates_an_allocation_once_and_a_refusal_keeps_what_was_entered(
    emptied_plane: RunningPlane,
) -> None:
    plane, admin = emptied_plane, logged_in(emptied_plane)
    RunningAllocation(plane, admit(plane, "n1"))
    admit(plane, "n2", slots=2)
    fields: dict[str, Any] = {
        "sku": "lab.small", "image": "lab-guest", "network_mode": "private-nat", "slot_count": "1", "hours": "0.5",
        "ssh_keys": KEY, "labels": "team = speech\nrun=4", "replace_on_failure": "on",
    }  # fmt: skip
    preview = admin.submit("/allocations/new", **fields, preview="yes")
    assert (preview.status, "It would get n2/0" in preview.text, "curl" in preview.text) == (200, True, True)
    assert "No limit applies" in preview.text
    with plane.client() as client:
        limits = {"slots": 3, "memory_mib": 1, "budget_per_month": "900", "max_lease_seconds": 7200}
        assert client.put("/projects/default/limits", json=limits).is_success
        limited = admin.submit("/allocations/new", **fields, preview="yes").text
        assert client.put("/projects/default/limits", json={}).is_success
    assert re.search(
        r"Memory of default ▲ exceeded [\d.]+ GiB [\d.]+ GiB 0.000977 GiB Slots of default 1 1 3 ", limited
    )
    assert "Longest lease of default – 0.5 hours 2 hours" in limited
    assert re.search(r"Budget per calendar month of default [\d.<]+ [\d.<]+ 900.00", limited)
    refused = admin.submit("/allocations/new", **{**fields, "slot_count": "9"})
    assert (refused.status, "no_suitable_slot" in refused.text, KEY in refused.text) == (409, True, True)
    assert admin.submit("/allocations/new", **{**fields, "labels": "team"}).status == 422

    created = admin.submit("/allocations/new", **fields, idempotency_key="form-1")
    assert "The allocation was created." in created.text
    again = admin.submit("/allocations/new", **fields, idempotency_key="form-1")
    assert again.path == created.path
    name = created.path.split("/")[-1].partition("?")[0]
    with plane.client() as client:
        view = client.get(f"/allocations/{name}").json()
    assert (view["labels"], view["slots"][0]["slot_id"]) == ({"team": "speech", "run": "4"}, "n2/0")

    stop = view["allowed_actions"]["stop"]
    assert f"/ui/allocations/{name}/stop" not in created.attributes("a", "href")
    assert (
        f"{stop['reason'].replace(f'allocation {name}', 'the allocation')} (code {stop['code']})"
        in created.text
    )
    assert "not_confirmed" in admin.submit(f"/allocations/{name}/stop").text
    assert admin.submit(f"/allocations/{name}/stop", confirm=name[-6:]).status == 409
    [task] = [
        each for each in admin.open("/tasks?node=n2").attributes("a", "href") if each.startswith("/ui/tasks/")
    ]
    for path in (task.removeprefix("/ui"), "/nodes/n2"):
        assert "data-in-progress" in admin.open(path).response.text, (
            "the page is refreshed until the task has ended"
        )
    assert admin.submit(f"/allocations/{name}/renew", hours="x").status == 422
    assert "not_confirmed" in admin.submit(f"/allocations/{name}/release").text
    released = admin.submit(f"/allocations/{name}/release", confirm=name[-6:])
    assert (released.path, "releasing" in released.text) == (f"/ui/allocations/{name}?notice=release", True)


def test_form_of_an_allocation_begins_with_a_project_that_the_caller_may_use(
    running: RunningAllocation, keys: dict[str, Key], admin: Browser
) -> None:
    def project(browser: Browser) -> str:
        page = browser.open("/allocations/new")
        return next(found["value"] or "" for _, found in page.tags if found.get("name") == "project")

    other = logged_in(running.plane, keys["other"].secret)
    assert project(other) == "other"
    assert project(admin) == ""


def test_admin_cordons_and_uncordons_a_node_with_a_reason(emptied_plane: RunningPlane) -> None:
    admin = logged_in(emptied_plane)
    admit(emptied_plane, "n3")
    assert admin.submit("/nodes/n3/cordon", reason="").status == 422
    assert "fan is loud" in admin.submit("/nodes/n3/cordon", reason="fan is loud").text
    assert "not_cordoned" not in admin.open("/nodes/n3").text
    assert (
        "fan is loud"
        not in admin.submit("/nodes/n3/uncordon", reason="fan replaced").text.partition("Slots")[0]
    )
    assert admin.open("/nodes/n3/explode").status == 404


def test_requests_of_the_console_are_in_the_access_log_with_the_session_and_the_address_of_the_browser(
    running: RunningAllocation, keys: dict[str, Key]
) -> None:
    browser = logged_in(running.plane, keys["owner"].secret)
    browser.submit(f"/allocations/{running.id}/renew", hours="1")
    with running.plane.client() as admin:
        wanted = {"principal": f"key:{keys['owner'].id}", "method": "POST"}
        rows = admin.get("/access-log", params=wanted).json()["items"]
    newest = rows[0]
    assert (newest["path"], newest["source"]) == (f"/v1/allocations/{running.id}/lease", "127.0.0.1")
    assert newest["credential"].startswith("ses-")


def test_watch_passes_the_event_stream_of_the_api_only_to_a_logged_in_browser(
    running: RunningAllocation, admin: Browser
) -> None:
    url = f"/ui/allocations/{running.id}/watch"
    with admin.client.stream("GET", url) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "content-security-policy" in stream.headers
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("event:")) == "event: allocation.requested"
    answer = httpx.get(f"{running.plane.url}{url}", verify=TLS_CONTEXT)
    assert answer.status_code == 303
