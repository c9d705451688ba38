"""Lifecycles of nodes and allocations as commands: everything that callers, nodes and processes record about them.

A lifecycle is a generator. It yields its next command and receives the recorded events, so that causes chain as in a
deployment. Slots exist before they are claimed, versions are dense, and a claimed slot was free.
"""

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Final
from uuid import UUID

from events.allocations import (
    AllocationActivated,
    AllocationFailed,
    AllocationPlaced,
    AllocationReleased,
    AllocationReleasing,
    AllocationRequested,
    LeaseEnded,
    LeaseExpired,
    LeaseGranted,
    PlacedSlot,
    SliceAddressObserved,
    SliceInterrupted,
    SliceReady,
    SliceRemovalIncomplete,
    SliceRemoved,
    SliceStarting,
)
from events.envelope import Cause, Recorded
from events.facts import Fact, Reason
from events.ledger.append import Change, LedgerCommand
from events.nodes import NodeEnrolled, NodeInspected, NodeRegistered
from events.slots import (
    SlotApproved,
    SlotClaimed,
    SlotDiscovered,
    SlotFact,
    SlotHardware,
    SlotNetwork,
    SlotQuarantined,
    SlotReleased,
    SlotReleasing,
)
from events.values import (
    AllocationId,
    ImageName,
    Ipv4Address,
    Ipv4Subnet,
    MacAddress,
    NodeId,
    ProjectId,
    SkuName,
    SlotId,
    SlotIndex,
    SshPublicKey,
    StreamId,
    allocation_of,
    index_of,
    node_of,
    slot_of,
    stream_of_allocation,
    stream_of_node,
    stream_of_slot,
)

SLOTS: Final = 8
"""Slots of each node."""
SLOT_COUNTS: Final = (1, 1, 1, 1, 2, 2, 4, 8)
"""Slot counts of allocations; each entry has the same probability."""
PROJECTS: Final = 20
_BEGAN: Final = datetime(2026, 3, 1, 8, tzinfo=UTC)
_LEASE: Final = timedelta(hours=1)
_SKU, _IMAGE = SkuName("lab.small"), ImageName("lab-guest")
_LOGIN: Final = SshPublicKey(
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBzPzYEEuKx0pWzqOq5eqUJYVtNHpb5lWPxYDBPzYxAP jo@example.org"
)
_ABSENT: Final = ("port", "lease", "flow", "translation", "firewall", "domain", "disk")

RecordedEvents = tuple[Recorded[Fact], ...]
Lifecycle = Generator[LedgerCommand, RecordedEvents, None]


@dataclass(slots=True)
class World:
    """State shared by concurrent lifecycles: random numbers, time, the streams' heads, and the nodes' free slots."""

    rng: random.Random
    free: dict[int, list[SlotId]] = field(default_factory=dict)
    now: datetime = _BEGAN
    heads: dict[StreamId, int] = field(default_factory=dict)

    def time(self) -> datetime:
        self.now += timedelta(microseconds=self.rng.randrange(1, 40_000))
        return self.now

    def uuid(self) -> UUID:
        """Return a UUIDv7 (RFC 9562) with the simulated time of the generated history."""
        number = int(self.time().timestamp() * 1000) << 80 | self.rng.getrandbits(80)
        return UUID(int=number & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62)

    def request(self) -> str:
        return f"req-{self.rng.getrandbits(64):016x}"

    def trace(self) -> str:
        return f"00-{self.rng.getrandbits(128):032x}-{self.rng.getrandbits(64):016x}-01"

    def happens(self, share: float) -> bool:
        return self.rng.random() < share

    def change(self, stream: StreamId, *facts: Fact) -> Change:
        expected = self.heads.get(stream, 0)
        self.heads[stream] = expected + len(facts)
        return Change(stream, expected, facts)

    def take_slots(self) -> tuple[SlotId, ...]:
        """Take a random number of free slots of one random node. Return an empty tuple if too few are free."""
        if not self.free:
            return ()
        free, count = self.rng.choice(list(self.free.values())), self.rng.choice(SLOT_COUNTS)
        if len(free) < count:
            return ()
        taken, free[:] = tuple(free[:count]), free[count:]
        return taken

    def release_slots(self, slots: Sequence[SlotId]) -> None:
        self.free[_number(node_of(slots[0]))] += slots


def node_lifecycle(world: World, number: int) -> Lifecycle:
    """Yield the commands of a node from its registration to the approval of its slots, which are free afterwards."""
    node, stream = _node(number), stream_of_node(_node(number))
    slots = [slot_of(node, SlotIndex(index)) for index in range(SLOTS)]
    secret = f"{world.rng.getrandbits(256):064x}"

    def by(actor: str, reason: str) -> Cause:
        return Cause(actor, reason, world.uuid(), world.time(), trace_context=world.trace())

    expected = NodeRegistered(node, _subnet(number), "default", secret, world.now + _LEASE)
    yield LedgerCommand((world.change(stream, expected),), by("key:admin-1", world.request()))
    enrolled = NodeEnrolled(node, secret, secret, 1, "0.1.0")
    yield LedgerCommand((world.change(stream, enrolled),), by(f"node:{node}", world.request()))
    inspected = NodeInspected(node, f"{node}.example.org", "0.1.0", True, (_IMAGE,), ())  # noqa: FBT003 (a fact's field)
    found = [world.change(stream_of_slot(slot), _discovered(slot)) for slot in slots]
    yield LedgerCommand((world.change(stream, inspected), *found), by(f"node:{node}", "survey"))
    for slot in slots:
        approved = SlotApproved(slot, _SKU, _network(slot))
        yield LedgerCommand(
            (world.change(stream_of_slot(slot), approved),), by("key:admin-1", world.request())
        )
    world.free[number] = slots


def allocation_lifecycle(world: World, slots: tuple[SlotId, ...]) -> Lifecycle:
    """Yield the commands of an allocation from its request to its proved removal, which makes its slots free again."""
    yield from _Allocation(world, slots).life()
    world.release_slots(slots)


class _Allocation:
    """A generated allocation; each method yields the commands of a part of its lifecycle."""

    def __init__(self, world: World, slots: tuple[SlotId, ...]) -> None:
        self._world, self._slots = world, slots
        self._correlation = world.uuid()
        self._id: AllocationId = allocation_of(self._correlation)
        self._node = f"node:{node_of(slots[0])}"
        self._reports = 0

    def life(self) -> Lifecycle:
        placed = yield self._create()
        started = yield self._reported(placed, *(SliceStarting(self._id, slot) for slot in self._slots))
        if self._world.happens(0.02):
            reason = Reason("deadline_missed", f"slices not ready in time: {', '.join(self._slots)}")
            yield from self._ending(started, AllocationFailed(self._id, reason))
            return
        yield self._reported(started, *map(self._observed, self._slots))
        granted = LeaseGranted(self._id, self._world.now, self._world.now + _LEASE)
        active = yield self._reported(started, *self._ready(), AllocationActivated(self._id), granted)
        if self._world.happens(0.03):
            active = yield from self._interruption(active)
        yield from self._ends_well(active)

    def _create(self) -> LedgerCommand:
        world, caller = self._world, self._world.rng.randrange(3 * PROJECTS)
        project = ProjectId(f"project-{caller % PROJECTS}")
        cause = Cause(
            f"key:caller-{caller}",
            world.request(),
            self._correlation,
            world.time(),
            project,
            None,
            world.trace(),
        )
        asked = AllocationRequested(
            self._id, project, _SKU, "private-nat", _IMAGE, (_LOGIN,), int(_LEASE.total_seconds()), len(self._slots),
            {"team": f"team-{caller % 7}", "run": f"{world.rng.getrandbits(32):08x}"},
        )  # fmt: skip
        chosen = tuple(PlacedSlot(slot, _network(slot)) for slot in self._slots)
        placed = AllocationPlaced(self._id, chosen, world.now + timedelta(minutes=2))
        return LedgerCommand(
            (self._own(asked, placed), *self._each(lambda slot: SlotClaimed(slot, self._id))), cause
        )

    def _interruption(
        self, active: RecordedEvents
    ) -> Generator[LedgerCommand, RecordedEvents, RecordedEvents]:
        slot, deadline = self._slots[0], self._world.now + timedelta(minutes=2)
        reason = Reason("machine_died", f"the machine of {slot} ended without an order")
        lost = yield self._reported(active, SliceInterrupted(self._id, slot, reason, deadline))
        again = yield self._reported(lost, SliceStarting(self._id, slot))
        return (yield self._reported(again, *self._ready()[:1], AllocationActivated(self._id)))

    def _ends_well(self, active: RecordedEvents) -> Lifecycle:
        if self._world.happens(0.2):
            reason = Reason("lease_expired", f"the lease ended at {self._world.now.isoformat()}")
            yield from self._ending(active, LeaseExpired(self._id), AllocationReleasing(self._id, reason))
        else:
            reason = Reason("asked", "the caller requested the release")
            yield from self._ending(active, AllocationReleasing(self._id, reason), LeaseEnded(self._id))

    def _ending(self, after: RecordedEvents, *facts: Fact) -> Lifecycle:
        releasing = self._each(lambda slot: SlotReleasing(slot, self._id))
        ended = yield LedgerCommand(
            (self._own(*facts), *releasing), self._caused(after, "process:allocation", "release")
        )
        if self._world.happens(0.02):
            ended = yield self._quarantined(ended)
        removed = chain(
            (SliceRemoved(self._id, slot) for slot in self._slots),
            () if isinstance(facts[0], AllocationFailed) else (AllocationReleased(self._id),),
        )
        released = self._each(lambda slot: SlotReleased(slot, self._id, _ABSENT))
        yield LedgerCommand((self._own(*removed), *released), self._caused(ended, self._node, self._report()))

    def _quarantined(self, ended: RecordedEvents) -> LedgerCommand:
        slot, left = self._slots[0], ("lease", "conntrack entry")
        reason = Reason(
            "absence_not_proved", f"node {node_of(slot)} still finds {len(left)} objects of the slice"
        )
        held = self._world.change(stream_of_slot(slot), SlotQuarantined(slot, self._id, reason, left))
        unproved = self._own(SliceRemovalIncomplete(self._id, slot, left))
        return LedgerCommand((unproved, held), self._caused(ended, self._node, self._report()))

    def _observed(self, slot: SlotId) -> Fact:
        network = _network(slot)
        address = network.private_ip
        return SliceAddressObserved(self._id, slot, network.mac_address, address, address, "bound")

    def _ready(self) -> tuple[Fact, ...]:
        return tuple(
            SliceReady(self._id, slot, _network(slot).private_ip, 22, "SSH-2.0-dropbear_2022.83")
            for slot in self._slots
        )

    def _reported(self, after: RecordedEvents, *facts: Fact) -> LedgerCommand:
        return LedgerCommand((self._own(*facts),), self._caused(after, self._node, self._report()))

    def _report(self) -> str:
        self._reports += 1
        return f"report {self._reports}"

    def _caused(self, by: RecordedEvents, actor: str, reason: str) -> Cause:
        return by[0].leads_to(actor=actor, reason=reason, observed_at=self._world.time())

    def _own(self, *facts: Fact) -> Change:
        return self._world.change(stream_of_allocation(self._id), *facts)

    def _each(self, fact: Callable[[SlotId], SlotFact]) -> Iterator[Change]:
        return (self._world.change(stream_of_slot(slot), fact(slot)) for slot in self._slots)


def _node(number: int) -> NodeId:
    return NodeId(f"node-{number}")


def _number(node: NodeId) -> int:
    return int(node.removeprefix("node-"))


def _subnet(number: int) -> Ipv4Subnet:
    return Ipv4Subnet(f"10.{number >> 8}.{number & 255}.0/24")


def _discovered(slot: SlotId) -> SlotDiscovered:
    return SlotDiscovered(slot, node_of(slot), SlotHardware(16, 131_072, f"tap{index_of(slot)}"))


def _network(slot: SlotId) -> SlotNetwork:
    number, index = _number(node_of(slot)), index_of(slot)
    tail = (number * SLOTS + index).to_bytes(3, "big")
    return SlotNetwork(
        l2_domain="default",
        mac_address=MacAddress(f"52:54:00:{tail.hex(':')}"),
        private_ip=Ipv4Address(f"10.{number >> 8}.{number & 255}.{10 + index}"),
        subnet=_subnet(number),
        gateway=Ipv4Address(f"10.{number >> 8}.{number & 255}.1"),
        bridge="br-slice",
    )
