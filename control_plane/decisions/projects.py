"""Decisions about a project: whether its row permits a change."""

from collections.abc import Sequence

from control_plane.decisions.refusals import Objection
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


def against_erasing(project: ProjectId, waiting: Sequence[str], holding: Sequence[str]) -> list[Objection]:
    """Return all reasons why the personal data of a project cannot be erased; an empty list if it can.

    `waiting` are its requests that wait for capacity, `holding` its allocations that hold slots: their orders contain
    the SSH keys, or will.
    """
    reasons = []
    if holding:
        reason = (
            f"allocations of project {project} still hold slots: {', '.join(holding)}; release them first"
        )
        reasons.append(Objection("project_in_use", reason))
    if waiting:
        reason = f"requests of project {project} wait for capacity: {', '.join(waiting)}; release them first"
        reasons.append(Objection("project_requests_waiting", reason))
    return reasons
