"""Facts about projects, the owners of allocations. Stream: `project-<project>`."""

from events.facts import Fact, Record
from events.values import ProjectId, SkuName


class ProjectLimits(Record, frozen=True, omit_defaults=True):
    """Limits of a project (ALC-13). An absent limit does not limit anything.

    A slot counts from its claim until it is free again, a public address or port from the request of its ingress rule
    until the rule is removed, and a waiting request from the begin of its wait to the end of the wait.
    """

    slots: int | None = None
    """Number of slots."""
    gpus: int | None = None
    """Number of GPUs."""
    vcpus: int | None = None
    """Number of virtual processors."""
    memory_mib: int | None = None
    """Memory in MiB."""
    public_addresses: int | None = None
    """Number of whole public addresses."""
    public_ports: int | None = None
    """Number of ports of public addresses."""
    waiting_requests: int | None = None
    """Number of requests that wait for capacity; absent: the default of the deployment."""
    price_per_hour: str | None = None
    """Sum of the prices per hour, a decimal number in the currency of the deployment."""
    max_lease_seconds: int | None = None
    """Longest time in seconds that a lease may run, counted from its request and from each renewal."""
    budget_per_month: str | None = None
    """Price of all leases in a calendar month (UTC), a decimal number in the currency of the deployment."""


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


class ProjectLimitsSet(Fact, frozen=True):
    """An administrator set the limits of a project. Allocations that exist keep what they have, even beyond a limit."""

    project: ProjectId
    """Id of the project."""
    limits: ProjectLimits
    """All limits of the project from now on, which replace the previous ones; empty if it has none any more."""


class ProjectReservationsSet(Fact, frozen=True):
    """An administrator changed how many slots are kept free for a project (ALC-13). Allocations that exist keep what
    they have.
    """

    project: ProjectId
    """Id of the project."""
    reservations: dict[SkuName, int]
    """Number of slots by SKU: all reservations of the project from now on, which replace the previous ones."""


class PersonalDataDestroyed(Fact, frozen=True):
    """An administrator erased the personal data of a project: the key with which its earlier events are encrypted was
    destroyed. Their personal fields are read as erased from then on.
    """

    project: ProjectId
    """Id of the project."""
    key_id: str
    """Id of the destroyed key."""
    archived: bool
    """Whether the project was archived, so that the reason for that is erased too."""
    reason: str
    """Reason that the administrator gave. It is not encrypted, and stays readable."""


ProjectFact = (
    ProjectCreated
    | ProjectDescribed
    | ProjectLimitsSet
    | ProjectReservationsSet
    | ProjectArchived
    | PersonalDataDestroyed
)
