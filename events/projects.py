"""Facts about projects, the owners of allocations. Stream: `project-<project>`."""

from events.facts import Fact
from events.values import ProjectId


class ProjectCreated(Fact, frozen=True, omit_defaults=True):
    """A project was created. Allocations can be requested in it from now on."""

    project: ProjectId
    """Id of the new project."""
    description: str
    """What the project is for, in the words of its owner."""
    project_network_id: str | None = None
    """Network that the slices of the project share; absent if they are isolated from each other (ALC-12)."""


class ProjectDescribed(Fact, frozen=True):
    """The description of a project was changed."""

    project: ProjectId
    """Id of the project."""
    description: str
    """The new description."""


class ProjectArchived(Fact, frozen=True):
    """A project without running allocations was archived: it can be read, but not changed any more."""

    project: ProjectId
    """Id of the archived project."""
    reason: str
    """Reason that the administrator gave."""


ProjectFact = ProjectCreated | ProjectDescribed | ProjectArchived
