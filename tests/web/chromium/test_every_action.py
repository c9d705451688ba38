"""Every action of the console, carried out in Chromium from the page that links it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, NamedTuple

import pytest
from playwright.sync_api import Browser, Error, Locator

from control_plane.web.actions import CONFIRM, NEW, Resource, confirmation_of
from control_plane.web.bulk import Bulk
from control_plane.web.pages.access_actions import ACCESS, KEY, SERVICE_ACCOUNT, SESSION_OF_CALLER
from control_plane.web.pages.allocation_actions import ALLOCATION, INGRESS
from control_plane.web.pages.bulk_actions import ALLOCATIONS, NODES
from control_plane.web.pages.catalogue_actions import IMAGE, NEW_IMAGE, NEW_SKU, SKU
from control_plane.web.pages.consoles import CONSOLE
from control_plane.web.pages.fleet_actions import NEW_NODE, NODE, SLOT, TASK
from control_plane.web.pages.project_actions import NEW_PROJECT, PERIOD, PROJECT
from control_plane.web.pages.read_model_actions import PROJECTION, VERIFICATIONS
from control_plane.web.visits import NOTICES
from tests.api.access.principals import issue
from tests.api.broken_nodes import keep_nodes_reachable
from tests.api.node import KEY as SSH_KEY
from tests.api.requests.test_examples import World
from tests.servers.plane import ADMIN_KEY, RunningPlane
from tests.waiting import until
from tests.web.chromium.console_pages import FORMS, open_console_session
from tests.web.visitors import Visitor, visiting

Names = Mapping[str, str]
REASON: Final = {"reason": "test"}
NO_FIELDS: Final[Names] = MappingProxyType({})
_BASES: Final = {each.resource.kind: each.base for each in FORMS}


class Trial(NamedTuple):
    """An action, the function that makes its resource, the event that it records (empty: none), and the fields of its
    form. `start` is the page with the link to the form; empty: the page of the resource.
    """

    resource: Resource
    action: str
    prepare: Callable[[World], Names]
    event: str
    fields: Names = NO_FIELDS
    start: str = ""


def _named(field: str, made: Callable[[World], Names]) -> Callable[[World], Names]:
    """Return the preparation with the only path parameter under the name that the console gives it."""
    return lambda world: {field: next(iter(made(world).values()))}


def _default(_world: World) -> Names:
    return {"project": "default"}


def _disabled_account(world: World) -> Names:
    names = world.account()
    path = f"/service-accounts/{names['account']}/disable"
    assert world.send("POST", path, REASON).is_success
    return names


def _period_after_a_closed_one(world: World) -> Names:
    """Close the month before the ended period, so that the initial value of the form is the ended period."""
    assert world.send("POST", "/usage/periods/2026-09/close", {}).is_success
    return world.ended_period()


_STOPPED: Final = _named("projection", World.stopped_projection)
OF_CALLERS: Final = (
    Trial(ALLOCATION, "stop", World.running, "allocation.stopping"),
    Trial(ALLOCATION, "start", World.stopped, "allocation.starting"),
    Trial(ALLOCATION, "renew", World.running, "allocation.lease_renewed", {"hours": "30"}),
    Trial(ALLOCATION, "open-ingress", World.public, "ingress.reserved", {"kind": "udp port", "port": "53"}),
    Trial(ALLOCATION, "release", World.running, "allocation.releasing"),
    Trial(ALLOCATION, "report-fault", World.running, "allocation.releasing", {"fault": "no fan"}),
    Trial(INGRESS, "close", World.open_ingress, "ingress.withdrawn"),
)
"""Actions that a caller takes in its project."""
OF_ADMINS: Final = (
    Trial(NODE, "cordon", World.registered, "node.cordoned", REASON),
    Trial(NODE, "uncordon", World.cordoned, "node.uncordoned", REASON),
    Trial(NODE, "drain", World.registered, "node.drain_started", {**REASON, "minutes": "5"}),
    Trial(NODE, "readmit", World.excluded, "node.readmitted", REASON),
    Trial(NODE, "revoke", World.enrolled, "node.revoked", REASON),
    Trial(SLOT, "approve", World.discovered, "slot.approved", {"skus": "lab.small"}),
    Trial(SLOT, "retire", World.approved, "slot.retired", REASON),
    Trial(SLOT, "reprovision", World.approved, "slot.reprovisioned", REASON),
    Trial(SLOT, "readmit", World.excluded, "slot.readmitted", REASON),
    Trial(SLOT, "force-release", World.releasing, "slot.force_released", REASON),
    Trial(TASK, "cancel", _named("task", World.task), "task.cancel_requested"),
    Trial(TASK, "retry", _named("task", World.failed_task), "task.retried"),
    Trial(PROJECT, "reserve", _default, "project.reservations_set", {"sku": "lab.small", "slots": "1"}),
    Trial(PROJECT, "unreserve", _default, "project.reservations_set", {"sku": "lab.small"}),
    Trial(PROJECT, "limits", World.project, "project.limits_set", {"slots": "3", "memory_gib": "0.5", "budget_per_month": "9.50"}),
    Trial(PROJECT, "describe", World.project, "project.described", {"description": "another"}),
    Trial(PROJECT, "archive", World.project, "project.archived", REASON),
    Trial(PROJECT, "erase", World.project, "project.personal_data_destroyed", REASON),
    Trial(PERIOD, "close", _period_after_a_closed_one, "billing.period_closed"),
    Trial(KEY, "rotate", World.key, "access.key_replaced", {"hours": "2"}),
    Trial(KEY, "revoke-key", World.key, "access.key_revoked", REASON),
    Trial(SERVICE_ACCOUNT, "disable", World.account, "service_account.disabled", REASON),
    Trial(SERVICE_ACCOUNT, "enable", _disabled_account, "service_account.enabled"),
    Trial(SESSION_OF_CALLER, "end", World.session, "access.session_ended", REASON),
    Trial(CONSOLE, "cut", open_console_session, "", REASON),
    Trial(ACCESS, "issue-key", _default, "access.key_issued", {"name": "robot", "role": "caller", "projects": "default"}),
    Trial(ACCESS, "issue-account-key", World.account, "access.key_issued", {"name": "job"}, "/access/service-accounts/{account}"),
    Trial(ACCESS, "create-service-account", _default, "service_account.created", {"id": "nightly", "role": "auditor"}, "/access/service-accounts"),
    Trial(NEW_NODE, "register-node", _default, "node.registered", {"id": "from-console"}),
    Trial(NEW_PROJECT, "create-project", _default, "project.created", {"id": "from-console", "description": "a test"}),
    Trial(NEW_SKU, "publish-sku", _default, "sku.published", {"name": "from.console", "vcpus": "2", "memory_gib": "0.5", "fabric": "ib"}),
    Trial(NEW_IMAGE, "publish-image", _default, "image.published", {"name": "made-in-console", "format": "kernel"}),
    Trial(SKU, "publish-version", World.sku, "sku.published", {"vcpus": "3"}),
    Trial(SKU, "retire-sku", World.sku, "sku.retired", REASON),
    Trial(IMAGE, "publish-version", World.image, "image.published", {"minimum_disk_gib": "9"}),
    Trial(IMAGE, "retire-image", World.image, "image.retired", REASON),
    Trial(VERIFICATIONS, "verify", _default, ""),
    Trial(PROJECTION, "rebuild", _named("projection", World.read_model), "projection.rebuild_requested"),
    Trial(PROJECTION, "retry-event", _STOPPED, "projection.retried"),
    Trial(PROJECTION, "skip", _STOPPED, "projection.event_skipped", REASON),
)  # fmt: skip
"""Actions that only an admin takes. Those of projections are the last, because they stop one."""
BULK: Final[Sequence[tuple[Bulk, Mapping[str, tuple[Callable[[World], Names], Names]]]]] = (
    (ALLOCATIONS, {
        "stop": (World.running, NO_FIELDS),
        "start": (World.stopped, NO_FIELDS),
        "renew": (World.running, {"hours": "30"}),
        "release": (World.running, NO_FIELDS),
    }),
    (NODES, {"cordon": (World.registered, REASON), "uncordon": (World.cordoned, REASON)}),
)  # fmt: skip
"""Actions on several rows of a list, with the function that makes the resource of a row, and the fields of the form."""


@pytest.fixture(scope="module")
def world(shared_plane: RunningPlane) -> Iterator[World]:
    made = World(shared_plane)
    yield made
    made.resume_projections()


def test_tables_have_every_action() -> None:
    """`test_pages_of_roles` compares the resources of `FORMS` with the routes of the console."""
    tried = {(each.resource.kind, each.action) for each in (*OF_CALLERS, *OF_ADMINS)}
    assert tried == {(each.resource.kind, name) for each in FORMS for name in each.resource.actions}
    assert all({*actions} == {*bulk.actions} for bulk, actions in BULK)


@pytest.mark.timeout(300)
def test_caller_takes_every_action_on_allocations_of_its_project(chromium: Browser, world: World) -> None:
    key = issue(world.plane, "owner", projects=["default"])
    with visiting(chromium, world.plane.url, key.secret) as owner:
        for trial in OF_CALLERS:
            _carry_out(owner, world, trial)
        assert owner.faults == []


@pytest.mark.timeout(300)
def test_admin_takes_every_action_that_only_an_admin_may_take(chromium: Browser, world: World) -> None:
    with visiting(chromium, world.plane.url, ADMIN_KEY) as admin:
        for trial in OF_ADMINS:
            _carry_out(admin, world, trial)
        assert admin.faults == []


def test_caller_opens_the_form_from_the_list_and_creates_an_allocation(
    chromium: Browser, world: World
) -> None:
    key = issue(world.plane, "creator", projects=["default"])
    with visiting(chromium, world.plane.url, key.secret) as creator:
        page = creator.page
        creator.open("/allocations")
        page.get_by_role("link", name="Create").click()
        page.get_by_label("SKU").select_option("lab.small")
        page.get_by_label("SSH public keys").fill(SSH_KEY)
        keep_nodes_reachable(world.plane)
        page.get_by_role("button", name="Create").click()
        with _described(creator, "create"):
            page.locator("p.notice", has_text=NOTICES["created"]).wait_for()
        assert creator.faults == []


@pytest.mark.timeout(300)
def test_action_on_several_rows_is_carried_out_on_the_chosen_rows(chromium: Browser, world: World) -> None:
    with visiting(chromium, world.plane.url, ADMIN_KEY) as admin:
        page = admin.page
        for bulk, actions in BULK:
            for name, (prepare, fields) in actions.items():
                action = bulk.resource.actions[name]
                chosen = [f"Choose {next(iter(prepare(world).values()))}" for _ in range(2)]
                boxes = [page.get_by_label(each, exact=True) for each in chosen]
                _open_with(admin, bulk.list_page, *boxes)
                for each in boxes:
                    each.check()
                page.get_by_role("button", name=f"{action.title}…", exact=True).click()
                with _described(admin, name):
                    two = f"2 {bulk.resource.kind}s"
                    page.get_by_role("heading", name=action.on(two), exact=True).wait_for()
                    _fill(admin, {**fields, **({CONFIRM: "2"} if action.dangerous else {})})
                    page.get_by_role("button", name=action.on(two)).click()
                    page.get_by_role("heading", name=f"{action.title}: 2 of {two} done").wait_for()
        assert admin.faults == []


def _carry_out(visitor: Visitor, world: World, trial: Trial) -> None:
    """Follow the link to the form of an action, send the form, and check the event that the action records."""
    names = trial.prepare(world)
    page, action = visitor.page, trial.resource.actions[trial.action]
    form = f"/ui{_BASES[trial.resource.kind].format(**names)}/{trial.action}"
    position = world.plane.last_position()
    link = page.locator(f"main a[href='{form}'], main a[href^='{form}?']").first
    with _described(visitor, f"{trial.resource.kind}: {trial.action}"):
        _open_with(visitor, trial.start.format(**names) or trial.resource.page(names), link)
        link.click()
        label = trial.resource.label(names)
        shown = f"{action.on(trial.resource.kind)} {names.get('period', label)}"
        heading = action.title if label == NEW else shown
        page.get_by_role("heading", name=heading, exact=True).wait_for()
        confirmed = {CONFIRM: confirmation_of(label)} if action.asks_name else {}
        _fill(visitor, {**trial.fields, **confirmed})
        page.locator("main form.fields").get_by_role("button", name=action.title).click()
        if action.secret is None:
            page.locator("p.notice", has_text=NOTICES[trial.action]).wait_for()
        else:
            page.get_by_text("it is shown only here").wait_for()
            leave = page.get_by_role("link", name="Continue")
            made = (leave.get_attribute("href") or "").rpartition("/")[2]
            leave.click()
            page.get_by_text("it is shown only here").wait_for(state="detached")
            page.get_by_role("heading", name=made, level=1).wait_for()
    query = "select distinct type from ledger.event where position > %(position)s"
    recorded = {kind for (kind,) in world.plane.rows(query, position=position)}
    assert not trial.event or trial.event in recorded, (trial.resource.kind, trial.action, recorded)


def _open_with(visitor: Visitor, path: str, *expected: Locator) -> None:
    """Open a page until it has the expected elements: read models lag, so it can show an earlier state."""

    def is_complete() -> bool:
        visitor.open(path)
        return all(each.count() for each in expected)

    until(is_complete, f"{path} has the expected elements")


def _fill(visitor: Visitor, fields: Names) -> None:
    for name, value in fields.items():
        control = visitor.page.locator(f"main form.fields [name={name}]")
        if control.evaluate("each => each.tagName") == "SELECT":
            control.select_option(value)
        else:
            control.fill(value)


@contextmanager
def _described(visitor: Visitor, action: str) -> Iterator[None]:
    """Add the action, and the text of the page, to an error of the `with` block."""
    try:
        yield
    except (Error, AssertionError) as error:
        error.add_note(f"{action}: {visitor.page.url}: {visitor.page.locator('main').inner_text()[:1500]}")
        raise
