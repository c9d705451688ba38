"""The core of an agent without Redis, HTTP or threads: its actors receive signed payloads, its spool collects reports.

Tests compare snapshots of the agent's host. Scheduled slot work runs only when a test calls `settle_slots`.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from events.values import Ipv4Subnet
from node_agent.aspects.gateway import node_network
from node_agent.host.drift import Drifts
from node_agent.host.host import Host
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.node import assemble_simulated_host
from node_agent.operations.operations import Operations
from node_agent.operations.running_operations import RunningOperations
from node_agent.runtime.clock import NodeClock
from node_agent.runtime.halt import Halt
from node_agent.runtime.timetable import Timetable
from node_agent.settings import Settings
from node_agent.slots.accept import Acceptance
from node_agent.slots.actors import declare_actors
from node_agent.slots.dead_letters import DeadLetterHandler
from node_agent.slots.fence import FenceFiles
from node_agent.slots.outcomes import Outcomes
from node_agent.slots.slot_work import SlotWork
from node_agent.slots.slots import Slot, Slots
from node_agent.slots.steps import run_steps
from node_agent.transport.broker import Failed, NodeBroker, Poisoned, QueueAddress
from node_agent.transport.gate import Gate
from node_agent.transport.progress import NullListener
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from node_agent.transport.trust import Trust
from tasks.catalogue import CATALOGUE, REFUSALS, bounds_of
from tasks.operations import Operation
from tasks.orders import Order
from tasks.reading import Task, id_of
from tasks.reports import OperationDone, OperationFailed, ReportBody
from tasks.streams import StreamRequest
from tasks.wire import OrderMessage
from tests.agent.orders import NODE
from tests.agent.task_signing import SIGNER, sealed

SUBNET: Final = Ipv4Subnet("10.100.1.0/24")


@dataclass(frozen=True, slots=True)
class Copy:
    """Task message in the form in which the queue stores it. A test can deliver it several times."""

    message_id: UUID
    actor: str
    payload: str


def copy_of(task: Task, sent_at: datetime | None = None) -> Copy:
    """Return a signed message that contains `task` and expires after the maximum age of the task's type."""
    return signed(id_of(task), task.body.kind, task.model_dump_json(), sent_at)


def signed(message_id: UUID, kind: str, text: str, sent_at: datetime | None = None) -> Copy:
    """Return a signed message that contains `text` instead of a task."""
    expires_at = (sent_at or datetime.now(UTC)) + bounds_of(kind).maximum_age
    return Copy(message_id, kind, sealed(text, until=expires_at))


def signed_bytes(message_id: UUID, kind: str, text: bytes) -> Copy:
    """Return a signed message that contains arbitrary bytes instead of a task."""
    expires_at = datetime.now(UTC) + bounds_of(kind).maximum_age
    opening = f'{{"expires_at":"{expires_at.isoformat()}","order":'.encode()
    return Copy(message_id, kind, SIGNER.sign("order+jws", opening + text + b"}"))


@dataclass
class Entrance:
    """Core of an agent on the simulated host `simulated`, or on `host` if `host` is given."""

    folder: Path
    simulated: SimulatedHost = field(default_factory=SimulatedHost)
    host: Host | None = None
    steps: list[tuple[UUID, str, int, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = settings_in(self.folder)
        self.host = self.host or assemble_simulated_host(self.simulated, self.settings, SUBNET, lambda: None)
        run_steps(self.host.gateway.to_apply(), Halt())
        self.clock = NodeClock()
        self.trust = Trust([SIGNER.public], [], self.clock.now)
        self.spool = Spool(self.folder / "spool")
        reporter = Reporter(self.spool, self.clock)
        slots = Slots(
            NODE,
            node_network(self.settings, SUBNET),
            (slot.index for slot in self.settings.slots),
            FenceFiles(self.folder / "fence", self.trust.verify_stored),
            lambda: None,
        )
        step_listener = _StepRecorder(self.steps)
        drifts = Drifts(reporter.report, self.clock.now, lambda: None)
        self.acceptance = Acceptance(
            slots, SlotWork(self.host, Outcomes(reporter), drifts, step_listener), reporter
        )
        self.running, self.scheduled_slots = RunningOperations(), list[Slot]()
        self.operations = Operations(
            NODE,
            self.host,
            self.acceptance,
            reporter,
            self.running,
            self.scheduled_slots.append,
            step_listener,
        )
        self.dead_letters = DeadLetterHandler(slots, reporter, self.trust.verify_stored)
        address = QueueAddress(host="127.0.0.1", port=1, username="u", password="p", namespace="ctl:lab-a")
        self._broker = NodeBroker(address, Timetable(), on_dead_letter=self.dead_letters)
        gate, self.streams = Gate(self.spool, self.clock), list[StreamRequest]()
        declare_actors(
            self._broker,
            "slices",
            self._take,
            gate,
            verify=self.trust.verify,
            open_stream=self.streams.append,
        )
        self.set_time(datetime.now(UTC))

    def set_time(self, now: datetime) -> None:
        """Synchronize the agent's clock to `now`."""
        self.clock.synchronize(now, asked=time.monotonic(), answered=time.monotonic())

    def advance(self, by: timedelta) -> None:
        self.set_time(self.clock.now() + by)

    def deliver(self, copy: Copy) -> None:
        """Deliver a message as the broker does: an exception of the handler makes the message a dead letter."""
        message = OrderMessage(copy.message_id, copy.actor, copy.payload)
        try:
            self._broker.get_actor(copy.actor).fn(copy.payload)
        except Exception as error:  # noqa: BLE001 (like the broker: every exception of a handler is a failure)
            self.dead_letters(Failed(message, error))

    def poison(self, copy: Copy) -> None:
        self.dead_letters(Poisoned(OrderMessage(copy.message_id, copy.actor, copy.payload), 3))

    def do(self, *tasks: Task) -> None:
        for task in tasks:
            self.deliver(copy_of(task))

    def settle_slots(self) -> None:
        """Reconcile every slot for which work is scheduled."""
        while self.scheduled_slots:
            self.acceptance.reconcile_slot(self.scheduled_slots.pop())

    def reports(self) -> list[ReportBody]:
        return [report.body for report in self.spool._waiting]

    def take_reports(self) -> list[ReportBody]:
        """Return the undelivered reports and remove them from the spool, as a delivery to the control plane does."""
        waiting = list(self.spool._waiting)
        if waiting:
            self.spool.forget(waiting[-1].sequence)
        return [report.body for report in waiting]

    def final_reports(self) -> Iterator[OperationDone | OperationFailed]:
        return (body for body in self.reports() if isinstance(body, OperationDone | OperationFailed))

    def end_of(self, operation: Operation) -> OperationDone | OperationFailed:
        """Return the first final report of an operation, because the control plane stores only this one."""
        return next(end for end in self.final_reports() if end.operation_id == operation.operation_id)

    def code_of(self, operation: Operation) -> str:
        end = self.end_of(operation)
        assert isinstance(end, OperationFailed), end
        declared = {*REFUSALS, *CATALOGUE[operation.body.kind].failures}
        assert end.reason.code in declared, f"code {end.reason.code} is not declared in the catalogue"
        return end.reason.code

    def snapshot(self) -> bytes:
        """Return the complete state of the simulated host as JSON."""
        with self.simulated.look() as state:
            return msgspec.json.encode(state, order="deterministic")

    def fences(self) -> dict[str, bytes]:
        """Return the content of the file that stores each slot's newest order (fence file), by file name."""
        return {path.name: path.read_bytes() for path in (self.folder / "fence").iterdir()}

    def _take(self, task: Task) -> None:
        if isinstance(task, Order):
            self.acceptance.accept(task)
        else:
            self.operations.carry_out(task)


class _StepRecorder(NullListener):
    def __init__(self, steps: list[tuple[UUID, str, int, int | None]]) -> None:
        self._steps = steps

    def report(self, task_id: UUID, step: str, number: int, of: int | None) -> None:
        self._steps.append((task_id, step, number, of))


def settings_in(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "node_id": NODE,
            "api_url": "http://127.0.0.1:1",
            "enrolment_token_file": folder / "token",
            "state_folder": folder / "state",
            "run_folder": folder / "run",
            "images_folder": folder / "images",
            "slots": [{"index": 0, "vcpus": 1, "memory_mib": 96}, {"index": 1, "vcpus": 1, "memory_mib": 96}],
            "simulated": {"boot_seconds": 0},
        }
    )
