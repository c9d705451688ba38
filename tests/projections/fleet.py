"""Simulated fleet of nodes on its own database, driven by the same commands that the API's routes run.

No other program runs. The projector advances only when a test calls it, so that a history has one order and a test can
pause between any two steps.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.commands.access import (
    KeyRequest,
    issue_first_key,
    issue_key,
    replace_key,
    revoke_key,
    set_principal_limits,
)
from control_plane.commands.allocations import (
    announce_end,
    expire_lease,
    expire_wait,
    miss_deadline,
    record_overdue_release,
    release_allocation,
    renew_lease,
    stop_allocation,
)
from control_plane.commands.bring_ups import readmit_node_to_placement, readmit_slot_to_placement
from control_plane.commands.catalogue import create_entry, publish_version, retire_entry
from control_plane.commands.drains import cordon_node, drain_node, uncordon_node
from control_plane.commands.identity import (
    enrol_node,
    record_superseded,
    renew_session,
    revoke_node,
    verify_enrolment,
)
from control_plane.commands.nodes import register_node, remove_node, reopen_enrolment
from control_plane.commands.placement_request import NewAllocation, WaitOptions
from control_plane.commands.placing import create_allocation
from control_plane.commands.projections import order_rebuild
from control_plane.commands.projects import (
    archive_project,
    create_project,
    describe_project,
    set_limits,
    set_reservation,
)
from control_plane.commands.service_accounts import (
    create_service_account,
    disable_service_account,
    enable_service_account,
)
from control_plane.commands.sessions import RequestedSession, end_session, start_session
from control_plane.commands.slots import approve_slot, force_release, reprovision_slot, retire_slot
from control_plane.commands.waiting import Placing
from control_plane.decisions.access import Principal, Role, Scope
from control_plane.decisions.public_addresses import IngressRequest, PortRequest
from control_plane.decisions.refusals import Refused
from control_plane.dispatcher.dispatcher_program import ledger_dsn
from control_plane.dispatcher.waiting_pass import pass_over_queue
from control_plane.handle import Command, Handle, database_time
from control_plane.histories import allocation_history
from control_plane.identity import caller_sessions
from control_plane.identity.sessions import Superseded
from control_plane.origin import Origin
from control_plane.projector.advance import Advance
from control_plane.projector.compare import Difference
from control_plane.projector.rebuild import Rebuild
from control_plane.projector.verify import verify
from control_plane.reports.intake import Step, take_report
from control_plane.reports.slice_reports import Place
from control_plane.settings import SLICE_NETWORKS, Settings
from control_plane.wiring import plane
from control_plane.work import tables
from control_plane.work.report_budget import Limits
from deploy.embedded.lab_catalogue import SMALL, publish_with
from events.allocations import AllocationDequeued, AllocationPlaced, AllocationReplaced, AllocationRequested
from events.facts import Reason
from events.ledger.tail import Tail
from events.principals import PrincipalLimits
from events.projects import ProjectLimits
from events.service_accounts import ServiceAccountCreated
from events.values import (
    AllocationId,
    ImageName,
    NodeId,
    Position,
    ProjectId,
    ServiceAccountId,
    SkuName,
    SlotId,
    SshPublicKey,
    allocation_of,
    ingress_of,
    new_uuid,
    node_of,
)
from read_models import keys
from read_models.generations import LIVE
from read_models.projections import PROJECTIONS
from tasks.reports import FoundSlot, NodeSurveyed, Report, ReportBody, SliceRemoved
from tests.api.node import KEY, enrolment, renewal
from tests.servers.plane import settings_for
from tests.servers.postgres import Database

_UNREACHABLE_REDIS: Final = "redis://127.0.0.1:1"
ACTOR: Final = "key:test"
"""Caller of the commands, unless another is named."""
NO_REPORTS: Final[Mapping[NodeId, int]] = MappingProxyType({})
ADMIN = Principal("key:admin", Role.ADMIN, frozenset(Scope))


def token(word: str) -> str:
    return f"a token of sixteen characters or more, {word}"


@dataclass
class Fleet:
    """Simulated fleet of nodes: its methods run commands and deliver reports of nodes. Commands return False if they
    were refused, and `refused` is then the refusal. `later` is added to the database's time.
    """

    handle: Handle
    tail: Tail
    later: timedelta = timedelta()
    refused: Refused | None = None
    placed: dict[AllocationId, tuple[SlotId, ...]] = field(default_factory=dict)
    queued: list[AllocationId] = field(default_factory=list)
    """Allocations that waited for capacity at their creation."""
    _sequences: dict[NodeId, int] = field(default_factory=dict)
    _credentials: dict[NodeId, str] = field(default_factory=dict)

    async def clock(self, conn: AsyncConnection) -> datetime:
        return await database_time(conn) + self.later

    async def do(self, command: Command) -> bool:
        try:
            await self.handle(command)
        except Refused as refused:
            self.refused = refused
            return False
        return True

    async def register(self, node: NodeId) -> bool:
        return await self.do(register_node(node, token("first"), self.origin("register"), SLICE_NETWORKS))

    async def reopen(self, node: NodeId, word: str) -> bool:
        return await self.do(reopen_enrolment(node, token(word), self.origin("reopen")))

    async def remove(self, node: NodeId) -> bool:
        return await self.do(remove_node(node, self.origin("remove")))

    async def enrol(self, node: NodeId, word: str, version: str) -> bool:
        enrolment_request = verify_enrolment(enrolment(node, token(word), credential=word, version=version))
        done = await self.do(enrol_node(enrolment_request, self.origin("enrol"), timedelta(minutes=15)))
        if done:
            self._credentials[node] = word
        return done

    async def renew(self, node: NodeId, number: int, word: str) -> bool:
        """Renew the session of a node. If the session is superseded, record this and return False."""
        request = renewal(node, number, word, presented=self._credentials.get(node, word))
        try:
            done = await self.do(
                renew_session(request, self.origin("renew"), timedelta(minutes=15), Limits())
            )
        except Superseded as superseded:
            await self.do(record_superseded(superseded, self.origin("renew")))
            return False
        if done:
            self._credentials[node] = word
        return done

    async def revoke(self, node: NodeId) -> bool:
        return await self.do(revoke_node(node, "no reason", self.origin("revoke")))

    async def report(
        self, node: NodeId, body: ReportBody, *, twice: bool = False, observed_at: datetime | None = None
    ) -> bool:
        """Deliver the next report from the node's spool to the control plane. Deliver it again if `twice` is set.
        `observed_at` is the time by the clock of the node, by default that of this process.
        """
        self._sequences[node] = self._sequences.get(node, 0) + 1
        moment = observed_at or datetime.now(UTC)
        report = Report(sequence=self._sequences[node], observed_at=moment, body=body)
        place = Place(node, UUID(int=1))
        unreachable_after = timedelta(seconds=20)
        command = take_report(
            place,
            Step(report),
            Limits(burst=10**6),
            unreachable_after=unreachable_after,
            simulated_allowed=True,
        )
        done = [await self.do(command) for _ in range(1 + twice)]
        return all(done)

    async def approve(self, slot: SlotId) -> bool:
        return await self.do(approve_slot(slot, None, self.origin("approve")))

    async def force_release(self, slot: SlotId) -> bool:
        return await self.do(force_release(slot, "its host burned down", self.origin("force-release")))

    async def retire(self, slot: SlotId) -> bool:
        return await self.do(retire_slot(slot, "its GPU is returned", self.origin("retire")))

    async def reprovision(self, slot: SlotId) -> bool:
        return await self.do(reprovision_slot(slot, "its address was published", self.origin("reprovision")))

    async def readmit(self, node: NodeId, slot: SlotId | None) -> bool:
        origin, reason = self.origin("readmit"), "it was repaired"
        if slot is None:
            return await self.do(readmit_node_to_placement(node, reason, origin))
        return await self.do(readmit_slot_to_placement(slot, reason, origin))

    async def cordon(self, node: NodeId) -> bool:
        return await self.do(cordon_node(node, "its firmware is old", self.origin("cordon")))

    async def uncordon(self, node: NodeId) -> bool:
        origin, unreachable_after = self.origin("uncordon"), timedelta(seconds=20)
        return await self.do(
            uncordon_node(node, "it was updated", origin, unreachable_after=unreachable_after)
        )

    async def drain(self, node: NodeId, release_after: timedelta | None) -> bool:
        return await self.do(drain_node(node, "its firmware is old", release_after, self.origin("drain")))

    async def note_replacement(self, allocation: AllocationId) -> None:
        """If the allocation was placed again on another node, record its previous and its new slots in `placed`."""
        async with self.handle.engine.connect() as conn:
            history = await allocation_history(conn, allocation)
        for fact in (each.fact for each in history):
            if isinstance(fact, AllocationReplaced):
                self.placed[allocation] = (*fact.vacated, *(each.slot_id for each in fact.slots))

    async def create(
        self,
        slots: int,
        project: str,
        *,
        sku: str = "lab.small",
        ports: int = 0,
        actor: str = ACTOR,
        lease_seconds: int = 3600,
        node: NodeId | None = None,
        wait: WaitOptions | None = None,
    ) -> AllocationId | None:
        """Request an allocation, with `ports` ingress rules on ports of the first slot. Return its id, or None if it
        was refused. If there is no capacity and `wait` is given, it is in `queued`, otherwise in `placed`.
        """
        await self.record_heartbeats()
        await self.do(create_project(ProjectId(project), "", self.origin("project"), lambda row: row.project))
        allocation = allocation_of(new_uuid())
        requested = AllocationRequested(
            allocation, ProjectId(project), SkuName(sku), "public-nat" if ports else "private-nat",
            ImageName("lab-guest"), (SshPublicKey(KEY),), lease_seconds, slots, {}, node=node,
        )  # fmt: skip
        rules = [
            (ingress_of(new_uuid()), IngressRequest(0, PortRequest("tcp", 22 + index, None), ()))
            for index in range(ports)
        ]

        def note_slots(facts: tuple[object, ...], _now: datetime) -> str:
            self._note_placement(allocation, facts)
            return ""

        new = NewAllocation(
            requested, timedelta(seconds=20), simulated_allowed=True, ingress_rules=rules, wait=wait
        )
        if not await self.do(create_allocation(new, self.origin("create", actor), note_slots)):
            return None
        if allocation not in self.placed:
            self.queued.append(allocation)
        return allocation

    def _note_placement(self, allocation: AllocationId, facts: Sequence[object]) -> None:
        for fact in facts:
            if isinstance(fact, AllocationPlaced):
                self.placed[allocation] = tuple(each.slot_id for each in fact.slots)

    async def place_queued(self) -> None:
        """Place the waiting requests that fit now."""
        await self.record_heartbeats()
        await pass_over_queue(self.handle, Placing(timedelta(seconds=20), simulated_allowed=True))
        await self.note_queue()

    async def note_queue(self) -> None:
        """Move the waiting requests that were placed from `queued` to `placed`, and forget those that ended."""
        if not self.queued:
            return
        async with self.handle.engine.connect() as conn:
            for allocation in self.queued:
                history = await allocation_history(conn, allocation)
                facts = [each.fact for each in history]
                self._note_placement(allocation, facts)
                if any(isinstance(each, AllocationDequeued) for each in facts):
                    self.queued = [each for each in self.queued if each != allocation]

    async def expire_wait(self, allocation: AllocationId) -> bool:
        return await self.do(expire_wait(allocation))

    async def stop(self, allocation: AllocationId) -> bool:
        reason = Reason("stopped_by_caller", "asked for")
        return await self.do(stop_allocation(allocation, self.origin("stop"), reason))

    async def release(self, allocation: AllocationId) -> bool:
        reason = Reason("released_by_caller", "asked for")
        return await self.do(release_allocation(allocation, self.origin("release"), reason))

    async def expire(self, allocation: AllocationId) -> bool:
        return await self.do(expire_lease(allocation))

    async def renew_lease(self, allocation: AllocationId, duration: timedelta = timedelta(hours=3)) -> bool:
        return await self.do(renew_lease(allocation, self.origin("renew lease"), duration))

    async def announce_end(self, allocation: AllocationId) -> bool:
        return await self.do(announce_end(allocation, timedelta(hours=1)))

    async def record_overdue(self, allocation: AllocationId) -> bool:
        deadline, unreachable_after = datetime.now(UTC), timedelta(minutes=1)
        return await self.do(
            record_overdue_release(allocation, deadline, unreachable_after=unreachable_after)
        )

    async def miss_deadline(self, allocation: AllocationId) -> bool:
        return await self.do(miss_deadline(allocation, unreachable_after=timedelta(minutes=1)))

    async def issue_key(self, name: str) -> bool:
        return await self.do(issue_first_key(name, new_uuid().hex * 2))

    async def rotate_key(self, *, revoke: bool) -> bool:
        """Replace the last API key by a new one, and revoke the replaced key if `revoke` is set."""
        async with self.handle.engine.connect() as conn:
            listed = await keys.page(conn, after=None, limit=500)
        if not listed:
            return False
        key, origin = listed[-1].key_id, self.origin("rotate")
        overlap = timedelta(hours=1)
        done = await self.do(
            replace_key(key, new_uuid().hex * 2, overlap, origin, lambda row: row.key_id, issuer=ADMIN)
        )
        return done and (not revoke or await self.do(revoke_key(key, "lost", origin)))

    async def create_account(self, name: str, project: str) -> bool:
        """Create a service account, and issue a key for it."""
        account, origin = ServiceAccountId(name), self.origin("account")
        fact = ServiceAccountCreated(account, "", "caller", (ProjectId(project),))
        done = await self.do(create_service_account(fact, origin, lambda made: made.account))
        wanted = KeyRequest(name, None, service_account=account)
        key = issue_key(wanted, new_uuid().hex * 2, origin, None, lambda row: row.key_id, issuer=ADMIN)
        return await self.do(key) and done

    async def change_account(self, name: str, *, disable: bool) -> bool:
        """Disable a service account, or enable it."""
        account, origin = ServiceAccountId(name), self.origin("account")
        command = disable_service_account(account, "leaked", origin)
        return await self.do(command if disable else enable_service_account(account, origin))

    async def start_session(self) -> bool:
        """Start a session of the last API key."""
        async with self.handle.engine.connect() as conn:
            listed = await keys.page(conn, after=None, limit=500)
        if not listed:
            return False
        key, origin = listed[-1], self.origin("session")
        wanted = RequestedSession(actor=key.actor, credential=key.key_id, label="", idle_seconds=60)
        most, secret = timedelta(hours=1), new_uuid().hex * 2
        return await self.do(start_session(wanted, secret, origin, most, lambda made: made.session_id))

    async def end_session(self) -> bool:
        """End the first active session."""
        async with self.handle.engine.connect() as conn:
            listed = await caller_sessions.page(conn, after=None, limit=1, state="active")
        return bool(listed) and await self.do(
            end_session(listed[0].session_id, "over", self.origin("session"))
        )

    async def change_project(self, project: str, *, archive: bool) -> bool:
        """Describe a project, or archive it."""
        name, origin = ProjectId(project), self.origin("project")
        command = (
            archive_project(name, "ended", origin)
            if archive
            else describe_project(name, new_uuid().hex, origin)
        )
        return await self.do(command)

    async def set_limits(self, project: str, limits: ProjectLimits) -> bool:
        return await self.do(set_limits(ProjectId(project), limits, self.origin("limits")))

    async def set_reservation(self, project: str, sku: str, slots: int) -> bool:
        origin = self.origin("reservation")
        return await self.do(set_reservation(ProjectId(project), SkuName(sku), slots, origin))

    async def set_principal_limits(self, limits: PrincipalLimits, actor: str = ACTOR) -> bool:
        return await self.do(set_principal_limits(actor, limits, self.origin("limits")))

    async def change_sku(self, name: str, *, memory_mib: int, retire: bool) -> bool:
        """Retire a SKU if `retire`; otherwise publish a version of the SKU, which is created if it does not exist."""
        origin = self.origin("sku")
        if retire:
            return await self.do(retire_entry("sku", name, "obsolete", origin))
        content = msgspec.structs.replace(SMALL, memory_mib=memory_mib)
        created = await self.do(create_entry("sku", name, content, origin, lambda made: made.name))
        return created or await self.do(publish_version("sku", name, content, origin))

    async def bring_up(self, node: NodeId, slots: int) -> None:
        """Register and enrol a node of the simulated fleet, and approve its slots."""
        assert await self.register(node)
        assert await self.enrol(node, "first", "1")
        found = tuple(
            FoundSlot(index=index, vcpus=1, memory_mib=96, network_device=f"slice{index}")
            for index in range(slots)
        )
        body = NodeSurveyed(
            hostname="host", agent_version="1", simulated=True, images=("lab-guest",), missing=(), slots=found
        )
        assert await self.report(node, body)
        for index in range(slots):
            assert await self.approve(SlotId(f"{node}/{index}"))

    async def report_removed(self, allocation: AllocationId) -> None:
        for slot in self.placed[allocation]:
            body = SliceRemoved(slot_id=slot, allocation_id=allocation, absent=("port",))
            assert await self.report(node_of(slot), body)

    async def project(self, names: Sequence[str], batch: int) -> None:
        """Advance the live tables of the named read models to the end of the ledger, in batches of `batch` events."""
        for name in names:
            advance = Advance(self.handle.engine, self.tail, [PROJECTIONS[name]], LIVE, batch)
            await advance.begin()
            while await advance.step():
                pass

    async def order_rebuild(self, name: str) -> None:
        assert await self.do(order_rebuild(name, self.origin("rebuild")))

    async def rebuild(self, names: list[str]) -> None:
        for name in names:
            await self.order_rebuild(name)
        await Rebuild(self.handle, self.tail)([PROJECTIONS[name] for name in names])

    async def verify(self) -> tuple[Difference, ...]:
        async def record_progress(position: Position, upto: Position) -> None:
            assert position <= upto

        _, differences = await verify(self.handle.engine, record_progress)
        return differences

    def origin(self, reason: str, actor: str = ACTOR) -> Origin:
        return Origin(actor, reason, new_uuid())

    async def record_heartbeats(self, spooled: Mapping[NodeId, int] = NO_REPORTS) -> None:
        """Record a heartbeat of every node, because placement ignores a node without heartbeats. `spooled` are the
        numbers of reports that nodes have not delivered yet.
        """
        rows = [
            {
                "node_id": node,
                "seen_at": sa.func.clock_timestamp(),
                "agent_version": "1",
                "spooled_reports": spooled.get(node, 0),
                "resynced": True,
            }
            for node in self._sequences
        ]
        if not rows:
            return
        statement = insert(tables.node_seen).values(rows)
        changed = {each: statement.excluded[each] for each in ("seen_at", "spooled_reports")}
        async with self.handle.engine.begin() as conn:
            await conn.execute(statement.on_conflict_do_update(index_elements=["node_id"], set_=changed))

    def node_of(self, allocation: AllocationId, slot: int) -> tuple[NodeId, SlotId]:
        slots = self.placed[allocation]
        return node_of(slots[slot % len(slots)]), slots[slot % len(slots)]


def settings_of(database: Database) -> Settings:
    """Return settings for control plane programs that neither send nor receive wake-ups, because their Redis is
    unreachable.
    """
    return settings_for(database, _UNREACHABLE_REDIS, 1, 1)


@asynccontextmanager
async def living(database: Database, pool: int = 4) -> AsyncIterator[Fleet]:
    async with living_with(settings_of(database), pool) as fleet:
        yield fleet


@asynccontextmanager
async def living_with(settings: Settings, pool: int = 4) -> AsyncIterator[Fleet]:
    async with plane(settings, pool=pool) as made:
        fleet = Fleet(Handle(made.engine, _wake_no_follower), Tail(ledger_dsn(made)))
        fleet.handle = replace(fleet.handle, clock=fleet.clock)
        await publish_with(fleet.handle)
        try:
            yield fleet
        finally:
            await fleet.tail.close()


async def _wake_no_follower() -> None:
    """Do nothing instead of waking followers, because no follower of the ledger runs."""
