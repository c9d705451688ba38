"""Decisions about reservations: slots of a SKU that are kept free for a project.

A reservation guarantees a project a number of slots of a SKU. The slots that the project holds with this SKU count
towards it first; the rest is its unused part. Other projects may take free slots as long as those that remain and can
carry the SKU are at least as many as the unused parts of the reservations of all projects except their own. Each SKU is
checked by itself, also if SKUs share slots.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from control_plane.decisions.placing.choice import free_slots
from control_plane.decisions.placing.suitability import Demand
from control_plane.decisions.refusals import Objection
from events.values import ProjectId, SkuName

CODE: Final = "slots_reserved"
MOST_SLOTS: Final = 100_000
"""Maximum number of slots of a reservation."""


class Reservation(NamedTuple):
    """A reservation of `slots` slots of a SKU for a project, which holds `used` slots with this SKU. A slot counts
    until it is free again.
    """

    project: ProjectId
    sku: SkuName
    slots: int
    used: int

    @property
    def unused(self) -> int:
        """Number of slots that are kept free for the project."""
        return max(self.slots - self.used, 0)


class Supply(NamedTuple):
    """All reservations of a SKU, and the number of usable free slots that can carry it (`free`)."""

    sku: SkuName
    free: int
    reservations: tuple[Reservation, ...]

    def reserved_for_others(self, project: ProjectId | None) -> int:
        """Return the sum of the unused parts of the reservations of all projects except `project`."""
        return sum(each.unused for each in self.reservations if each.project != project)

    def left_for(self, project: ProjectId) -> int:
        """Return how many of the free slots a project may take; below 0 if fewer are free than are reserved."""
        return self.free - self.reserved_for_others(project)

    def short_by(self, reservation: Reservation) -> int:
        """Return how many slots of a reservation are missing, if the reservations of all projects are used at once."""
        return min(reservation.unused, max(self.reserved_for_others(None) - self.free, 0))


def permits(supply: Supply, project: ProjectId, taken: int) -> bool:
    """Return whether a project may take slots that can carry the SKU of a supply."""
    return supply.reserved_for_others(project) == 0 or supply.left_for(project) >= taken


def against_taking(supplies: Sequence[Supply], project: ProjectId, count: int, demand: Demand) -> Objection:
    """Return the objection to a request for free slots that are reserved for other projects."""
    reserved = "; ".join(
        f"{each.free} free slots can carry SKU {each.sku}, and {each.reserved_for_others(project)} are reserved for"
        " other projects"
        for each in supplies
    )
    reason = (
        f"{free_slots(count, demand)} would be taken from reservations of other projects: {reserved}; try again when"
        " more slots are free, or ask an admin for a reservation"
    )
    return Objection(CODE, reason, "/slot_count")


def fits(free: Mapping[str, int], reserved: Sequence[tuple[Collection[str], int]]) -> int:
    """Return how many slots can be taken. `free` is the number of free slots of each suitable class, and `reserved`
    contains, for each reserved SKU, the classes that can carry it and the number of their free slots that may be taken.

    Slots that few reservations concern are counted first.
    """
    left = [(frozenset(keys), max(most, 0)) for keys, most in reserved]
    taken = [0] * len(left)
    total = 0
    for key in sorted(free, key=lambda each: (sum(each in keys for keys, _ in left), each)):
        concerned = [place for place, (keys, _) in enumerate(left) if key in keys]
        count = min([free[key], *(left[place][1] - taken[place] for place in concerned)])
        for place in concerned:
            taken[place] += count
        total += count
    return total
