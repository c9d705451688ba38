"""The agent process is killed (SIGKILL) around every step, or ended by a signal or an error (P1, P2)."""

import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from control_plane.queues.relay import Relay
from node_agent.lab.simulated.host import State
from node_agent.settings import Settings
from node_agent.transport.sessions import SessionFiles
from tasks.orders import Order
from tests import matrix
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.orders import apply, remove
from tests.agent.process import AgentProcess
from tests.agent.queue import await_enrolment, send

CREATION_STEPS = (
    "link.add_tap",
    "lease.reserve",
    "port.add",
    "port.set_flows",
    "translation.set_rules",
    "machine.write_seed",
    "machine.start",
)
REMOVAL_STEPS = (
    "translation.delete_rules",
    "machine.destroy",
    "machine.wipe_disks",
    "port.delete_flows",
    "port.delete",
    "lease.withdraw",
    "lease.clear",
    "link.delete",
)


def failpoints_around(steps: tuple[str, ...]) -> list[str]:
    """Return the failpoints of an order in execution order: storing the order, each of `steps`, and the outcome.

    Outside of `./dev torture`, return a few of these failpoints.
    """
    before = ["agent.fence.before", "agent.fence.after"]
    around = [f"agent.{step}.{side}" for step in steps for side in ("before", "after")]
    every = [*before, *around, "agent.outcome.kept", "agent.outcome.reported"]
    return every if matrix.is_full() else matrix.chosen("P1", every, few=3)


async def await_condition(agent: AgentProcess, true: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait up to 40 seconds for a condition, because machines may be busy; on a timeout, fail with the agent's log."""
    await eventually_async(true, 40, agent.log)


async def enrolled_and_killed(agent: AgentProcess, plane: FakeControlPlane, control: Redis) -> None:
    agent.start()
    await await_enrolment(plane)
    await await_condition(agent, lambda: "agent_started" in agent.log())
    agent.end(signal.SIGKILL)


@pytest.fixture
def agent(tmp_path: Path, settings: Settings) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path, settings)
    yield agent
    agent.clean_up()


def objects_by_kind(host: State) -> dict[str, list[str]]:
    """Return the sorted objects of the simulated host by kind. Its state file lists them in an undefined order."""
    return {
        kind: sorted(map(repr, found))
        for kind, found in msgspec.structs.asdict(host).items()
        if isinstance(found, list)
    }


async def execute_with_kills(agent: AgentProcess, control: Redis, order: Order, points: list[str]) -> None:
    """Send an order, make the agent kill itself at each failpoint in turn, and restart it without a failpoint."""
    # The worker timeout is short, so that an order that was not admitted before the kill is requeued at once.
    sender = Relay(control, worker_timeout=0.05)
    for point in points:
        agent.start(point)

        async def is_dead() -> bool:
            await send(control, order, relay=sender)
            return agent.died

        await await_condition(agent, is_dead)
    agent.start()


@pytest.mark.slow
async def test_apply_order_is_executed_once_although_the_agent_is_killed_before_or_after_its_steps(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane
) -> None:
    points = failpoints_around(CREATION_STEPS)
    print(f"{matrix.SEED}={matrix.seed()} selects {points}")
    await enrolled_and_killed(agent, plane, control)
    await execute_with_kills(agent, control, apply(), points)
    await await_condition(agent, lambda: "slice.ready" in plane.kinds())
    host = agent.host()
    assert [tap.name for tap in host.taps] == ["slice0"]
    assert [port.name for port in host.ports] == ["slice0"]
    assert [domain.name for domain in host.domains] == ["slice0"]
    assert len(host.reservations) == len(host.leases) == 1
    for step in CREATION_STEPS:
        assert agent.log().count(f'"step": "{step}", "event": "reconcile_step_done"') <= 1
    assert "slice.failed" not in plane.kinds()
    assert [report.sequence for report in plane.reports] == list(range(1, len(plane.reports) + 1))


@pytest.mark.slow
async def test_slice_removal_leaves_nothing_on_the_host_although_the_agent_is_killed_before_or_after_its_steps(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane
) -> None:
    agent.start()
    await await_enrolment(plane)
    await await_condition(agent, lambda: "node.surveyed" in plane.kinds())
    empty = objects_by_kind(agent.host())
    await send(control, apply())
    await await_condition(agent, lambda: "slice.ready" in plane.kinds())
    agent.end(signal.SIGKILL)
    points = failpoints_around(REMOVAL_STEPS)
    print(f"{matrix.SEED}={matrix.seed()} selects {points}")
    await execute_with_kills(agent, control, remove(), points)
    await await_condition(agent, lambda: "slice.removed" in plane.kinds())
    assert objects_by_kind(agent.host()) == empty
    assert "slice.removal_incomplete" not in plane.kinds()


async def test_slice_interruption_is_reported_once_or_twice_when_the_agent_is_killed_after_the_report(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane
) -> None:
    agent.start()
    await await_enrolment(plane)
    await send(control, apply())
    await await_condition(agent, lambda: "slice.ready" in plane.kinds())
    agent.end(signal.SIGKILL)
    agent.host_file.unlink()
    agent.start("agent.interrupted.reported")
    await await_condition(agent, lambda: agent.died)
    agent.start()
    # One or two reports: the first agent may be killed before it records that it reported the interruption.
    await await_condition(
        agent, lambda: "slice.interrupted" in plane.kinds() and plane.kinds()[-1] == "slice.ready"
    )
    assert plane.kinds().count("slice.interrupted") in (1, 2)
    assert [domain.name for domain in agent.host().domains] == ["slice0"]


async def test_agent_that_receives_sigterm_ends_within_five_seconds_and_leaves_its_slices(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane
) -> None:
    agent.start()
    await await_enrolment(plane)
    await send(control, apply())
    await await_condition(agent, lambda: "slice.ready" in plane.kinds())
    began = time.monotonic()
    assert agent.end() == 0
    assert time.monotonic() - began < 5
    assert [domain.name for domain in agent.host().domains] == ["slice0"]


async def test_agent_that_receives_sigint_while_it_waits_for_the_control_plane_ends(
    agent: AgentProcess, plane: FakeControlPlane
) -> None:
    plane.mode = "unavailable"
    agent.start()
    await await_condition(agent, lambda: "node_enrolment_retried" in agent.log())
    assert agent.end(signal.SIGINT) == 0


@pytest.mark.parametrize("point", ["agent.secrets.after", "agent.enrolled.before"])
async def test_agent_killed_during_enrolment_enrols_again_with_the_same_secrets(
    agent: AgentProcess, plane: FakeControlPlane, control: Redis, point: str
) -> None:
    agent.start(point)
    await await_condition(agent, lambda: agent.died)
    agent.start()
    await await_condition(agent, lambda: "node.surveyed" in plane.kinds())
    assert len({enrolment.credential_sha256 for enrolment in plane.enrolments}) == 1


@pytest.mark.parametrize("point", ["agent.secrets.after", "agent.enrolled.before", "agent.enrolled.after"])
async def test_agent_killed_during_session_renewal_continues_with_the_same_secrets(
    agent: AgentProcess, plane: FakeControlPlane, control: Redis, point: str
) -> None:
    await enrolled_and_killed(agent, plane, control)
    agent.start(point)
    await await_condition(agent, lambda: agent.died)
    agent.start()
    await send(control, apply())
    await await_condition(agent, lambda: "slice.ready" in plane.kinds())
    assert len({(each.number, each.credential_sha256) for each in plane.renewals}) == len(
        {each.number for each in plane.renewals}
    )


@pytest.mark.parametrize(
    ("point", "times"),
    [("agent.description.before", 1), ("agent.described.before", 2), ("agent.described.after", 1)],
)
async def test_agent_killed_while_it_sends_its_survey_report_sends_the_report_again_only_if_it_was_not_recorded(
    agent: AgentProcess, plane: FakeControlPlane, control: Redis, point: str, times: int
) -> None:
    agent.start(point)
    await await_condition(agent, lambda: agent.died)
    agent.start()
    await await_condition(
        agent, lambda: any(beat.resynced and not beat.spooled_reports for beat in plane.heartbeats)
    )
    assert plane.kinds() == ["node.surveyed"] * times


async def test_agent_with_a_refused_enrolment_exits_with_code_77(
    agent: AgentProcess, plane: FakeControlPlane
) -> None:
    plane.mode = "refusing"
    agent.start()
    assert agent.wait() == 77
    assert "the token is not valid" in agent.log()


async def test_agent_with_an_invalid_configuration_exits_with_code_78_and_names_every_invalid_field(
    agent: AgentProcess, tmp_path: Path
) -> None:
    (tmp_path / "agent.json").write_text('{"node_id":"Lab A","colour":"blue"}')
    agent.start()
    assert agent.wait() == 78
    for word in ("node_id", "colour", "slots", "api_url"):
        assert word in agent.log()


async def test_agent_log_contains_no_secret(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane, settings: Settings
) -> None:
    agent.start()
    await await_enrolment(plane)
    await send(control, apply())
    await await_condition(agent, lambda: "slice.ready" in plane.kinds())
    agent.end()
    kept = SessionFiles(settings.state_folder).kept()
    assert kept is not None
    for secret in (kept.secrets.credential, kept.secrets.queue_password, *kept.secrets.key.split("\n")[1:-2]):
        assert secret not in agent.log()
    assert settings.enrolment_token_file.read_text().strip() not in agent.log()


@pytest.mark.parametrize("point", ["agent.outcome.kept", "agent.outcome.reported"])
async def test_slice_that_was_reported_ready_and_then_died_is_reported_interrupted(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane, point: str
) -> None:
    agent.start(point)
    await await_enrolment(plane)
    await send(control, apply())
    await await_condition(agent, lambda: agent.died)
    agent.host_file.unlink()
    agent.start()
    await await_condition(
        agent, lambda: "slice.interrupted" in plane.kinds() and plane.kinds()[-1] == "slice.ready"
    )
    outcomes = [kind for kind in plane.kinds() if kind in ("slice.ready", "slice.interrupted")]
    assert outcomes[0] == "slice.ready"
