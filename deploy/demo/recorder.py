"""Records demo data: carries out a plan with the commands that the routes of the API run, in the order of its times.

Each step of the plan can schedule later ones. Nodes report as agents do. Steps after the end of the demo data are not
carried out, so that some allocations are active at the end.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from random import Random
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from control_plane.commands.allocations import (
    expire_lease,
    release_allocation,
    start_allocation,
    stop_allocation,
)
from control_plane.commands.bring_ups import readmit_node_to_placement
from control_plane.commands.catalogue import create_entry, publish_version
from control_plane.commands.drains import cordon_node, uncordon_node
from control_plane.commands.identity import enrol_node, verify_enrolment
from control_plane.commands.ingress import change_addresses, close_ingress, open_ingress
from control_plane.commands.nodes import register_node
from control_plane.commands.placement_request import NewAllocation, WaitOptions
from control_plane.commands.placing import create_allocation
from control_plane.commands.projects import create_project, set_limits, set_reservation
from control_plane.commands.service_accounts import create_service_account
from control_plane.commands.slots import approve_slot, reprovision_slot, retire_slot
from control_plane.decisions.public_addresses import FIRST_PORT, LAST_PORT, IngressRequest, PortRequest
from control_plane.decisions.refusals import Refused
from control_plane.dispatcher.derive import Timing
from control_plane.dispatcher.dispatch import Dispatcher
from control_plane.handle import Command, Handle
from control_plane.histories import allocation_facts, allocation_history, histories
from control_plane.origin import Origin
from control_plane.processes.allocation import newest_order_of
from control_plane.reports.intake import Step, take_report
from control_plane.reports.slice_reports import Place
from control_plane.settings import SLICE_NETWORKS
from control_plane.version import release
from control_plane.work import tables
from control_plane.work.report_budget import Limits
from deploy.demo.clock import DemoClock
from deploy.demo.devices import SlotDevices, devices_of
from deploy.demo.plan import (
    ADMIN,
    GPU,
    LARGE,
    NIGHTLY,
    PROJECTS,
    SMALL,
    DemoNode,
    PlannedAllocation,
)
from deploy.embedded.lab_catalogue import SMALL as LAB_SMALL
from deploy.embedded.lab_catalogue import publish_with
from events.allocations import (
    AllocationActivated,
    AllocationPlaced,
    AllocationReplaced,
    AllocationRequested,
    PlacedSlot,
)
from events.entries import SkuContent
from events.facts import Reason
from events.nodes import PublicAddress
from events.projects import ProjectLimits
from events.service_accounts import ServiceAccountCreated
from events.values import (
    AllocationId,
    ImageName,
    IngressId,
    Ipv4Subnet,
    NodeId,
    ProjectId,
    SkuName,
    SlotId,
    SlotIndex,
    SshPublicKey,
    StreamId,
    allocation_of,
    correlation_of,
    index_of,
    ingress_of,
    node_of,
    stream_of_allocation,
)
from read_models.slots import slot
from tasks import reports
from tasks.agent_api import Enrolment, EnrolmentClaims
from tasks.catalogue import ANNOUNCED, bounds_of
from tasks.drift import LocatedEvidence, TimedEvidence
from tasks.orders import Order
from tasks.signing import Signer, new_private_key

_KEY: Final = SshPublicKey(
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHcl9zYpCQlBTb2vG1mW0K7f2LJkYH4wqQ2s5oE3c1aV demo"
)
EVER: Final = timedelta(days=3650)
"""Maximum age of the last heartbeat of a node that is used. It is long, because heartbeats have the true time and the
recorded data have times in the past.
"""
_NO_BUDGET: Final = Limits(burst=10**6)
_SESSION: Final = timedelta(minutes=15)
_SHORTEST_LEASE_SECONDS: Final = 600
_TASKS_KEPT: Final = timedelta(days=1)
"""Length of the last part of the demo data, for which tasks are recorded too: the time for which a control plane keeps
ended tasks by default.
"""
_ABSENT: Final = ("link", "lease", "port", "translation", "machine")
_FAULTS: Final = (
    ("step_refused", "machine.start: cannot allocate memory"),
    ("host_unreadable", "port.add: the bridge br-slice does not respond"),
    ("no_lease", "the guest requested no address"),
)
_NODE_FAULTS: Final = _FAULTS[:2]
_BANNER: Final = "SSH-2.0-dropbear_2022.83"
_SERVICES: Final = (
    PortRequest("tcp", 443, None),
    PortRequest("tcp", 6006, None),
    PortRequest("tcp", 8888, None),
)
_SOURCES: Final = ((Ipv4Subnet("0.0.0.0/0"),), (Ipv4Subnet("198.51.100.0/24"), Ipv4Subnet("203.0.113.0/24")))
_SKUS: Final[Mapping[SkuName, SkuContent]] = {
    SMALL: msgspec.structs.replace(
        LAB_SMALL, placement="spread", vcpus=2, memory_mib=4096, price_per_hour="0.12"
    ),
    LARGE: msgspec.structs.replace(
        LAB_SMALL, placement="spread", vcpus=8, memory_mib=32768, price_per_hour="0.48"
    ),
    GPU: msgspec.structs.replace(
        LAB_SMALL,
        gpu_model="NVIDIA H100 SXM5 80GB",
        gpu_count=4,
        vcpus=48,
        memory_mib=768 * 1024,
        numa="single",
        price_per_hour="9.8",
    ),
}
_INCARNATION: Final = UUID(int=0xDE30)

Act = Callable[[], Awaitable[None]]


@dataclass
class Recorder:
    """The control plane and the fleet of the demo data. `until` is the end of the data."""

    handle: Handle
    clock: DemoClock
    random: Random
    until: datetime
    refused: Counter[str] = field(default_factory=Counter)
    """Refused commands by the code of their first reason."""
    _due: list[tuple[datetime, int, Act]] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _reports: Counter[NodeId] = field(default_factory=Counter)
    _placed: dict[AllocationId, tuple[PlacedSlot, ...]] = field(default_factory=dict)
    _broken: set[NodeId] = field(default_factory=set)
    """Nodes on which no slice can be started."""
    _dispatched: set[AllocationId] = field(default_factory=set)
    """Allocations with tasks in `work.task`. The reports of their nodes end these tasks."""
    _public: set[NodeId] = field(default_factory=set)
    _devices: dict[NodeId, Mapping[SlotIndex, SlotDevices]] = field(default_factory=dict)

    # The clock and the queue of steps

    def at(self, moment: datetime, act: Act) -> None:
        """Schedule a step, unless it is after the end of the data."""
        if moment < self.until:
            heapq.heappush(self._due, (moment, next(self._numbers), act))

    def later(self, delay: timedelta, act: Act) -> None:
        self.at(self.clock.now + delay, act)

    async def run(self, progress: Callable[[datetime], None], is_halted: Callable[[], bool]) -> None:
        """Carry out the steps in the order of their times until `is_halted`, and report the time of each."""
        while self._due and not is_halted():
            moment, _, act = heapq.heappop(self._due)
            self.clock.advance_to(moment)
            await act()
            progress(moment)

    async def do(self, command: Command) -> bool:
        """Run a command. Return whether it was accepted."""
        try:
            await self.handle(command)
        except Refused as refusal:
            self.refused[refusal.objections[0].code] += 1
            return False
        return True

    def origin(self, reason: str, actor: str = ADMIN) -> Origin:
        return Origin(actor, reason, self.new_uuid())

    def new_uuid(self) -> UUID:
        """Return a UUIDv7 of the time of the clock."""
        time = int(self.clock.now.timestamp() * 1000) << 80
        return UUID(
            int=time | 7 << 76 | self.random.getrandbits(12) << 64 | 2 << 62 | self.random.getrandbits(62)
        )

    # Catalogue, projects and nodes

    async def found(self) -> None:
        """Create the catalogue, the projects and the service account."""
        await publish_with(self.handle)
        for name, content in _SKUS.items():
            await self.do(
                create_entry("sku", name, content, self.origin("PUT /v1/skus"), lambda made: made.name)
            )
        for each in PROJECTS:
            origin = self.origin("POST /v1/projects")
            await self.do(create_project(each.name, each.description, origin, lambda made: made.project))
            await self.limit(each.name, each.limits)
        account = ServiceAccountCreated(
            NIGHTLY, "Trains and evaluates models at night", "caller", tuple(each.name for each in PROJECTS)
        )
        origin = self.origin("POST /v1/service-accounts")
        await self.do(create_service_account(account, origin, lambda made: made.account))

    async def limit(self, project: ProjectId, limits: ProjectLimits) -> None:
        await self.do(set_limits(project, limits, self.origin("PUT /v1/projects/limits")))

    async def raise_price(self) -> None:
        content = msgspec.structs.replace(_SKUS[SMALL], price_per_hour="0.14")
        await self.do(publish_version("sku", SMALL, content, self.origin("PUT /v1/skus")))

    async def reserve(self, project: ProjectId, slots: int) -> None:
        await self.do(set_reservation(project, LARGE, slots, self.origin("PUT /v1/projects/reservations")))

    async def add(self, node: DemoNode) -> None:
        """Register and enrol a node, and approve its slots."""
        token = f"demo-token-of-{node.name}"
        await self.do(register_node(node.name, token, self.origin("POST /v1/nodes"), SLICE_NETWORKS))
        await self.do(
            enrol_node(verify_enrolment(_enrolment(node.name, token)), self._of(node.name), _SESSION)
        )
        await self.describe(node)
        await self._record_heartbeat(node.name)
        if node.public_address is not None:
            self._public.add(node.name)
            address = PublicAddress(node.public_address, "ports", FIRST_PORT, LAST_PORT)
            origin = self.origin("PUT /v1/nodes/public-addresses")
            await self.do(change_addresses(node.name, (address,), origin, SLICE_NETWORKS))
        sku = next(name for name, content in _SKUS.items() if content.vcpus == node.size.vcpus)
        for index in range(node.slots):
            slot = SlotId(f"{node.name}/{index}")
            await self.do(approve_slot(slot, [sku], self.origin("POST /v1/nodes/slots/approve")))

    async def describe(self, node: DemoNode, *drift: LocatedEvidence) -> None:
        self._devices[node.name] = devices_of(node)
        found = tuple(
            reports.FoundSlot(
                index=index,
                vcpus=node.size.vcpus,
                memory_mib=node.size.memory_mib,
                network_device=f"slice{index}",
                devices=slot.found,
                numa_node=index if node.gpus else None,
            )
            for index, slot in devices_of(node).items()
        )
        body = reports.NodeSurveyed(
            hostname=node.name, agent_version=release(), simulated=True, images=("lab-guest",), missing=(),
            slots=found, drift=drift,
        )  # fmt: skip
        await self.report(node.name, body)

    async def report(self, node: NodeId, body: reports.ReportBody, order_id: UUID | None = None) -> None:
        """Deliver the next report of a node. `order_id` is the task that it reports the result of, if any."""
        self._reports[node] += 1
        report = reports.Report(
            sequence=self._reports[node], observed_at=self.clock.now, order_id=order_id, body=body
        )
        place = Place(node, _INCARNATION)
        command = take_report(place, Step(report), _NO_BUDGET, unreachable_after=EVER, simulated_allowed=True)
        await self.do(command)

    def _of(self, node: NodeId) -> Origin:
        return self.origin("enrolment", f"node:{node}")

    async def _record_heartbeat(self, node: NodeId) -> None:
        row = {"seen_at": self.clock.now, "agent_version": release(), "spooled_reports": 0, "resynced": True}
        statement = insert(tables.node_seen).values(node_id=node, **row)
        async with self.handle.engine.begin() as conn:
            await conn.execute(statement.on_conflict_do_update(index_elements=["node_id"], set_=row))

    async def _change(self, allocation: AllocationId, command: Command) -> bool:
        """Run a command on an allocation, and write its tasks if they are kept. Return whether the command was
        accepted.
        """
        if not await self.do(command):
            return False
        if self.until - self.clock.now < _TASKS_KEPT:
            self._dispatched.add(allocation)
        if allocation in self._dispatched:
            await self.dispatch(stream_of_allocation(allocation))
        return True

    async def dispatch(self, stream: StreamId) -> None:
        """Write the tasks that are due for a stream, as the dispatcher does. They count as sent."""
        async with self.handle.engine.connect() as conn:
            history = (await histories(conn, [stream]))[stream]
        dispatcher = Dispatcher(self.handle, Timing(EVER))
        evaluations = await dispatcher.evaluate(history, self.clock.now)
        async with self.handle.engine.begin() as conn:
            await dispatcher.write(conn, evaluations)
            await conn.execute(sa.delete(tables.unsent))

    # Incidents of nodes

    async def break_down(self, node: NodeId) -> None:
        self._broken.add(node)

    async def repair_drift(self, node: DemoNode, kind: str, desired: str, observed: str) -> None:
        """Report drift of a slot that the node has repaired."""
        evidence = TimedEvidence(kind=kind, desired=desired, observed=observed, since=self.clock.now)
        slot = self.random.randrange(node.slots)
        await self.report(node.name, reports.DriftRepaired(slot=slot, drift=(evidence,)))

    async def open_drift(self, node: DemoNode, kind: str, desired: str, observed: str) -> None:
        """Report drift that the node cannot repair. From then on, the node sends no heartbeat."""
        since, slot = self.clock.now, None
        found = LocatedEvidence(kind=kind, desired=desired, observed=observed, since=since, slot=slot)
        await self.describe(node, found)
        await self._record_heartbeat(node.name)

    async def cordon(self, node: NodeId, reason: str) -> None:
        await self.do(cordon_node(node, reason, self.origin("POST /v1/nodes/cordon")))

    async def uncordon(self, node: NodeId, reason: str) -> None:
        origin = self.origin("POST /v1/nodes/uncordon")
        await self.do(uncordon_node(node, reason, origin, unreachable_after=EVER))

    async def readmit(self, node: NodeId, reason: str) -> None:
        self._broken.discard(node)
        await self.do(readmit_node_to_placement(node, reason, self.origin("POST /v1/nodes/readmit")))

    async def _free_slot(self) -> SlotId:
        """Return the free slot that is the last one by name."""
        query = (
            sa.select(slot.c.slot_id).where(slot.c.state == "free").order_by(slot.c.slot_id.desc()).limit(1)
        )
        async with self.handle.engine.connect() as conn:
            return SlotId(await conn.scalar(query) or "")

    async def retire(self, reason: str) -> None:
        await self.do(
            retire_slot(await self._free_slot(), reason, self.origin("POST /v1/nodes/slots/retire"))
        )

    async def reprovision(self, reason: str) -> None:
        await self.do(
            reprovision_slot(await self._free_slot(), reason, self.origin("POST /v1/nodes/slots/reprovision"))
        )

    # Allocations

    async def request(self, planned: PlannedAllocation, wait: WaitOptions | None = None) -> None:
        """Request an allocation. With `wait`, the request waits for capacity if there is none."""
        correlation = self.new_uuid()
        allocation = allocation_of(correlation)
        lease = planned.lasts if planned.expires else planned.lasts * 1.5
        request = AllocationRequested(
            allocation, planned.project, planned.sku,
            "public-nat" if planned.publishes else "private-nat", ImageName("lab-guest"), (_KEY,),
            max(round(lease.total_seconds()), _SHORTEST_LEASE_SECONDS), planned.slots, planned.labels,
            node=planned.node, replace_on_failure=planned.node is None,
        )  # fmt: skip

        def note_slots(facts: Sequence[object], _now: datetime) -> str:
            self._note_slots(allocation, facts)
            return ""

        # As in the API: an allocation's timeline consists of the events with the correlation id in its id.
        origin = self._of_caller(planned, allocation, "POST /v1/allocations")
        new = NewAllocation(request, EVER, simulated_allowed=True, wait=wait)
        if (
            await self._change(allocation, create_allocation(new, origin, note_slots))
            and allocation in self._placed
        ):
            self.later(timedelta(seconds=1), partial(self._bring_up, allocation, planned, first=True))

    def _of_caller(self, planned: PlannedAllocation, allocation: AllocationId, reason: str) -> Origin:
        return Origin(planned.caller, reason, correlation_of(allocation), planned.project)

    def _note_slots(self, allocation: AllocationId, facts: Sequence[object]) -> None:
        for fact in facts:
            if isinstance(fact, AllocationPlaced | AllocationReplaced):
                self._placed[allocation] = fact.slots

    async def _tasks(self, allocation: AllocationId, slots: Sequence[PlacedSlot]) -> Mapping[SlotId, UUID]:
        """Return the newest orders of slots of an allocation with tasks; nothing for another allocation."""
        return await self._orders(allocation, slots) if allocation in self._dispatched else {}

    async def _orders(self, allocation: AllocationId, slots: Sequence[PlacedSlot]) -> Mapping[SlotId, UUID]:
        """Return the ids of the newest orders of slots that an allocation has or had."""
        async with self.handle.engine.connect() as conn:
            history = await allocation_history(conn, allocation)
        orders = (newest_order_of(history, each.slot_id) for each in slots)
        return {order.slot_id: order.order_id for order in orders if order is not None}

    async def _bring_up(self, allocation: AllocationId, planned: PlannedAllocation, *, first: bool) -> None:
        placed = self._placed[allocation]
        for each in placed:
            starting = reports.SliceStarting(slot_id=each.slot_id, allocation_id=allocation)
            await self.report(node_of(each.slot_id), starting)
        is_broken = node_of(placed[0].slot_id) in self._broken
        if is_broken or (planned.fails and first):
            self._dispatched.add(allocation)
            await self.dispatch(stream_of_allocation(allocation))
            faults = _NODE_FAULTS if is_broken else _FAULTS
            self.later(planned.boots_in, partial(self._fail, allocation, planned, self.random.choice(faults)))
        else:
            self.later(planned.boots_in, partial(self._become_ready, allocation, planned))

    async def _fail(
        self, allocation: AllocationId, planned: PlannedAllocation, fault: tuple[str, str]
    ) -> None:
        """Report that the slices of the allocation cannot be started. If the control plane then places the allocation
        on another node, start its slices there.
        """
        former = self._placed[allocation]
        orders = await self._orders(allocation, former)
        code, message = fault
        reason = reports.Reason(code=code, message=message)
        slot_id = former[0].slot_id
        body = reports.SliceFailed(slot_id=slot_id, allocation_id=allocation, reason=reason)
        await self.report(node_of(slot_id), body, orders[slot_id])
        async with self.handle.engine.connect() as conn:
            self._note_slots(allocation, [each.fact for each in await allocation_history(conn, allocation)])
        await self.dispatch(stream_of_allocation(allocation))
        self.later(timedelta(seconds=9), partial(self._remove, allocation, former))
        if self._placed[allocation] != former:
            self.later(timedelta(seconds=2), partial(self._bring_up, allocation, planned, first=False))

    async def _become_ready(self, allocation: AllocationId, planned: PlannedAllocation) -> None:
        for each in self._placed[allocation]:
            network = each.network
            address = reports.SliceAddress(
                slot_id=each.slot_id, allocation_id=allocation, mac=network.mac_address,
                expected_ip=network.private_ip, actual_ip=network.private_ip, lease_state="bound",
            )  # fmt: skip
            await self.report(node_of(each.slot_id), address)
        await (self._carry_out if allocation in self._dispatched else self._report_ready)(allocation)
        if planned.is_interrupted:
            self.later(planned.lasts * 0.5, partial(self._interrupt, allocation))
        if planned.stops:
            self.later(planned.lasts * 0.6, partial(self._stop, allocation, planned))
        if planned.publishes and node_of(self._placed[allocation][0].slot_id) in self._public:
            self.later(timedelta(minutes=7), partial(self._publish, allocation, planned))
        if planned.expires:
            # The lease began at the last report.
            ends_in = max(planned.lasts, timedelta(seconds=_SHORTEST_LEASE_SECONDS))
            self.later(ends_in + timedelta(seconds=2), partial(self._expire, allocation))
        else:
            self.later(planned.lasts, partial(self._release, allocation, planned))

    async def _report_ready(
        self, allocation: AllocationId, orders: Mapping[SlotId, UUID] | None = None
    ) -> None:
        """Report that all slices of an allocation are ready, as `orders` request it. Only a report with the id of the
        newest order publishes and removes ingress rules.
        """
        for each in self._placed[allocation]:
            ready = reports.SliceReady(
                slot_id=each.slot_id,
                allocation_id=allocation,
                address=each.network.private_ip,
                port=22,
                banner=_BANNER,
            )
            await self.report(node_of(each.slot_id), ready, (orders or {}).get(each.slot_id))

    async def _carry_out(self, allocation: AllocationId) -> None:
        """Report that the newest orders of an allocation are carried out."""
        await self._report_ready(allocation, await self._orders(allocation, self._placed[allocation]))

    async def _interrupt(self, allocation: AllocationId) -> None:
        """Let the first slice end without an order, and restart it."""
        [first, *_] = self._placed[allocation]
        reason = reports.Reason(code="machine_not_running", message="the virtual machine is shut off")
        body = reports.SliceInterrupted(slot_id=first.slot_id, allocation_id=allocation, reason=reason)
        await self.report(node_of(first.slot_id), body)
        self.later(timedelta(seconds=40), partial(self._report_ready, allocation))

    async def _stop(self, allocation: AllocationId, planned: PlannedAllocation) -> None:
        reason = Reason("stopped_by_caller", f"stop was requested by {planned.caller}")
        origin = self._of_caller(planned, allocation, f"POST /v1/allocations/{allocation}/stop")
        if not await self._change(allocation, stop_allocation(allocation, origin, reason)):
            return
        orders = await self._tasks(allocation, self._placed[allocation])
        for each in self._placed[allocation]:
            body = reports.SliceStopped(slot_id=each.slot_id, allocation_id=allocation, forced=False)
            order = orders.get(each.slot_id)
            self.later(timedelta(seconds=8), partial(self.report, node_of(each.slot_id), body, order))
        if planned.starts_again:
            self.later(planned.lasts * 0.2, partial(self._start, allocation, planned))

    async def _start(self, allocation: AllocationId, planned: PlannedAllocation) -> None:
        reason = Reason("started_by_caller", f"start was requested by {planned.caller}")
        origin = self._of_caller(planned, allocation, f"POST /v1/allocations/{allocation}/start")
        await self._change(allocation, start_allocation(allocation, origin, reason))
        self.later(planned.boots_in, partial(self._carry_out, allocation))

    async def _publish(self, allocation: AllocationId, planned: PlannedAllocation) -> None:
        """Open an ingress rule, and withdraw it later if the plan contains this."""
        name = ingress_of(self.new_uuid())
        request = IngressRequest(0, self.random.choice(_SERVICES), self.random.choice(_SOURCES))
        origin = self._of_caller(planned, allocation, f"POST /v1/allocations/{allocation}/ingress")
        if not await self._change(
            allocation, open_ingress(allocation, name, request, origin, lambda _facts: "")
        ):
            return
        self.later(timedelta(seconds=2), partial(self._carry_out, allocation))
        if planned.closes:
            self.later(planned.lasts * 0.4, partial(self._close, allocation, planned, name))

    async def _close(self, allocation: AllocationId, planned: PlannedAllocation, name: IngressId) -> None:
        reason = Reason(
            "withdrawn_by_caller", f"removal of the ingress rule was requested by {planned.caller}"
        )
        origin = self._of_caller(planned, allocation, f"DELETE /v1/allocations/{allocation}/ingress/{name}")
        await self._change(allocation, close_ingress(allocation, name, origin, reason))
        self.later(timedelta(seconds=2), partial(self._carry_out, allocation))

    async def store_orders(self) -> None:
        """Store the orders of the slices that run at the end of the data, as tasks that have succeeded.

        The dispatcher derives no order for a slice that is ready already. Without this row, an agent, which begins with
        an empty host, would not get the order, and the slice would not exist.
        """
        claimed = sa.select(slot.c.slot_id, slot.c.allocation_id).where(slot.c.state == "claimed")
        async with self.handle.engine.begin() as conn:
            for row in (await conn.execute(claimed)).all():
                history = allocation_facts(await allocation_history(conn, AllocationId(row.allocation_id)))
                order = newest_order_of(history, SlotId(row.slot_id))
                active = next((each for each in history if isinstance(each.fact, AllocationActivated)), None)
                if order is not None and active is not None:
                    [cause] = [each for each in history if each.position == order.token.position]
                    await conn.execute(
                        insert(tables.task)
                        .values(
                            _succeeded(order, cause.recorded_at, max(active.recorded_at, cause.recorded_at))
                        )
                        .on_conflict_do_nothing()
                    )

    async def _expire(self, allocation: AllocationId) -> None:
        await self._change(allocation, expire_lease(allocation))
        self._remove_soon(allocation)

    async def _release(self, allocation: AllocationId, planned: PlannedAllocation) -> None:
        reason = Reason("released_by_caller", "the caller requested the release")
        origin = self._of_caller(planned, allocation, f"DELETE /v1/allocations/{allocation}")
        await self._change(allocation, release_allocation(allocation, origin, reason))
        if not planned.leaves_remains:
            self._remove_soon(allocation)
            return
        for each in self._placed[allocation]:
            body = reports.SliceNotRemoved(
                slot_id=each.slot_id,
                allocation_id=allocation,
                leftovers=("the link tap0 is still on the bridge",),
            )
            await self.report(node_of(each.slot_id), body)
        self.later(timedelta(hours=3), partial(self._remove, allocation, self._placed[allocation]))

    def _remove_soon(self, allocation: AllocationId) -> None:
        delay = timedelta(seconds=self.random.uniform(3, 25))
        self.later(delay, partial(self._remove, allocation, self._placed[allocation]))

    async def _remove(self, allocation: AllocationId, placed: Sequence[PlacedSlot]) -> None:
        orders = await self._tasks(allocation, placed)
        for each in placed:
            node, index = node_of(each.slot_id), index_of(each.slot_id)
            body = reports.SliceRemoved(
                slot_id=each.slot_id, allocation_id=allocation, absent=_ABSENT,
                devices=self._devices[node][index].readings,
            )  # fmt: skip
            await self.report(node, body, orders.get(each.slot_id))


def _succeeded(order: Order, sent_at: datetime, ended_at: datetime) -> dict[str, Any]:
    """Return the row of `work.task` of an order that its node has carried out."""
    body, token = order.body, order.token
    return {
        "order_id": order.order_id, "node_id": order.node_id, "slot_id": order.slot_id, "kind": body.kind,
        "allocation_id": order.allocation_id, "epoch": token.epoch, "position": token.position,
        "order": order.model_dump_json(), "lane": bounds_of(body.kind).lane, "state": "done", "sends": 1,
        "created_at": sent_at, "sent_at": sent_at, "ended_at": ended_at,
    }  # fmt: skip


def _enrolment(node: NodeId, token: str) -> Enrolment:
    """Return an enrolment with a key that is not stored: no agent continues this session."""
    signer = Signer.of_pem(new_private_key())
    claims = EnrolmentClaims(
        node_id=node,
        token_sha256=sha256(token.encode()).hexdigest(),
        credential_sha256=sha256(f"credential of {node}".encode()).hexdigest(),
        queue_password_sha256=sha256(f"password of {node}".encode()).hexdigest(),
        agent_version=release(),
        capabilities=ANNOUNCED,
    )
    proof = signer.sign("session+jws", claims.model_dump_json().encode())
    return Enrolment(token=token, public_key=signer.public, proof=proof)
