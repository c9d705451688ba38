"""Random commands and reports of two projects and two callers on a fleet of two nodes, for property tests.

After each command, the figures that the product shows equal those that `expected_state` computes from the events of the
ledger, and each accepted request is within the limits at that time.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, TypeVar

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from psycopg.rows import tuple_row
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.admission.reservations import Placeable, supplies
from control_plane.commands.ingress import change_addresses
from control_plane.commands.placement_request import WaitOptions
from control_plane.decisions.budgets import month_of
from control_plane.decisions.quotas import exceeded_by, times
from control_plane.handle import database_time
from control_plane.settings import SLICE_NETWORKS
from deploy.embedded.lab_catalogue import SMALL
from deploy.embedded.postgres import PostgresServer
from events.derived.quotas import NOTHING_USED, QuotaUse
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.tail import Tail
from events.nodes import PublicAddress
from events.principals import PrincipalLimits
from events.projects import ProjectLimits
from events.values import (
    AllocationId,
    Ipv4Address,
    NodeId,
    Position,
    ProjectId,
    SkuName,
    SlotId,
    StreamId,
    node_of,
    stream_of_principal,
    stream_of_project,
)
from read_models.commitments import commitments
from read_models.usage import entries as usage
from read_models.usage.entries import Grouping
from read_models.usage.intervals import UsageFilter
from read_models.usage.periods import Bill, Piece
from read_models.usage.unused import sums, unused_parts
from tasks import reports
from tests.projections import usage_by_hand as by_hand
from tests.projections.expected_state import Expected, Uses, cost_in_month, free_by_node
from tests.projections.fleet import living
from tests.servers.postgres import cloned

T = TypeVar("T")
NODES: Final = (NodeId("node-a"), NodeId("node-b"))
SLOTS_OF_A_NODE: Final = 2
NAMES: Final = (ProjectId("red"), ProjectId("blue"))
SKU: Final = SkuName("lab.small")
PRICE: Final = Decimal(SMALL.price_per_hour)
LEASE: Final = timedelta(hours=1)
"""Length of each requested lease."""
LONGEST_WAIT: Final = timedelta(hours=5)
DEFAULT_WAITING: Final = 3
"""Number of requests of a project that may wait without a limit of its own."""
NODE_FAULT: Final = reports.Reason(code="step_refused", message="machine.start: refused")
USED_NODES: Final = Placeable(timedelta(seconds=20), simulated_allowed=True)
PROJECTS, ACTORS = st.sampled_from(NAMES), st.sampled_from(["key:alice", "key:bob"])
# Most limits are absent, so that requests also wait for capacity.
amount = st.sampled_from([None, None, None, None, 0, 1, 2, 3])
price = st.sampled_from([None, None, None, "0", "0.01", "0.03"])
project_limits = st.builds(
    ProjectLimits,
    slots=amount,
    vcpus=amount,
    public_ports=amount,
    waiting_requests=st.sampled_from([None, None, 0, 1, 2]),
    price_per_hour=price,
    max_lease_seconds=st.sampled_from([None, None, None, 1800, 3600, 3 * 3600]),
    budget_per_month=st.sampled_from([None, None, None, "0", "0.015", "0.025", "0.07"]),
)
principal_limits = st.builds(PrincipalLimits, slots=amount, price_per_hour=price)
_COUNTED: Final = """
select holder, sum(slots)::int, sum(gpus)::int, sum(vcpus)::int, sum(memory_mib)::int, sum(public_addresses)::int,
       sum(public_ports)::int, sum(waiting_requests)::int, sum(price_per_hour) from read.quota_use group by holder
"""
_USABLE: Final = """
select slot_id from read.slot join read.node using (node_id)
 where slot.state = 'free' and slot.excluded is null and node.excluded is null
"""


class RandomCommands(RuleBasedStateMachine):
    """State machine of Hypothesis. `server` has to be set before it runs."""

    server: PostgresServer

    def __init__(self) -> None:
        super().__init__()
        self._resources, self._async_resources = ExitStack(), AsyncExitStack()
        self._runner = self._resources.enter_context(asyncio.Runner())
        database = self._resources.enter_context(cloned(self.server))
        self._conn = self._resources.enter_context(
            psycopg.connect(database.admin_dsn, autocommit=True, row_factory=tuple_row)
        )
        self.fleet = self._run(self._async_resources.enter_async_context(living(database)))
        self._tail = Tail(database.app_dsn)
        self._async_resources.push_async_callback(self._tail.close)
        self.expected, self._events = Expected(), list[Recorded[Fact]]()
        # The time stands still unless a step lets it pass, so that the expected figures are of the same time. It begins
        # in the past of the database, so that some leases are over when their end is recorded.
        self.now = datetime.now(UTC) - timedelta(hours=2)
        self.fleet.handle = replace(self.fleet.handle, clock=self._clock)
        for number, node in enumerate(NODES):
            self._run(self.fleet.bring_up(node, SLOTS_OF_A_NODE))
            address = PublicAddress(Ipv4Address(f"203.0.113.{number}"), "ports", 20000, 20009)
            origin = self.fleet.origin("addresses")
            assert self._run(self.fleet.do(change_addresses(node, (address,), origin, SLICE_NETWORKS)))
        self._check()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    @rule(project=PROJECTS, limits=project_limits)
    def project_is_limited(self, project: str, limits: ProjectLimits) -> None:
        self._run(self.fleet.set_limits(project, limits))
        self._check()

    @rule(actor=ACTORS, limits=principal_limits)
    def caller_is_limited(self, actor: str, limits: PrincipalLimits) -> None:
        assert self._run(self.fleet.set_principal_limits(limits, actor))
        self._check()

    @rule(project=PROJECTS, slots=st.sampled_from([0, 0, 0, 1, 3]))
    def slots_are_reserved(self, project: str, slots: int) -> None:
        self._run(self.fleet.set_reservation(project, SKU, slots))
        self._check()

    @rule(
        project=PROJECTS,
        actor=ACTORS,
        slots=st.integers(1, 2),
        ports=st.integers(0, 2),
        priority=st.sampled_from([None, 0, 0, 1, -1]),
    )
    def allocation_is_requested(
        self, project: ProjectId, actor: str, slots: int, ports: int, priority: int | None
    ) -> None:
        over = self._over(project, actor, slots, ports)
        may_queue = priority is not None and self._may_queue(project)
        others_wait = bool(self.expected.waiting())
        wait = None if priority is None else WaitOptions(priority, LONGEST_WAIT, DEFAULT_WAITING)
        made = self._run(self.fleet.create(slots, project, ports=ports, actor=actor, wait=wait))
        refusal = self.fleet.refused
        codes = set() if made or refusal is None else {each.code for each in refusal.objections}
        if over:
            assert made is None
            assert codes <= over
            assert codes
        elif not others_wait:
            placed = made is not None and made in self.fleet.placed
            unavailable = self._unavailable(project, slots, placed=placed)
            if made is not None:
                assert placed == (not unavailable)
                assert placed or may_queue
            elif priority is None:
                assert codes <= unavailable
                assert codes
            else:
                assert unavailable
                assert not may_queue
                assert codes == {"quota_exceeded"}
        else:
            assert made is not None or codes <= {"no_capacity", "slots_reserved", "quota_exceeded"}
        self._check()

    @precondition(lambda self: self.expected.waiting())
    @rule()
    def queue_is_passed_over(self) -> None:
        before = [*self.fleet.queued]
        self._run(self.fleet.place_queued())
        self._check()
        self._check_limits([each for each in before if each not in self.fleet.queued])
        for first in self.expected.waiting():
            request = first.request
            rules = 0 if first.queued is None else len(first.queued.ingress)
            if not self._over(request.project, first.actor, request.slot_count, rules) - {"lease_too_long"}:
                # The first request that its limits permit does not fit.
                assert self._unavailable(request.project, request.slot_count, placed=False)
                break

    @precondition(lambda self: self.fleet.queued)
    @rule(data=st.data(), cancel=st.booleans())
    def wait_ends(self, data: st.DataObject, cancel: bool) -> None:
        name: AllocationId = data.draw(st.sampled_from(self.fleet.queued), label="waiting request")
        found = self.expected.allocations[name]
        assert found.queued is not None
        is_over = found.queued.waits_until <= self.now
        self._run(self.fleet.release(name) if cancel else self.fleet.expire_wait(name))
        self._check()
        ended = "released" if cancel else "failed" if is_over else "waiting"
        assert self.expected.allocations[name].state == ended

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def slices_are_ready(self, data: st.DataObject) -> None:
        allocation = self._allocation(data)
        for slot in self.fleet.placed[allocation]:
            body = reports.SliceReady(
                slot_id=slot, allocation_id=allocation, address="10.0.0.2", port=22, banner="SSH-2.0"
            )
            self._run(self.fleet.report(node_of(slot), body))
        self._check()

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), minutes=st.sampled_from([20, 90, 200]))
    def lease_is_renewed(self, data: st.DataObject, minutes: int) -> None:
        allocation, duration = self._allocation(data), timedelta(minutes=minutes)
        lease = self.expected.allocations[allocation]
        project, end = lease.request.project, lease.ends_at
        if not lease.has_running_lease or end is None or end <= self.now:
            permitted = False
        else:
            cost = cost_in_month(self.now, PRICE, lease.request.slot_count, end, self.now + duration)
            limit = self._project_limits(project).max_lease_seconds
            is_short = limit is None or duration.total_seconds() <= limit
            permitted = is_short and not self.expected.over_budget(project, self.now, cost)
        assert self._run(self.fleet.renew_lease(allocation, duration)) == permitted
        self._check()

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def lease_is_over(self, data: st.DataObject) -> None:
        allocation = self._allocation(data)
        lease = self.expected.allocations[allocation]
        expires = lease.has_running_lease and lease.ends_at is not None and lease.ends_at <= self.now
        before = lease.expired
        self._run(self.fleet.expire(allocation))
        self._check()
        assert lease.expired == before + expires

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def allocation_is_stopped(self, data: st.DataObject) -> None:
        allocation = self._allocation(data)
        self._run(self.fleet.stop(allocation))
        for slot in self.fleet.placed[allocation]:
            body = reports.SliceStopped(slot_id=slot, allocation_id=allocation, forced=False)
            self._run(self.fleet.report(node_of(slot), body))
        self._check()

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def allocation_is_released(self, data: st.DataObject) -> None:
        self._run(self.fleet.release(self._allocation(data)))
        self._check()

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), what=st.sampled_from(["removed", "removed", "leftovers", "failed"]))
    def slices_are_reported(self, data: st.DataObject, what: str) -> None:
        allocation = self._allocation(data)
        body: reports.ReportBody
        for slot in self.fleet.placed[allocation]:
            match what:
                case "removed":
                    body = reports.SliceRemoved(slot_id=slot, allocation_id=allocation, absent=("port",))
                case "leftovers":
                    body = reports.SliceNotRemoved(
                        slot_id=slot, allocation_id=allocation, leftovers=("port",)
                    )
                case _:
                    body = reports.SliceFailed(slot_id=slot, allocation_id=allocation, reason=NODE_FAULT)
            self._run(self.fleet.report(node_of(slot), body))
        self._run(self.fleet.note_replacement(allocation))
        self._check()

    @rule(node=st.sampled_from(NODES), index=st.integers(0, SLOTS_OF_A_NODE - 1))
    def slot_is_force_released(self, node: NodeId, index: int) -> None:
        self._run(self.fleet.force_release(SlotId(f"{node}/{index}")))
        self._check()

    @rule(node=st.sampled_from(NODES), index=st.none() | st.integers(0, SLOTS_OF_A_NODE - 1))
    def node_or_slot_is_readmitted(self, node: NodeId, index: int | None) -> None:
        self._run(self.fleet.readmit(node, None if index is None else SlotId(f"{node}/{index}")))
        self._check()

    @rule(hours=st.sampled_from([1, 1, 10, 24 * 10]))
    def time_passes(self, hours: int) -> None:
        self.now += timedelta(hours=hours)
        self._check()

    async def _clock(self, conn: AsyncConnection) -> datetime:
        # The statement begins the transaction, as that of the product's clock does; without it, nothing is committed.
        await database_time(conn)
        return self.now

    def _allocation(self, data: st.DataObject) -> AllocationId:
        chosen: AllocationId = data.draw(st.sampled_from([*self.fleet.placed]), label="allocation")
        return chosen

    def _project_limits(self, project: ProjectId) -> ProjectLimits:
        limits = self.expected.limits.get(stream_of_project(project), ProjectLimits())
        assert isinstance(limits, ProjectLimits)
        return limits

    def _over(self, project: ProjectId, actor: str, slots: int, ports: int) -> set[str]:
        """Return the codes of the limits that a request exceeds now."""
        found, uses = set[str](), self.expected.uses()
        longest = self._project_limits(project).max_lease_seconds
        if longest is not None and longest < LEASE.total_seconds():
            found.add("lease_too_long")
        cost = cost_in_month(self.now, PRICE, slots, self.now, self.now + LEASE)
        if self.expected.over_budget(project, self.now, cost):
            found.add("quota_exceeded")
        of_slots = times(
            QuotaUse(1, SMALL.gpu_count, SMALL.vcpus, SMALL.memory_mib, price_per_hour=PRICE), slots
        )
        requested = {
            stream_of_project(project): of_slots.plus(QuotaUse(public_ports=ports)),
            stream_of_principal(actor): of_slots,
        }
        for holder, more in requested.items():
            limits = self.expected.limits.get(holder)
            if limits is not None and exceeded_by(
                "project", holder, limits, uses.get(holder, NOTHING_USED), more
            ):
                found.add("quota_exceeded")
        return found

    def _may_queue(self, project: ProjectId) -> bool:
        limit = self._project_limits(project).waiting_requests
        used = self.expected.uses().get(stream_of_project(project), NOTHING_USED).waiting_requests
        return used < (DEFAULT_WAITING if limit is None else limit)

    def _unavailable(self, project: ProjectId, slots: int, *, placed: bool) -> set[str]:
        """Return the codes with which a request within all quotas can be refused for lack of slots; none if it fits.
        `placed` is true if the slots of the request are already claimed.
        """
        free = free_by_node([slot for (slot,) in self._conn.execute(_USABLE).fetchall()])
        total = free.total() + (slots if placed else 0)
        has_room = placed or max(free.values(), default=0) >= slots
        kept = self.expected.kept_for_others(project)
        if kept and total - slots < kept:
            return {"slots_reserved", "no_capacity", "no_healthy_slot"}
        return set() if has_room else {"no_capacity", "no_healthy_slot"}

    def _check_limits(self, placed: list[AllocationId]) -> None:
        """Check that the holders of newly placed allocations are within all limits."""
        uses = self.expected.uses()
        for name in placed:
            found = self.expected.allocations[name]
            if found.state != "placed":
                continue
            project, actor = stream_of_project(found.request.project), stream_of_principal(found.actor)
            for holder in (project, actor):
                self._check_within(holder, uses)
            assert not self.expected.over_budget(found.request.project, self.now, Decimal("1e-30"))

    def _check_within(self, holder: StreamId, uses: Uses) -> None:
        limits = self.expected.limits.get(holder)
        if limits is not None:
            for name in ("slots", "price_per_hour"):
                limit = getattr(limits, name)
                assert limit is None or getattr(uses.get(holder, NOTHING_USED), name) <= Decimal(limit)

    def _check(self) -> None:
        """Check the events since the last command, and compare all figures with the expected ones."""
        self._run(self._read_events())
        self.expected.check_exclusive_holders()
        rows = self._conn.execute(
            "select slot_id, allocation_id from read.slot where allocation_id is not null"
        )
        assert dict(rows.fetchall()) == self.expected.holders
        counted = {
            StreamId(holder): QuotaUse._make(amounts) for holder, *amounts in self._conn.execute(_COUNTED)
        }
        counted = {holder: use for holder, use in counted.items() if use != NOTHING_USED}
        assert counted == self.expected.uses()
        self._run(self._compare_prices())
        self._run(self._compare_usage())

    async def _read_events(self) -> None:
        after = self._events[-1].position if self._events else Position(0)
        batch = await self._tail.batch(after, 10_000)
        self._events += batch.events
        self.expected.add(batch.events, SKU)
        await self.fleet.note_queue()

    async def _compare_prices(self) -> None:
        async with self.fleet.handle.engine.connect() as conn:
            shown = await commitments(conn, NAMES, *month_of(self.now), self.now)
            supplied = (await supplies(conn, {SKU}, USED_NODES))[SKU]
        for name in NAMES:
            assert shown[name].committed * 1_000_000 == self.expected.price(name, self.now)
        assert [(each.project, each.slots, each.used) for each in supplied.reservations] == sorted(
            (name, slots, self.expected.held(name)) for name, slots in self.expected.reserved.items() if slots
        )

    async def _compare_usage(self) -> None:
        await self.fleet.project(["usage"], 1000)
        until = max(self.now, datetime.now(UTC))
        async with self.fleet.handle.engine.connect() as conn:
            shown = await usage.totals(conn, UsageFilter(), Bill(Piece(None, until)), Grouping("project"))
            unused = sums(await unused_parts(conn, UsageFilter(), Piece(None, until)))
        leases = [
            (lease, duration)
            for lease in by_hand.leases(self._events).values()
            if (duration := by_hand.metered(lease, None, until))
        ]
        assert unused == by_hand.unused(self._events, until)
        projects = {lease.project for lease, _ in leases}
        assert {each.key: each.amount for each in shown} == {
            project: by_hand.rounded([each for each in leases if each[0].project == project])
            for project in projects
        }

    def teardown(self) -> None:
        try:
            assert self._run(self.fleet.verify()) == ()
        finally:
            self._run(self._async_resources.aclose())
            self._resources.close()
