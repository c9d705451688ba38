"""Decisions about a project: whether its row permits a change."""

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
