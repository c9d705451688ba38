"""The whole agent in this process: real queue, real HTTP, and a toy in place of the host."""

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from control_plane.relay import Depth, Relay
from node_agent.enrol import EnrolmentRefused
from node_agent.halt import Halt, Halted
from node_agent.settings import Settings
from node_agent.sole import AnotherAgent, sole_agent
from node_agent.wiring import run
from tasks.reports import NodeSurveyed, OrderRefused
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.orders import NODE, apply, remove
from tests.agent.queue import admit, drained, send
from tests.agent.toy_host import STEPS, Toy

MAKING = [steps[0] for steps in STEPS.values()]


class Running:
    """An agent in a thread; `stop` ends it and raises what it raised."""

    def __init__(self, settings: Settings, toy: Toy) -> None:
        self._halt = Halt()
        self._pool = ThreadPoolExecutor(1)
        self.end = self._pool.submit(run, settings, self._halt, lambda *_: toy.host())

    def stop(self) -> None:
        self._halt.ask()
        wait([self.end], 10)
        self._pool.shutdown(wait=False)
        if not isinstance(self.end.exception(0), Halted | EnrolmentRefused):
            self.end.result()


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def start(settings: Settings, toy: Toy) -> Iterator[Callable[[], Running]]:
    started: list[Running] = []

    def start() -> Running:
        started.append(Running(settings, toy))
        return started[-1]

    yield start
    for agent in started:
        agent.stop()


@pytest.fixture
async def agent(start: Callable[[], Running], plane: FakeControlPlane, control: Redis) -> Running:
    """Enrolled, and taking orders."""
    agent = start()
    await admit(plane, control)
    return agent


async def test_an_order_goes_all_the_way(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await send(control, remove())
    await eventually_async(lambda: "slice.removed" in plane.kinds())
    assert [kind for kind in plane.kinds() if kind != "node.surveyed"] == [
        "slice.starting",
        "slice.address",
        "slice.ready",
        "slice.removed",
    ]
    assert toy.there == {}
    await drained(control)


async def test_the_node_describes_itself_once_until_it_changes(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await eventually_async(lambda: len(plane.heartbeats) >= 3)
    assert plane.kinds() == ["node.surveyed"]
    toy.missing = ("masquerade for 10.100.1.0/24",)
    await eventually_async(lambda: len(plane.kinds()) == 2)
    surveyed = plane.reports[-1].body
    assert isinstance(surveyed, NodeSurveyed)
    assert surveyed.missing == ("masquerade for 10.100.1.0/24",)
    assert [slot.network_device for slot in surveyed.slots] == ["slice0", "slice1"]


async def test_reports_are_stamped_with_the_control_planes_time(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis
) -> None:
    plane.now = datetime.now(UTC) + timedelta(hours=1)
    start()
    await admit(plane, control)
    await eventually_async(lambda: bool(plane.reports))
    assert abs(plane.reports[0].observed_at - plane.now) < timedelta(seconds=30)


@pytest.mark.parametrize(
    ("actor", "payload", "said"),
    [
        ("slice.reboot", None, "knows no order"),
        ("slice.remove", None, "came to the actor of"),
        (None, json.dumps({"slot_id": "lab-a/0"}), "Field required"),
        (None, apply().model_dump_json().replace('"vcpus":1', '"vcpus":0'), "greater than or equal to 1"),
        (None, apply().model_dump_json().replace('"vcpus"', '"run":"rm -rf /","vcpus"'), "not permitted"),
    ],
)
async def test_what_is_no_order_is_refused_in_words_and_never_half_applied(
    agent: Running,
    plane: FakeControlPlane,
    control: Redis,
    toy: Toy,
    *,
    actor: str | None,
    payload: str | None,
    said: str,
) -> None:
    await send(control, apply(), actor=actor, payload=payload)
    await eventually_async(lambda: "order.refused" in plane.kinds())
    refused = plane.reports[-1].body
    assert isinstance(refused, OrderRefused)
    assert (refused.reason.code, refused.order_id) == ("malformed", apply().order_id)
    assert said in refused.reason.message
    assert toy.done == []
    await drained(control)


async def test_an_unreadable_slot_leaves_nobody_to_tell_and_the_queue_goes_on(
    agent: Running, plane: FakeControlPlane, control: Redis
) -> None:
    stray = apply().model_copy(update={"order_id": uuid4()})
    await send(control, stray, payload="no json at all")
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await drained(control)


async def test_a_new_node_takes_no_order_before_it_knows_what_is_wanted(
    start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    plane.desired = [remove(9)]
    await send(control, apply(7))
    start()
    await admit(plane, control)
    await eventually_async(lambda: "order.refused" in plane.kinds())
    assert toy.done == []


async def test_slices_are_kept_and_restored_while_the_control_plane_is_away(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    assert toy.kinds() == set(STEPS), "an agent that ends leaves its slices"
    plane.mood = "away"
    toy.there.clear()
    start()
    await eventually_async(lambda: toy.kinds() == set(STEPS))
    plane.mood = "well"
    await eventually_async(lambda: plane.kinds().count("slice.ready") == 2)
    assert plane.kinds()[-3:] == ["slice.interrupted", "slice.starting", "slice.ready"]


async def test_a_restarted_agent_does_not_touch_what_runs(
    agent: Running, start: Callable[[], Running], plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    agent.stop()
    beats = len(plane.heartbeats)
    start()
    await eventually_async(lambda: len(plane.heartbeats) > beats + 3)
    assert toy.done == MAKING
    assert plane.kinds().count("slice.ready") == 1


async def test_a_node_that_is_turned_away_takes_no_orders_and_keeps_its_slices(
    agent: Running, plane: FakeControlPlane, control: Redis, toy: Toy
) -> None:
    await send(control, apply())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    await drained(control)
    plane.mood = "refusing"
    refused = agent_gate_closed(plane)
    await eventually_async(refused)
    await send(control, remove())

    async def held() -> bool:
        return await Relay(control).queue_depth(NODE) == Depth(0, 1)

    await eventually_async(held)
    assert toy.kinds() == set(STEPS)
    plane.mood = "well"
    await eventually_async(lambda: "slice.removed" in plane.kinds())


def agent_gate_closed(plane: FakeControlPlane) -> Callable[[], bool]:
    before = plane.turned_away
    return lambda: plane.turned_away > before + 1


async def test_two_agents_never_share_a_state_folder(
    agent: Running, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node_agent.sole._PATIENCE_SECONDS", 0.1)
    with pytest.raises(AnotherAgent), sole_agent(settings.state_folder):
        pass


async def test_a_refused_token_ends_the_agent_with_the_reason(
    start: Callable[[], Running], settings: Settings, plane: FakeControlPlane
) -> None:
    settings.enrolment_token_file.write_text("some-other-token-than-that")
    agent = start()
    await eventually_async(agent.end.done)
    with pytest.raises(EnrolmentRefused, match="the token is not valid"):
        agent.end.result()


async def test_secrets_stay_on_the_node(agent: Running, settings: Settings, plane: FakeControlPlane) -> None:
    state = settings.state_folder
    assert state.stat().st_mode & 0o777 == 0o700
    for name in ("credential", "queue-password", "enrolled.json"):
        eventually((state / name).exists)
        assert (state / name).stat().st_mode & 0o777 == 0o600
    credential = (state / "credential").read_text()
    assert plane.enrolments[0].credential_sha256 == hashlib.sha256(credential.encode()).hexdigest()


async def test_an_idle_agent_stops_at_once(agent: Running, plane: FakeControlPlane) -> None:
    await eventually_async(lambda: len(plane.heartbeats) > 2)
    began = datetime.now(UTC)
    agent.stop()
    assert datetime.now(UTC) - began < timedelta(seconds=5)
