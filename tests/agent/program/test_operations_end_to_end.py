"""Operations, their progress and their cancellation through a real queue to a whole agent (TSK-6, TSK-7, P7)."""

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from redis.asyncio import Redis

from control_plane.queues.relay import Relay
from node_agent.host.drift import evidence
from node_agent.settings import Settings
from tasks.catalogue import CREDIT
from tasks.operations import (
    Drift,
    DriftReport,
    DriftReported,
    MachineInspect,
    Operation,
    OperationCancelled,
    PortReconcile,
    PortReconciled,
    ReadinessPoll,
)
from tasks.reports import OperationDone, OperationFailed
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.operations import cancel, on_slot, verify
from tests.agent.orders import NODE, apply, remove
from tests.agent.process import AgentProcess
from tests.agent.program.test_agent import Running
from tests.agent.queue import await_empty_queue, await_enrolment, send
from tests.agent.toy_host import NO_PORT, Toy
from tests.servers.redis import Depth, queue_depth

_COALESCED = 3
NEVER = 3600.0


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def start(settings: Settings, toy: Toy) -> Iterator[Callable[[], Running]]:
    """Return a function that starts an agent without surveys, so that only operations repair drift."""
    started: list[Running] = []

    def start() -> Running:
        started.append(Running(settings.model_copy(update={"survey_seconds": NEVER}), toy))
        return started[-1]

    yield start
    for agent in started:
        agent.stop()


@pytest.fixture
async def agent(start: Callable[[], Running], plane: FakeControlPlane, control: Redis) -> Running:
    """An enrolled agent with a slice on its first slot."""
    agent = start()
    await await_enrolment(plane)
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    return agent


def ends_of(plane: FakeControlPlane, operation: Operation) -> list[OperationDone | OperationFailed]:
    bodies = (report.body for report in plane.reports)
    ends = (body for body in bodies if isinstance(body, OperationDone | OperationFailed))
    return [end for end in ends if end.operation_id == operation.operation_id]


async def end_of(plane: FakeControlPlane, operation: Operation) -> OperationDone | OperationFailed:
    await eventually_async(lambda: bool(ends_of(plane, operation)), 20, lambda: str(plane.kinds()))
    return ends_of(plane, operation)[0]


def progress_of(plane: FakeControlPlane, task_id: UUID) -> list[tuple[str, int, int | None]]:
    progress = (each for batch in plane.progress for each in batch.progress)
    return [(each.step, each.number, each.of) for each in progress if each.order_id == task_id]


async def await_readiness_waits(plane: FakeControlPlane, *polls: Operation) -> None:
    waiting = {poll.operation_id for poll in polls}
    await eventually_async(
        lambda: all(("readiness.wait", 1, None) in progress_of(plane, each) for each in waiting)
    )


async def test_operation_from_the_queue_is_executed_and_reported_to_the_control_plane(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    del toy.objects["port", 0]
    await send(control, on_slot(DriftReport))
    named = await end_of(plane, on_slot(DriftReport))
    await send(control, on_slot(PortReconcile))
    repaired = await end_of(plane, on_slot(PortReconcile))
    assert isinstance(named, OperationDone)
    expected = Drift(aspect="port", steps=("port.add",), evidence=evidence((NO_PORT,)))
    assert named.result == DriftReported(drift=(expected,))
    assert isinstance(repaired, OperationDone)
    assert repaired.result == PortReconciled(steps=("port.add",))
    report = next(report for report in plane.reports if report.body == repaired)
    assert report.order_id == on_slot(PortReconcile).operation_id
    assert "port" in toy.kinds()
    await await_empty_queue(control)


async def test_drift_report_operation_on_a_slot_in_its_desired_state_returns_no_drift(
    agent: Running, plane: FakeControlPlane, control: Redis
) -> None:
    await send(control, on_slot(DriftReport))
    end = await end_of(plane, on_slot(DriftReport))
    assert isinstance(end, OperationDone)
    assert end.result == DriftReported(drift=())


async def test_progress_of_a_running_order_is_sent_at_most_once_per_fifth_of_a_second(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    order = apply(8, memory=128, deadline=20)
    await send(control, order)
    await eventually_async(lambda: ("readiness.wait", 5, None) in progress_of(plane, order.order_id))
    toy.silent = False
    await eventually_async(lambda: plane.kinds().count("slice.ready") == len(("before", "after")))
    progress = progress_of(plane, order.order_id)
    assert [number for _, number, _ in progress] == sorted(number for _, number, _ in progress)
    assert len(progress) <= _COALESCED, (
        "five steps take milliseconds, and only the newest step of each fifth of a second is sent"
    )


async def test_order_that_ends_at_once_sends_no_progress(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    slow = apply(8, memory=128, deadline=20)
    await send(control, slow)
    await eventually_async(lambda: progress_of(plane, slow.order_id) != [])
    assert progress_of(plane, apply().order_id) == [], (
        "the order of the fixture ends at once and must send no progress"
    )


async def test_control_plane_that_rejects_progress_delays_no_task(
    agent: Running, plane: FakeControlPlane, control: Redis
) -> None:
    plane.mode = "dropping"
    await send(control, apply(8, memory=128))
    await send(control, verify())
    await await_empty_queue(control)
    plane.mode = "available"
    await eventually_async(lambda: bool(ends_of(plane, verify())))


async def test_cancel_of_an_operation_is_executed_although_all_operation_workers_and_all_slots_are_busy(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    polls = [on_slot(ReadinessPoll, attempt=attempt) for attempt in range(CREDIT["operations"])]
    for poll in polls:
        await send(control, poll)
    await await_readiness_waits(plane, *polls)
    busy = [apply(20 + index, index=index, memory=128) for index in (0, 1)]
    for order in busy:
        await send(control, order)
    await send(control, cancel(polls[0]))
    stopped = await end_of(plane, cancel(polls[0]))
    assert isinstance(stopped, OperationDone)
    assert isinstance(stopped.result, OperationCancelled)
    first = await end_of(plane, polls[0])
    assert isinstance(first, OperationFailed)
    assert first.reason.code in ("cancelled", "superseded")
    for index in (0, 1):
        await send(control, remove(30 + index, index=index))
    await await_empty_queue(control)


async def test_cancelled_readiness_poll_is_reported_as_cancelled(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    await send(control, poll)
    await await_readiness_waits(plane, poll)
    await send(control, cancel(poll))
    end = await end_of(plane, poll)
    assert isinstance(end, OperationFailed)
    assert end.reason.code == "cancelled"
    assert (await end_of(plane, cancel(poll))).kind == "operation.done"
    await await_empty_queue(control)


async def test_operation_requeued_by_an_ending_agent_is_executed_by_the_next_agent(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    await send(control, poll)
    await await_readiness_waits(plane, poll)
    agent.stop()
    assert await queue_depth(control, NODE) == Depth(1, 0)
    assert ends_of(plane, poll) == []
    toy.silent = False
    start()
    assert (await end_of(plane, poll)).kind == "operation.done"
    await await_empty_queue(control)


@pytest.fixture
def process(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Iterator[AgentProcess]:
    process = AgentProcess(tmp_path_factory.mktemp("process"), settings)
    yield process
    process.clean_up()


async def send_until(
    process: AgentProcess, control: Redis, operation: Operation, true: Callable[[], bool]
) -> None:
    """Send an operation repeatedly until `true()` returns True.

    The worker timeout is so short that the queue requeues the operation of a killed agent at once.
    """
    sender = Relay(control, worker_timeout=0.05)

    async def send_and_check() -> bool:
        await send(control, operation, relay=sender)
        return true()

    await eventually_async(send_and_check, 40, process.log)


@pytest.mark.parametrize("point", ["agent.operation.ended", "agent.operation.reported"])
async def test_operation_in_flight_when_its_agent_is_killed_is_delivered_again_and_ends_once(
    process: AgentProcess, plane: FakeControlPlane, control: Redis, point: str
) -> None:
    process.start(point)
    await await_enrolment(plane)
    inspected = on_slot(MachineInspect)
    await send_until(process, control, inspected, lambda: process.died)
    process.start()
    await send_until(process, control, inspected, lambda: bool(ends_of(plane, inspected)))
    await await_empty_queue(control)
    assert {end.kind for end in ends_of(plane, inspected)} == {"operation.done"}


async def test_operation_that_kills_its_agent_three_times_is_reported_as_poisoned(
    process: AgentProcess, plane: FakeControlPlane, control: Redis
) -> None:
    poison = verify()
    for _ in range(3):
        process.start("agent.operation.ended")
        await await_enrolment(plane)
        await send_until(process, control, poison, lambda: process.died)
    process.start()
    await send_until(process, control, poison, lambda: bool(ends_of(plane, poison)))
    end = ends_of(plane, poison)[0]
    assert isinstance(end, OperationFailed)
    assert end.reason.code == "poisoned"
    await await_empty_queue(control)
