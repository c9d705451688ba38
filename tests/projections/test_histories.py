"""Tests that live tables of read models equal their rebuild after any history (LED-1).

Hypothesis generates histories of commands, including refused ones, during which the projector advances and tables are
rebuilt and swapped in. SLICEPLANE_TORTURE=full generates 125 times as many.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from typing import Any, TypeVar, get_args

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from control_plane.time_travel.rows import rows_at
from deploy.embedded.postgres import PostgresServer
from events.ledger.connection import ledger_connection
from events.ledger.store import read_range
from events.principals import PrincipalLimits
from events.projects import ProjectLimits
from events.values import AllocationId, NetworkMode, NodeId, PciAddress, Position, SlotId, StreamId, new_uuid
from read_models import capacity
from read_models.inline import SLOTS
from read_models.projections import PROJECTIONS
from read_models.usage import entries as usage
from read_models.usage.entries import Grouping
from read_models.usage.intervals import UsageFilter
from read_models.usage.periods import Bill, Piece
from tasks import reports
from tasks.devices import FoundDevice
from tests.projections import expected
from tests.projections import usage_by_hand as by_hand
from tests.projections.fleet import living
from tests.servers.postgres import cloned
from tests.torture import count

T = TypeVar("T")
EXAMPLES, STEPS = 250, 30
NODES = st.sampled_from([NodeId("node-a"), NodeId("node-b")])
WORDS = st.sampled_from(["first", "second"])
END = Position(2**63 - 1)
LIVE = [each.name for each in PROJECTIONS.values() if not each.inline]
REASON = reports.Reason(code="broken", message="the step failed")
OF_NODE = reports.Reason(code="step_refused", message="machine.start: refused")
BATCHES = st.sampled_from([1, 2, 7, 500])

GPUS = [
    FoundDevice(address=address, use="gpu", number="10de:2330", kind="gpu", numa_node=0, model=model)
    for address, model in ((PciAddress("0000:1b:00.0"), None), (PciAddress("0000:43:00.0"), "NVIDIA H100"))
]

SKU_NAMES = st.sampled_from(["lab.small", "lab.other"])


class Histories(RuleBasedStateMachine):
    """State machine of Hypothesis that runs random commands and reports of a fleet of two nodes."""

    server: PostgresServer

    def __init__(self) -> None:
        super().__init__()
        self._resources, self._async_resources = ExitStack(), AsyncExitStack()
        self._runner = self._resources.enter_context(asyncio.Runner())
        self._database = self._resources.enter_context(cloned(self.server))
        self.fleet = self._run(self._async_resources.enter_async_context(living(self._database)))

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    @rule(node=NODES)
    def node_is_registered(self, node: NodeId) -> None:
        self._run(self.fleet.register(node))

    @rule(node=NODES)
    def node_is_removed(self, node: NodeId) -> None:
        self._run(self.fleet.remove(node))

    @rule(node=NODES, word=WORDS)
    def node_enrolment_is_reopened(self, node: NodeId, word: str) -> None:
        self._run(self.fleet.reopen(node, word))

    @rule(node=NODES, word=WORDS, version=st.sampled_from(["1", "2"]))
    def node_enrols(self, node: NodeId, word: str, version: str) -> None:
        self._run(self.fleet.enrol(node, word, version))

    @rule(node=NODES, slots=st.integers(1, 3))
    def node_comes_up(self, node: NodeId, slots: int) -> None:
        self.node_is_registered(node)
        self.node_enrols(node, "first", "1")
        self.node_is_surveyed(node, slots, 1, [], set(), twice=False, gpus=(GPUS[0],))
        for index in range(slots):
            self.slot_is_approved(node, index)

    @rule(
        node=NODES,
        slots=st.integers(0, 3),
        vcpus=st.integers(1, 2),
        missing=st.lists(st.just("no bridge"), max_size=1),
        modes=st.sets(st.sampled_from(get_args(NetworkMode))),
        twice=st.booleans(),
        gpus=st.lists(st.sampled_from(GPUS), max_size=2, unique_by=lambda gpu: gpu.address).map(tuple),
    )
    def node_is_surveyed(
        self,
        node: NodeId,
        slots: int,
        vcpus: int,
        missing: list[str],
        modes: set[NetworkMode],
        *,
        twice: bool,
        gpus: tuple[FoundDevice, ...],
    ) -> None:
        found = tuple(
            reports.FoundSlot(
                index=index,
                vcpus=vcpus,
                memory_mib=96,
                network_device=f"slice{index}",
                # The devices sometimes move to another slot, which must wait until the first slot releases them.
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
            unsupported_modes=tuple(
                reports.UnsupportedMode(mode=each, reason="no module") for each in sorted(modes)
            ),
        )
        self._run(self.fleet.report(node, body, twice=twice))

    @rule(node=NODES, number=st.integers(0, 3), word=WORDS)
    def session_is_renewed(self, node: NodeId, number: int, word: str) -> None:
        self._run(self.fleet.renew(node, number, word))

    @rule(node=NODES)
    def node_is_revoked(self, node: NodeId) -> None:
        self._run(self.fleet.revoke(node))

    @rule(node=NODES, index=st.integers(0, 2))
    def slot_is_approved(self, node: NodeId, index: int) -> None:
        self._run(self.fleet.approve(SlotId(f"{node}/{index}")))

    @rule(node=NODES, index=st.integers(0, 2))
    def slot_is_force_released(self, node: NodeId, index: int) -> None:
        self._run(self.fleet.force_release(SlotId(f"{node}/{index}")))

    @rule(node=NODES, index=st.integers(0, 2))
    def slot_is_retired(self, node: NodeId, index: int) -> None:
        self._run(self.fleet.retire(SlotId(f"{node}/{index}")))

    @rule(node=NODES, index=st.integers(0, 2))
    def slot_is_reprovisioned(self, node: NodeId, index: int) -> None:
        self._run(self.fleet.reprovision(SlotId(f"{node}/{index}")))

    @rule(node=NODES, index=st.none() | st.integers(0, 2))
    def node_or_slot_is_readmitted(self, node: NodeId, index: int | None) -> None:
        self._run(self.fleet.readmit(node, None if index is None else SlotId(f"{node}/{index}")))

    @rule(node=NODES)
    def node_is_cordoned(self, node: NodeId) -> None:
        self._run(self.fleet.cordon(node))

    @rule(node=NODES)
    def node_is_uncordoned(self, node: NodeId) -> None:
        self._run(self.fleet.uncordon(node))

    @rule(node=NODES, release_after=st.sampled_from([None, timedelta(), timedelta(hours=1)]))
    def node_is_drained(self, node: NodeId, release_after: timedelta | None) -> None:
        self._run(self.fleet.drain(node, release_after))

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
    def allocation_is_requested(self, slots: int, project: str) -> None:
        self._run(self.fleet.create(slots, project))

    @rule(name=st.text("abc", min_size=1, max_size=3))
    def key_is_issued(self, name: str) -> None:
        self._run(self.fleet.issue_key(name))

    @rule(name=st.sampled_from(["job", "build"]), project=st.sampled_from(["red", "blue"]))
    def account_is_created(self, name: str, project: str) -> None:
        self._run(self.fleet.create_account(name, project))

    @rule(name=st.sampled_from(["job", "build"]), disable=st.booleans())
    def account_is_changed(self, name: str, disable: bool) -> None:
        self._run(self.fleet.change_account(name, disable=disable))

    @rule(end=st.booleans())
    def session_is_started_or_ended(self, end: bool) -> None:
        self._run(self.fleet.end_session() if end else self.fleet.start_session())

    @rule(revoke=st.booleans())
    def key_is_rotated(self, revoke: bool) -> None:
        self._run(self.fleet.rotate_key(revoke=revoke))

    @rule(project=st.sampled_from(["red", "blue", "green"]), archive=st.booleans())
    def project_is_changed(self, project: str, archive: bool) -> None:
        self._run(self.fleet.change_project(project, archive=archive and project == "green"))

    @rule(project=st.sampled_from(["red", "blue"]), slots=st.none() | st.integers(0, 3))
    def limits_are_set(self, project: str, slots: int | None) -> None:
        self._run(self.fleet.set_limits(project, ProjectLimits(slots=slots)))
        self._run(self.fleet.set_principal_limits(PrincipalLimits(slots=slots)))

    @rule(name=SKU_NAMES, memory_mib=st.sampled_from([96, 128]), retire=st.booleans())
    def sku_is_changed(self, name: str, memory_mib: int, *, retire: bool) -> None:
        self._run(self.fleet.change_sku(name, memory_mib=memory_mib, retire=retire))

    @rule(node=NODES)
    def order_is_refused(self, node: NodeId) -> None:
        body = reports.OrderRefused(order_id=new_uuid(), slot_id=f"{node}/0", reason=REASON)
        self._run(self.fleet.report(node, body))

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), what=st.sampled_from(["release", "expire", "miss_deadline", "record_overdue"]))
    def allocation_ends(self, data: st.DataObject, what: str) -> None:
        end = {
            "release": self.fleet.release,
            "expire": self.fleet.expire,
            "miss_deadline": self.fleet.miss_deadline,
            "record_overdue": self.fleet.record_overdue,
        }
        self._run(end[what](self._allocation(data)))

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), renew=st.booleans())
    def lease_is_renewed_or_its_end_is_announced(self, data: st.DataObject, *, renew: bool) -> None:
        change = self.fleet.renew_lease if renew else self.fleet.announce_end
        self._run(change(self._allocation(data)))

    @rule(hours=st.integers(1, 2))
    def time_passes(self, hours: int) -> None:
        self.fleet.later += timedelta(hours=hours)

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data(), slot=st.integers(0, 2), twice=st.booleans())
    def slice_is_reported(self, data: st.DataObject, slot: int, *, twice: bool) -> None:
        allocation = self._allocation(data)
        node, slot_id = self.fleet.node_of(allocation, slot)
        body = data.draw(st.sampled_from(_slice_reports(allocation, slot_id)), label="report")
        self._run(self.fleet.report(node, body, twice=twice))

    @precondition(lambda self: self.fleet.placed)
    @rule(data=st.data())
    def allocation_becomes_ready_and_is_removed(self, data: st.DataObject) -> None:
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
    def two_commands_run_concurrently(self, data: st.DataObject, slots: int) -> None:
        async def both(allocation: AllocationId) -> None:
            await asyncio.gather(self.fleet.release(allocation), self.fleet.create(slots, "red"))

        self._run(both(self._allocation(data)))

    @rule(name=st.sampled_from(LIVE), batch=BATCHES)
    def projector_advances(self, name: str, batch: int) -> None:
        self._run(self.fleet.project([name], batch))

    @rule(names=st.lists(st.sampled_from([*PROJECTIONS]), min_size=1, max_size=3, unique=True))
    def tables_are_rebuilt_and_swapped(self, names: list[str]) -> None:
        self._run(self.fleet.rebuild(names))

    def _allocation(self, data: st.DataObject) -> AllocationId:
        chosen: AllocationId = data.draw(st.sampled_from([*self.fleet.placed]), label="allocation")
        return chosen

    def teardown(self) -> None:
        try:
            self._check()
        finally:
            self._run(self._async_resources.aclose())
            self._resources.close()

    def _check(self) -> None:
        self._run(self.fleet.project(LIVE, 7))
        with psycopg.connect(self._database.admin_dsn) as conn:
            for table, key, expected_rows in (
                ("slot", "slot_id", expected.slots),
                ("node", "node_id", expected.nodes),
            ):
                wanted = expected_rows(conn)
                assert expected.rows(conn, table, key, wanted) == wanted
        assert self._run(self.fleet.verify()) == ()
        self._run(self._check_usage())
        self._run(self._check_capacity())
        self._run(self.fleet.rebuild([*PROJECTIONS]))
        self._run(self.fleet.project(LIVE, 500))
        assert self._run(self.fleet.verify()) == ()

    async def _check_usage(self) -> None:
        """Check that the usage of both projects is the one that a computation by hand finds in the whole ledger."""
        async with self.fleet.handle.engine.connect() as conn:
            now = await self.fleet.clock(conn)
            totals = await usage.totals(conn, UsageFilter(), Bill(Piece(None, now)), Grouping("project"))
            events = await read_range(await ledger_connection(conn), Position(0), END, limit=100_000)
        leases = by_hand.leases(events).values()
        metered = [(lease, spent) for lease in leases if (spent := by_hand.metered(lease, None, now))]
        assert {each.key: each.amount for each in totals} == {
            project: by_hand.rounded([each for each in metered if each[0].project == project])
            for project in {lease.project for lease, _ in metered}
        }

    async def _check_capacity(self) -> None:
        """Check that the numbers of slots after every event of a slot are those of the rows of all slots then."""
        with psycopg.connect(self._database.admin_dsn) as conn:
            query = "select distinct stream_id from ledger.event where stream_id like 'slot-%'"
            streams = [StreamId(name) for (name,) in conn.execute(query)]
            query = "select position from ledger.event where stream_id like 'slot-%' order by position desc"
            positions = [Position(position) for (position,) in conn.execute(query)]
        async with self.fleet.handle.engine.connect() as conn:
            ledger = await ledger_connection(conn)
            for position in positions[::5]:
                rows = (await rows_at(ledger, SLOTS, streams, position)).values()
                wanted = Counter(
                    (sku, status) for row in rows if (status := expected.status(row)) for sku in row["skus"]
                )
                by_sku = await capacity.by_sku(conn, position)
                assert (
                    +Counter(
                        {
                            (sku, name): number
                            for sku, each in by_sku.items()
                            for name, number in each._asdict().items()
                        }
                    )
                    == wanted
                )
                by_node = await capacity.by_node(conn, [NodeId("node-a"), NodeId("node-b")], position)
                found = Counter[tuple[str, str]]()
                for skus in by_node.values():
                    found.update(
                        {
                            (sku, name): number
                            for sku, each in skus.items()
                            for name, number in each._asdict().items()
                        }
                    )
                assert +found == wanted


def _ready(allocation: AllocationId, slot: SlotId) -> reports.SliceReady:
    return reports.SliceReady(
        slot_id=slot, allocation_id=allocation, address="10.100.1.10", port=22, banner="SSH-2.0-x"
    )


def _removed(allocation: AllocationId, slot: SlotId) -> reports.SliceRemoved:
    return reports.SliceRemoved(slot_id=slot, allocation_id=allocation, absent=("port",))


def _slice_reports(allocation: AllocationId, slot: SlotId) -> list[reports.ReportBody]:
    """Return one report of each kind that a node can send about a slice, whether or not it is valid in the slice's
    current state.
    """
    of = {"slot_id": slot, "allocation_id": allocation}
    address = {"mac": "52:54:00:00:00:01", "expected_ip": "10.100.1.10", "actual_ip": "10.100.1.10"}
    return [
        reports.SliceStarting(**of),
        reports.SliceAddress(**of, **address, lease_state="bound"),
        _ready(allocation, slot),
        reports.SliceInterrupted(**of, reason=REASON),
        reports.SliceFailed(**of, reason=REASON),
        reports.SliceNotRemoved(**of, leftovers=("port",)),
        _removed(allocation, slot),
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Shrinking a failing history takes minutes.
def test_live_read_model_tables_after_a_random_history_equal_a_rebuild(
    postgres_server: PostgresServer,
) -> None:
    Histories.server = postgres_server
    run_state_machine_as_test(
        Histories,
        settings=settings(
            max_examples=count(EXAMPLES, usual_share=125),
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
