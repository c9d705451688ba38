"""Actions of the web console on allocations, ingress rules, nodes, slots, projects, SKUs and images: their forms,
effects and commands.
"""

import re
from typing import Any, Final

import pytest

from control_plane.api.catalogue.bodies import PublishImage, PublishSku
from control_plane.web.pages.catalogue_actions import IMAGES, SKUS
from control_plane.web.rendering import prose
from control_plane.web.visits import Form
from tests.api.access.principals import issue
from tests.api.catalogue.entries import create
from tests.api.node import admit, enrol
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.web.browsing import Browser, Page, logged_in
from tests.web.chromium.console_pages import FORMS
from tests.web.hostile_texts import HOSTILE_TEXTS

SKU_IN_FORM: Final = {
    "vcpus": "24", "memory_gib": "240.5", "gpu_model": "NVIDIA H200", "gpu_count": "2", "disk_gib": "200", "fabric": "ib",
    "network_modes": "private-nat", "rate_mbit": "500", "placement": "spread", "numa": "single", "price_per_hour": "3.20",
    "provisioning_seconds": "300", "max_lease_hours": "0.5",
}  # fmt: skip
SKU_IN_API: Final = {
    "vcpus": 24, "memory_mib": 246272, "gpu_model": "NVIDIA H200", "gpu_count": 2, "disk_gib": 200, "fabric": "ib",
    "network_modes": ["private-nat"], "rate_mbit": 500, "placement": "spread", "numa": "single", "price_per_hour": "3.20",
    "provisioning_seconds": 300, "max_lease_seconds": 1800,
}  # fmt: skip
IMAGE_IN_FORM: Final = {
    "format": "raw", "digest": f"sha256:{'a' * 64}", "size_bytes": "3221225472", "firmware": "bios",
    "minimum_disk_gib": "4", "default_user": "debian", "readiness_port": "2222", "readiness_banner": "220 ",
}  # fmt: skip
IMAGE_IN_API: Final = {
    "format": "raw", "digest": f"sha256:{'a' * 64}", "size_bytes": 3221225472, "firmware": "bios",
    "minimum_disk_gib": 4, "default_user": "debian", "readiness": {"port": 2222, "banner": "220 "},
}  # fmt: skip


@pytest.fixture(scope="module")
def running(shared_plane: RunningPlane) -> RunningAllocation:
    """An active allocation with the network mode public-nat, and the node n2 with two free slots."""
    node = admit(shared_plane, "n1")
    with shared_plane.client() as client:
        addresses = [{"address": "203.0.113.9", "use": "ports"}]
        assert client.put("/nodes/n1/public-addresses", json={"addresses": addresses}).is_success
    found = RunningAllocation(shared_plane, node, network_mode="public-nat")
    admit(shared_plane, "n2", slots=2)
    return found


@pytest.fixture
def admin(running: RunningAllocation) -> Browser:
    return logged_in(running.plane)


def commands(page: Page) -> list[str]:
    return page.attributes("button", "data-copy")


def slot(running: RunningAllocation, name: str) -> dict[str, Any]:
    node, index = name.split("/")
    with running.plane.client() as client:
        return dict(client.get(f"/nodes/{node}/slots/{index}").json())


def test_ingress_is_opened_and_closed_and_a_refused_form_keeps_what_was_entered(
    running: RunningAllocation, admin: Browser
) -> None:
    own = f"/allocations/{running.id}"
    for wrong in ({"port": "x"}, {"port": "70000"}, {"kind": "icmp"}, {"sources": "nowhere"}, {"slot": "7"}):
        fields = {"kind": "udp port", "port": "5353", "slot": "0", "sources": "198.51.100.0/24", **wrong}
        refused = admin.submit(f"{own}/open-ingress", **fields)
        assert refused.status in {404, 409, 422}, wrong
        assert {*wrong.values(), "198.51.100.0/24"} & {*refused.attributes("input", "value")} or (
            fields["sources"] in refused.text
        )
    before = running.view()["ingress"]
    fields = {
        "kind": "udp port",
        "port": "5353",
        "public_port": "23000",
        "slot": "0",
        "sources": "198.51.100.0/24",
    }
    opened = admin.submit(f"{own}/open-ingress", **fields)
    assert "The ingress was reserved." in opened.text
    [ingress] = [each for each in running.view()["ingress"] if each not in before]
    assert (ingress["protocol"], ingress["port"], ingress["public_port"], ingress["sources"]) == (
        "udp", 5353, 23000, ["198.51.100.0/24"],
    )  # fmt: skip
    close = f"{own}/ingress/{ingress['id']}/close"
    assert f"/ui{close}" in opened.attributes("a", "href")
    form = admin.open(close)
    assert f"sliceplane allocations ingress remove {running.id} {ingress['id']}" in commands(form)
    assert "not_confirmed" in admin.submit(close).text
    assert "It was closed." in admin.submit(close, confirm=ingress["id"][-6:]).text
    [closed] = [each for each in running.view()["ingress"] if each["id"] == ingress["id"]]
    assert closed["state"] == "withdrawn"
    assert admin.open(f"{own}/ingress/ing-absent/close").status == 404


def test_search_and_history_find_an_ingress_rule_by_its_id_and_port_and_the_node_with_a_public_address(
    running: RunningAllocation, admin: Browser
) -> None:
    with running.plane.client() as client:
        rule = {"protocol": "tcp", "port": 8080}
        ingress = client.post(f"/allocations/{running.id}/ingress", json=rule).json()
        assert client.post("/projects", json={"id": "foreign"}).is_success
    place = f"{ingress['public_address']}:{ingress['public_port']}"
    history = f"/ui/history?kind=ingress&name=tcp%2F{place.replace(':', '%3A')}"
    for text in (ingress["id"], place, f"tcp/{place}"):
        assert admin.open("/search", q=text).path == history, text
    by_id = admin.open("/history", kind="ingress", name=ingress["id"])
    assert (by_id.status, running.id in by_id.text) == (200, True)
    assert admin.open("/history", kind="ingress", name="ing-" + "7" * 26).status == 404
    form = admin.open("/history", kind="ingress")
    assert "tcp/203.0.113.1:29690 or ing-…" in form.attributes("input", "placeholder")
    assert "such as tcp/203.0.113.1:29690" in admin.open("/history", kind="ingress", name=place).text
    node = admin.open("/search", q="203.0.113.9")
    assert node.path == "/ui/history?kind=address&name=203.0.113.9"
    assert "held by node n1" in node.text
    owner = logged_in(running.plane, issue(running.plane, "finder", projects=["default"]).secret)
    assert owner.open("/search", q=ingress["id"]).path == f"/ui/allocations/{running.id}"
    other = logged_in(running.plane, issue(running.plane, "foreign", projects=["foreign"]).secret)
    assert "Nothing that you may read" in other.open("/search", q=ingress["id"]).text


def test_every_dangerous_action_asks_for_a_reason_or_for_the_name() -> None:
    actions = [each for form in FORMS for each in form.resource.actions.values()]
    asking = [
        each
        for each in actions
        if each.asks_name or any(it.name == "reason" and it.required for it in each.fields)
    ]
    assert [each.title for each in actions if each.dangerous and each not in asking] == []
    assert [each.title for each in actions if each.asks_name and not each.dangerous] == []


def test_form_of_an_action_shows_it_as_commands_with_the_entered_values(
    running: RunningAllocation, admin: Browser
) -> None:
    own = f"/allocations/{running.id}"
    expected = {
        f"{own}/renew?hours=2": f"sliceplane allocations renew {running.id} --lease 2h",
        f"{own}/release": f"sliceplane allocations release {running.id}",
        f"{own}/report-fault?fault=no+fan": f"sliceplane allocations release {running.id} --fault 'no fan'",
        f"{own}/open-ingress?port=80&slot=1": f"sliceplane allocations ingress add {running.id} tcp/80 --slot 1",
        "/nodes/n2/drain?reason=a'b&minutes=5": "sliceplane nodes drain n2 --reason 'a'\"'\"'b' --release-after 5m",
        "/nodes/n2/slots/1/retire": "sliceplane slots retire n2/1 --reason REASON",
        "/projects/default/limits?slots=3": "sliceplane projects limits set default --slots 3",
        "/new/projects/create-project": "sliceplane projects create PROJECT",
        "/new/projects/create-project?id=b&description=a+group": "sliceplane projects create b --description 'a group'",
        "/new/nodes/register-node": "sliceplane nodes register NODE",
        "/new/nodes/register-node?id=rack-7": "sliceplane nodes register rack-7",
        "/new/skus/publish-sku": "sliceplane skus publish NAME --vcpus 4 --memory-mib 16384 --new",
        "/new/images/publish-image?name=a&format=kernel&readiness_banner=220&default_user=a": "sliceplane images publish a --format kernel"
        " --default-user a --readiness-banner 220 --new",
        "/skus/lab.small/publish-version?vcpus=2&memory_gib=0.5&gpu_model=A+B&gpu_count=1&network_modes=public-nat"
        "&price_per_hour=2.50&provisioning_seconds=60&max_lease_hours=2": "sliceplane skus publish lab.small --vcpus 2"
        " --gpu-count 1 --provisioning 60s --gpu-model 'A B' --price-per-hour 2.50 --memory-mib 512 --max-lease 7200s"
        " --network-mode public-nat",
        "/skus/lab.small/retire-sku?reason=too+small": "sliceplane skus retire lab.small --reason 'too small'",
        "/images/lab-guest/retire-image": "sliceplane images retire lab-guest --reason REASON",
    }
    for path, command in expected.items():
        found = commands(admin.open(path))
        assert command in found, (path, found)
        assert any(each.startswith("curl ") and "$SLICEPLANE_API_KEY" in each for each in found)
    renew = admin.open(f"{own}/renew?hours=2")
    assert "curl takes the API key from the variable SLICEPLANE_API_KEY." in renew.text
    [curl] = [each for each in commands(renew) if each.startswith("curl")]
    assert "--data-raw '{\"lease_seconds\": 7200}'" in curl


def test_form_of_an_action_names_its_resource_and_shows_the_facts_that_matter_for_it(
    running: RunningAllocation, admin: Browser
) -> None:
    drain, renew = admin.open("/nodes/n1/drain"), admin.open(f"/allocations/{running.id}/renew")
    assert "Drain node n1 · Sliceplane" in drain.text
    assert "Slots in use 1 of 1 Allocations (1)" in drain.text
    assert f"/ui/allocations/{running.id}" in drain.attributes("a", "href")
    lease_end = prose(running.view()["lease"]["expires_at"])
    assert f"{running.id}: project default, its lease ends {lease_end}" in drain.text
    assert "The time can be changed by draining the node again." in drain.text
    assert "Slots in use 0 of 2" in admin.open("/nodes/n2/drain").text
    assert f"Renew lease of allocation {running.id}" in renew.text
    assert "2" in renew.attributes("input", "value"), "one hour longer than the remaining lease, rounded up"
    assert "Longest lease 365 days from now (limit of every lease)" in renew.text, "nothing else limits it"
    fault = admin.open(f"/allocations/{running.id}/report-fault").text
    assert f"Report fault and release allocation {running.id}" in fault
    assert "Effect: The slices and all data on their disks are deleted" in fault
    assert "the fault can be recorded" not in fault, "that is the effect for an ended allocation"
    assert "waits for capacity" not in admin.open(f"/allocations/{running.id}/release").text
    assert re.search(r"Remaining lease \d+\s(min|s)", renew.text)
    placement = admin.open(f"/allocations/{running.id}/placement").text
    assert "Chosen node n1: just before, 1 of its 1 slots was free Suitable nodes 1 of 1 nodes" in placement
    assert "The nodes just before this placement" in placement
    assert "it has the fewest usable free slots: allocations of SKU lab.small are packed" in placement
    assert "● suitable enough free slots meet the request" in placement
    slot = admin.open("/nodes/n1/slots/0").text
    assert "Approve… The slot can be used under its SKUs." in slot, "an allowed action is explained too"
    erase = admin.open("/projects/default/erase")
    assert "Must be released first slots: 1, waiting requests: 0" in erase.text
    assert "Not possible: allocations of project default still hold 1 slot; release them first" in erase.text
    assert "disabled" in next(found for tag, found in erase.tags if tag == "fieldset")
    slot_form = admin.open("/nodes/n2/slots/0/reprovision").text
    assert ("MAC address" in slot_form, "IP address" in slot_form) == (True, True)


def test_form_that_renews_a_lease_offers_at_most_what_the_project_permits(
    emptied_plane: RunningPlane,
) -> None:
    running, admin = RunningAllocation(emptied_plane, admit(emptied_plane, "n1")), logged_in(emptied_plane)
    with running.plane.client() as client:
        assert client.put("/projects/default/limits", json={"max_lease_seconds": 5400}).is_success
    own = f"/allocations/{running.id}/renew"
    form = admin.open(own)
    assert "Longest lease 1 hour 30 minutes from now (limit of project default)" in form.text
    assert "1.5" in form.attributes("input", "value")
    assert "--lease 1.5h" in admin.open(f"/allocations/{running.id}").text
    refused = admin.submit(own, hours="2")
    assert (refused.status, "lease_too_long" in refused.text) == (409, True)
    assert "The lease was renewed." in admin.submit(own, hours="1.5").text


def test_form_that_renews_a_lease_of_a_year_begins_with_the_longest_lease_that_the_api_permits(
    emptied_plane: RunningPlane,
) -> None:
    year = 365 * 24
    found = RunningAllocation(emptied_plane, admit(emptied_plane, "n1"), lease_seconds=year * 3600)
    browser, own = logged_in(emptied_plane), f"/allocations/{found.id}/renew"
    form = browser.open(own)
    assert str(year) in form.attributes("input", "value")
    assert "The lease was renewed." in browser.submit(own, hours=str(year)).text
    assert browser.submit(own, hours=str(year + 1)).status == 422


def test_slot_is_retired_and_approved_again_and_each_action_needs_what_it_asks_for(
    running: RunningAllocation, admin: Browser
) -> None:
    own = "/nodes/n2/slots/1"
    assert "required" in admin.submit(f"{own}/retire").text
    assert "The slot was retired." in admin.submit(f"{own}/retire", reason="worn out").text
    assert slot(running, "n2/1")["state"] == "retired"
    form = admin.open(f"{own}/force-release")
    assert "Not possible: the slot is retired and does not await the proof that it is empty" in form.text
    assert [tag for tag, found in form.tags if tag in {"fieldset", "button"} and "disabled" in found] == [
        "fieldset",
        "button",
    ]
    refused = admin.submit(f"{own}/force-release", reason="lost")
    assert (refused.status, "not_confirmed" in refused.text) == (422, True)
    refused = admin.submit(f"{own}/force-release", reason="lost", confirm="n2/1")
    assert (refused.status, "not_awaiting_proof" in refused.text) == (409, True)
    assert "The slot was approved." in admin.submit(f"{own}/approve", skus="lab.small").text
    assert slot(running, "n2/1")["state"] == "free"


@pytest.mark.parametrize("path", ["/nodes/n2", "/nodes/n2/slots/0"])
def test_actions_on_the_fleet_are_disabled_for_an_auditor_with_the_reason(
    running: RunningAllocation, path: str
) -> None:
    auditor = logged_in(running.plane, issue(running.plane, f"auditor{len(path)}", "auditor").secret)
    page, position = auditor.open(path), running.plane.last_position()
    assert "role_missing" in page.text
    actions = {f"/ui{path}/{each}" for each in ("cordon", "drain", "revoke", "retire", "approve")}
    assert not actions & {*page.attributes("a", "href")}
    action = f"{path}/{'retire' if 'slots' in path else 'revoke'}"
    refused = auditor.submit(action, reason="x", confirm="n2")
    assert (refused.status, "role_missing" in refused.text) == (403, True)
    assert running.plane.last_position() == position


def test_access_of_a_node_is_revoked_only_if_its_name_is_entered(
    running: RunningAllocation, admin: Browser
) -> None:
    admit(running.plane, "n9")
    for wrong in ("", "n2"):
        assert admin.submit("/nodes/n9/revoke", reason="stolen", confirm=wrong).status == 422
    with running.plane.client() as client:
        assert client.get("/nodes/n9").json()["state"] != "revoked"
    assert "was revoked" in admin.submit("/nodes/n9/revoke", reason="stolen", confirm="n9").text


def test_personal_data_of_a_project_is_erased_only_if_its_name_is_entered(
    running: RunningAllocation, admin: Browser
) -> None:
    own = "/projects/erased-in-console"
    with running.plane.client() as client:
        body = {"id": "erased-in-console", "description": "of a person"}
        assert client.post("/projects", json=body).status_code == 201
        command = "sliceplane projects erase erased-in-console --reason REASON"
        assert command in commands(admin.open(f"{own}/erase"))
        for wrong in ("", "default"):
            assert admin.submit(f"{own}/erase", reason="requested", confirm=wrong).status == 422
        assert client.get(own).json()["description"] == "of a person"
        done = admin.submit(f"{own}/erase", reason="requested", confirm="erased-in-console")
        assert "The personal data was erased." in done.text
        assert client.get(own).json()["description"] == "erased"
        refused = admin.submit("/projects/default/erase", reason="requested", confirm="default")
        assert (refused.status, "project_in_use" in refused.text) == (409, True)


def test_project_is_described_and_archived_by_its_page(running: RunningAllocation, admin: Browser) -> None:
    own = "/projects/archived-in-console"
    with running.plane.client() as client:
        assert client.post("/projects", json={"id": "archived-in-console", "description": "a"}).is_success
        assert "a" in admin.open(f"{own}/describe").attributes("input", "value")
        described = admin.submit(f"{own}/describe", description="another one")
        assert "The description was changed." in described.text
        assert "Description another one" in described.text
        assert admin.submit(f"{own}/archive", reason="unused", confirm="default").status == 422
        assert client.get(own).json()["state"] == "active"
        archived = admin.submit(f"{own}/archive", reason="unused", confirm="archived-in-console")
        assert "The project was archived." in archived.text
        assert client.get(own).json()["state"] == "archived"
        refused = admin.submit("/projects/default/archive", reason="unused", confirm="default")
        assert (refused.status, "project_in_use" in refused.text) == (409, True)
    form = admin.open("/projects/default/reserve")
    assert "While reserved slots of the SKU are missing, no other project gets a slot of it." in form.text
    assert re.search(r"Can be used now .*lab\.small: \d+ of \d+ slots", form.text)


def test_admin_creates_a_project_from_the_list_of_projects(
    running: RunningAllocation, admin: Browser
) -> None:
    own, hostile = "/new/projects/create-project", "<script>alert(1)</script>\"'{{ 7 * 7 }}"
    assert f"/ui{own}" in admin.open("/projects").attributes("a", "href")
    created = admin.submit(own, id="made-in-console", description=hostile)
    assert created.path == "/ui/projects/made-in-console?notice=create-project"
    assert ("The project was created." in created.text, hostile in created.text) == (True, True)
    with running.plane.client() as client:
        assert client.get("/projects/made-in-console").json()["description"] == hostile
    unprintable = admin.submit(own, id="made-in-console", description=hostile, idempotency_key="\x00")
    assert (unprintable.status, "invalid_idempotency_key" in unprintable.text) == (422, True)
    refused = admin.submit(own, id="made-in-console", description=hostile)
    assert (refused.status, "project_exists" in refused.text) == (409, True)
    assert {"made-in-console", hostile} < {*refused.attributes("input", "value")}


def test_token_of_a_registered_node_is_only_on_the_page_that_answers_the_form_and_enrols_the_node(
    running: RunningAllocation, admin: Browser
) -> None:
    own, plane = "/new/nodes/register-node", running.plane
    assert f"/ui{own}" in admin.open("/nodes").attributes("a", "href")
    assert f"/ui{own}" not in admin.open("/nodes", at="position:9").attributes("a", "href"), (
        "the past has no actions"
    )
    replaced = commands(admin.submit(own, id="rack-7"))[0]
    made = admin.submit(own, id="rack-7", idempotency_key="register-1")
    token, *hints = commands(made)
    assert (made.status, made.response.headers["cache-control"]) == (201, "no-store")
    assert token.startswith("enrol_")
    assert token != replaced
    assert "Register node rack-7" in made.text
    assert "once, until" in made.text
    assert hints == [
        f"install -d /etc/sliceplane && install -m 600 /dev/stdin /etc/sliceplane/token <<< {token}",
        "sliceplane-agent /etc/sliceplane/agent.json",
        "sliceplane nodes show rack-7",
        "sliceplane slots approve rack-7/0",
    ]
    assert (
        "set node_id to rack-7, enrolment_token_file to /etc/sliceplane/token, and api_url to the address of the"
        in (made.text)
    )
    again = admin.submit(own, id="rack-7", idempotency_key="register-1")
    assert commands(again)[0] == token, "a form that is sent twice makes one token"

    [target] = [each for each in made.attributes("a", "href") if each == "/ui/nodes/rack-7"]
    for path in (
        target.removeprefix("/ui"),
        "/nodes",
        own,
        f"{own}?id=rack-7",
        "/events",
        "/search?q=rack-7",
    ):
        page = admin.open(path)
        assert page.status == 200, path
        assert token not in page.response.text, path

    assert enrol(plane, "rack-7", replaced).status_code == 401
    assert enrol(plane, "rack-7", token).is_success
    refused = admin.submit(own, id="rack-7")
    assert (refused.status, "node_exists" in refused.text) == (409, True)
    assert "rack-7" in refused.attributes("input", "value")


@pytest.mark.parametrize(
    ("form", "values", "wrong"),
    [
        ("nodes/register-node", {"id": "Rack 7"}, {"id": "use 1 to 31 characters"}),
        ("nodes/register-node", {"id": ""}, {"id": "the field 'id' is empty"}),
        ("projects/create-project", {"id": "", "description": "x"}, {"id": "the field 'id' is empty"}),
        ("projects/create-project", {"id": "default", "description": "x"}, {"id": "exists already"}),
        (
            "projects/create-project",
            {"id": "-", "description": "d" * 501},
            {"id": "use 1 to 31 characters", "description": "500"},
        ),
        (
            "skus/publish-sku",
            {"name": "a.b", "vcpus": "x", "memory_gib": "1"},
            {"vcpus": "enter a whole number"},
        ),
        (
            "skus/publish-sku",
            {"name": "a.b", "vcpus": "1", "memory_gib": "x"},
            {"memory_gib": "number of GiB"},
        ),
        (
            "skus/publish-sku",
            {"name": "lab.small", "vcpus": "1", "memory_gib": "1"},
            {"name": "exists already"},
        ),
        (
            "skus/publish-sku",
            {
                "name": "A b",
                "vcpus": "999",
                "memory_gib": "0.01",
                "max_lease_hours": "0",
                "price_per_hour": "-1",
            },
            {
                "name": "use words",
                "vcpus": "256",
                "memory_gib": "32",
                "price_per_hour": "decimal",
                "max_lease_hours": "60",
            },
        ),
        (
            "images/publish-image",
            {
                "name": "a",
                "format": "kernel",
                "digest": "x",
                "readiness_port": "0",
                "readiness_banner": "\u00fc",
            },
            {"digest": "64", "readiness_port": "1", "readiness_banner": "pattern"},
        ),
    ],
)
def test_refused_form_shows_each_reason_at_its_field_and_keeps_what_was_entered(
    running: RunningAllocation, admin: Browser, form: str, values: dict[str, str], wrong: dict[str, str]
) -> None:
    position = running.plane.last_position()
    refused = admin.submit(f"/new/{form}", **values)
    assert refused.status in {409, 422}
    inputs = {
        found["name"]: {"kind": tag, **found}
        for tag, found in refused.tags
        if tag in {"input", "select"} and "name" in found
    }
    for name, value in values.items():
        assert inputs[name]["kind"] == "select" or inputs[name].get("value") == value
        described = f"wrong-{name}" if name in wrong else None
        assert inputs[name].get("aria-describedby") == described
        assert ("aria-invalid" in inputs[name]) == (name in wrong)
    assert [each for each in refused.attributes("span", "id") if each.startswith("wrong-")] == [
        f"wrong-{each}" for each in wrong
    ]
    for message in wrong.values():
        assert refused.text.count(message) >= 2, "it is in the list of all reasons, and at the field"
    assert running.plane.last_position() == position


def test_hostile_names_are_refused_and_shown_as_text(running: RunningAllocation, admin: Browser) -> None:
    position = running.plane.last_position()
    for form in ("nodes/register-node", "projects/create-project"):
        known = [tag for tag, _ in admin.submit(f"/new/{form}", id="-").tags]
        for text in HOSTILE_TEXTS[::7]:
            refused = admin.submit(f"/new/{form}", id=text)
            assert refused.status in {400, 422}, text
            assert [tag for tag, _ in refused.tags] == known, text
            assert text.strip() in {each.strip() for each in refused.attributes("input", "value")}, text
    assert running.plane.last_position() == position


def test_role_that_may_not_create_projects_or_nodes_gets_the_reason_and_no_form(
    running: RunningAllocation,
) -> None:
    plane = running.plane
    users = {
        "auditor": issue(plane, "auditor-of-forms", "auditor"),
        "caller": issue(plane, "caller-of-forms", projects=["default"]),
        "admin of some scopes": issue(
            plane, "some-scopes", "admin", scopes=["projects:read", "fleet:read", "events:read"]
        ),
    }
    position = plane.last_position()
    forms = {
        "/nodes": ("/new/nodes/register-node", "fleet:write"),
        "/projects": ("/new/projects/create-project", "projects:write"),
    }
    for role, key in users.items():
        user = logged_in(plane, key.secret)
        position = plane.last_position()
        for path, (form, scope) in forms.items():
            page, shown = user.open(path), user.open(form)
            if role == "caller" and path == "/nodes":
                assert (page.status, shown.status) == (403, 403)
                continue
            assert f"/ui{form}" not in page.attributes("a", "href"), (role, path)
            name = form.rpartition("/")[2]
            [button] = [found for tag, found in page.tags if found.get("aria-describedby") == f"why-{name}"]
            assert "disabled" in button, (role, path)
            assert f"the scope {scope} is missing (code scope_missing)" in page.text, (role, path)
            assert shown.status == 200
            assert f"Not possible: the scope {scope} is missing" in shown.text
            assert ["disabled" in found for tag, found in shown.tags if tag == "fieldset"] == [True]
            refused = user.submit(form, id="not-allowed")
            assert refused.status == 403, (role, path)
            assert ("role_missing" in refused.text or "scope_missing" in refused.text, role) == (True, role)
        assert plane.last_position() == position, role
    with plane.client() as client:
        for path in forms:
            assert client.get(f"{path}/not-allowed").status_code == 404


def test_node_and_project_with_the_name_new_keep_their_own_pages_and_forms(
    running: RunningAllocation, admin: Browser
) -> None:
    assert admin.submit("/new/nodes/register-node", id="new").status == 201
    assert admin.submit("/new/projects/create-project", id="new").path.startswith("/ui/projects/new?")
    assert "Node new · Sliceplane" in admin.open("/nodes/new").text
    assert "Cordon node new" in admin.open("/nodes/new/cordon").text
    assert "Set limits of project new" in admin.open("/projects/new/limits").text
    absent = admin.open("/new/nodes/absent")
    assert (absent.status, "choose one of register-node" in absent.text) == (404, True)


@pytest.mark.parametrize(
    ("kind", "model", "in_form", "in_api"),
    [(SKUS, PublishSku, SKU_IN_FORM, SKU_IN_API), (IMAGES, PublishImage, IMAGE_IN_FORM, IMAGE_IN_API)],
    ids=["sku", "image"],
)
def test_form_of_an_entry_has_every_field_of_its_content_and_reads_its_own_values(
    kind: Any, model: Any, in_form: dict[str, str], in_api: dict[str, Any]
) -> None:
    assert {*in_form} == {each.name for each in kind.fields}
    assert {*in_api} == {*model.model_fields} - {"architecture"}, "the API accepts one architecture"
    assert kind.content(Form([*in_form.items()])) == in_api
    content = model.model_validate(in_api).model_dump()
    assert kind.initial(content) == in_form
    defaults = {each.name: each.value for each in kind.fields}
    needed = {name: in_api[name] for name, each in model.model_fields.items() if each.is_required()}
    needed |= {"format": "kernel"} if "format" in needed else {}
    of_defaults = model.model_validate({**needed, **kind.content(Form([*defaults.items()]))})
    assert of_defaults == model.model_validate(needed), "a form begins with the defaults of the API"


@pytest.mark.parametrize(
    ("path", "kind", "name", "in_form", "in_api", "changed", "shown"),
    [
        ("skus", "sku", "made.in-console", SKU_IN_FORM, SKU_IN_API, {"price_per_hour": "2.90"},
         "Price: 3.20 USD per slot and hour → 2.90 USD per slot and hour"),
        ("images", "image", "made-in-console", IMAGE_IN_FORM, IMAGE_IN_API, {"minimum_disk_gib": "8"},
         "Smallest root disk: 4 GiB → 8 GiB"),
    ],
)  # fmt: skip
def test_entry_is_published_changed_retired_and_offered_again_from_its_page(
    running: RunningAllocation, admin: Browser, *, path: str, kind: str, name: str,
    in_form: dict[str, str], in_api: dict[str, Any], changed: dict[str, str], shown: str,
) -> None:  # fmt: skip
    own, new = f"/{path}/{name}", f"/new/{path}/publish-{kind}"

    def stored() -> dict[str, Any]:
        with running.plane.client() as client:
            return dict(client.get(own).json())

    assert f"/ui{new}" in admin.open(f"/{path}").attributes("a", "href")
    made = admin.submit(new, name=name, **in_form)
    assert made.path == f"/ui{own}?notice=publish-{kind}"
    assert {each: stored()[each] for each in in_api} == in_api
    assert f"/ui{own}" in admin.open(f"/{path}").attributes("a", "href")
    first = running.plane.last_position()

    form = admin.open(f"{own}/publish-version")
    filled = {
        found["name"]: found.get("value") for tag, found in form.tags if tag == "input" and "name" in found
    }
    same = {each: value for each, value in in_form.items() if each in filled and each != "network_modes"}
    assert same == {each: filled[each] for each in same}, "the form begins with the newest version"
    unchanged = admin.submit(f"{own}/publish-version", **in_form)
    assert "The newest version has the entered values, and is offered." in unchanged.text
    assert stored()["version"] == 1

    further = admin.submit(f"{own}/publish-version", **{**in_form, **changed})
    assert (stored()["version"], further.status) == (2, 200)
    assert shown in further.text
    events = [each for each in further.attributes("a", "href") if each.startswith("/ui/events/")]
    assert events == [f"/ui/events/{running.plane.last_position()}", f"/ui/events/{first}"]
    [actor, _] = [
        found["title"] for tag, found in further.tags if tag == "td" and found.get("class") == "actor"
    ]
    assert (actor or "").startswith("key:")

    then = admin.open(own, at=f"position:{first}")
    assert "Version 1 " in then.text
    assert shown not in then.text, "the later version is not listed"
    assert f"/ui{own}/publish-version" not in then.attributes("a", "href")
    assert f"/ui{own}?at=position%3A{first}" in admin.open(f"/{path}", at=f"position:{first}").attributes(
        "a", "href"
    )

    assert (
        "the field &#39;reason&#39; is empty" in admin.submit(f"{own}/retire-{kind}", reason="").response.text
    )
    retired = admin.submit(f"{own}/retire-{kind}", reason="<b>old</b>")
    assert (stored()["state"], stored()["reason"]) == ("retired", "<b>old</b>")
    for text in (
        "was retired. ",
        "Retired because <b>old</b>",
        "retirement",
        "No new allocation can name it",
        "is retired already",
    ):
        assert text in retired.text, text
    assert f"/ui{own}/retire-{kind}" not in retired.attributes("a", "href")
    again = admin.submit(f"{own}/publish-version", **{**in_form, **changed})
    assert (stored()["state"], stored()["version"]) == ("offered", 3)
    assert "none; the" in again.text
    assert "retired: <b>old</b>" in again.text, "an earlier retirement stays listed"


def test_page_of_a_sku_or_image_shows_each_value_in_words_with_its_unit(
    running: RunningAllocation, admin: Browser
) -> None:
    with running.plane.client() as client:
        sku, image = create(client, "skus", **SKU_IN_API), create(client, "images", **IMAGE_IN_API)
        small, kernel = (
            create(client, "skus"),
            client.post("/images", json={"name": "of-kernel", "format": "kernel"}).json(),
        )
    expected = {
        f"/skus/{sku['name']}": (
            "Virtual processors 24", "Memory 246,272 MiB", "GPUs 2 × NVIDIA H200", "Root disk 200 GiB", "Fabric ib: InfiniBand",
            "Network modes private-nat ", "Rate limit 500 Mbit/s in each direction", "Placement spread: ", "NUMA single: ",
            "Price 3.20 USD per slot and hour", "Time to become ready 300 seconds", "Longest lease 0.5 hours", "first version",
        ),
        f"/skus/{small['name']}": (
            "GPUs none", "Root disk none", "Fabric none: ", "Rate limit not limited", "Longest lease not limited by the SKU",
        ),
        f"/images/{image['name']}": (
            "Format raw: disk image", f"Digest sha256:{'a' * 64}", "Size 3.00 GiB (3,221,225,472 bytes)", "Firmware bios",
            "Architecture x86_64", "Smallest root disk 4 GiB", "User of SSH keys debian",
            "Readiness check TCP port 2222 is open, and the server at this port sends a line that begins with 220 ",
        ),
        f"/images/{kernel['name']}": ("Format kernel: kernel and", "Digest none", "Size not recorded", "Firmware none"),
    }  # fmt: skip
    for path, texts in expected.items():
        page = admin.open(path).text
        for text in texts:
            assert text in page, (path, text)
    assert (admin.open("/skus/absent").status, admin.open("/images/absent").status) == (404, 404)
    assert admin.open(f"/skus/{sku['name']}", at="position:9").status == 404
    allocation = admin.open(f"/allocations/{running.id}", at=f"position:{running.plane.last_position()}")
    links = {each.partition("?at=")[0] for each in allocation.attributes("a", "href") if "?at=" in each}
    assert {"/ui/skus/lab.small", "/ui/images/lab-guest"} <= links


def test_role_that_may_not_change_the_catalogue_gets_the_reason_and_no_form(
    running: RunningAllocation,
) -> None:
    keys = (
        issue(running.plane, "catalogue", "auditor"),
        issue(running.plane, "catalogue", projects=["default"]),
    )
    for key in keys:
        user = logged_in(running.plane, key.secret)
        position = running.plane.last_position()
        for path, name, kind in (("skus", "lab.small", "sku"), ("images", "lab-guest", "image")):
            forms = (
                f"/new/{path}/publish-{kind}",
                f"/{path}/{name}/publish-version",
                f"/{path}/{name}/retire-{kind}",
            )
            for page in (user.open(f"/{path}"), user.open(f"/{path}/{name}")):
                assert not {f"/ui{each}" for each in forms} & {*page.attributes("a", "href")}
                assert "(code role_missing)" in page.text or "(code scope_missing)" in page.text
            for each in forms:
                form = user.open(each)
                assert (form.status, "Not possible: " in form.text) == (200, True)
                outer = next(found for tag, found in form.tags if tag == "fieldset")
                assert "disabled" in outer, each
                fields = {"name": "x", "vcpus": "1", "memory_gib": "1", "format": "kernel", "reason": "x"}
                assert user.submit(each, **fields).status == 403, each
        assert running.plane.last_position() == position
    own = logged_in(running.plane, keys[-1].secret).open("/skus/lab.small")
    assert "The times and actors are in events that you may not read." in own.text


def test_banner_of_an_image_keeps_the_space_at_its_end_in_the_form_and_in_the_command(
    running: RunningAllocation, admin: Browser
) -> None:
    with running.plane.client() as client:
        own = f"/images/{create(client, 'images', **IMAGE_IN_API)['name']}/publish-version"
    for page in (admin.open(own), admin.submit(own, **{**IMAGE_IN_FORM, "digest": "x"})):
        assert "220 " in page.attributes("input", "value")
        assert any("--readiness-banner '220 '" in each for each in commands(page))


def test_optional_fields_of_the_forms_of_entries_are_grouped(admin: Browser) -> None:
    for path, groups in {
        "/new/skus/publish-sku": [
            "GPUs of a slice",
            "Disk and network of a slice",
            "Placement",
            "Price and times",
        ],
        "/images/lab-guest/publish-version": ["Disk image (qcow2 or raw)", "Guest"],
    }.items():
        page = admin.open(path)
        order = [(tag, found.get("class") or found.get("name")) for tag, found in page.tags]
        assert [each for each in order if each == ("fieldset", "group")] == [("fieldset", "group")] * len(
            groups
        )
        assert [page.text.index(each) for each in groups] == sorted(page.text.index(each) for each in groups)
        first = order.index(("fieldset", "group"))
        optional = [
            found for tag, found in page.tags[first:] if tag in {"input", "select"} and "name" in found
        ]
        assert [found for found in optional if "required" in found] == []
