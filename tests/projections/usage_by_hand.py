"""Expected usage, computed from the events of the ledger second by second, and not by the read model's code.

The time is cut at every moment that an event names. In each part between two cuts, the lease of an allocation either
is metered or is not.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from events.allocations import (
    AllocationRequested,
    AllocationSpecified,
    LeaseEnded,
    LeaseGranted,
    LeaseRenewed,
)
from events.envelope import Recorded
from events.facts import Fact
from events.projects import ProjectReservationsSet
from events.slots import SlotClaimed, SlotForceReleased, SlotReleased, SlotUse
from events.values import AllocationId
from read_models.usage.amounts import Amount, amount_of


@dataclass
class Lease:
    """What the events of an allocation state about its usage."""

    project: str = ""
    sku: str = ""
    slots: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    price: Fraction = Fraction(0)
    granted: datetime | None = None
    expires: list[datetime] = field(default_factory=list)
    ended: datetime | None = None

    def is_metered(self, moment: datetime) -> bool:
        started = self.granted is not None and self.granted <= moment
        return started and moment < max(self.expires) and (self.ended is None or moment < self.ended)

    def moments(self) -> list[datetime]:
        return [each for each in (self.granted, *self.expires, self.ended) if each is not None]


def leases(events: Iterable[Recorded[Fact]]) -> dict[AllocationId, Lease]:
    found = defaultdict[AllocationId, Lease](Lease)
    for each in events:
        match each.fact:
            case AllocationRequested() as fact:
                lease = found[fact.allocation_id]
                lease.project, lease.sku, lease.slots = fact.project, fact.sku, fact.slot_count
                lease.labels = fact.labels
            case AllocationSpecified() as fact:
                found[fact.allocation_id].price = Fraction(fact.sku.content.price_per_hour)
            case LeaseGranted() as fact:
                found[fact.allocation_id].granted = fact.granted_at
                found[fact.allocation_id].expires.append(fact.expires_at)
            case LeaseRenewed() as fact:
                found[fact.allocation_id].expires.append(fact.expires_at)
            case LeaseEnded() as fact:
                found[fact.allocation_id].ended = each.recorded_at
            case _:
                continue
    return found


def metered(lease: Lease, begin: datetime | None, end: datetime) -> timedelta:
    """Return for how long a lease is metered between two times."""
    moments = lease.moments()
    if not moments:
        return timedelta()
    start = min(moments) if begin is None else begin
    cuts = sorted({start, end, *(each for each in moments if start < each < end)})
    parts = pairwise(cuts) if start < end else ()
    return sum((after - before for before, after in parts if lease.is_metered(before)), timedelta())


def slot_seconds(lease: Lease, duration: timedelta) -> Fraction:
    return Fraction(duration // timedelta(microseconds=1), 10**6) * lease.slots


def rounded(found: Sequence[tuple[Lease, timedelta]]) -> Amount:
    """Return the rounded slot-seconds and price of leases that were metered for these durations."""
    seconds, price = total(found)
    weighted = price * 3600
    return amount_of(*(Decimal(each.numerator) / Decimal(each.denominator) for each in (seconds, weighted)))


def unused(events: Iterable[Recorded[Fact]], end: datetime) -> dict[tuple[str, str], Fraction]:
    """Return the slot-seconds that were reserved for a project and not held by it, by project and SKU."""
    reserved, held = defaultdict[str, dict[str, int]](dict), defaultdict[tuple[str, str], int](int)
    found, last = defaultdict[tuple[str, str], Fraction](Fraction), end
    for each in sorted(events, key=lambda each: (each.recorded_at, each.position)):
        _add_unused(found, reserved, held, each.recorded_at - last)
        last = each.recorded_at
        match each.fact:
            case ProjectReservationsSet(project=project, reservations=reservations):
                reserved[project] = {str(sku): slots for sku, slots in reservations.items()}
            case SlotClaimed(use=SlotUse() as use):
                held[use.project, use.sku] += 1
            case SlotReleased(use=SlotUse() as use) | SlotForceReleased(use=SlotUse() as use):
                held[use.project, use.sku] -= 1
            case _:
                continue
    _add_unused(found, reserved, held, end - last)
    return {key: seconds for key, seconds in found.items() if seconds}


def _add_unused(
    found: dict[tuple[str, str], Fraction],
    reserved: dict[str, dict[str, int]],
    held: dict[tuple[str, str], int],
    duration: timedelta,
) -> None:
    for project, reservations in reserved.items():
        for sku, slots in reservations.items():
            unused_slots = max(slots - held[project, sku], 0)
            found[project, sku] += unused_slots * Fraction(duration // timedelta(microseconds=1), 10**6)


def total(found: Sequence[tuple[Lease, timedelta]]) -> tuple[Fraction, Fraction]:
    """Return the slot-seconds and the price of leases that were metered for these durations, both exact."""
    amounts = [(slot_seconds(lease, duration), lease.price) for lease, duration in found]
    return sum((each for each, _ in amounts), Fraction()), sum(
        (each * price / 3600 for each, price in amounts), Fraction()
    )
