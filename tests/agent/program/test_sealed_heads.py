"""A node holds the newest head of the ledger, and refuses and reports heads of another history (LED-7)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from redis.asyncio import Redis

from node_agent.runtime.timetable import Timetable
from node_agent.settings import Settings
from node_agent.transport.client import ControlPlane
from node_agent.transport.sealed_heads import SealedHeads
from node_agent.transport.trust import keys_by_id
from tasks.agent_api import HeadsConsistent, HeadSizes
from tasks.heads import difference, signed_head
from tasks.reports import HeadRefused
from tasks.signing import Signer, new_private_key
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually, eventually_async
from tests.agent.histories import SEALER, History, leaves_of
from tests.agent.orders import apply, remove
from tests.agent.program.test_agent import Running
from tests.agent.queue import await_enrolment, send
from tests.agent.task_signing import sealed
from tests.agent.toy_host import Toy

LEAVES = leaves_of("one", 40)
KEYS = keys_by_id([SEALER.public])


@pytest.fixture
def history() -> History:
    return History(LEAVES, [3, 7, 7, 20, 33])


class Witness:
    """The part of a node that stores heads of the ledger, and the reports that it sends. `restart` starts it from its
    files.
    """

    def __init__(self, client: ControlPlane, timetable: Timetable, folder: Path) -> None:
        self.reports: list[HeadRefused] = []
        self.folder = folder
        self._client, self._timetable = client, timetable
        self.restart()

    def restart(self) -> None:
        self.heads = SealedHeads(
            self.folder,
            self._client,
            lambda text: signed_head(text, KEYS),
            self.reports.append,
            self._timetable,
            seconds=0.0,
        )

    @property
    def held(self) -> str | None:
        return self.heads.held

    @property
    def codes(self) -> list[str]:
        return [each.reason.code for each in self.reports]

    def receive(self, text: str) -> None:
        """Receive a head of the ledger, and return when the node has stored it or has reported one more head."""
        before = len(self.reports)
        self.heads.receive(text)
        eventually(lambda: self.held == text or len(self.reports) > before)


@pytest.fixture
def witness(client: ControlPlane, timetable: Timetable, tmp_path: Path) -> Witness:
    return Witness(client, timetable, tmp_path / "heads")


def test_node_stores_each_newer_ledger_head_that_a_proof_shows_to_continue_its_stored_head(
    witness: Witness,
    enrolled_plane: FakeControlPlane,
    history: History,
) -> None:
    enrolled_plane.consistency = history.proof
    for text in history.heads:
        witness.receive(text)
        assert witness.held == text
    assert enrolled_plane.consistency_requests == [
        HeadSizes(first=3, second=7),
        HeadSizes(first=7, second=20),
        HeadSizes(first=20, second=33),
    ]
    assert witness.reports == []


def test_stored_ledger_head_of_a_node_is_kept_over_a_restart_of_the_agent(
    witness: Witness, history: History
) -> None:
    witness.receive(history.heads[0])
    witness.restart()
    assert witness.held == history.heads[0]


def test_older_ledger_head_in_a_late_copy_of_an_order_does_not_replace_the_stored_head(
    witness: Witness,
    enrolled_plane: FakeControlPlane,
    history: History,
) -> None:
    enrolled_plane.consistency = history.proof
    witness.receive(history.heads[3])
    witness.heads.receive(history.heads[1])
    eventually(lambda: enrolled_plane.consistency_requests == [HeadSizes(first=7, second=20)], 10)
    witness.receive(history.heads[4])
    assert (witness.held, witness.reports) == (history.heads[4], [])
    assert enrolled_plane.consistency_requests[1:] == [HeadSizes(first=20, second=33)]


FORK = History([*LEAVES[:5], *leaves_of("other", 35)], [3, 7, 7, 20, 33])
NO_PREVIOUS = History(LEAVES, [5, 9])
LONGER = History(LEAVES, [3, 7, 7, 25])
SHORTER = History(LEAVES, [3, 7, 7, 20, 19])


class Contradiction(NamedTuple):
    """Test case: the index of the ledger head that a node has stored, the contradicting head that it receives, and the
    function that returns the control plane's consistency proofs.
    """

    held: int
    received: str
    proof: Callable[[HeadSizes], HeadsConsistent | None]


@pytest.mark.parametrize(
    "case",
    [
        Contradiction(3, FORK.heads[3], FORK.proof),
        Contradiction(3, LONGER.heads[3], LONGER.proof),
        Contradiction(3, FORK.heads[4], FORK.proof),
        Contradiction(2, FORK.heads[4], FORK.proof),
        Contradiction(2, FORK.heads[4], lambda _sizes: HeadsConsistent(hashes=())),
        Contradiction(4, History(LEAVES[:10], [3, 7, 9, 10]).heads[3], lambda _sizes: None),
        Contradiction(0, NO_PREVIOUS.heads[1], NO_PREVIOUS.proof),
        Contradiction(3, SHORTER.heads[4], SHORTER.proof),
    ],
    ids=[
        "same-number",
        "same-number-other-size",
        "next-number",
        "fork",
        "no-hashes",
        "restored",
        "other-previous",
        "smaller",
    ],
)
def test_ledger_head_that_contradicts_the_stored_head_is_refused_and_reported_with_both_signed_texts(
    witness: Witness,
    enrolled_plane: FakeControlPlane,
    history: History,
    case: Contradiction,
) -> None:
    held = history.heads[case.held]
    witness.receive(held)
    enrolled_plane.consistency = case.proof
    witness.receive(case.received)
    [report] = witness.reports
    assert report.reason.code == "head_inconsistent"
    assert (report.held, report.refused, witness.held) == (held, case.received, held)


def test_second_ledger_head_that_contradicts_the_stored_head_is_not_reported_even_after_a_restart(
    witness: Witness,
    enrolled_plane: FakeControlPlane,
    history: History,
) -> None:
    enrolled_plane.consistency = FORK.proof
    witness.receive(history.heads[2])
    witness.receive(FORK.heads[3])
    eventually(lambda: "head_inconsistent" in (witness.folder / "held.json").read_text())
    witness.restart()
    witness.heads.receive(FORK.heads[4])
    eventually(lambda: len(enrolled_plane.consistency_requests) == 1, 10)
    witness.heads.receive(sign_with_other_key())
    eventually(lambda: len(witness.reports) == 2, 10)
    assert witness.codes == ["head_inconsistent", "head_not_trusted"]


def sign_with_other_key() -> str:
    return History(LEAVES, [3], signer=Signer.of_pem(new_private_key())).heads[0]


@pytest.mark.parametrize(
    "text",
    [sign_with_other_key(), "no head", SEALER.sign("head+jws", b"{}"), sealed("an order", signer=SEALER)],
    ids=["other-key", "no-jws", "no-head", "other-type"],
)
def test_text_that_is_not_a_ledger_head_signed_by_the_sealer_is_refused_and_reported(
    witness: Witness, text: str
) -> None:
    witness.receive(text)
    assert (witness.codes, witness.reports[0].held, witness.held) == (["head_not_trusted"], None, None)


def test_contradicting_ledger_head_of_a_higher_epoch_is_reported_and_then_stored(
    witness: Witness,
    enrolled_plane: FakeControlPlane,
    history: History,
) -> None:
    restored = History([*LEAVES[:7], *leaves_of("restored", 30)], [12, 25], epoch=2, before=history.heads[:2])
    witness.receive(history.heads[3])
    witness.receive(restored.heads[2])
    eventually(lambda: witness.held == restored.heads[2], 10)
    assert witness.codes == ["head_inconsistent"]
    assert json.loads((witness.folder / "held.json").read_text())["former"] == [history.heads[3]]
    enrolled_plane.consistency = restored.proof
    witness.receive(restored.heads[3])
    assert witness.codes == ["head_inconsistent"]


def test_ledger_head_received_during_an_outage_is_checked_once_the_control_plane_answers_again(
    witness: Witness,
    enrolled_plane: FakeControlPlane,
    history: History,
) -> None:
    enrolled_plane.consistency = history.proof
    witness.receive(history.heads[0])
    enrolled_plane.mode = "unavailable"
    witness.heads.receive(history.heads[4])
    eventually(lambda: len(enrolled_plane.consistency_requests) >= 1, 10)
    assert witness.held == history.heads[0]
    enrolled_plane.mode = "available"
    eventually(lambda: witness.held == history.heads[4], 10)
    assert witness.reports == []


def test_comparison_of_two_ledger_heads_has_the_same_result_in_either_order(history: History) -> None:
    texts = [*history.heads, *FORK.heads]
    for one in texts:
        assert all(difference(one, other) == difference(other, one) for other in texts)


@pytest.fixture
def start(settings: Settings) -> Iterator[Callable[[], Running]]:
    started: list[Running] = []

    def start() -> Running:
        started.append(Running(settings.model_copy(update={"head_seconds": 0.0}), Toy()))
        return started[-1]

    yield start
    for agent in started:
        agent.stop()


async def test_agent_executes_orders_with_contradicting_ledger_heads_and_reports_the_second_head(
    start: Callable[[], Running],
    plane: FakeControlPlane,
    control: Redis,
    history: History,
    settings: Settings,
) -> None:
    plane.sealing_keys, plane.consistency = (SEALER.public,), history.proof
    start()
    await await_enrolment(plane)
    await send(control, apply(), payload=sealed(apply(), head=history.heads[0]))
    held = settings.state_folder / "heads" / "held.json"
    await eventually_async(lambda: held.exists() and history.heads[0] in held.read_text())
    await eventually_async(lambda: "slice.ready" in plane.kinds())
    other = History(leaves_of("other", 9), [9])
    await send(control, remove(), payload=sealed(remove(), head=other.heads[0]))
    await eventually_async(lambda: {"slice.removed", "head.refused"} <= set(plane.kinds()))
    [refused] = plane.bodies(HeadRefused)
    assert isinstance(refused, HeadRefused)
    assert refused.reason.code == "head_inconsistent"
