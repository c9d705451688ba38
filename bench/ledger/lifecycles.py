"""Lifecycles of nodes and allocations as commands: everything that callers, nodes and processes record about them.

A lifecycle is a generator. It yields its next command and receives the recorded events, so that each event names its
cause as in a deployment. The control plane's own decision functions compute the events of each command from the earlier
events. Only the requests, the free slots that they get, and the reports of nodes are invented.
"""

import random
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from control_plane.commands.loaded import LoadedAllocation
from control_plane.commands.nodes import TOKEN_LIFETIME
from control_plane.decisions import allocation as life
from control_plane.decisions.allocation_states import Allocation, Requested, evolve
from control_plane.decisions.deadlines import ready_within
from control_plane.decisions.fleet.slots import approve, claim, discover, free, network_of, quarantine
from control_plane.decisions.quotas import use_of
from control_plane.histories import allocation_facts
from deploy.embedded.lab_catalogue import IMAGES, SKUS
from events.allocations import (
    AllocationFact,
    AllocationPlaced,
    AllocationRequested,
    AllocationSpecified,
    PlacedSlot,
    SliceAddressObserved,
    SliceInterrupted,
    SliceReady,
    SliceRemovalIncomplete,
)
from events.entries import SpecifiedImage, SpecifiedSku
from events.envelope import Cause, Recorded
from events.facts import Fact, Reason
from events.ledger.append import Change, LedgerCommand
from events.nodes import (
    DEFAULT_BRIDGE,
    DEFAULT_L2_DOMAIN,
    NodeEnrolled,
    NodeInspected,
    NodeNetwork,
    NodeRegistered,
)
from events.slots import SlotFact, SlotHardware, SlotNetwork
from events.values import (
    ImageName,
    Ipv4Subnet,
    NodeId,
    ProjectId,
    SkuName,
    SlotId,
    SlotIndex,
    SshPublicKey,
    allocation_of,
    node_of,
    slot_of,
    stream_of_allocation,
    stream_of_node,
    stream_of_slot,
)
from read_models import slots
from read_models.rows import Patch, folded
from read_models.slots import SlotRow

SLOTS: Final = 8
"""Number of slots of each node."""
SLOT_COUNTS: Final = (1, 1, 1, 1, 2, 2, 4, 8)
"""Slot counts of allocations; each entry has the same probability."""
PROJECTS: Final = tuple(ProjectId(f"project-{number}") for number in range(20))
_BEGAN: Final = datetime(2026, 3, 1, 8, tzinfo=UTC)
_LATER: Final = timedelta(days=1)
"""A time after which every deadline and lease is over."""
_NETWORK: Final = NodeNetwork(DEFAULT_BRIDGE, DEFAULT_L2_DOMAIN, None)
_SKU, _IMAGE = SkuName("lab.small"), ImageName("lab-guest")
_LOGIN: Final = SshPublicKey(
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBzPzYEEuKx0pWzqOq5eqUJYVtNHpb5lWPxYDBPzYxAP jo@example.org"
)
_ABSENT: Final = ("port", "lease", "flow", "translation", "firewall", "domain", "disk")
_LEFT: Final = ("lease", "conntrack entry")

RecordedEvents = tuple[Recorded[Fact], ...]
Lifecycle = Generator[LedgerCommand, RecordedEvents, None]


@dataclass(slots=True)
class World:
    """State shared by concurrent lifecycles: random numbers, time, and slots.

    `columns` are the stored columns of each slot's read model row, by slot id; `rows` are the same rows as `SlotRow`.
    `free` are the free slots of each node.
    """

    rng: random.Random
    columns: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[SlotId, SlotRow] = field(default_factory=dict)
    free: dict[NodeId, list[SlotId]] = field(default_factory=dict)
    now: datetime = _BEGAN

    def time(self) -> datetime:
        self.now += timedelta(microseconds=self.rng.randrange(1, 40_000))
        return self.now

    def uuid(self) -> UUID:
        """Return a UUIDv7 (RFC 9562) with the simulated time of the generated history."""
        number = int(self.time().timestamp() * 1000) << 80 | self.rng.getrandbits(80)
        return UUID(int=number & ~(0xF << 76 | 0x3 << 62) | 0x7 << 76 | 0x2 << 62)

    def cause(self, actor: str, reason: str | None = None, project: ProjectId | None = None) -> Cause:
        """Return the cause of a request, which names no earlier event. By default, `reason` is a random request id."""
        request = reason or f"req-{self.rng.getrandbits(64):016x}"
        trace = f"00-{self.rng.getrandbits(128):032x}-{self.rng.getrandbits(64):016x}-01"
        return Cause(actor, request, self.uuid(), self.time(), project, None, trace)

    def happens(self, share: float) -> bool:
        return self.rng.random() < share

    def record(
        self, cause: Cause, *changes: Change
    ) -> Generator[LedgerCommand, RecordedEvents, RecordedEvents]:
        """Yield a command with these changes, and apply its events to the stored slot rows, as an append does."""
        recorded = yield LedgerCommand(changes, cause)
        for each in recorded:
            if isinstance(each.fact, SlotFact):
                key, columns, born = slots.patch(each.version, each.fact)
                stored = folded(slots.slot, [Patch(key, columns, self.columns.get(key, born))])
                assert stored is not None
                self.columns[key], self.rows[each.fact.slot_id] = stored, SlotRow(stored)
        return recorded

    def take_slots(self) -> tuple[SlotId, ...]:
        """Take a random number of free slots of one random node. Return an empty tuple if too few are free."""
        if not self.free:
            return ()
        free, count = self.rng.choice(list(self.free.values())), self.rng.choice(SLOT_COUNTS)
        if len(free) < count:
            return ()
        taken, free[:] = tuple(free[:count]), free[count:]
        return taken


def node_lifecycle(world: World, number: int) -> Lifecycle:
    """Yield the commands of a node from its registration to the approval of its slots, which are free afterwards."""
    node, subnet = NodeId(f"node-{number}"), Ipv4Subnet(f"10.{number >> 8}.{number & 255}.0/24")
    stream, secret = stream_of_node(node), f"{world.rng.getrandbits(256):064x}"
    registered = NodeRegistered(node, subnet, DEFAULT_L2_DOMAIN, secret, world.now + TOKEN_LIFETIME)
    yield from world.record(world.cause("key:admin-1"), Change(stream, 0, (registered,)))
    enrolled = NodeEnrolled(node, secret, secret, 1, "0.1.0")
    yield from world.record(world.cause(f"node:{node}"), Change(stream, 1, (enrolled,)))
    inspected = NodeInspected(node, f"{node}.example.org", "0.1.0", True, (_IMAGE,), ())  # noqa: FBT003 (a fact's field)
    hardware = {SlotIndex(index): SlotHardware(1, 96, f"tap{index}") for index in range(SLOTS)}
    found = [Change(stream_of_slot(fact.slot_id), 0, (fact,)) for fact in discover(node, {}, hardware)]
    yield from world.record(world.cause(f"node:{node}", "survey"), Change(stream, 2, (inspected,)), *found)
    discovered = [slot_of(node, index) for index in hardware]
    for slot in discovered:
        row = world.rows[slot]
        # No two slots of node-0 to node-360 derive the same first MAC.
        approved = approve(slot, row.state, [_SKU], network_of(slot, subnet, _NETWORK))
        yield from world.record(
            world.cause("key:admin-1"), Change(stream_of_slot(slot), row.version, (approved,))
        )
    world.free[node] = discovered


def allocation_lifecycle(world: World, taken: tuple[SlotId, ...]) -> Lifecycle:
    """Yield the commands of an allocation from its request to its proved removal, which makes its slots free again."""
    yield from _Allocation(world, taken).life()
    world.free[node_of(taken[0])] += taken


class _Allocation:
    """A generated allocation; each method yields the commands of a part of its lifecycle."""

    def __init__(self, world: World, taken: tuple[SlotId, ...]) -> None:
        self._world, self._slots = world, taken
        self._id = allocation_of(world.uuid())
        self._stream = stream_of_allocation(self._id)
        self._node = f"node:{node_of(taken[0])}"
        self._history: tuple[Recorded[AllocationFact], ...] = ()
        self._state: Allocation | None = None
        self._reports = 0

    def life(self) -> Lifecycle:
        yield from self._create()
        placed = self._history[-1]
        for slot in self._slots:
            yield from self._reported(placed, life.start_slice(self._loaded.state, slot))
        if self._world.happens(0.02):
            late = life.miss_deadline(self._loaded.state, self._world.now + _LATER)
            yield from self._end(placed, "process:allocation", "deadline", late)
            return
        for slot in self._slots:
            yield from self._reported(placed, life.observe_address(self._loaded.state, self._observed(slot)))
            yield from self._ready(placed, slot)
        if self._world.happens(0.03):
            yield from self._interruption(self._slots[0])
        if self._world.happens(0.2):
            expired = life.expire(self._loaded.state, self._world.now + _LATER)
            yield from self._end(placed, "process:allocation", "end of lease", expired)
        else:
            reason = Reason("released_by_caller", "the caller requested the release")
            yield from self._end(
                placed, placed.cause.actor, "release", life.release(self._loaded.state, reason)
            )

    def _create(self) -> Lifecycle:
        world, caller = self._world, self._world.rng.randrange(3 * len(PROJECTS))
        project = PROJECTS[caller % len(PROJECTS)]
        cause = world.cause(f"key:caller-{caller}", project=project)
        request = AllocationRequested(
            self._id, project, _SKU, "private-nat", _IMAGE, (_LOGIN,), 3600, len(self._slots),
            {"team": f"team-{caller % 7}", "run": f"{world.rng.getrandbits(32):08x}"},
        )  # fmt: skip
        rows = [world.rows[slot] for slot in self._slots]
        chosen = tuple(PlacedSlot(row.slot_id, _network(row)) for row in rows)
        placed = AllocationPlaced(self._id, chosen, world.now + ready_within(SKUS[_SKU]))
        specified = AllocationSpecified(
            self._id,
            SpecifiedSku(_SKU, 1, SKUS[_SKU]),
            SpecifiedImage(_IMAGE, 1, IMAGES[_IMAGE]),
            app_profile=None,
        )
        use = use_of(project, cause.actor, specified)
        claims = (
            Change(stream_of_slot(row.slot_id), row.version, (claim(row.slot_id, self._id, use),))
            for row in rows
        )
        yield from self._record(cause, Change(self._stream, 0, (request, specified, placed)), *claims)

    def _interruption(self, slot: SlotId) -> Lifecycle:
        reason = Reason("machine_died", f"the virtual machine of {slot} ended without an order")
        interrupted = SliceInterrupted(self._id, slot, reason, self._world.now + ready_within(SKUS[_SKU]))
        after = self._history[-1]
        yield from self._reported(after, life.interrupt_slice(self._loaded.state, interrupted))
        yield from self._reported(after, life.start_slice(self._loaded.state, slot))
        yield from self._ready(after, slot)

    def _ready(self, after: Recorded[AllocationFact], slot: SlotId) -> Lifecycle:
        ready = SliceReady(
            self._id, slot, _network(self._world.rows[slot]).private_ip, 22, "SSH-2.0-dropbear_2022.83"
        )
        yield from self._reported(after, life.slice_ready(self._loaded.state, ready, self._world.now))

    def _end(
        self, after: Recorded[AllocationFact], actor: str, reason: str, facts: tuple[AllocationFact, ...]
    ) -> Lifecycle:
        """Record the end of the allocation with its cause, and then for each slot the proof that it is empty."""
        cause = after.leads_to(actor=actor, reason=reason, observed_at=self._world.time())
        yield from self._record(cause, *self._loaded.changes(facts))
        ended = self._history[-len(facts)]
        if self._world.happens(0.02):
            slot = self._slots[0]
            unproved = SliceRemovalIncomplete(self._id, slot, _LEFT)
            remaining = life.slice_removal_incomplete(self._loaded.state, unproved)
            held = quarantine(slot, self._world.rows[slot].state, self._id, _LEFT)
            yield from self._reported(ended, remaining, *self._loaded.slot_change(slot, held))
        for slot in self._slots:
            removed = life.slice_removed(self._loaded.state, slot)
            row = self._world.rows[slot]
            freed = free(slot, row.state, self._id, _ABSENT, row.use)
            yield from self._reported(ended, removed, *self._loaded.slot_change(slot, freed))

    def _observed(self, slot: SlotId) -> SliceAddressObserved:
        network = _network(self._world.rows[slot])
        address = network.private_ip
        return SliceAddressObserved(self._id, slot, network.mac_address, address, address, "bound")

    def _reported(
        self, after: Recorded[AllocationFact], facts: tuple[AllocationFact, ...], *slot_changes: Change
    ) -> Lifecycle:
        """Record these events as caused by a new report of the node about the order that the event `after` caused."""
        self._reports += 1
        cause = after.leads_to(
            actor=self._node, reason=f"report {self._reports}", observed_at=self._world.time()
        )
        yield from self._record(cause, *self._loaded.changes(facts, *slot_changes))

    def _record(self, cause: Cause, *changes: Change) -> Lifecycle:
        recorded = yield from self._world.record(cause, *changes)
        own = allocation_facts(tuple(each for each in recorded if each.stream == self._stream))
        assert own, f"the command with the reason {cause.reason!r} must record an event of {self._stream}"
        self._history += own
        for each in own:
            self._state = evolve(self._state, each.fact)

    @property
    def _loaded(self) -> LoadedAllocation:
        """Return the allocation's history, state and slot rows, as a command would load them from the database."""
        assert self._state is not None
        assert not isinstance(self._state, Requested)
        rows = {slot: self._world.rows[slot] for slot in self._slots}
        return LoadedAllocation(self._history, self._state, rows)


def _network(row: SlotRow) -> SlotNetwork:
    assert row.network is not None, f"the free slot {row.slot_id} must have the network that its approval set"
    return row.network
