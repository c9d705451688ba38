"""Counted use of quotas after random commands: it equals a recomputation, and no accepted request exceeds a limit.

The recomputation does not use what slots and ingress rules record about quotas: it reads the holders of slots and
ports, and the requests and SKUs of their allocations.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack
from decimal import Decimal
from typing import Any, Final, TypeVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from psycopg.rows import tuple_row

from control_plane.commands.ingress import change_addresses
from control_plane.decisions.quotas import Limits, NotAdmitted, exceeded_by, times
from control_plane.settings import SLICE_NETWORKS
from deploy.embedded.lab_catalogue import SMALL
from deploy.embedded.postgres import PostgresServer
from events.derived.quotas import NOTHING_USED, QuotaUse
from events.nodes import PublicAddress
from events.principals import PrincipalLimits
from events.projects import ProjectLimits
from events.values import (
    AllocationId,
    Ipv4Address,
    NodeId,
    ProjectId,
    SlotId,
    StreamId,
    node_of,
    stream_of_principal,
    stream_of_project,
)
from tasks import reports
from tests.projections.fleet import living
from tests.servers.postgres import cloned
from tests.torture import count

T = TypeVar("T")
EXAMPLES, STEPS = 60, 20
SLOTS: Final = 4
NODES: Final = (NodeId("node-a"), NodeId("node-b"))
PROJECTS, ACTORS = st.sampled_from(["red", "blue"]), st.sampled_from(["key:alice", "key:bob"])
NODE_FAULT: Final = reports.Reason(code="step_refused", message="machine.start: refused")
_HELD: Final = """
select requested.data::jsonb ->> 'project', requested.actor, count(*),
       sum((sku ->> 'gpu_count')::int), sum((sku ->> 'vcpus')::int), sum((sku ->> 'memory_mib')::int),
       sum((sku ->> 'price_per_hour')::numeric)
  from read.slot
  join ledger.event requested on requested.stream_id = 'allocation-' || allocation_id and requested.version = 1
  join ledger.event specified on specified.stream_id = requested.stream_id and specified.type = 'allocation.specified'
 cross join lateral (select specified.data::jsonb -> 'sku' -> 'content' as sku) content
 group by 1, 2
"""
_PORTS: Final = """
select requested.data::jsonb ->> 'project', count(*) from ledger.claim
  join ledger.event requested on requested.stream_id = claim.stream_id and requested.version = 1
 where claim.kind = 'port' group by 1
"""
_COUNTED: Final = """
select holder, sum(slots)::int, sum(gpus)::int, sum(vcpus)::int, sum(memory_mib)::int, sum(public_addresses)::int,
       sum(public_ports)::int, sum(waiting_requests)::int, sum(price_per_hour) from read.quota_use group by holder
"""
amount = st.none() | st.integers(0, 5)
price = st.none() | st.sampled_from(["0", "0.03", "0.05"])
project_limits = st.builds(
    ProjectLimits, slots=amount, vcpus=amount, public_ports=amount, price_per_hour=price
)
principal_limits = st.builds(PrincipalLimits, slots=amount, price_per_hour=price)
Uses = dict[StreamId, QuotaUse]


def recomputed(conn: psycopg.Connection[Any]) -> Uses:
    found: Uses = {}

    def add(holder: StreamId, more: QuotaUse) -> None:
        found[holder] = found.get(holder, NOTHING_USED).plus(more)

    for project, actor, slots, gpus, vcpus, memory_mib, cost in conn.execute(_HELD):
        amounts = QuotaUse(slots, gpus, vcpus, memory_mib, price_per_hour=cost)
        add(stream_of_project(ProjectId(project)), amounts)
        add(stream_of_principal(actor), amounts)
    for project, ports in conn.execute(_PORTS):
        add(stream_of_project(ProjectId(project)), QuotaUse(public_ports=ports))
    return found


def counted(conn: psycopg.Connection[Any]) -> Uses:
    rows = {StreamId(holder): QuotaUse._make(amounts) for holder, *amounts in conn.execute(_COUNTED)}
    return {holder: use for holder, use in rows.items() if use != NOTHING_USED}


class Quotas(RuleBasedStateMachine):
    """State machine of Hypothesis that runs random commands and reports of a fleet of two nodes with limits."""

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
        self._limits: dict[StreamId, Limits] = {}
        for number, node in enumerate(NODES):
            self._run(self.fleet.bring_up(node, SLOTS))
            address = PublicAddress(Ipv4Address(f"203.0.113.{number}"), "ports", 20000, 20009)
            origin = self.fleet.origin("addresses")
            assert self._run(self.fleet.do(change_addresses(node, (address,), origin, SLICE_NETWORKS)))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    @rule(project=PROJECTS, limits=project_limits)
    def project_is_limited(self, project: str, limits: ProjectLimits) -> None:
        if self._run(self.fleet.set_limits(project, limits)):
            self._limits[stream_of_project(ProjectId(project))] = limits

    @rule(actor=ACTORS, limits=principal_limits)
    def caller_is_limited(self, actor: str, limits: PrincipalLimits) -> None:
        assert self._run(self.fleet.set_principal_limits(limits, actor))
        self._limits[stream_of_principal(actor)] = limits

    @rule(project=PROJECTS, actor=ACTORS, slots=st.integers(1, 3), ports=st.integers(0, 2))
    def allocation_is_requested(self, project: str, actor: str, slots: int, ports: int) -> None:
        before = recomputed(self._conn)
        of_slots = QuotaUse(
            1,
            SMALL.gpu_count,
            SMALL.vcpus,
            SMALL.memory_mib,
            price_per_hour=Decimal(SMALL.price_per_hour),
        )
        holders: dict[StreamId, QuotaUse] = {
            stream_of_project(ProjectId(project)): times(of_slots, slots).plus(QuotaUse(public_ports=ports)),
            stream_of_principal(actor): times(of_slots, slots),
        }
        over = [
            each.limit_name
            for holder, requested in holders.items()
            if (limits := self._limits.get(holder)) is not None
            for each in exceeded_by("project", holder, limits, before.get(holder, NOTHING_USED), requested)
        ]
        accepted = self._run(self.fleet.create(slots, project, ports=ports, actor=actor))
        refused_by_quota = not accepted and isinstance(self.fleet.refused, NotAdmitted)
        assert refused_by_quota == bool(over)
        self._compare()

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def allocation_is_released(self, data: st.DataObject) -> None:
        self._run(self.fleet.release(self._allocation(data)))
        self._compare()

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), index=st.integers(0, 2), what=st.sampled_from(["removed", "leftovers", "failed"]))
    def slice_is_reported(self, data: st.DataObject, index: int, what: str) -> None:
        allocation = self._allocation(data)
        _, slot = self.fleet.node_of(allocation, index)
        body: reports.ReportBody
        match what:
            case "removed":
                body = reports.SliceRemoved(slot_id=slot, allocation_id=allocation, absent=("port",))
            case "leftovers":
                body = reports.SliceNotRemoved(slot_id=slot, allocation_id=allocation, leftovers=("port",))
            case _:
                body = reports.SliceFailed(slot_id=slot, allocation_id=allocation, reason=NODE_FAULT)
        self._run(self.fleet.report(node_of(slot), body))
        self._run(self.fleet.note_replacement(allocation))
        self._compare()

    @rule(node=st.sampled_from(NODES), index=st.integers(0, SLOTS - 1))
    def slot_is_force_released(self, node: NodeId, index: int) -> None:
        self._run(self.fleet.force_release(SlotId(f"{node}/{index}")))
        self._compare()

    def _allocation(self, data: st.DataObject) -> AllocationId:
        chosen: AllocationId = data.draw(st.sampled_from([*self.fleet.placed]), label="allocation")
        return chosen

    def _compare(self) -> None:
        assert counted(self._conn) == recomputed(self._conn)

    def teardown(self) -> None:
        try:
            assert self._run(self.fleet.verify()) == ()
        finally:
            self._run(self._async_resources.aclose())
            self._resources.close()


@pytest.mark.timeout(600)  # Shrinking a failing history takes minutes.
def test_counted_use_of_quotas_after_random_commands_equals_a_recomputation(
    postgres_server: PostgresServer,
) -> None:
    Quotas.server = postgres_server
    run_state_machine_as_test(
        Quotas,
        settings=settings(
            max_examples=count(EXAMPLES, usual_share=20),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
