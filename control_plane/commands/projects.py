"""Commands about projects: create, describe, archive and erase a project, and lock the project of a request."""

from collections.abc import Callable, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.decisions.access import unknown_project
from control_plane.decisions.catalogue import retired_entry, unknown_entry
from control_plane.decisions.projects import against_archiving, against_changing, against_erasing
from control_plane.decisions.refusals import Conflict, Objection, UnknownName, refuse_if
from control_plane.handle import Command, Decision, Transaction
from control_plane.origin import Origin
from control_plane.work.task_rows import redact_orders
from events.derived.quotas import QuotaUse
from events.ledger import project_keys
from events.ledger.append import Change
from events.ledger.connection import ledger_connection
from events.projects import (
    PersonalDataDestroyed,
    ProjectArchived,
    ProjectCreated,
    ProjectDescribed,
    ProjectLimits,
    ProjectLimitsSet,
    ProjectReservationsSet,
)
from events.values import ProjectId, SkuName, stream_of_project
from read_models import catalogue, projects
from read_models.projections import redactions
from read_models.projects import ProjectRow
from read_models.quota_use import used_by


def create_project(
    name: ProjectId, description: str, origin: Origin, render: Callable[[ProjectCreated], str]
) -> Command:
    """Create a project; `render` builds the JSON answer from the recorded fact. Raises `Conflict` if the project
    exists.
    """

    async def command(transaction: Transaction) -> Decision:
        if await projects.find(transaction.conn, name) is not None:
            raise Conflict(Objection("project_exists", f"a project named {name} exists already", "/id"))
        fact = ProjectCreated(name, description)
        return Decision(
            (Change(stream_of_project(name), 0, (fact,)),), origin.at(transaction.now), render(fact)
        )

    return command


def describe_project(name: ProjectId, description: str, origin: Origin) -> Command:
    """Change the description of a project. Raises `UnknownName`, and `Conflict` if it is archived."""

    async def command(transaction: Transaction) -> Decision:
        row = await _locked(transaction.conn, name)
        refuse_if(against_changing(name, row.archived))
        if row.description == description:
            return Decision((), origin.at(transaction.now))
        change = Change(stream_of_project(name), row.version, (ProjectDescribed(name, description),))
        return Decision((change,), origin.at(transaction.now))

    return command


def set_limits(name: ProjectId, limits: ProjectLimits, origin: Origin) -> Command:
    """Set all limits of a project. Raises `UnknownName`, and `Conflict` if it is archived.

    Allocations that exist keep what they have. The limits apply to every request that is recorded after this command.
    """

    async def command(transaction: Transaction) -> Decision:
        # The lock waits for requests that were checked against the previous limits.
        row = await _locked(transaction.conn, name)
        refuse_if(against_changing(name, row.archived))
        if row.limits == limits:
            return Decision((), origin.at(transaction.now))
        change = Change(stream_of_project(name), row.version, (ProjectLimitsSet(name, limits),))
        return Decision((change,), origin.at(transaction.now))

    return command


def set_reservation(name: ProjectId, sku: SkuName, slots: int, origin: Origin) -> Command:
    """Reserve a number of slots of a SKU for a project; 0 removes the reservation. Raises `UnknownName`, and `Conflict`
    if the project is archived or the SKU is retired. A reservation may be larger than what is free now.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await _locked(transaction.conn, name)
        refuse_if(against_changing(name, row.archived))
        if slots:
            entry = (await catalogue.find(transaction.conn, [("sku", sku)], lock="share")).get("sku")
            if entry is None:
                raise UnknownName(unknown_entry("sku", sku))
            if entry.retired is not None:
                raise Conflict(retired_entry("sku", sku, entry.retired, None))
        changed = {**row.reservations, sku: slots}
        reservations = {each: count for each, count in sorted(changed.items()) if count}
        if reservations == row.reservations:
            return Decision((), origin.at(transaction.now))
        change = Change(stream_of_project(name), row.version, (ProjectReservationsSet(name, reservations),))
        return Decision((change,), origin.at(transaction.now))

    return command


def archive_project(name: ProjectId, reason: str, origin: Origin) -> Command:
    """Archive a project. Raises `UnknownName`, and `Conflict` while slots are claimed for its allocations. Archiving it
    again changes nothing.
    """

    async def command(transaction: Transaction) -> Decision:
        row = await _locked(transaction.conn, name)
        if row.archived is not None:
            return Decision((), origin.at(transaction.now))
        used, holding = await _used(transaction.conn, name), await _running(transaction.conn, name)
        refuse_if(against_archiving(name, row.archived, used, holding))
        change = Change(stream_of_project(name), row.version, (ProjectArchived(name, reason),))
        return Decision((change,), origin.at(transaction.now))

    return command


def erase_personal_data(name: ProjectId, reason: str, origin: Origin) -> Command:
    """Erase the personal data of a project: destroy the key of its events, and redact the rows that copy it. Raises
    `UnknownName`, and `Conflict` while slots are claimed for its allocations or its requests wait.

    Without personal data since the last erasure, it changes nothing. An archived project can be erased, too.
    """

    async def command(transaction: Transaction) -> Decision:
        conn = transaction.conn
        # The lock waits for requests that use the present key.
        row = await _locked(conn, name)
        # First the requests that wait: one that is placed meanwhile then holds slots.
        waiting = [str(each) for each in await conn.scalars(_WAITING, {"project": name})]
        holding = await _running(conn, name)
        refuse_if(against_erasing(name, await _used(conn, name), holding, waiting))
        destroyed = await project_keys.destroy(await ledger_connection(conn), name)
        if not destroyed:
            return Decision((), origin.at(transaction.now))
        await redact_orders(conn, name)
        for statement in redactions(name):
            await conn.execute(statement)
        [key_id] = destroyed
        fact = PersonalDataDestroyed(name, key_id, row.archived is not None, reason)
        return Decision((Change(stream_of_project(name), row.version, (fact,)),), origin.at(transaction.now))

    return command


async def against_project(conn: AsyncConnection, name: ProjectId, field: str) -> list[Objection]:
    """Return the objections to the use of a project, which `field` of the request names: it does not exist, or it is
    archived. Until the transaction ends, no other transaction can archive it.

    Rows of projects are locked before rows of slots.
    """
    row = await projects.find(conn, name, lock="share")
    return [unknown_project(name, field)] if row is None else against_changing(name, row.archived, field)


async def against_projects(conn: AsyncConnection, names: Sequence[ProjectId]) -> list[Objection]:
    """Return the objections to the projects that a request for a credential names in its field `projects`."""
    return [
        objection
        for number, name in enumerate(names)
        for objection in await against_project(conn, name, f"/projects/{number}")
    ]


async def _locked(conn: AsyncConnection, name: ProjectId) -> ProjectRow:
    row = await projects.find(conn, name, lock="update")
    if row is None:
        raise UnknownName(unknown_project(name))
    return row


_RUNNING = sa.text(
    "select distinct slot.allocation_id from read.slot join ledger.event on stream_id = 'allocation-' || allocation_id"
    " and event.version = 1 where allocation_id is not null and event.project = :project"
    " order by allocation_id limit 5"
)


_WAITING = sa.text(
    "select allocation_id from read.waiting where project = :project and is_waiting order by allocation_id limit 5"
)


async def _used(conn: AsyncConnection, name: ProjectId) -> QuotaUse:
    holder = stream_of_project(name)
    return (await used_by(conn, [holder]))[holder]


async def _running(conn: AsyncConnection, name: ProjectId) -> list[str]:
    """Return up to five allocations of a project that hold slots, in every state from claimed to quarantined."""
    return [str(each) for each in await conn.scalars(_RUNNING, {"project": name})]
