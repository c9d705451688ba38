"""Budgets, lease limits and reservations after random commands: what is accepted follows from the events of the ledger.

The expectation is computed from the events and the rows of slots alone, without the queries and decisions of the
product. Each accepted request is within the limits at that time, each refused one is not, and the figures that a
project is shown equal the expected ones.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from psycopg.rows import tuple_row
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.admission.reservations import Placeable, supplies
from control_plane.decisions.budgets import month_of
from control_plane.handle import database_time
from deploy.embedded.lab_catalogue import SMALL
from deploy.embedded.postgres import PostgresServer
from events.projects import ProjectLimits
from events.values import AllocationId, NodeId, ProjectId, SkuName, node_of
from read_models.commitments import commitments
from tasks import reports
from tests.projections.fleet import living
from tests.servers.postgres import cloned
from tests.torture import count

T = TypeVar("T")
EXAMPLES, STEPS = 40, 20
NODES: Final = (NodeId("node-a"), NodeId("node-b"))
SLOTS_OF_A_NODE: Final = 4
SKU: Final = SkuName("lab.small")
NAMES: Final = ("red", "blue")
PROJECTS = st.sampled_from(NAMES)
PRICE: Final = Decimal(SMALL.price_per_hour)
LEASE: Final = timedelta(hours=1)
"""Length of each requested lease (`Fleet.create`)."""
USED_NODES: Final = Placeable(timedelta(seconds=20), simulated_allowed=True)
budgets = st.none() | st.sampled_from(["0", "0.01", "0.025", "0.07"])
lease_limits = st.none() | st.sampled_from([1800, 3600, 3 * 3600])
_EVENTS: Final = """
select stream_id, type, data, recorded_at from ledger.event
 where stream_id like 'allocation-%' or stream_id like 'project-%' order by position
"""
_HELD: Final = """
select requested.data::jsonb ->> 'project', count(*) from read.slot
  join ledger.event requested on requested.stream_id = 'allocation-' || allocation_id and requested.version = 1
 group by 1
"""


class Lease(NamedTuple):
    """An allocation as its events describe it. Without a lease yet, the times are None."""

    project: str
    slots: int
    starts_at: datetime | None
    ends_at: datetime | None
    over: bool


class Ledger(NamedTuple):
    """What the events state: the allocations, and the limits and reservations of each project."""

    leases: dict[str, Lease]
    limits: dict[str, ProjectLimits]
    reserved: dict[str, int]

    def price(self, project: str, now: datetime, *, upto: datetime | None = None) -> Decimal:
        """Return the price of a project in the month of `now`, until the ends of its leases or until `upto`."""
        month = month_of(now)
        total = Decimal(0)
        for each in self.leases.values():
            if each.project != project:
                continue
            begin, end = each.starts_at, each.ends_at
            if begin is None or end is None:
                if each.over:
                    continue
                begin, end = now, now + LEASE
            begin, end = max(begin, month.begins_at), min(end, month.ends_at, upto or month.ends_at)
            if begin < end:
                total += PRICE * each.slots * ((end - begin) // timedelta(microseconds=1))
        return total

    def budget_permits(self, project: str, now: datetime, slots: int, begin: datetime, end: datetime) -> bool:
        limit, month = self.limits.get(project, ProjectLimits()).budget_per_month, month_of(now)
        added = min(end, month.ends_at) - max(begin, month.begins_at)
        cost = PRICE * slots * (max(added, timedelta()) // timedelta(microseconds=1))
        return limit is None or cost == 0 or self.price(project, now) + cost <= Decimal(limit) * 3_600_000_000


def read(conn: psycopg.Connection[Any]) -> Ledger:
    found = Ledger({}, {}, {})
    for stream, kind, data, recorded_at in conn.execute(_EVENTS):
        name, fact = stream.partition("-")[2], msgspec.json.decode(data)
        old = found.leases.get(name)
        match kind:
            case "allocation.requested":
                found.leases[name] = Lease(fact["project"], fact["slot_count"], None, None, over=False)
            case "allocation.lease_granted" if old:
                begin, end = (datetime.fromisoformat(fact[each]) for each in ("granted_at", "expires_at"))
                found.leases[name] = old._replace(starts_at=begin, ends_at=end)
            case "allocation.lease_renewed" if old:
                found.leases[name] = old._replace(ends_at=datetime.fromisoformat(fact["expires_at"]))
            case "allocation.lease_ended" if old and old.ends_at:
                found.leases[name] = old._replace(ends_at=min(old.ends_at, recorded_at), over=True)
            case "allocation.releasing" | "allocation.failed" if old:
                found.leases[name] = old._replace(over=True)
            case "project.limits_set":
                found.limits[name] = msgspec.convert(fact["limits"], ProjectLimits)
            case "project.reservations_set":
                found.reserved[name] = fact["reservations"].get(SKU, 0)
            case _:
                pass
    return found


class Admission(RuleBasedStateMachine):
    """State machine of Hypothesis that runs random commands of two projects on a fleet of two nodes."""

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
        # The time stands still unless a step lets it pass, so that the expected figures are of the same time.
        self._now = datetime.now(UTC)
        self.fleet.handle = replace(self.fleet.handle, clock=self._clock)
        for node in NODES:
            self._run(self.fleet.bring_up(node, SLOTS_OF_A_NODE))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    @rule(project=PROJECTS, budget=budgets, lease=lease_limits)
    def project_is_limited(self, project: str, budget: str | None, lease: int | None) -> None:
        limits = ProjectLimits(budget_per_month=budget, max_lease_seconds=lease)
        self._run(self.fleet.set_limits(project, limits))
        self._compare()

    @rule(project=PROJECTS, slots=st.integers(0, 6))
    def slots_are_reserved(self, project: str, slots: int) -> None:
        self._run(self.fleet.set_reservation(project, SKU, slots))
        self._compare()

    @rule(project=PROJECTS, slots=st.integers(1, 3))
    def allocation_is_requested(self, project: str, slots: int) -> None:
        ledger, now = read(self._conn), self._now
        accepted = self._run(self.fleet.create(slots, project))
        refused = "" if accepted or self.fleet.refused is None else self.fleet.refused.objections[0].code
        permitted_lease = ledger.limits.get(project, ProjectLimits()).max_lease_seconds
        if permitted_lease is not None and permitted_lease < LEASE.total_seconds():
            assert refused == "lease_too_long"
        elif not ledger.budget_permits(project, now, slots, now, now + LEASE):
            assert refused == "quota_exceeded"
        else:
            by_node = self._free_by_node
            free = sum(by_node.values()) + (slots if accepted else 0)
            room = accepted or max(by_node.values(), default=0) >= slots
            kept = self._kept_for_others(ledger, project)
            if kept and free - slots < kept:
                assert refused in {"slots_reserved", "no_capacity"}
                assert refused == "slots_reserved" or not room
            else:
                assert refused == ("" if room else "no_capacity")
        self._compare()

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def lease_begins(self, data: st.DataObject) -> None:
        allocation = self._allocation(data)
        for slot in self.fleet.placed[allocation]:
            body = reports.SliceReady(
                slot_id=slot, allocation_id=allocation, address="10.0.0.2", port=22, banner="SSH-2.0"
            )
            self._run(self.fleet.report(node_of(slot), body))
        self._compare()

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), minutes=st.sampled_from([20, 90, 200]))
    def lease_is_renewed(self, data: st.DataObject, minutes: int) -> None:
        allocation, ledger, now = self._allocation(data), read(self._conn), self._now
        lease, duration = ledger.leases[allocation], timedelta(minutes=minutes)
        accepted = self._run(self.fleet.renew_lease(allocation, duration))
        if lease.ends_at is not None and not lease.over and lease.ends_at > now:
            limit = ledger.limits.get(lease.project, ProjectLimits()).max_lease_seconds
            fits = ledger.budget_permits(lease.project, now, lease.slots, lease.ends_at, now + duration)
            assert accepted == (fits and (limit is None or duration.total_seconds() <= limit))
        else:
            assert not accepted
        self._compare()

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), removed=st.booleans())
    def allocation_is_released(self, data: st.DataObject, removed: bool) -> None:
        allocation = self._allocation(data)
        self._run(self.fleet.release(allocation))
        if removed:
            for slot in self.fleet.placed[allocation]:
                body = reports.SliceRemoved(slot_id=slot, allocation_id=allocation, absent=("port",))
                self._run(self.fleet.report(node_of(slot), body))
        self._compare()

    @rule(hours=st.sampled_from([1, 10, 24 * 10]))
    def time_passes(self, hours: int) -> None:
        self._now += timedelta(hours=hours)
        self._compare()

    @rule()
    def usage_is_projected(self) -> None:
        self._run(self.fleet.project(["usage"], 7))
        self._compare()

    async def _clock(self, conn: AsyncConnection) -> datetime:
        # The statement begins the transaction, as that of the product's clock does; without it, nothing is committed.
        await database_time(conn)
        return self._now

    @property
    def _free_by_node(self) -> Counter[str]:
        rows = self._conn.execute("select node_id, count(*) from read.slot where state = 'free' group by 1")
        return Counter(dict(rows.fetchall()))

    def _kept_for_others(self, ledger: Ledger, project: str) -> int:
        held: dict[str, int] = dict(self._conn.execute(_HELD).fetchall())
        others = ((name, slots) for name, slots in ledger.reserved.items() if name != project)
        return sum(max(slots - held.get(name, 0), 0) for name, slots in others)

    def _allocation(self, data: st.DataObject) -> AllocationId:
        chosen: AllocationId = data.draw(st.sampled_from([*self.fleet.placed]), label="allocation")
        return chosen

    def _compare(self) -> None:
        """Compare the figures that projects are shown with the expected ones."""
        ledger, now = read(self._conn), self._now
        names = [ProjectId(name) for name in NAMES]

        async def figures() -> tuple[Any, Any]:
            async with self.fleet.handle.engine.connect() as conn:
                shown = await commitments(conn, names, *month_of(now), now)
                return shown, await supplies(conn, {SKU}, USED_NODES)

        shown, supplied = self._run(figures())
        million = Decimal(1_000_000)
        for name in names:
            assert shown[name].committed * million == ledger.price(name, now)
        held: dict[str, int] = dict(self._conn.execute(_HELD).fetchall())
        reservations = [(each.project, each.slots, each.used) for each in supplied[SKU].reservations]
        assert reservations == sorted(
            (name, slots, held.get(name, 0)) for name, slots in ledger.reserved.items() if slots
        )

    def teardown(self) -> None:
        try:
            assert self._run(self.fleet.verify()) == ()
        finally:
            self._run(self._async_resources.aclose())
            self._resources.close()


@pytest.mark.timeout(600)  # Shrinking a failing history takes minutes.
def test_accepted_requests_and_shown_figures_after_random_commands_equal_a_recomputation(
    postgres_server: PostgresServer,
) -> None:
    Admission.server = postgres_server
    run_state_machine_as_test(
        Admission,
        settings=settings(
            max_examples=count(EXAMPLES, usual_share=10),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
