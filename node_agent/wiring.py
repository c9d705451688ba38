"""Wiring of the agent, and the order in which its parts start and stop.

Start: obtain a session, connect to the control plane, prepare the host, fetch the desired state of the slots; only then
accept orders. Stop: accept no new orders, halt work between two steps, then end the connection to the control plane.
Slices are not changed: neither the start nor the stop of the agent ends a guest.
"""

from collections.abc import Callable
from typing import Final, TypeVar, assert_never

import structlog

from events.values import Ipv4Subnet, SlotId
from node_agent.aspects.gateway import node_network
from node_agent.host.drift import Drifts
from node_agent.host.host import Host
from node_agent.host.snapshots import host_snapshot
from node_agent.operations.operations import Operations
from node_agent.operations.running_operations import RunningOperations
from node_agent.operations.streams import Streams
from node_agent.runtime.halt import Halt
from node_agent.runtime.single_agent import single_agent_lock
from node_agent.runtime.thread_pool import ThreadPool
from node_agent.runtime.timetable import Timetable, Trigger
from node_agent.settings import Settings
from node_agent.slots.accept import Acceptance
from node_agent.slots.dead_letters import DeadLetterHandler
from node_agent.slots.fence import FenceFiles
from node_agent.slots.inspection import Inspection
from node_agent.slots.outcomes import Outcomes
from node_agent.slots.resync import Resync
from node_agent.slots.slot_work import SlotWork
from node_agent.slots.slots import Slot, Slots
from node_agent.slots.survey import Survey
from node_agent.slots.task_consumer import TaskConsumer
from node_agent.transport.control_plane_link import ControlPlaneLink
from node_agent.transport.enrol import enrol_or_resume
from node_agent.transport.sealed_heads import SealedHeads
from node_agent.transport.sessions import Session, StoredSession
from node_agent.transport.trust import Trust, keys_by_id
from tasks.heads import HeldHead, signed_head
from tasks.operations import Operation
from tasks.orders import Order
from tasks.reading import Task
from tasks.sealed import BadCopy, Unsealed
from tasks.signing import BadSignature

log = structlog.get_logger(__name__)
Argument = TypeVar("Argument")

BuildHost = Callable[[Settings, Ipv4Subnet, Callable[[], None]], Host]
"""Function that builds a host from the settings, the node's own subnet, and a function to call at each event of the
host."""

_STOP_SECONDS: Final = 1.0


def run(settings: Settings, halt: Halt, build_host: BuildHost | None = None) -> None:
    """Run the agent until halted. Raises `StateFolderInUse`, `EnrolmentRefused`, `SettingsRefused`, `Halted`,
    `OSError`."""
    with single_agent_lock(settings.state_folder), Timetable() as timetable:
        session = enrol_or_resume(settings, halt)
        agent = Agent(settings, session, build_host or host_builder(settings), timetable)
        try:
            agent.start(halt)
            halt.wait_for_request()
        finally:
            agent.stop()


class Agent:
    """Agent of one node. A process may run a thousand agents with one job scheduler if their hosts are simulated."""

    def __init__(
        self, settings: Settings, session: Session, build_host: BuildHost, timetable: Timetable
    ) -> None:
        kept, granted = session.kept, session.kept.granted
        self._session, self._timetable = session, timetable
        self._control_plane_link = ControlPlaneLink(settings, session, timetable)
        reporter, progress = self._control_plane_link.reporter, self._control_plane_link.progress
        self._trust = Trust(granted.order_keys, kept.former_keys, self._control_plane_link.clock.now)
        self._files = FenceFiles(settings.state_folder / "fence", self._trust.verify_stored)
        indexes = (slot.index for slot in settings.slots)
        network = node_network(settings, granted.subnet)
        # The host and the slots may report changes before the survey exists.
        self._survey_due, self._description_due = Trigger(), Trigger()
        slots = Slots(settings.node_id, network, indexes, self._files, self._survey_due.wake)
        self._watches_changes = settings.watch_changes
        self._host = build_host(settings, granted.subnet, self._something_changed)
        self._drifts = Drifts(reporter.report, self._control_plane_link.clock.now, self._description_due.wake)
        work = SlotWork(self._host, Outcomes(reporter), self._drifts, progress)
        self._acceptance = Acceptance(slots, work, reporter)
        self._operations = Operations(
            settings.node_id,
            self._host,
            self._acceptance,
            reporter,
            RunningOperations(),
            self._look_after,
            progress,
        )
        self._wire_comparisons(settings)
        self._slot_work = ThreadPool("slot", len(slots))
        link = self._control_plane_link.control_plane
        self._streams = Streams(settings, session, self._host, slots, link, timetable=timetable)
        self._consumer = TaskConsumer(
            kept,
            len(slots),
            self._control_plane_link.gate,
            verify=self._verify,
            take=self._take,
            on_dead_letter=DeadLetterHandler(slots, reporter, self._trust.verify_stored),
            open_stream=self._streams.open,
            timetable=timetable,
        )
        self._heads = SealedHeads(
            settings.state_folder / "heads",
            self._control_plane_link.control_plane,
            self._verified_head,
            reporter.report,
            timetable,
            seconds=settings.head_seconds,
        )
        session.on_renewal(self._use_session)

    def _wire_comparisons(self, settings: Settings) -> None:
        """Create the agent's parts that compare its orders with the control plane, and the host with its orders."""
        link = self._control_plane_link
        self._resync = Resync(
            link.control_plane,
            self._acceptance,
            self._files,
            self._verify,
            link.clock,
            timetable=self._timetable,
            carry_out=self._carry_out,
        )
        self._inspection = Inspection(
            settings,
            self._host,
            link.reporter,
            self._drifts,
            lambda: self._session.kept.token_sha256,
        )
        link.contact.on_comparison_due(self._resync.ask_again)
        link.contact.on_comparison_due(self._inspection.report_again)
        self._survey = Survey(
            self._acceptance,
            self._inspection,
            link.gate,
            self._look_after,
            seconds=settings.survey_seconds,
            survey_due=self._survey_due,
            description_due=self._description_due,
        )

    def start(self, halt: Halt) -> None:
        """Start all parts of the agent, and return when it accepts orders. Raises `Halted`, `OSError`."""
        self._control_plane_link.start()
        with host_snapshot():
            self._inspection.report(self._inspection.prepare(halt), ())
        control_plane_answered = self._resync.begin(halt)
        with host_snapshot():
            due = self._acceptance.report_interrupted()
        self._control_plane_link.heartbeat.resynced()
        for slot in due:
            self._look_after(slot)
        if not control_plane_answered:
            self._resync.ask_again()
        self._consumer.start()
        self._survey.start(self._timetable)
        if self._watches_changes:
            self._host.listen()
        log.info("agent_started", slot_count=len(self._acceptance.slots))

    @property
    def undelivered_reports(self) -> int:
        """Number of reports that the control plane has not accepted yet."""
        return self._control_plane_link.undelivered_reports

    def stop(self) -> None:
        """Stop all parts of the agent within seconds; a driver call that hangs is abandoned with its thread."""
        self._control_plane_link.gate.close()
        self._streams.close()
        self._operations.close()
        self._acceptance.close()
        self._resync.stop(_STOP_SECONDS)
        self._heads.stop(_STOP_SECONDS)
        self._survey.stop(_STOP_SECONDS)
        self._consumer.stop(_STOP_SECONDS)
        self._slot_work.close(0)
        self._control_plane_link.stop(_STOP_SECONDS)
        self._host.close()
        log.info("agent_stopped")

    def _verify(self, text: str) -> Unsealed:
        """Verify a task's signed text, and return the task. Raises `BadCopy`."""
        bearer = self._session.bearer
        try:
            return self._received(self._trust.verify(text))
        except BadCopy as bad:
            # The text may be signed with a key that is newer than this session; the next session contains it.
            if bad.code != "unknown_key" or not self._session.renew_if_unchanged(bearer):
                raise
        return self._received(self._trust.verify(text))

    def _received(self, unsealed: Unsealed) -> Unsealed:
        if unsealed.head is not None:
            self._heads.receive(unsealed.head)
        return unsealed

    def _verified_head(self, text: str) -> HeldHead | None:
        """Return the head in a signed text, None without a key of the sealer. Raises `BadSignature`,
        `UnreadableHead`.
        """
        bearer = self._session.bearer
        try:
            return self._head_in(text)
        except BadSignature as bad:
            if bad.code != "unknown_key" or not self._session.renew_if_unchanged(bearer):
                raise
        return self._head_in(text)

    def _head_in(self, text: str) -> HeldHead | None:
        keys = keys_by_id(self._session.kept.granted.sealing_keys)
        return signed_head(text, keys) if keys else None

    def _use_session(self, kept: StoredSession) -> None:
        """Use the queue password of a new session, and its keys for verifying tasks, from now on."""
        self._consumer.use_session(kept)
        self._trust.replace_keys(kept.granted.order_keys)

    def _take(self, task: Task) -> None:
        match task:
            case Order() as order:
                self._acceptance.accept(order)
            case Operation() as operation:
                self._operations.carry_out(operation)
            case _:
                assert_never(task)

    def _look_after(self, slot: Slot) -> None:
        self._slot_work.run(lambda: _isolated(slot.slot_id, self._acceptance.reconcile_slot, slot))

    def _carry_out(self, order: Order) -> None:
        # The order passed the fence and is on disk. As with tasks from the queue, nothing is started while its result
        # could not be spooled; the next survey with room in the spool starts it.
        if self._control_plane_link.gate.room:
            self._slot_work.run(lambda: _isolated(order.slot_id, self._acceptance.carry_out, order))

    def _something_changed(self) -> None:
        if self._watches_changes:
            self._survey_due.wake()


def host_builder(settings: Settings) -> BuildHost:
    """Return the function that builds the configured kind of host: real or simulated.

    Drivers are imported only here, because their packages are an optional extra that a simulated node does not have.
    """
    if settings.simulated is not None:
        from node_agent.lab.simulated.node import simulated_host

        return simulated_host
    from node_agent.real_host import real_host

    return real_host


def _isolated(slot: SlotId, work: Callable[[Argument], None], argument: Argument) -> None:
    """Run the work on one slot. Log an exception and do not raise it: other slots continue, and the survey retries."""
    try:
        work(argument)
    except Exception:
        log.exception("work_on_slot_failed", slot=slot)
