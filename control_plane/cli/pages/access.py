"""Pages of projects, service accounts, API keys, sessions, revoked callers and the caller."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.pages import words
from control_plane.cli.pages.details import Row, actions, page
from control_plane.cli.pages.tables import nothing, table
from control_plane.client.access_answers import (
    AccessRow,
    Budget,
    Caller,
    IssuedKey,
    Key,
    PrincipalLimits,
    PrincipalQuota,
    PrincipalUse,
    Project,
    ProjectLimits,
    ProjectUse,
    Reservation,
    RevokedPrincipal,
    ServiceAccount,
    Session,
)
from control_plane.client.answers import Consoles, CutConsole

_AMOUNTS: Final = {
    "gpus": "GPUs",
    "vcpus": "processors",
    "memory_mib": "memory (MiB)",
    "public_addresses": "public addresses",
    "public_ports": "public ports",
    "waiting_requests": "waiting requests",
    "price_per_hour": "price per hour",
    "max_lease_seconds": "longest lease (s)",
    "budget_per_month": "budget per month",
}
"""Displayed names of those amounts that have another name in the API."""


def projects(items: Iterable[Project]) -> RenderableType:
    rows = table("ID", "STATE", "DESCRIPTION")
    for item in items:
        rows.add_row(item.id, words.state(item.state), item.description or "-")
    return rows if rows.row_count else nothing("no projects", "sliceplane projects create PROJECT")


def project(item: Project) -> Table:
    return page(_project(item))


def _project(item: Project) -> Iterator[Row]:
    yield "project", Text(item.id, "bold")
    yield "state", words.state(item.state)
    if item.reason:
        yield "reason", item.reason
    yield "description", item.description or "-"
    if item.limits is not None:
        yield from _limits(item.limits, item.used)
    yield from _budget(item.budget)
    yield from _reservations(item.reservations)
    yield from actions(item.allowed_actions)


def project_limits(item: Project) -> Table:
    return page(
        chain(
            _limits(item.limits or ProjectLimits(), item.used),
            _budget(item.budget),
            _reservations(item.reservations),
        )
    )


def _budget(budget: Budget | None) -> Iterator[Row]:
    if budget is not None:
        yield f"spent in {budget.month}", budget.spent
        yield "committed", f"{budget.committed} (until the ends of leases or of the month)"
        yield "remaining", budget.remaining


def _reservations(items: Iterable[Reservation]) -> Iterator[Row]:
    for item in items:
        use = "" if item.used is None else f", {item.used} used, {item.unused} unused"
        short = f", short by {item.short_by}" if item.short_by else ""
        yield f"reserved {item.sku}", f"{item.slots} slots{use}{short}"


def reservations(items: Iterable[Reservation]) -> RenderableType:
    """Return the table of reservations. A number that is not known is `-`."""
    rows = table("PROJECT", "SKU", "SLOTS", "USED", "UNUSED", "SHORT BY")
    for item in items:
        numbers = (item.used, item.unused, item.short_by)
        known = ("-" if each is None else str(each) for each in numbers)
        rows.add_row(item.project, item.sku, str(item.slots), *known)
    return (
        rows
        if rows.row_count
        else nothing("no reservations", "sliceplane reservations set PROJECT SKU SLOTS")
    )


def principal_limits(item: PrincipalQuota) -> Table:
    return page(_limits(item.limits, item.used))


def _limits(limits: ProjectLimits | PrincipalLimits, used: ProjectUse | PrincipalUse | None) -> Iterator[Row]:
    """Yield a row for each limit, with its use if it limits an amount; the use of the past is not known."""
    for name in limits.__struct_fields__:
        limit, use = getattr(limits, name), f"{getattr(used, name)} " if hasattr(used, name) else ""
        unlimited = "default limit" if name == "waiting_requests" else "no limit"
        most = unlimited if limit is None else f"limit {limit}"
        yield _AMOUNTS.get(name, name), f"{use}({most})" if use else most


def service_accounts(items: Iterable[ServiceAccount]) -> RenderableType:
    rows = table("ID", "STATE", "ROLE", "PROJECTS", "DESCRIPTION")
    for item in items:
        rows.add_row(
            item.id, words.state(item.state), item.role, _projects(item.projects), item.description or "-"
        )
    return (
        rows
        if rows.row_count
        else nothing("no service accounts", "sliceplane service-accounts create ACCOUNT --role ROLE")
    )


def service_account(item: ServiceAccount) -> Table:
    return page(_service_account(item))


def _service_account(item: ServiceAccount) -> Iterator[Row]:
    yield "service account", Text(item.id, "bold")
    yield "state", words.state(item.state)
    if item.reason:
        yield "reason", item.reason
    yield "description", item.description or "-"
    yield "role", item.role
    yield "projects", _projects(item.projects)
    yield "scopes", ", ".join(item.scopes)
    yield from actions(item.allowed_actions)


def keys(items: Iterable[Key]) -> RenderableType:
    rows = table("ID", "STATE", "ROLE", "PROJECTS", "EXPIRES", "LAST USED")
    for item in items:
        expires = "-" if item.expires_at is None else words.until(item.expires_at)
        state, used = words.state(item.state), words.since(item.last_used_at)
        rows.add_row(item.id, state, item.role, _projects(item.projects), expires, used)
    return rows if rows.row_count else nothing("no API keys", "sliceplane keys issue NAME --role ROLE")


def key(item: Key) -> Table:
    return page(_key(item))


def issued_key(item: IssuedKey) -> Table:
    return page(_issued(item))


def _issued(item: IssuedKey) -> Iterator[Row]:
    yield "key", Text(item.key, "bold")
    yield from _key(item)


def _key(item: Key) -> Iterator[Row]:
    yield "id", Text(item.id, "bold")
    yield "state", words.state(item.state)
    if item.reason:
        yield "reason", item.reason
    if item.service_account:
        yield "service account", item.service_account
    yield "role", item.role
    yield "projects", _projects(item.projects)
    yield "scopes", ", ".join(item.scopes)
    if item.last_used_at is not None:
        source = f" from {item.last_used_from}" if item.last_used_from else ""
        yield "last used", f"{words.clock(item.last_used_at)} ({words.since(item.last_used_at)}){source}"
    if item.expires_at is not None:
        yield "expires", f"{words.clock(item.expires_at)} ({words.until(item.expires_at)})"
    if item.replaces:
        yield "replaces", item.replaces
    if item.successor:
        yield "replaced by", item.successor
    yield from actions(item.allowed_actions)


def sessions(items: Iterable[Session]) -> RenderableType:
    rows = table("ID", "STATE", "ACTOR", "ROLE", "LABEL", "EXPIRES", "LAST USED")
    for item in items:
        expires, used = words.until(item.expires_at), words.since(item.last_used_at)
        rows.add_row(
            item.id, words.state(item.state), item.actor, item.role, item.label or "-", expires, used
        )
    return rows if rows.row_count else nothing("no sessions", "sliceplane login")


def consoles(found: Consoles) -> RenderableType:
    rows = table("ID", "STATE", "ACTOR", "ALLOCATION", "SLOT", "CONSOLE")
    for item in found.items:
        rows.add_row(
            item.id, words.state(item.state), item.actor, item.allocation_id, item.slot_id, item.kind
        )
    return rows if rows.row_count else Text("no open console sessions", "dim")


def cut_console(item: CutConsole) -> RenderableType:
    return Text(f"console session {item.id} ends within a second")


def session(item: Session) -> Table:
    return page(_session(item))


def _session(item: Session) -> Iterator[Row]:
    yield "id", Text(item.id, "bold")
    yield "state", words.state(item.state)
    if item.reason:
        yield "reason", item.reason
    yield "label", item.label or "-"
    yield "actor", item.actor
    yield "started with", f"{item.credential_kind} {item.credential}"
    yield "role", item.role
    yield "projects", _projects(item.projects)
    yield "expires", f"{words.clock(item.expires_at)} ({words.until(item.expires_at)})"
    yield from actions(item.allowed_actions)


def revoked_principal(item: RevokedPrincipal) -> Table:
    return page(_revoked_principal(item))


def _revoked_principal(item: RevokedPrincipal) -> Iterator[Row]:
    yield "actor", Text(item.actor, "bold")
    yield "state", words.state("revoked")
    yield "reason", item.reason
    if item.revoked_at is not None:
        yield "refused", f"tokens issued until {words.clock(item.revoked_at)}"


def requests(items: Iterable[AccessRow]) -> RenderableType:
    rows = table(
        *(
            "POSITION",
            "ARRIVED",
            "REQUEST",
            "STATUS",
            "OUTCOME",
            "MS",
            "PRINCIPAL",
            "CREDENTIAL",
            "SOURCE",
            "ID",
        )
    )
    for item in items:
        what = f"{item.method} {item.path}" + (f" ({item.count} times)" if item.count > 1 else "")
        outcome = words.state(item.outcome or "open")
        if item.reasons:
            outcome.append(f": {', '.join(item.reasons)}")
        numbers = [str(item.position or "-"), words.instant(item.opened_at), what, str(item.status or "-")]
        ended = outcome, "-" if item.duration_ms is None else str(item.duration_ms)
        rows.add_row(
            *numbers,
            *ended,
            item.principal or "-",
            item.credential or "-",
            item.source or "-",
            item.request_id,
        )
    return rows if rows.row_count else Text("no matching requests")


def caller(item: Caller) -> Table:
    return page(_caller(item))


def _caller(item: Caller) -> Iterator[Row]:
    yield "actor", Text(item.actor, "bold")
    yield "role", item.role
    yield "projects", _projects(item.projects)
    yield "scopes", ", ".join(item.scopes)
    if item.credential is not None:
        yield "credential", f"{item.credential_kind} {item.credential}"
    if item.expires_at is not None:
        yield "expires", f"{words.clock(item.expires_at)} ({words.until(item.expires_at)})"


def _projects(names: tuple[str, ...] | None) -> str:
    return "all" if names is None else ", ".join(names)
