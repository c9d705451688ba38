"""What a node says of itself, and when."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from events.values import PciAddress, SlotIndex
from node_agent.accept import Acceptance
from node_agent.clock import NodeClock
from node_agent.drift import Drifts
from node_agent.fence import FenceFiles
from node_agent.gate import Gate
from node_agent.inspection import Inspection
from node_agent.outcomes import Outcomes
from node_agent.pci import PciDevice
from node_agent.reporter import Reporter
from node_agent.settings import SlotSettings
from node_agent.slices import Difference
from node_agent.slots import Slots
from node_agent.spool import Spool
from node_agent.survey import Survey
from node_agent.work import SlotWork
from tasks.reports import NodeSurveyed
from tasks.timetable import Timetable
from tests.agent.entrance import settings_in
from tests.agent.eventually import eventually
from tests.agent.orders import NODE
from tests.agent.sealing import trust
from tests.agent.test_accept import NETWORK
from tests.agent.toy_host import Toy

GPU = PciDevice(PciAddress("0000:1b:00.0"), 0x10DE, 0x2330, 0x030200)
PORT = Difference("port.absent", "port 1000", "no port")


@dataclass
class Surveyed:
    """A node that is surveyed once an hour, or when it is woken."""

    folder: Path
    toy: Toy
    timetable: Timetable

    def __post_init__(self) -> None:
        clock, host = NodeClock(), self.toy.host()
        self.spool = Spool(self.folder / "spool")
        reporter = Reporter(self.spool, clock)
        self.drifts = Drifts(reporter.tell, clock.now, self._drift_moved)
        files = FenceFiles(self.folder / "fence", trust().recall)
        slots = Slots(NODE, NETWORK, (SlotIndex(0),), files, lambda: None)
        acceptance = Acceptance(slots, SlotWork(host, Outcomes(reporter), self.drifts), reporter)
        slot = SlotSettings(index=SlotIndex(0), vcpus=1, memory_mib=96, gpus=(GPU.address,))
        settings = settings_in(self.folder).model_copy(update={"slots": (slot,)})
        settings.state_folder.mkdir(exist_ok=True)
        inspection = Inspection(settings, host, reporter, self.drifts, lambda: "token")
        gate = Gate(self.spool, clock)
        self.survey = Survey(acceptance, inspection, gate, lambda _slot: None, seconds=3600)
        self.survey.start(self.timetable)

    def _drift_moved(self) -> None:
        self.survey.tell()

    def told(self) -> list[NodeSurveyed]:
        bodies = (report.body for report in self.spool._waiting)
        return [body for body in bodies if isinstance(body, NodeSurveyed)]

    def open(self) -> list[str]:
        """What the newest description tells."""
        told = self.told()
        return [each.kind for each in told[-1].drift] if told else []

    def devices(self) -> list[str | None]:
        """The numbers of the slot's devices, by the newest description."""
        return [each.number for each in self.told()[-1].slots[0].devices]


@pytest.fixture
def toy() -> Iterator[Toy]:
    toy = Toy()
    yield toy
    if toy.look_hangs_until is not None:
        toy.look_hangs_until.set()


@pytest.fixture
def surveyed(tmp_path: Path, toy: Toy) -> Iterator[Surveyed]:
    with Timetable() as timetable:
        yield Surveyed(tmp_path, toy, timetable)


def test_what_opens_is_told_at_once_though_the_survey_cannot_tell_it_yet(
    surveyed: Surveyed, toy: Toy
) -> None:
    toy.look_hangs_until = threading.Event()
    surveyed.survey.wake()
    assert toy.hangs.wait(10)
    surveyed.drifts.note(SlotIndex(0), left=[PORT])
    eventually(lambda: surveyed.open() == ["port.absent"])


def test_what_closes_is_told_as_well(surveyed: Surveyed) -> None:
    surveyed.drifts.note(SlotIndex(0), left=[PORT])
    eventually(lambda: surveyed.open() == ["port.absent"])
    surveyed.drifts.note(SlotIndex(0))
    eventually(lambda: surveyed.open() == [])


def test_devices_that_cannot_be_seen_after_a_restart_are_told_as_they_were(
    tmp_path: Path, toy: Toy, surveyed: Surveyed
) -> None:
    toy.pci = (GPU,)
    surveyed.survey.look()
    assert surveyed.devices() == ["10de:2330"]
    toy.unreadable.add("pci")
    with Timetable() as timetable:
        restarted = Surveyed(tmp_path, toy, timetable)
        restarted.survey.look()
        assert restarted.open() == ["host.unreadable"]
        assert restarted.devices() == ["10de:2330"]


def test_the_nodes_own_part_is_looked_at_in_one_look_also_while_nothing_can_be_told(
    surveyed: Surveyed, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spool, "full", property(lambda _: True))
    surveyed.survey.wake()
    eventually(lambda: toy.ahead != [])
    assert toy.ahead == [1]
