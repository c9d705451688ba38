"""The agent put together, and the order in which its parts come up and go down.

Up: known to the control plane, able to report, host made fit, slots compared with what is wanted; only then are
orders taken. Down: no new orders, work halted between two steps, then everything that talks. Slices stay as they
are: nothing in here ends a guest.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, assert_never

import structlog

from events.values import Ipv4Subnet
from node_agent.accept import Acceptance
from node_agent.actors import declare_actors
from node_agent.client import ControlPlane
from node_agent.clock import NodeClock
from node_agent.enrol import become_known
from node_agent.fence import FenceFiles
from node_agent.gate import Gate
from node_agent.gateway import node_network
from node_agent.halt import Halt
from node_agent.heartbeat import HeartbeatSender
from node_agent.host import Host
from node_agent.inspection import Inspection
from node_agent.operations import Operations
from node_agent.progress import ProgressSender
from node_agent.refusals import GivenUpOrders
from node_agent.renewal import Renewal
from node_agent.reporter import Reporter
from node_agent.resync import Resync
from node_agent.running import Running
from node_agent.sessions import Kept, Session
from node_agent.settings import Settings
from node_agent.slots import Slot, Slots
from node_agent.sole import sole_agent
from node_agent.spool import Spool
from node_agent.survey import Survey
from node_agent.trust import Trust
from node_agent.work import SlotWork
from tasks.broker import NodeBroker, NodeWorker, QueueAddress
from tasks.catalogue import CREDIT
from tasks.operations import Operation
from tasks.orders import Order
from tasks.reading import Task
from tasks.sealed import BadCopy, Unsealed

log = structlog.get_logger(__name__)

BuildHost = Callable[[Settings, Ipv4Subnet, Callable[[], None]], Host]
"""From settings, the node's own subnet, and what to call when something on the host ended by itself."""

_STOP_SECONDS: Final = 1.0
_TO_SPARE: Final = 4
"""Threads beyond those that can be kept busy."""


def run(settings: Settings, halt: Halt, build_host: BuildHost | None = None) -> None:
    """Be the agent until halted. Raises `AnotherAgent`, `EnrolmentRefused`, `SettingsRefused`, `Halted`, `OSError`."""
    with sole_agent(settings.state_folder):
        session = become_known(settings, halt)
        agent = Agent(settings, session, build_host or host_builder(settings))
        try:
            agent.start(halt)
            halt.rest()
        finally:
            agent.stop()


class Agent:
    """One node's agent. A process may hold many, if their hosts are simulated."""

    def __init__(self, settings: Settings, session: Session, build_host: BuildHost) -> None:
        kept, granted = session.kept, session.kept.granted
        self._session = session
        self._control_plane = ControlPlane(settings, session)
        self._clock = NodeClock()
        self._trust = Trust(granted.order_keys, kept.former_keys, self._clock.now)
        self._spool = Spool(settings.state_folder / "spool")
        self._reporter = Reporter(self._spool, self._clock)
        self._gate = Gate(self._spool, self._clock)
        self._renewal = Renewal(session, self._gate, seconds=settings.renewal_seconds)
        self._files = FenceFiles(settings.state_folder / "fence", self._trust.recall)
        network = node_network(settings, granted.subnet)
        slots = Slots(
            settings.node_id,
            network,
            (slot.index for slot in settings.slots),
            self._files,
        )
        self._host = build_host(settings, granted.subnet, self._something_ended)
        self._progress = ProgressSender(self._clock)
        work = SlotWork(self._host, self._reporter, self._progress.tell)
        self._acceptance = Acceptance(slots, work, self._reporter)
        self._operations = Operations(
            settings.node_id,
            self._host,
            self._acceptance,
            self._reporter,
            Running(),
            self._look_after,
            self._progress.tell,
        )
        self._heartbeat = HeartbeatSender(
            self._control_plane,
            self._clock,
            self._spool,
            self._gate,
            seconds=settings.heartbeat_seconds,
        )
        self._resync = Resync(self._control_plane, self._acceptance, self._files, self._believe, self._clock)
        self._inspection = Inspection(settings, self._host, self._reporter)
        self._survey = Survey(
            self._acceptance,
            self._inspection,
            self._gate,
            self._look_after,
            seconds=settings.survey_seconds,
        )
        self._pool = ThreadPoolExecutor(len(slots), thread_name_prefix="slot")
        # Two orders a slot can be in hand: one at work, and a newer one that has just halted it. Operations take so
        # many threads and no more, so there is always one for what ends another: a newer order, or a cancel.
        self._broker = NodeBroker(
            _queue_address(kept),
            on_given_up=GivenUpOrders(slots, self._reporter, self._trust.recall),
            prefetch=2 * len(slots) + CREDIT["operations"] + _TO_SPARE,
        )
        declare_actors(self._broker, granted.queue.queue, self._take, self._gate, self._believe)
        self._worker = NodeWorker(self._broker)
        session.on_renewal(self._go_on)

    def start(self, halt: Halt) -> None:
        """Returns when orders are taken. Raises `Halted`, `OSError`."""
        self._heartbeat.beat()
        self._heartbeat.start()
        self._renewal.start()
        self._reporter.start(self._control_plane)
        self._progress.start(self._control_plane)
        self._inspection.inspect(halt)
        source = self._resync.begin(halt)
        for slot in self._acceptance.slots:
            self._acceptance.notice(slot)
        self._heartbeat.resynced()
        self._look_after_all()
        if source == "disk":
            self._resync.go_on_asking(self._look_after_all)
        self._worker.start()
        self._survey.start()
        log.info("agent_started", slots=len(self._acceptance.slots))

    def stop(self) -> None:
        """At most some seconds; a driver's call that hangs is left behind with its thread."""
        self._gate.close()
        self._operations.close()
        self._acceptance.close()
        self._resync.stop(_STOP_SECONDS)
        self._survey.stop(_STOP_SECONDS)
        if self._worker.workers:
            self._worker.stop(timeout=int(_STOP_SECONDS * 1000))
        self._broker.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._heartbeat.stop(_STOP_SECONDS)
        self._renewal.stop(_STOP_SECONDS)
        self._progress.stop(_STOP_SECONDS)
        self._reporter.stop(_STOP_SECONDS)
        self._control_plane.close()
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
        self._broker.use_password(kept.secrets.queue_password)
        self._broker.believe(kept.granted.queue.ca)
        self._trust.learn(kept.granted.order_keys)

    def _take(self, task: Task) -> None:
        match task:
            case Order() as order:
                self._acceptance.accept(order)
            case Operation() as operation:
                self._operations.carry_out(operation)
            case _:
                assert_never(task)

    def _look_after_all(self) -> None:
        for slot in self._acceptance.slots:
            self._look_after(slot)

    def _look_after(self, slot: Slot) -> None:
        self._pool.submit(self._acceptance.look_after, slot).add_done_callback(_log_failure)

    def _something_ended(self) -> None:
        self._survey.wake()


def host_builder(settings: Settings) -> BuildHost:
    """The drivers are imported only where they are used: their packages are an extra, and a simulated node has none."""
    if settings.simulated is not None:
        from node_agent.lab.simulated.node import simulated_host

        return simulated_host
    from node_agent.real_host import real_host

    return real_host


def _queue_address(kept: Kept) -> QueueAddress:
    queue = kept.granted.queue
    return QueueAddress(
        host=queue.host,
        port=queue.port,
        username=queue.username,
        password=kept.secrets.queue_password,
        namespace=queue.namespace,
        queue=queue.queue,
        tls=queue.tls,
        ca=queue.ca,
    )


def _log_failure(work: Future[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        log.error("slot_work_broke", exc_info=error)
