"""Whatever happens, and in whatever order: live tables equal a rebuild (LED-1).

Hypothesis makes up histories of commands, refused ones among them, with the projector coming along and sets of tables
being rebuilt and swapped in on the way. SLICEPLANE_TORTURE=full makes up ten times as many.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from deploy.embedded.postgres import PostgresServer
from events.values import AllocationId, NodeId, PciAddress, SlotId, new_uuid
from read_models.projections import PROJECTIONS
from tasks import reports
from tests.projections import expected
from tests.projections.living import living
from tests.servers.postgres import cloned
from tests.torture import count

T = TypeVar("T")
EXAMPLES, STEPS = 250, 30
NODES = st.sampled_from([NodeId("node-a"), NodeId("node-b")])
WORDS = st.sampled_from(["first", "second"])
LIVE = [each.name for each in PROJECTIONS.values() if not each.inline]
REASON = reports.Reason(code="broken", message="it broke")
OF_NODE = reports.Reason(code="step_refused", message="machine.start: refused")
BATCHES = st.sampled_from([1, 2, 7, 500])

GPUS = [
    reports.FoundDevice(address=address, use="gpu", number="10de:2330", kind="gpu", numa_node=0)
    for address in (PciAddress("0000:1b:00.0"), PciAddress("0000:43:00.0"))
]


class Histories(RuleBasedStateMachine):
    """The commands of a fleet of two nodes."""

    server: PostgresServer

    def __init__(self) -> None:
        super().__init__()
        self._opened, self._left = ExitStack(), AsyncExitStack()
        self._runner = self._opened.enter_context(asyncio.Runner())
        self._database = self._opened.enter_context(cloned(self.server))
        self.fleet = self._run(self._left.enter_async_context(living(self._database)))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    @rule(node=NODES)
    def a_node_is_expected(self, node: NodeId) -> None:
        self._run(self.fleet.expect(node))

    @rule(node=NODES)
    def node_is_removed(self, node: NodeId) -> None:
        self._run(self.fleet.remove(node))

    @rule(node=NODES, word=WORDS)
    def enrolment_is_reopened(self, node: NodeId, word: str) -> None:
        self._run(self.fleet.reopen(node, word))

    @rule(node=NODES, word=WORDS, version=st.sampled_from(["1", "2"]))
    def a_node_enrols(self, node: NodeId, word: str, version: str) -> None:
        self._run(self.fleet.enrol(node, word, version))

    @rule(node=NODES, slots=st.integers(1, 3))
    def a_node_comes_up(self, node: NodeId, slots: int) -> None:
        self.a_node_is_expected(node)
        self.a_node_enrols(node, "first", "1")
        self.a_host_is_surveyed(node, slots, 1, [], twice=False, gpus=(GPUS[0],))
        for index in range(slots):
            self.a_slot_is_approved(node, index)

    @rule(
        node=NODES,
        slots=st.integers(0, 3),
        vcpus=st.integers(1, 2),
        missing=st.lists(st.just("no bridge"), max_size=1),
        twice=st.booleans(),
        gpus=st.lists(st.sampled_from(GPUS), max_size=2, unique_by=lambda gpu: gpu.address).map(tuple),
    )
    def a_host_is_surveyed(
        self,
        node: NodeId,
        slots: int,
        vcpus: int,
        missing: list[str],
        *,
        twice: bool,
        gpus: tuple[reports.FoundDevice, ...],
    ) -> None:
        found = tuple(
            reports.FoundSlot(
                index=index,
                vcpus=vcpus,
                memory_mib=96,
                network_device=f"slice{index}",
                # Given to another slot now and then, which then has to wait until the first one lets go.
                devices=gpus if index == vcpus - 1 else (),
            )
            for index in range(slots)
        )
        body = reports.NodeSurveyed(
            hostname=f"host-{vcpus}",
            agent_version="3",
            simulated=True,
            images=("lab-guest",),
            missing=tuple(missing),
            slots=found,
        )
        self._run(self.fleet.report(node, body, twice=twice))

    @rule(node=NODES, number=st.integers(0, 3), word=WORDS)
    def a_session_is_renewed(self, node: NodeId, number: int, word: str) -> None:
        self._run(self.fleet.renew(node, number, word))

    @rule(node=NODES)
    def a_node_is_revoked(self, node: NodeId) -> None:
        self._run(self.fleet.revoke(node))

    @rule(node=NODES, index=st.integers(0, 2))
    def a_slot_is_approved(self, node: NodeId, index: int) -> None:
        self._run(self.fleet.approve(SlotId(f"{node}/{index}")))

    @rule(node=NODES, index=st.integers(0, 2))
    def a_slot_is_freed_without_proof(self, node: NodeId, index: int) -> None:
        self._run(self.fleet.break_glass(SlotId(f"{node}/{index}")))

    @rule(node=NODES, index=st.none() | st.integers(0, 2))
    def what_is_excluded_is_readmitted(self, node: NodeId, index: int | None) -> None:
        self._run(self.fleet.readmit(node, None if index is None else SlotId(f"{node}/{index}")))

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), times=st.integers(1, 3))
    def bring_ups_fail(self, data: st.DataObject, times: int) -> None:
        allocation = self._allocation(data)
        for slot in range(times):
            node, slot_id = self.fleet.node_of(allocation, slot)
            body = reports.SliceFailed(slot_id=slot_id, allocation_id=allocation, reason=OF_NODE)
            self._run(self.fleet.report(node, body))
            self._run(self.fleet.note_replacement(allocation))

    @rule(slots=st.integers(1, 3), project=st.sampled_from(["red", "blue"]))
    def an_allocation_is_asked_for(self, slots: int, project: str) -> None:
        self._run(self.fleet.create(slots, project))

    @rule(name=st.text("abc", min_size=1, max_size=3))
    def a_key_is_issued(self, name: str) -> None:
        self._run(self.fleet.issue_key(name))

    @rule(node=NODES)
    def an_order_is_refused(self, node: NodeId) -> None:
        body = reports.OrderRefused(order_id=new_uuid(), slot_id=f"{node}/0", reason=REASON)
        self._run(self.fleet.report(node, body))

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), what=st.sampled_from(["release", "expire", "miss_deadline"]))
    def an_allocation_ends(self, data: st.DataObject, what: str) -> None:
        end = {
            "release": self.fleet.release,
            "expire": self.fleet.expire,
            "miss_deadline": self.fleet.miss_deadline,
        }
        self._run(end[what](self._allocation(data)))

    @rule(hours=st.integers(1, 2))
    def time_passes(self, hours: int) -> None:
        self.fleet.later += timedelta(hours=hours)

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), slot=st.integers(0, 2), twice=st.booleans())
    def a_slice_is_reported(self, data: st.DataObject, slot: int, *, twice: bool) -> None:
        allocation = self._allocation(data)
        node, slot_id = self.fleet.node_of(allocation, slot)
        body = data.draw(st.sampled_from(_news(allocation, slot_id)), label="news")
        self._run(self.fleet.report(node, body, twice=twice))

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def an_allocation_lives_and_is_gone(self, data: st.DataObject) -> None:
        allocation = self._allocation(data)
        for slot in range(len(self.fleet.placed[allocation])):
            node, slot_id = self.fleet.node_of(allocation, slot)
            self._run(self.fleet.report(node, _ready(allocation, slot_id)))
        self._run(self.fleet.release(allocation))
        for slot in range(len(self.fleet.placed[allocation])):
            node, slot_id = self.fleet.node_of(allocation, slot)
            self._run(self.fleet.report(node, _removed(allocation, slot_id)))

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), slots=st.integers(1, 3))
    def two_commands_meet(self, data: st.DataObject, slots: int) -> None:
        async def both(allocation: AllocationId) -> None:
            await asyncio.gather(self.fleet.release(allocation), self.fleet.create(slots, "red"))

        self._run(both(self._allocation(data)))

    @rule(name=st.sampled_from(LIVE), batch=BATCHES)
    def the_projector_comes_along(self, name: str, batch: int) -> None:
        self._run(self.fleet.project([name], batch))

    @rule(names=st.lists(st.sampled_from([*PROJECTIONS]), min_size=1, max_size=3, unique=True))
    def tables_are_rebuilt_and_swapped_in(self, names: list[str]) -> None:
        self._run(self.fleet.rebuild(names))

    def _allocation(self, data: st.DataObject) -> AllocationId:
        chosen: AllocationId = data.draw(st.sampled_from([*self.fleet.placed]), label="allocation")
        return chosen

    def teardown(self) -> None:
        try:
            self._check()
        finally:
            self._run(self._left.aclose())
            self._opened.close()

    def _check(self) -> None:
        self._run(self.fleet.project(LIVE, 7))
        with psycopg.connect(self._database.admin_dsn) as conn:
            for table, key, said in (
                ("slot", "slot_id", expected.slots),
                ("node", "node_id", expected.nodes),
            ):
                wanted = said(conn)
                assert expected.rows(conn, table, key, wanted) == wanted
        assert self._run(self.fleet.verify()) == ()
        self._run(self.fleet.rebuild([*PROJECTIONS]))
        self._run(self.fleet.project(LIVE, 500))
        assert self._run(self.fleet.verify()) == ()


def _ready(allocation: AllocationId, slot: SlotId) -> reports.SliceReady:
    return reports.SliceReady(
        slot_id=slot, allocation_id=allocation, address="10.100.1.10", port=22, banner="SSH-2.0-x"
    )


def _removed(allocation: AllocationId, slot: SlotId) -> reports.SliceRemoved:
    return reports.SliceRemoved(slot_id=slot, allocation_id=allocation, absent=("port",))


def _news(allocation: AllocationId, slot: SlotId) -> list[reports.ReportBody]:
    """All that a node may say about a slice, at a good moment or not."""
    of = {"slot_id": slot, "allocation_id": allocation}
    address = {"mac": "52:54:00:00:00:01", "expected_ip": "10.100.1.10", "actual_ip": "10.100.1.10"}
    return [
        reports.SliceStarting(**of),
        reports.SliceAddress(**of, **address, lease_state="bound"),
        _ready(allocation, slot),
        reports.SliceInterrupted(**of, reason=REASON),
        reports.SliceFailed(**of, reason=REASON),
        reports.SliceRemains(**of, leftovers=("port",)),
        _removed(allocation, slot),
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a failing history is made short, which takes minutes
def test_live_tables_equal_a_rebuild_after_any_history(postgres_server: PostgresServer) -> None:
    Histories.server = postgres_server
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=count(EXAMPLES),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
