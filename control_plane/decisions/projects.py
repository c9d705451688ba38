"""Decisions about a project: whether its row and what it uses permit a change."""

from collections.abc import Sequence

from control_plane.decisions.refusals import Objection
from events.derived.quotas import QuotaUse
from events.values import ProjectId


def against_changing(project: ProjectId, archived: str | None, field: str | None = None) -> list[Objection]:
    """Return the reason why a project can neither be described nor used for an allocation; an empty list if it can.

    `archived` is the reason why it was archived, None while it is active; `field` is the field of the request that
    names the project.
    """
    if archived is None:
        return []
    reason = f"project {project} is archived and cannot be changed: {archived}"
    return [Objection("project_archived", reason, field)]


def against_archiving(
    project: ProjectId, archived: str | None, used: QuotaUse, holding: Sequence[str] = ()
) -> list[Objection]:
    """Return the reasons why a project cannot be archived; an empty list if it can, or is archived already.

    `used` is what the project uses of its limits, `holding` some of its allocations that hold slots, if they are known.
    """
    return [] if archived is not None else _against_held_slots(project, used, holding)


def against_erasing(
    project: ProjectId, used: QuotaUse, holding: Sequence[str] = (), waiting: Sequence[str] = ()
) -> list[Objection]:
    """Return all reasons why the personal data of a project cannot be erased; an empty list if it can.

    `used` is what the project uses of its limits, `holding` some of its allocations that hold slots, and `waiting` some
    of its requests that wait for capacity, if they are known: their orders contain the SSH keys, or will.
    """
    found = _against_held_slots(project, used, holding)
    if used.waiting_requests:
        wait = "request waits" if used.waiting_requests == 1 else "requests wait"
        reason = f"{used.waiting_requests} {wait} for capacity in project {project}; release them first"
        found.append(Objection("project_requests_waiting", reason))
    return found + _named("project_requests_waiting", f"requests of project {project} that wait", waiting)


def _against_held_slots(project: ProjectId, used: QuotaUse, holding: Sequence[str]) -> list[Objection]:
    found = list[Objection]()
    if used.slots:
        held = "1 slot" if used.slots == 1 else f"{used.slots} slots"
        reason = f"allocations of project {project} still hold {held}; release them first"
        found.append(Objection("project_in_use", reason))
    return found + _named("project_in_use", f"allocations of project {project} that hold slots", holding)


def _named(code: str, title: str, ids: Sequence[str]) -> list[Objection]:
    """Return a reason that lists the ids of resources; an empty list if there are none."""
    return [Objection(code, f"{title}: {', '.join(ids)}")] if ids else []
