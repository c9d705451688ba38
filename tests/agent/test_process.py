"""The agent's process killed at every step, and ended in every other way (P1, P2; `kill -9`)."""

import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from control_plane.relay import Relay
from node_agent.lab.simulated.host import State
from node_agent.sessions import SessionFiles
from node_agent.settings import Settings
from tasks.orders import Order
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually_async
from tests.agent.orders import apply, remove
from tests.agent.process import AgentProcess
from tests.agent.queue import enrolled, send

MAKING = (
    "link.add_tap",
    "lease.reserve",
    "port.add",
    "port.set_flows",
    "translation.set_rules",
    "machine.write_seed",
    "machine.start",
)
TAKING = (
    "translation.delete_rules",
    "machine.destroy",
    "machine.wipe_disks",
    "port.delete_flows",
    "port.delete",
    "lease.withdraw",
    "lease.clear",
    "link.delete",
)


def around(steps: tuple[str, ...]) -> list[str]:
    """The failpoints of an order in the order of its life."""
    before = ["agent.fence.before", "agent.fence.after"]
    return [*before, *(f"agent.{step}.{side}" for step in steps for side in ("before", "after"))]


async def soon(agent: AgentProcess, true: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait as long as a process may take on a busy machine, and tell what it logged if it took longer."""
    await eventually_async(true, 40, agent.log)


async def enrolled_and_killed(agent: AgentProcess, plane: FakeControlPlane, control: Redis) -> None:
    agent.start()
    await enrolled(plane)
    await soon(agent, lambda: "agent_started" in agent.log())
    agent.end(signal.SIGKILL)


@pytest.fixture
def agent(tmp_path: Path, settings: Settings) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path, settings)
    yield agent
    agent.clean_up()


def things(host: State) -> dict[str, list[str]]:
    """What is on the host, kind by kind, in an order of its own: tables have none."""
    return {
        kind: sorted(map(repr, found))
        for kind, found in msgspec.structs.asdict(host).items()
        if isinstance(found, list)
    }


async def carried_out_through(agent: AgentProcess, control: Redis, order: Order, points: list[str]) -> None:
    """Send the order, let the agent die at each point in turn, and start it once more."""
    # A worker that was silent for so long is dead to this sweeper: an order not yet admitted comes again at once.
    sweeper = Relay(control, worker_timeout=0.05)
    for point in points:
        agent.start(point)

        async def is_dead() -> bool:
            await send(control, order, relay=sweeper)
            return agent.died

        await soon(agent, is_dead)
    agent.start()


@pytest.mark.slow
async def test_killed_around_every_step_an_order_is_carried_out_once(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane
) -> None:
    points = [*around(MAKING), "agent.outcome.kept", "agent.outcome.told"]
    await enrolled_and_killed(agent, plane, control)
    await carried_out_through(agent, control, apply(), points)
    await soon(agent, lambda: "slice.ready" in plane.kinds())
    host = agent.host()
    assert [tap.name for tap in host.taps] == ["slice0"]
    assert [port.name for port in host.ports] == ["slice0"]
    assert [domain.name for domain in host.domains] == ["slice0"]
    assert len(host.reservations) == len(host.leases) == 1
    for step in MAKING:
        assert agent.log().count(f'"step": "{step}", "event": "step_done"') <= 1
    assert "slice.failed" not in plane.kinds()
    assert [report.sequence for report in plane.reports] == list(range(1, len(plane.reports) + 1))


@pytest.mark.slow
async def test_killed_around_every_step_a_removal_leaves_nothing(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane
) -> None:
    agent.start()
    await enrolled(plane)
    await soon(agent, lambda: "node.surveyed" in plane.kinds())
    empty = things(agent.host())
    await send(control, apply())
    await soon(agent, lambda: "slice.ready" in plane.kinds())
    agent.end(signal.SIGKILL)
    await carried_out_through(
        agent, control, remove(), [*around(TAKING), "agent.outcome.kept", "agent.outcome.told"]
    )
    await soon(agent, lambda: "slice.removed" in plane.kinds())
    assert things(agent.host()) == empty
    assert "slice.remains" not in plane.kinds()


async def test_a_slice_found_dead_is_told_once_or_twice_and_comes_back(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane
) -> None:
    agent.start()
    await enrolled(plane)
    await send(control, apply())
    await soon(agent, lambda: "slice.ready" in plane.kinds())
    agent.end(signal.SIGKILL)
    agent.host_file.unlink()
    agent.start("agent.interrupted.told")
    await soon(agent, lambda: agent.died)
    agent.start()
    # Not by counting: killed the first time, it may not have written down yet that it told of the slice.
    await soon(agent, lambda: "slice.interrupted" in plane.kinds() and plane.kinds()[-1] == "slice.ready")
    assert plane.kinds().count("slice.interrupted") in (1, 2)
    assert [domain.name for domain in agent.host().domains] == ["slice0"]


async def test_asked_to_end_it_ends_soon_and_leaves_its_slices(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane
) -> None:
    agent.start()
    await enrolled(plane)
    await send(control, apply())
    await soon(agent, lambda: "slice.ready" in plane.kinds())
    began = time.monotonic()
    assert agent.end() == 0
    assert time.monotonic() - began < 5
    assert [domain.name for domain in agent.host().domains] == ["slice0"]


async def test_asked_to_end_while_it_waits_for_the_control_plane_it_ends(
    agent: AgentProcess, plane: FakeControlPlane
) -> None:
    plane.mood = "away"
    agent.start()
    await soon(agent, lambda: "enrolment_waits" in agent.log())
    assert agent.end(signal.SIGINT) == 0


@pytest.mark.parametrize("point", ["agent.secrets.after", "agent.enrolled.before"])
async def test_killed_while_enrolling_it_enrols_with_the_same_secrets(
    agent: AgentProcess, plane: FakeControlPlane, control: Redis, point: str
) -> None:
    agent.start(point)
    await soon(agent, lambda: agent.died)
    agent.start()
    await soon(agent, lambda: "node.surveyed" in plane.kinds())
    assert len({enrolment.credential_sha256 for enrolment in plane.enrolments}) == 1


@pytest.mark.parametrize("point", ["agent.secrets.after", "agent.enrolled.before", "agent.enrolled.after"])
async def test_killed_while_renewing_its_session_it_goes_on_with_the_same_secrets(
    agent: AgentProcess, plane: FakeControlPlane, control: Redis, point: str
) -> None:
    await enrolled_and_killed(agent, plane, control)
    agent.start(point)
    await soon(agent, lambda: agent.died)
    agent.start()
    await send(control, apply())
    await soon(agent, lambda: "slice.ready" in plane.kinds())
    assert len({(each.number, each.credential_sha256) for each in plane.renewals}) == len(
        {each.number for each in plane.renewals}
    )


@pytest.mark.parametrize(("point", "times"), [("agent.described.before", 2), ("agent.described.after", 1)])
async def test_killed_while_describing_itself_it_says_again_only_what_it_did_not_write_down(
    agent: AgentProcess, plane: FakeControlPlane, control: Redis, point: str, times: int
) -> None:
    agent.start(point)
    await soon(agent, lambda: agent.died)
    agent.start()
    await soon(agent, lambda: any(beat.resynced and not beat.spooled_reports for beat in plane.heartbeats))
    assert plane.kinds() == ["node.surveyed"] * times


async def test_a_refused_enrolment_has_an_exit_code_of_its_own(
    agent: AgentProcess, plane: FakeControlPlane
) -> None:
    plane.mood = "refusing"
    agent.start()
    assert agent.wait() == 77
    assert "the token is not valid" in agent.log()


async def test_a_bad_configuration_is_refused_with_every_field(agent: AgentProcess, tmp_path: Path) -> None:
    (tmp_path / "agent.json").write_text('{"node_id":"Lab A","colour":"blue"}')
    agent.start()
    assert agent.wait() == 78
    for word in ("node_id", "colour", "slots", "api_url"):
        assert word in agent.log()


async def test_no_secret_is_logged(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane, settings: Settings
) -> None:
    agent.start()
    await enrolled(plane)
    await send(control, apply())
    await soon(agent, lambda: "slice.ready" in plane.kinds())
    agent.end()
    kept = SessionFiles(settings.state_folder).kept()
    assert kept is not None
    for secret in (kept.secrets.credential, kept.secrets.queue_password, *kept.secrets.key.split("\n")[1:-2]):
        assert secret not in agent.log()
    assert settings.enrolment_token_file.read_text().strip() not in agent.log()


@pytest.mark.parametrize("point", ["agent.outcome.kept", "agent.outcome.told"])
async def test_a_slice_said_to_be_ready_is_never_found_dead_in_silence(
    agent: AgentProcess, control: Redis, plane: FakeControlPlane, point: str
) -> None:
    agent.start(point)
    await enrolled(plane)
    await send(control, apply())
    await soon(agent, lambda: agent.died)
    agent.host_file.unlink()
    agent.start()
    await soon(agent, lambda: "slice.interrupted" in plane.kinds() and plane.kinds()[-1] == "slice.ready")
    told = [kind for kind in plane.kinds() if kind in ("slice.ready", "slice.interrupted")]
    assert told[0] == "slice.ready"
