"""The agent put together, and the order in which its parts come up and go down.

Up: known to the control plane, able to report, host made fit, slots compared with what is wanted; only then are
orders taken. Down: no new orders, work halted between two steps, then everything that talks. Slices stay as they
are: nothing in here ends a guest.
"""

from collections.abc import Callable
from typing import Final, TypeVar, assert_never

import structlog

from events.values import Ipv4Subnet
from node_agent.accept import Acceptance
from node_agent.drift import Drifts
from node_agent.enrol import become_known
from node_agent.fence import FenceFiles
from node_agent.gateway import node_network
from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.inspection import Inspection
from node_agent.looks import one_look
from node_agent.operations import Operations
from node_agent.outcomes import Outcomes
from node_agent.refusals import GivenUpOrders
from node_agent.resync import Resync
from node_agent.running import Running
from node_agent.sessions import Kept, Session
from node_agent.settings import Settings
from node_agent.slots import Slot, Slots
from node_agent.sole import sole_agent
from node_agent.survey import Survey
from node_agent.taking import Taking
from node_agent.talking import Talking
from node_agent.trust import Trust
from node_agent.work import SlotWork
from tasks.crew import Crew
from tasks.operations import Operation
from tasks.orders import Order
from tasks.reading import Task
from tasks.sealed import BadCopy, Unsealed
from tasks.timetable import Timetable

log = structlog.get_logger(__name__)
Thing = TypeVar("Thing")

BuildHost = Callable[[Settings, Ipv4Subnet, Callable[[], None]], Host]
"""From settings, the node's own subnet, and what to call when something on the host may have changed."""

_STOP_SECONDS: Final = 1.0


def run(settings: Settings, halt: Halt, build_host: BuildHost | None = None) -> None:
    """Be the agent until halted. Raises `AnotherAgent`, `EnrolmentRefused`, `SettingsRefused`, `Halted`, `OSError`."""
    with sole_agent(settings.state_folder), Timetable() as timetable:
        session = become_known(settings, halt)
        agent = Agent(settings, session, build_host or host_builder(settings), timetable)
        try:
            agent.start(halt)
            halt.rest()
        finally:
            agent.stop()


class Agent:
    """One node's agent. A process may hold a thousand, on one timetable, if their hosts are simulated."""

    def __init__(
        self, settings: Settings, session: Session, build_host: BuildHost, timetable: Timetable
    ) -> None:
        kept, granted = session.kept, session.kept.granted
        self._session, self._timetable = session, timetable
        self._talking = Talking(settings, session, timetable)
        reporter, progress = self._talking.reporter, self._talking.progress
        self._trust = Trust(granted.order_keys, kept.former_keys, self._talking.clock.now)
        self._files = FenceFiles(settings.state_folder / "fence", self._trust.recall)
        indexes = (slot.index for slot in settings.slots)
        network = node_network(settings, granted.subnet)
        slots = Slots(settings.node_id, network, indexes, self._files, self._look_again)
        self._hears_changes = settings.hears_changes
        self._host = build_host(settings, granted.subnet, self._something_changed)
        self._drifts = Drifts(reporter.tell, self._talking.clock.now, self._drift_moved)
        work = SlotWork(self._host, Outcomes(reporter), self._drifts, progress)
        self._acceptance = Acceptance(slots, work, reporter)
        self._operations = Operations(
            settings.node_id, self._host, self._acceptance, reporter, Running(), self._look_after, progress
        )
        self._look(settings)
        self._slot_work = Crew("slot", len(slots))
        self._taking = Taking(
            kept,
            len(slots),
            self._talking.gate,
            believe=self._believe,
            take=self._take,
            on_given_up=GivenUpOrders(slots, reporter, self._trust.recall),
            timetable=timetable,
        )
        session.on_renewal(self._go_on)

    def _look(self, settings: Settings) -> None:
        """What compares: with the control plane, and with the host."""
        talking = self._talking
        self._resync = Resync(
            talking.control_plane,
            self._acceptance,
            self._files,
            self._believe,
            talking.clock,
            timetable=self._timetable,
            carry_out=self._carry_out,
        )
        self._inspection = Inspection(
            settings,
            self._host,
            talking.reporter,
            self._drifts,
            lambda: self._session.kept.token_sha256,
        )
        talking.contact.on_doubt(self._resync.ask_again)
        talking.contact.on_doubt(self._inspection.doubt)
        self._survey = Survey(
            self._acceptance,
            self._inspection,
            talking.gate,
            self._look_after,
            seconds=settings.survey_seconds,
        )

    def start(self, halt: Halt) -> None:
        """Returns when orders are taken. Raises `Halted`, `OSError`."""
        self._talking.start()
        with one_look():
            self._inspection.tell(self._inspection.prepare(halt), ())
        was_asked = self._resync.begin(halt)
        with one_look():
            due = self._acceptance.notice_all()
        self._talking.heartbeat.resynced()
        for slot in due:
            self._look_after(slot)
        if not was_asked:
            self._resync.ask_again()
        self._taking.start()
        self._survey.start(self._timetable)
        if self._hears_changes:
            self._host.listen()
        log.info("agent_started", slots=len(self._acceptance.slots))

    @property
    def untold(self) -> int:
        """Reports that the control plane has not taken yet."""
        return self._talking.untold

    def stop(self) -> None:
        """At most some seconds; a driver's call that hangs is left behind with its thread."""
        self._talking.gate.close()
        self._operations.close()
        self._acceptance.close()
        self._resync.stop(_STOP_SECONDS)
        self._survey.stop(_STOP_SECONDS)
        self._taking.stop(_STOP_SECONDS)
        self._slot_work.close(0)
        self._talking.stop(_STOP_SECONDS)
        self._host.close()
        log.info("agent_stopped")

    def _believe(self, text: str) -> Unsealed:
        """Raises `BadCopy`."""
        bearer = self._session.bearer
        try:
            return self._trust.believe(text)
        except BadCopy as bad:
            # A key that is newer than our session comes with the next one.
            if bad.code != "unknown_key" or not self._session.renew_if_still(bearer):
                raise
        return self._trust.believe(text)

    def _go_on(self, kept: Kept) -> None:
        """From a new session on."""
        self._taking.go_on(kept)
        self._trust.learn(kept.granted.order_keys)

    def _take(self, task: Task) -> None:
        match task:
            case Order() as order:
                self._acceptance.accept(order)
            case Operation() as operation:
                self._operations.carry_out(operation)
            case _:
                assert_never(task)

    def _look_after(self, slot: Slot) -> None:
        self._slot_work.run(lambda: _alone(self._acceptance.look_after, slot))

    def _carry_out(self, order: Order) -> None:
        # It passed the fence, and stands there until a survey that finds room: as from the queue, nothing new is begun
        # whose end could not be told.
        if self._talking.gate.room:
            self._slot_work.run(lambda: _alone(self._acceptance.carry_out, order))

    def _something_changed(self) -> None:
        if self._hears_changes:
            self._look_again()

    def _look_again(self) -> None:
        self._survey.wake()

    def _drift_moved(self) -> None:
        # What is open stands in the node's description.
        self._survey.tell()


def host_builder(settings: Settings) -> BuildHost:
    """The drivers are imported only where they are used: their packages are an extra, and a simulated node has none."""
    if settings.simulated is not None:
        from node_agent.lab.simulated.node import simulated_host

        return simulated_host
    from node_agent.real_host import real_host

    return real_host


def _alone(work: Callable[[Thing], None], thing: Thing) -> None:
    """What breaks is this slot's work and no other's; the next survey comes to it again."""
    try:
        work(thing)
    except Exception:
        log.exception("slot_work_broke")
