"""The planned events of the demo data: nodes, projects, and allocations from their requests to their ends. It has no
I/O, and equal seeds give equal plans.
"""

import math
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Final, NamedTuple

from events.projects import ProjectLimits
from events.values import NodeId, ProjectId, ServiceAccountId, SkuName

SMALL: Final = SkuName("c1.small")
LARGE: Final = SkuName("c1.large")
ADMIN: Final = "user:example/ada"
NIGHTLY: Final = ServiceAccountId("nightly")
"""Service account that requests allocations."""
_CALLERS: Final = ("user:example/ben", "user:example/chloe", "user:example/dan", f"service-account:{NIGHTLY}")
_TEAMS: Final = ("perception", "training", "evaluation", "batch")
_NIGHT: Final = 0.35
"""Rate of requests at night, compared with the rate at noon."""
_LOG_HOURS: Final = 3.9
"""Mean of the logarithm of the hours that an allocation lasts."""
_MOST_HOURS: Final = 400.0
_LARGE: Final = 0.2
_SEVERAL_SLOTS: Final = 0.1
_EXPIRES: Final = 0.3
_FAILS: Final = 0.03
_INTERRUPTED: Final = 0.03
_REMAINS: Final = 0.01


class Sizes(NamedTuple):
    """Size of the demo data."""

    nodes: int = 200
    days: float = 21.0
    per_day: int = 45
    """Requested allocations per day."""


class SlotSize(NamedTuple):
    vcpus: int
    memory_mib: int


@dataclass(frozen=True)
class DemoNode:
    """A node. `attended`: whether an agent runs for it after the demo data are recorded; the others are unreachable."""

    name: NodeId
    slots: int
    size: SlotSize
    attended: bool = True


@dataclass(frozen=True)
class DemoProject:
    name: ProjectId
    description: str
    share: float
    """Share of all allocations that this project requests, from 0 to 1."""
    limits: ProjectLimits


@dataclass(frozen=True)
class PlannedAllocation:
    """What happens to one allocation. Times are relative to the start of the demo data."""

    at: timedelta
    lasts: timedelta
    project: ProjectId
    caller: str
    sku: SkuName
    slots: int
    labels: dict[str, str]
    expires: bool
    """Whether it ends with its lease; otherwise its caller releases it."""
    boots_in: timedelta
    fails: bool
    """Whether the first start of its slices fails due to a node fault."""
    is_interrupted: bool
    leaves_remains: bool
    """Whether its node first finds remains of a slice after the release."""


PROJECTS: Final = (
    DemoProject(ProjectId("vision"), "Image models", 0.4, ProjectLimits(slots=300, budget_per_month="20000")),
    DemoProject(ProjectId("speech"), "Speech recognition", 0.3, ProjectLimits(slots=150)),
    DemoProject(ProjectId("robotics"), "Simulation of robots", 0.2, ProjectLimits(slots=60, vcpus=200)),
    DemoProject(
        ProjectId("climate"), "Weather and climate", 0.1, ProjectLimits(max_lease_seconds=30 * 86400)
    ),
)
_SMALL_NODE: Final = (3, SlotSize(2, 4096))
_LARGE_NODE: Final = (2, SlotSize(8, 32768))
_LARGE_EVERY: Final = 4


def nodes(sizes: Sizes) -> list[DemoNode]:
    """Return the nodes. One in fifty, and at least one, has no agent at the end."""
    unattended = max(1, sizes.nodes // 50)
    found = []
    for number in range(1, sizes.nodes + 1):
        slots, size = _LARGE_NODE if number % _LARGE_EVERY == 0 else _SMALL_NODE
        attended = number <= sizes.nodes - unattended
        found.append(DemoNode(NodeId(f"demo-{number:03}"), slots, size, attended))
    return found


def planned_allocations(sizes: Sizes, seed: int) -> list[PlannedAllocation]:
    """Return all allocations in the order of their requests, of which more are made by day than by night."""
    random = Random(seed)  # noqa: S311 (not for cryptography)
    found: list[PlannedAllocation] = []
    moment = 0.05
    while True:
        by_day = (1 - math.cos(2 * math.pi * moment)) / 2
        moment += random.expovariate(sizes.per_day * (_NIGHT + (1 - _NIGHT) * by_day))
        if moment >= sizes.days:
            return found
        found.append(_planned(random, timedelta(days=moment)))


def _planned(random: Random, at: timedelta) -> PlannedAllocation:
    [project] = random.choices(PROJECTS, [each.share for each in PROJECTS])
    sku = LARGE if random.random() < _LARGE else SMALL
    hours = min(random.lognormvariate(_LOG_HOURS, 1.0), _MOST_HOURS)
    return PlannedAllocation(
        at=at,
        lasts=timedelta(seconds=round(max(hours, 0.2) * 3600)),
        project=project.name,
        caller=random.choice(_CALLERS),
        sku=sku,
        slots=2 if random.random() < _SEVERAL_SLOTS else 1,
        labels={"team": random.choice(_TEAMS), "run": str(random.randrange(1000, 9999))},
        expires=random.random() < _EXPIRES,
        boots_in=timedelta(seconds=random.uniform(15, 70)),
        fails=random.random() < _FAILS,
        is_interrupted=random.random() < _INTERRUPTED,
        leaves_remains=random.random() < _REMAINS,
    )
