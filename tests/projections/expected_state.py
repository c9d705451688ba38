"""Expected state of a fleet, computed from the events of the ledger alone, without the queries and decisions of the
product.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from control_plane.decisions.budgets import month_of
from deploy.embedded.lab_catalogue import SKUS
from events import allocations as of_allocation
from events import ingress as of_ingress
from events import slots as of_slot
from events.derived.quotas import NOTHING_USED, QuotaUse
from events.envelope import Recorded
from events.facts import Fact
from events.principals import PrincipalLimits, PrincipalLimitsSet
from events.projects import ProjectLimits, ProjectLimitsSet, ProjectReservationsSet
from events.values import (
    AllocationId,
    IngressId,
    NodeId,
    ProjectId,
    SkuName,
    SlotId,
    StreamId,
    node_of,
    stream_of_principal,
    stream_of_project,
)

Limits = ProjectLimits | PrincipalLimits
Uses = dict[StreamId, QuotaUse]
_MICROSECOND: Final = timedelta(microseconds=1)
_HOUR_IN_MICROSECONDS: Final = 3_600_000_000
_LIVING: Final = ("placed", "active", "stopping", "stopped", "starting")
_STEPS: Final[Mapping[type, tuple[tuple[str, ...], str]]] = {
    of_allocation.AllocationRequested: (("",), "requested"),
    of_allocation.AllocationSpecified: (("requested",), "requested"),
    of_allocation.AllocationQueued: (("requested",), "waiting"),
    of_allocation.AllocationDequeued: (("waiting",), "dequeued"),
    of_allocation.AllocationPlaced: (("requested", "dequeued"), "placed"),
    of_allocation.AllocationReplaced: (("placed",), "placed"),
    of_allocation.AllocationActivated: (("placed", "starting"), "active"),
    of_allocation.LeaseGranted: (("active",), "active"),
    of_allocation.SliceInterrupted: (("active", "starting"), "starting"),
    of_allocation.AllocationStopping: (("active", "starting"), "stopping"),
    of_allocation.AllocationStopped: (("stopping",), "stopped"),
    of_allocation.AllocationStarting: (("stopped",), "starting"),
    of_allocation.AllocationReleasing: ((*_LIVING, "dequeued"), "releasing"),
    of_allocation.AllocationFailed: ((*_LIVING, "dequeued"), "failed"),
    of_allocation.AllocationReleased: (("releasing",), "released"),
}
"""The facts that change the state of an allocation, each with the states in which it may occur, and the new state."""


@dataclass
class Allocation:
    """An allocation as its events describe it. Without a lease yet, the times are None."""

    request: of_allocation.AllocationRequested
    actor: str
    state: str = "requested"
    queued: of_allocation.AllocationQueued | None = None
    queued_at_position: int = 0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    ended: bool = False
    expired: int = 0

    @property
    def price(self) -> Decimal:
        return Decimal(SKUS[self.request.sku].price_per_hour)

    @property
    def has_running_lease(self) -> bool:
        return self.ends_at is not None and not self.ended

    @property
    def place(self) -> tuple[int, datetime, int]:
        """Sort key of the allocation in the order of waiting requests: priority, time of the request, position."""
        assert self.queued is not None
        return -self.queued.priority, self.queued.queued_at, self.queued_at_position


@dataclass
class Expected:
    """Expected state that follows from the events so far. `add` raises `AssertionError` if an event contradicts an
    earlier one.
    """

    allocations: dict[AllocationId, Allocation] = field(default_factory=dict)
    holders: dict[SlotId, AllocationId] = field(default_factory=dict)
    rules: dict[IngressId, AllocationId] = field(default_factory=dict)
    addresses: dict[SlotId, tuple[str, str]] = field(default_factory=dict)
    limits: dict[StreamId, Limits] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)

    def add(self, events: Iterable[Recorded[Fact]], sku: SkuName) -> None:
        """Take note of further events. `sku` is the SKU of which reservations are considered."""
        for each in events:
            self._take_slot(each.fact)
            self._take_allocation(each)
            match each.fact:
                case ProjectLimitsSet(project=project, limits=limits):
                    self.limits[stream_of_project(project)] = limits
                case PrincipalLimitsSet(actor=principal, limits=limits):
                    self.limits[stream_of_principal(principal)] = limits
                case ProjectReservationsSet(project=project, reservations=reservations):
                    self.reserved[project] = reservations.get(sku, 0)
                case _:
                    continue

    def _take_slot(self, fact: Fact) -> None:
        match fact:
            case of_slot.SlotClaimed(slot_id=slot, allocation_id=name):
                assert slot not in self.holders, f"{slot} is claimed twice"
                self.holders[slot] = name
            case of_slot.SlotReleased(slot_id=slot) | of_slot.SlotForceReleased(slot_id=slot):
                assert slot in self.holders, f"{slot} is released, and it is not claimed"
                del self.holders[slot]
            case of_ingress.IngressReserved(ingress_id=rule, allocation_id=name):
                self.rules[rule] = name
            case of_ingress.IngressRemoved(ingress_id=rule):
                del self.rules[rule]
            case of_allocation.AllocationPlaced(slots=slots) | of_allocation.AllocationReplaced(slots=slots):
                for each in slots:
                    self.addresses[each.slot_id] = each.network.mac_address, each.network.private_ip
            case _:
                pass

    def _take_allocation(self, recorded: Recorded[Fact]) -> None:
        fact = recorded.fact
        if isinstance(fact, of_allocation.AllocationRequested):
            assert fact.allocation_id not in self.allocations
            self.allocations[fact.allocation_id] = Allocation(fact, recorded.cause.actor)
            return
        name = getattr(fact, "allocation_id", None)
        if not recorded.stream.startswith("allocation-") or name is None:
            return
        found = self.allocations[name]
        if (step := _STEPS.get(type(fact))) is not None:
            permitted, state = step
            assert found.state in permitted, f"{type(fact).__name__} in the state {found.state}"
            found.state = state
        match fact:
            case of_allocation.AllocationQueued():
                found.queued, found.queued_at_position = fact, recorded.position
            case of_allocation.LeaseGranted(granted_at=start, expires_at=end):
                assert found.starts_at is None, "a lease is granted once"
                found.starts_at, found.ends_at = start, end
            case of_allocation.LeaseRenewed(expires_at=end):
                assert found.ends_at is not None
                assert end > found.ends_at
                found.ends_at = end
            case of_allocation.LeaseExpired():
                found.expired += 1
            case of_allocation.LeaseEnded():
                assert found.ends_at is not None
                assert not found.ended, "a lease ends once"
                found.ends_at, found.ended = min(found.ends_at, recorded.recorded_at), True
            case _:
                pass

    def check_exclusive_holders(self) -> None:
        """Check that no slot, MAC address and IP address has two holders (LED-3), and that leases end (ALC-8)."""
        taken = Counter(address for slot in self.holders for address in self.addresses[slot])
        assert all(count == 1 for count in taken.values()), taken
        for found in self.allocations.values():
            is_over = found.state in {"releasing", "failed", "released"}
            assert found.ended == (is_over and found.starts_at is not None)
            assert found.expired <= found.ended

    def waiting(self) -> list[Allocation]:
        """Return the requests that wait for capacity, in their order."""
        return sorted(
            (each for each in self.allocations.values() if each.state == "waiting"),
            key=lambda each: each.place,
        )

    def uses(self) -> Uses:
        """Return what projects and callers use of their quotas, without those that use nothing."""
        found: Uses = {}
        for holder, more in self._parts():
            found[holder] = found.get(holder, NOTHING_USED).plus(more)
        return {holder: use for holder, use in found.items() if use != NOTHING_USED}

    def _parts(self) -> Iterator[tuple[StreamId, QuotaUse]]:
        for name in self.holders.values():
            found = self.allocations[name]
            sku = SKUS[found.request.sku]
            use = QuotaUse(1, sku.gpu_count, sku.vcpus, sku.memory_mib, price_per_hour=found.price)
            yield stream_of_project(found.request.project), use
            yield stream_of_principal(found.actor), use
        for name in self.rules.values():
            yield stream_of_project(self.allocations[name].request.project), QuotaUse(public_ports=1)
        for found in self.waiting():
            yield stream_of_project(found.request.project), QuotaUse(waiting_requests=1)

    def held(self, project: str) -> int:
        """Return the number of slots that a project holds."""
        return sum(self.allocations[name].request.project == project for name in self.holders.values())

    def kept_for_others(self, project: str) -> int:
        """Return the number of slots that are kept for reservations of other projects."""
        others = ((name, slots) for name, slots in self.reserved.items() if name != project)
        return sum(max(slots - self.held(name), 0) for name, slots in others)

    def price(self, project: str, now: datetime) -> Decimal:
        """Return the price of a project in the month of `now`, until the ends of its leases. The unit is a price per
        hour multiplied by a microsecond.
        """
        month, total = month_of(now), Decimal(0)
        for each in self.allocations.values():
            if each.request.project != project or each.state in {"requested", "waiting", "dequeued"}:
                continue
            begin, end = each.starts_at, each.ends_at
            if begin is None or end is None:
                if each.state not in _LIVING:
                    continue
                begin, end = now, now + timedelta(seconds=each.request.lease_seconds)
            begin, end = max(begin, month.begins_at), min(end, month.ends_at)
            if begin < end:
                total += each.price * each.request.slot_count * ((end - begin) // _MICROSECOND)
        return total

    def over_budget(self, project: str, now: datetime, cost: Decimal) -> bool:
        """Return whether a further `cost` in the month of `now` would exceed the budget of a project."""
        limits = self.limits.get(stream_of_project(ProjectId(project)), ProjectLimits())
        assert isinstance(limits, ProjectLimits)
        limit = limits.budget_per_month
        if limit is None or cost == 0:
            return False
        return self.price(project, now) + cost > Decimal(limit) * _HOUR_IN_MICROSECONDS


def cost_in_month(now: datetime, price: Decimal, slots: int, begin: datetime, end: datetime) -> Decimal:
    """Return the price of a lease in the month of `now`, in the unit of `Expected.price`."""
    month = month_of(now)
    added = min(end, month.ends_at) - max(begin, month.begins_at)
    return price * slots * (max(added, timedelta()) // _MICROSECOND)


def free_by_node(rows: Iterable[str]) -> Counter[NodeId]:
    return Counter(node_of(SlotId(each)) for each in rows)
