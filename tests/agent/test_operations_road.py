"""Operations through a real queue to a whole agent, and progress and cancels beside them (TSK-6, TSK-7, P7)."""

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
from redis.asyncio import Redis

from control_plane.relay import Relay
from node_agent.drift import evidence
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
from tests.agent.queue import drained, enrolled, send
from tests.agent.test_agent import Running
from tests.agent.toy_host import NO_PORT, Toy
from tests.servers.redis import Depth, queue_depth

_COALESCED = 3
NEVER = 3600.0


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def start(settings: Settings, toy: Toy) -> Iterator[Callable[[], Running]]:
    """An agent whose surveys never come: what no operation mends stays as it is."""
    started: list[Running] = []

    def start() -> Running:
        started.append(Running(settings.model_copy(update={"survey_seconds": NEVER}), toy))
        return started[-1]

    yield start
    for agent in started:
        agent.stop()


@pytest.fixture
async def agent(start: Callable[[], Running], plane: FakeControlPlane, control: Redis) -> Running:
    """Enrolled, and with a slice on its first slot."""
    agent = start()
    await enrolled(plane)
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


def steps_told(plane: FakeControlPlane, task_id: UUID) -> list[tuple[str, int, int | None]]:
    told = (each for batch in plane.progress for each in batch.progress)
    return [(each.step, each.number, each.of) for each in told if each.order_id == task_id]


async def at_wait(plane: FakeControlPlane, *polls: Operation) -> None:
    waiting = {poll.operation_id for poll in polls}
    await eventually_async(
        lambda: all(("readiness.wait", 1, None) in steps_told(plane, each) for each in waiting)
    )


async def test_an_operation_goes_all_the_way(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    del toy.there["port", 0]
    await send(control, on_slot(DriftReport))
    named = await end_of(plane, on_slot(DriftReport))
    await send(control, on_slot(PortReconcile))
    mended = await end_of(plane, on_slot(PortReconcile))
    assert isinstance(named, OperationDone)
    told = Drift(aspect="port", steps=("port.add",), evidence=evidence((NO_PORT,)))
    assert named.result == DriftReported(drift=(told,))
    assert isinstance(mended, OperationDone)
    assert mended.result == PortReconciled(steps=("port.add",))
    report = next(report for report in plane.reports if report.body == mended)
    assert report.order_id == on_slot(PortReconcile).operation_id
    assert "port" in toy.kinds()
    await drained(control)


async def test_a_slot_as_wished_has_no_drift(agent: Running, plane: FakeControlPlane, control: Redis) -> None:
    await send(control, on_slot(DriftReport))
    end = await end_of(plane, on_slot(DriftReport))
    assert isinstance(end, OperationDone)
    assert end.result == DriftReported(drift=())


async def test_progress_is_told_while_an_order_runs_and_not_five_times_a_second(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    order = apply(8, memory=128, deadline=20)
    await send(control, order)
    await eventually_async(lambda: ("readiness.wait", 5, None) in steps_told(plane, order.order_id))
    toy.silent = False
    await eventually_async(lambda: plane.kinds().count("slice.ready") == len(("before", "after")))
    told = steps_told(plane, order.order_id)
    assert [number for _, number, _ in told] == sorted(number for _, number, _ in told)
    assert len(told) <= _COALESCED, (
        "five steps in some milliseconds, and the newest of each fifth of a second"
    )


async def test_of_work_that_takes_a_moment_only_the_end_is_told(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    slow = apply(8, memory=128, deadline=20)
    await send(control, slow)
    await eventually_async(lambda: steps_told(plane, slow.order_id) != [])
    assert steps_told(plane, apply().order_id) == [], "the fixture's"


async def test_a_control_plane_that_takes_no_progress_delays_nothing(
    agent: Running, plane: FakeControlPlane, control: Redis
) -> None:
    plane.mood = "deaf"
    await send(control, apply(8, memory=128))
    await send(control, verify())
    await drained(control)
    plane.mood = "well"
    await eventually_async(lambda: bool(ends_of(plane, verify())))


async def test_a_cancel_gets_through_when_every_place_and_every_slot_is_taken(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    polls = [on_slot(ReadinessPoll, attempt=attempt) for attempt in range(CREDIT["operations"])]
    for poll in polls:
        await send(control, poll)
    await at_wait(plane, *polls)
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
    await drained(control)


async def test_a_cancelled_poll_ends_as_cancelled(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    await send(control, poll)
    await at_wait(plane, poll)
    await send(control, cancel(poll))
    end = await end_of(plane, poll)
    assert isinstance(end, OperationFailed)
    assert end.reason.code == "cancelled"
    assert (await end_of(plane, cancel(poll))).kind == "operation.done"
    await drained(control)


async def test_an_agent_that_ends_puts_its_operation_back_and_the_next_one_carries_it_out(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    await send(control, poll)
    await at_wait(plane, poll)
    agent.stop()
    assert await queue_depth(control, NODE) == Depth(1, 0)
    assert ends_of(plane, poll) == []
    toy.silent = False
    start()
    assert (await end_of(plane, poll)).kind == "operation.done"
    await drained(control)


@pytest.fixture
def process(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Iterator[AgentProcess]:
    process = AgentProcess(tmp_path_factory.mktemp("process"), settings)
    yield process
    process.clean_up()


async def sent_until(
    process: AgentProcess, control: Redis, operation: Operation, true: Callable[[], bool]
) -> None:
    """Sent again and again, as by a sweeper to whom a worker is dead that was silent for a moment."""
    sweeper = Relay(control, worker_timeout=0.05)

    async def is_so() -> bool:
        await send(control, operation, relay=sweeper)
        return true()

    await eventually_async(is_so, 40, process.log)


@pytest.mark.parametrize("point", ["agent.operation.ended", "agent.operation.told"])
async def test_an_agent_killed_with_an_operation_in_hand_gets_it_again_and_tells_one_end(
    process: AgentProcess, plane: FakeControlPlane, control: Redis, point: str
) -> None:
    process.start(point)
    await enrolled(plane)
    inspected = on_slot(MachineInspect)
    await sent_until(process, control, inspected, lambda: process.died)
    process.start()
    await sent_until(process, control, inspected, lambda: bool(ends_of(plane, inspected)))
    await drained(control)
    assert {end.kind for end in ends_of(plane, inspected)} == {"operation.done"}


async def test_an_operation_that_kills_its_agent_each_time_is_told_as_poisoned(
    process: AgentProcess, plane: FakeControlPlane, control: Redis
) -> None:
    poison = verify()
    for _ in range(3):
        process.start("agent.operation.ended")
        await enrolled(plane)
        await sent_until(process, control, poison, lambda: process.died)
    process.start()
    await sent_until(process, control, poison, lambda: bool(ends_of(plane, poison)))
    end = ends_of(plane, poison)[0]
    assert isinstance(end, OperationFailed)
    assert end.reason.code == "poisoned"
    await drained(control)
