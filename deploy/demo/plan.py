"""The planned events of the demo data: nodes, projects, and allocations from their requests to their ends. It has no
I/O, and equal seeds give equal plans.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from ipaddress import IPv4Address
from random import Random
from typing import Final, NamedTuple

from events.projects import ProjectLimits
from events.values import Ipv4Address, NodeId, PciAddress, ProjectId, ServiceAccountId, SkuName

SMALL: Final = SkuName("c1.small")
LARGE: Final = SkuName("c1.large")
GPU: Final = SkuName("g1.h100x4")
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
_STOPS: Final = 0.06
_STARTS_AGAIN: Final = 0.4
_PUBLISHES: Final = 0.4
_CLOSES: Final = 0.5


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
    gpus: tuple[tuple[PciAddress, ...], ...] = ()
    """PCI functions of the GPUs of each slot; empty if the node has no GPUs."""
    public_address: Ipv4Address | None = None
    """Address with the ports of ingress rules; None: the node has none."""


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
    stops: bool = False
    starts_again: bool = False
    """Whether it is started again after a stop; otherwise it stays stopped until it ends."""
    publishes: bool = False
    """Whether it opens an ingress rule, if its node has a public address."""
    closes: bool = False
    """Whether its ingress rule is withdrawn before it ends."""
    node: NodeId | None = None
    """Node that the request names. Such an allocation is not placed on another node if its bring-up fails."""


VISION: Final = ProjectId("vision")
SPEECH: Final = ProjectId("speech")
ROBOTICS: Final = ProjectId("robotics")
CLIMATE: Final = ProjectId("climate")
PROJECTS: Final = (
    DemoProject(VISION, "Image models", 0.4, ProjectLimits(slots=300)),
    DemoProject(SPEECH, "Speech recognition", 0.3, ProjectLimits(slots=150)),
    DemoProject(ROBOTICS, "Simulation of robots", 0.2, ProjectLimits(slots=60, vcpus=200)),
    DemoProject(CLIMATE, "Weather and climate", 0.1, ProjectLimits(max_lease_seconds=30 * 86400)),
)
_GPU_PROJECTS: Final = (SPEECH, SPEECH, CLIMATE)
_SMALL_NODE: Final = (3, SlotSize(2, 4096))
_LARGE_NODE: Final = (2, SlotSize(8, 32768))
_LARGE_EVERY: Final = 4
_GPUS: Final = tuple(
    tuple(PciAddress(f"0000:{bus}:00.0") for bus in buses.split()) for buses in ("1b 43 52 61", "9d c3 d1 df")
)
"""GPUs of a node with eight GPUs: one slot on each of its two NUMA nodes."""
_GPU_NODE: Final = (len(_GPUS), SlotSize(48, 768 * 1024))
_GPU_EVERY: Final = 40
_FIRST_GPU: Final = 6
_PUBLIC_EVERY: Final = 8
_PUBLIC: Final = IPv4Address("198.18.0.0")
"""Public addresses of the nodes follow this one. They are of a range for tests (RFC 2544)."""
_GPU_RUNS: Final = ((0.05, 0.6), (0.62, 1.0))
"""First and second use of each slot with GPUs: begin and end, from 0 to 1. The last one ends days after the data."""


_NOTEBOOKS: Final = (0.72, 0.78, 0.8)
_NOTEBOOK: Final = 0.3
"""When notebooks begin, and how long they last, in parts of the demo data: they are stopped at the end of the data."""


def nodes(sizes: Sizes) -> list[DemoNode]:
    """Return the nodes. One in fifty, and at least one, has no agent at the end."""
    attended = sizes.nodes - max(1, sizes.nodes // 50)
    return [_node(number, attended=number <= attended) for number in range(1, sizes.nodes + 1)]


def _node(number: int, *, attended: bool) -> DemoNode:
    name = NodeId(f"demo-{number:03}")
    public = Ipv4Address(str(_PUBLIC + number)) if number % _PUBLIC_EVERY == 1 else None
    if number % _GPU_EVERY == _FIRST_GPU:
        return DemoNode(name, *_GPU_NODE, attended, _GPUS, public)
    slots, size = _LARGE_NODE if number % _LARGE_EVERY == 0 else _SMALL_NODE
    return DemoNode(name, slots, size, attended, public_address=public)


def planned_allocations(sizes: Sizes, seed: int) -> list[PlannedAllocation]:
    """Return all allocations in the order of their requests, of which more are made by day than by night."""
    random = Random(seed)  # noqa: S311 (not for cryptography)
    found: list[PlannedAllocation] = []
    moment = 0.05
    while True:
        by_day = (1 - math.cos(2 * math.pi * moment)) / 2
        moment += random.expovariate(sizes.per_day * (_NIGHT + (1 - _NIGHT) * by_day))
        if moment >= sizes.days:
            break
        found.append(_planned(random, timedelta(days=moment)))
    found += _gpu_allocations(random, sizes)
    found += (_notebook(random, sizes.days * begin, sizes.days * _NOTEBOOK) for begin in _NOTEBOOKS)
    return sorted(found, key=lambda each: each.at)


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
        stops=random.random() < _STOPS,
        starts_again=random.random() < _STARTS_AGAIN,
        publishes=random.random() < _PUBLISHES,
        closes=random.random() < _CLOSES,
    )


def _gpu_allocations(random: Random, sizes: Sizes) -> Iterator[PlannedAllocation]:
    """Yield long allocations, so that all slots with GPUs are in use at the end of the demo data."""
    for begin, end in _GPU_RUNS:
        for _ in range(sum(each.slots for each in nodes(sizes) if each.gpus)):
            days = sizes.days * (end - begin) + (random.uniform(1, 6) if end == 1 else 0)
            at = timedelta(days=sizes.days * begin, minutes=random.uniform(0, 0.01 * 1440 * sizes.days))
            yield training_run(random, at, timedelta(days=days) - timedelta(minutes=random.uniform(0, 30)))


def _notebook(random: Random, begin: float, days: float) -> PlannedAllocation:
    """Return an allocation that its caller stops, and does not start again."""
    planned = _planned(random, timedelta(days=begin))
    return replace(
        planned,
        lasts=timedelta(days=days),
        labels={**planned.labels, "run": "notebook"},
        fails=False,
        is_interrupted=False,
        stops=True,
        starts_again=False,
    )


def training_run(random: Random, at: timedelta, lasts: timedelta) -> PlannedAllocation:
    """Return an allocation of one slot with GPUs."""
    return PlannedAllocation(
        at=at,
        lasts=lasts,
        project=random.choice(_GPU_PROJECTS),
        caller=random.choice(_CALLERS),
        sku=GPU,
        slots=1,
        labels={"team": "training", "run": str(random.randrange(1000, 9999))},
        expires=True,
        boots_in=timedelta(seconds=random.uniform(60, 100)),
        fails=False,
        is_interrupted=False,
        leaves_remains=False,
    )


def acceptance_test(at: timedelta, node: NodeId) -> PlannedAllocation:
    """Return a short allocation with which an admin tests a node."""
    return PlannedAllocation(
        at=at,
        lasts=timedelta(minutes=20),
        project=ROBOTICS,
        caller=ADMIN,
        sku=SMALL,
        slots=1,
        labels={"team": "operations", "run": "acceptance"},
        expires=True,
        boots_in=timedelta(minutes=1),
        fails=False,
        is_interrupted=False,
        leaves_remains=False,
        node=node,
    )
