"""A node's core as its queue sees it: signed payloads in at the actors, reports out, and a host that can be compared.

Everything between is the agent's own, without Redis, HTTP or threads that nobody asked for. What a slot's own work
has to do is done by `settle_slots`, when a test says so.
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
from node_agent.accept import Acceptance
from node_agent.actors import declare_actors
from node_agent.clock import NodeClock
from node_agent.drift import Drifts
from node_agent.fence import FenceFiles
from node_agent.gate import Gate
from node_agent.gateway import node_network
from node_agent.halt import Halt
from node_agent.host import Host
from node_agent.lab.simulated.host import SimulatedHost
from node_agent.lab.simulated.node import host_over
from node_agent.operations import Operations
from node_agent.outcomes import Outcomes
from node_agent.progress import Nobody
from node_agent.refusals import GivenUpOrders
from node_agent.reporter import Reporter
from node_agent.running import Running
from node_agent.settings import Settings
from node_agent.slots import Slot, Slots
from node_agent.spool import Spool
from node_agent.steps import run_steps
from node_agent.trust import Trust
from node_agent.work import SlotWork
from tasks.broker import Failed, NodeBroker, Poisoned, QueueAddress
from tasks.catalogue import CATALOGUE, REFUSALS, bounds_of
from tasks.operations import Operation
from tasks.orders import Order
from tasks.reading import Task, id_of
from tasks.reports import OperationDone, OperationFailed, ReportBody
from tasks.timetable import Timetable
from tasks.wire import OrderMessage
from tests.agent.orders import NODE
from tests.agent.sealing import SIGNER, sealed

SUBNET: Final = Ipv4Subnet("10.100.1.0/24")


@dataclass(frozen=True, slots=True)
class Copy:
    """A message as it stands in the queue; anybody may deliver it again."""

    message_id: UUID
    actor: str
    payload: str


def copy_of(task: Task, sent_at: datetime | None = None) -> Copy:
    """Signed, to be begun within the maximum age of its type."""
    return signed(id_of(task), task.body.kind, task.model_dump_json(), sent_at)


def signed(message_id: UUID, kind: str, text: str, sent_at: datetime | None = None) -> Copy:
    expires_at = (sent_at or datetime.now(UTC)) + bounds_of(kind).maximum_age
    return Copy(message_id, kind, sealed(text, until=expires_at))


def signed_bytes(message_id: UUID, kind: str, text: bytes) -> Copy:
    """Bytes that need not even be text, in the place of a task."""
    expires_at = datetime.now(UTC) + bounds_of(kind).maximum_age
    opening = f'{{"expires_at":"{expires_at.isoformat()}","order":'.encode()
    return Copy(message_id, kind, SIGNER.sign("order+jws", opening + text + b"}"))


@dataclass
class Entrance:
    """`simulated` is the host; another one, of which only the agent knows, can be given as `host`."""

    folder: Path
    simulated: SimulatedHost = field(default_factory=SimulatedHost)
    host: Host | None = None
    steps: list[tuple[UUID, str, int, int | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settings = settings_in(self.folder)
        self.host = self.host or host_over(self.simulated, self.settings, SUBNET, lambda: None)
        run_steps(self.host.gateway.to_apply(), Halt())
        self.clock = NodeClock()
        self.trust = Trust([SIGNER.public], [], self.clock.now)
        self.spool = Spool(self.folder / "spool")
        reporter = Reporter(self.spool, self.clock)
        slots = Slots(
            NODE,
            node_network(self.settings, SUBNET),
            (slot.index for slot in self.settings.slots),
            FenceFiles(self.folder / "fence", self.trust.recall),
            lambda: None,
        )
        heard = _Heard(self.steps)
        drifts = Drifts(reporter.tell, self.clock.now, lambda: None)
        self.acceptance = Acceptance(slots, SlotWork(self.host, Outcomes(reporter), drifts, heard), reporter)
        self.running, self.handed = Running(), list[Slot]()
        self.operations = Operations(
            NODE, self.host, self.acceptance, reporter, self.running, self.handed.append, heard
        )
        self.given_up = GivenUpOrders(slots, reporter, self.trust.recall)
        address = QueueAddress(host="127.0.0.1", port=1, username="u", password="p", namespace="ctl:lab-a")
        self._broker = NodeBroker(address, Timetable(), on_given_up=self.given_up)
        declare_actors(self._broker, "slices", self._take, Gate(self.spool, self.clock), self.trust.believe)
        self.at(datetime.now(UTC))

    def at(self, now: datetime) -> None:
        """The control plane says what time it is."""
        self.clock.learn(now, asked=time.monotonic(), answered=time.monotonic())

    def later(self, by: timedelta) -> None:
        self.at(self.clock.now() + by)

    def deliver(self, copy: Copy) -> None:
        """What the broker does with a message of its queue."""
        message = OrderMessage(copy.message_id, copy.actor, copy.payload)
        try:
            self._broker.get_actor(copy.actor).fn(copy.payload)
        except Exception as error:  # noqa: BLE001 (as the broker: whatever a handler raises is a failure)
            self.given_up(Failed(message, error))

    def poison(self, copy: Copy) -> None:
        self.given_up(Poisoned(OrderMessage(copy.message_id, copy.actor, copy.payload), 3))

    def do(self, *tasks: Task) -> None:
        for task in tasks:
            self.deliver(copy_of(task))

    def settle_slots(self) -> None:
        """What the slots' own work has to do."""
        while self.handed:
            self.acceptance.look_after(self.handed.pop())

    def told(self) -> list[ReportBody]:
        return [report.body for report in self.spool._waiting]

    def taken(self) -> list[ReportBody]:
        """What was told since, as the control plane takes it: the spool forgets it."""
        told = list(self.spool._waiting)
        if told:
            self.spool.forget(told[-1].sequence)
        return [report.body for report in told]

    def ends(self) -> Iterator[OperationDone | OperationFailed]:
        return (body for body in self.told() if isinstance(body, OperationDone | OperationFailed))

    def end_of(self, operation: Operation) -> OperationDone | OperationFailed:
        """The first that was told, which is what the control plane takes."""
        return next(end for end in self.ends() if end.operation_id == operation.operation_id)

    def code_of(self, operation: Operation) -> str:
        end = self.end_of(operation)
        assert isinstance(end, OperationFailed), end
        declared = {*REFUSALS, *CATALOGUE[operation.body.kind].failures}
        assert end.reason.code in declared, "a code that the catalogue does not declare"
        return end.reason.code

    def snapshot(self) -> bytes:
        """The host, whole."""
        with self.simulated.look() as state:
            return msgspec.json.encode(state, order="deterministic")

    def fences(self) -> dict[str, bytes]:
        """What the slots remember of what they were told."""
        return {path.name: path.read_bytes() for path in (self.folder / "fence").iterdir()}

    def _take(self, task: Task) -> None:
        if isinstance(task, Order):
            self.acceptance.accept(task)
        else:
            self.operations.carry_out(task)


class _Heard(Nobody):
    def __init__(self, steps: list[tuple[UUID, str, int, int | None]]) -> None:
        self._steps = steps

    def tell(self, task_id: UUID, step: str, number: int, of: int | None) -> None:
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
