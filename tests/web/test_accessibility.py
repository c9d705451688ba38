"""No page of the console violates a rule of axe. The usual run opens each page in light or dark colors, which the seed
of the run selects; with SLICEPLANE_TORTURE=full, it opens each page in both.
"""

import random
from pathlib import Path
from typing import Final, Literal

import pytest

from tests import matrix, torture
from tests.api.access.principals import create_account
from tests.api.node import admit
from tests.api.reporting import RunningAllocation
from tests.servers.plane import RunningPlane
from tests.web.axe import violations
from tests.web.visitors import Visitor

_SCHEMES: Final[tuple[Literal["light"], Literal["dark"]]] = ("light", "dark")


@pytest.mark.timeout(300)
def test_no_page_violates_a_rule_of_axe(
    visitor: Visitor, running_plane: RunningPlane, packages: Path
) -> None:
    running = RunningAllocation(running_plane, admit(running_plane, "n1"), labels={"team": "a"})
    with running_plane.client() as admin:
        assert admin.put("/projects/default/reservations/lab.small", json={"slots": 2}).is_success
        assert admin.put("/projects/default/limits", json={"budget_per_month": "9.00"}).is_success
        task = admin.get("/tasks").json()["items"][0]["id"]
        verification = admin.post("/verifications").json()["id"]
        key = admin.get("/keys").json()["items"][0]["id"]
        request = admin.get("/access-log?method=POST").json()["items"][0]["request_id"]
    create_account(running_plane, "batch", "auditor")
    own = f"/allocations/{running.id}"
    paths = (
        "/", "/nodes", "/nodes/n1", "/nodes/n1/drain", "/nodes/n1/slots/0", "/nodes/n1/slots/0/force-release",
        "/allocations", "/allocations/new", own, f"{own}/release", f"{own}/open-ingress", f"{own}/placement", f"{own}/timeline?level=important", f"{own}/console?slot=0",
        f"{own}/display?slot=0", f"{own}/terminal?slot=0", "/access/console-sessions", "/tasks",
        f"/tasks/{task}", f"/history?kind=allocation&name={running.id}&compared=position:12", "/events", "/events/14",
        "/usage", "/usage/entries", "/usage/periods/open", "/usage/periods/open/close", "/reservations", "/projects",
        "/projects/default", "/projects/default/limits", "/skus", "/skus/lab.small",
        "/skus/lab.small/publish-version", "/skus/lab.small/retire-sku", "/images", "/images/lab-guest", "/search?q=absent", "/search?q=node:n1", f"/requests/{request}", "/absent",
        f"/bulk/allocations?action=release&item={running.id}&item=absent", "/bulk/nodes?action=cordon&item=n1",
        "/access/keys", f"/access/keys/{key}", f"/access/keys/{key}/rotate", "/access/service-accounts",
        "/access/service-accounts/batch", "/access/sessions", "/access/new/issue-key", "/new/nodes/register-node",
        "/new/projects/create-project", "/new/skus/publish-sku", "/new/images/publish-image", "/projections",
        "/projections/nodes/skip", "/verifications", f"/verifications/{verification}",
    )  # fmt: skip
    page, found = visitor.page, dict[tuple[str, str], list[str]]()
    chance = random.Random(f"axe {torture.seed()}")
    for path in paths:
        for scheme in _SCHEMES if matrix.is_full() else [chance.choice(_SCHEMES)]:
            page.emulate_media(color_scheme=scheme)
            visitor.open(path)
            if violated := violations(page, packages):
                found[path, scheme] = violated
    for path, fields, name, shown in (
        ("/new/nodes/register-node", {"id": "rack-7"}, "Register node", "it is shown only here"),
        ("/new/projects/create-project", {"id": "not valid"}, "Create project", "is not a valid project id"),
        (
            "/new/skus/publish-sku",
            {"name": "a", "vcpus": "x", "memory_gib": "1"},
            "Publish SKU",
            "enter a whole number",
        ),
    ):
        visitor.open(path)
        for field, value in fields.items():
            page.locator(f"[name={field}]").fill(value)
        page.get_by_role("button", name=name).click()
        page.get_by_text(shown).first.wait_for()
        if violated := violations(page, packages):
            found[path, "answer"] = violated
    visitor.faults[:] = [each for each in visitor.faults if "404" not in each and "422" not in each]
    assert found == {}
