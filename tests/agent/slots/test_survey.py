"""Survey reports of a node: their content and the moment at which they are sent."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from events.values import PciAddress, SlotIndex
from node_agent.aspects.devices import describe_devices_of
from node_agent.drivers.device_files import HostDeviceFiles
from node_agent.drivers.sysfs import SysfsPci
from node_agent.host.drift import Drifts
from node_agent.host.host import Host
from node_agent.host.host_resources import HostDevice, Place
from node_agent.host.pci import PciDevice
from node_agent.host.slices import Difference
from node_agent.runtime.clock import NodeClock
from node_agent.runtime.timetable import Timetable, Trigger
from node_agent.settings import SlotSettings
from node_agent.slots.accept import Acceptance
from node_agent.slots.fence import FenceFiles
from node_agent.slots.inspection import Inspection
from node_agent.slots.outcomes import Outcomes
from node_agent.slots.slot_work import SlotWork
from node_agent.slots.slots import Slots
from node_agent.slots.survey import Survey
from node_agent.transport.gate import Gate
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from tasks.reports import NodeSurveyed
from tests.agent.entrance import settings_in
from tests.agent.eventually import eventually
from tests.agent.orders import NODE
from tests.agent.slots.test_accept import NETWORK
from tests.agent.task_signing import trust
from tests.agent.toy_host import Toy
from tests.node.hardware_trees import HGX_GPU, Tree, hgx_h200

GPU = PciDevice(PciAddress("0000:1b:00.0"), 0x10DE, 0x2330, 0x030200)
PORT = Difference("port.absent", "port 1000", "no port")


@dataclass
class SurveyedNode:
    """Node that surveys its host once an hour, and whenever a test wakes the survey thread."""

    folder: Path
    toy: Toy
    timetable: Timetable
    tree: Tree | None = None
    """sysfs and procfs of the host; None: those of the toy host."""
    gpu: PciAddress = GPU.address

    def __post_init__(self) -> None:
        clock, host = NodeClock(), self._host()
        self.spool = Spool(self.folder / "spool")
        reporter = Reporter(self.spool, clock)
        self.survey_due, description_due = Trigger(), Trigger()
        self.drifts = Drifts(reporter.report, clock.now, description_due.wake)
        files = FenceFiles(self.folder / "fence", trust().verify_stored)
        slots = Slots(NODE, NETWORK, (SlotIndex(0),), files, lambda: None)
        acceptance = Acceptance(slots, SlotWork(host, Outcomes(reporter), self.drifts), reporter)
        slot = SlotSettings(index=SlotIndex(0), vcpus=1, memory_mib=96, gpus=(self.gpu,))
        settings = settings_in(self.folder).model_copy(update={"slots": (slot,)})
        settings.state_folder.mkdir(exist_ok=True)
        inspection = Inspection(settings, host, reporter, self.drifts, lambda: "token")
        gate = Gate(self.spool, clock)
        self.survey = Survey(
            acceptance,
            inspection,
            gate,
            lambda _slot: None,
            seconds=3600,
            survey_due=self.survey_due,
            description_due=description_due,
        )
        self.survey.start(self.timetable)

    def _host(self) -> Host:
        if self.tree is None:
            return self.toy.host()
        places = {SlotIndex(0): Place(devices=(HostDevice(self.gpu, "gpu"),))}
        files = HostDeviceFiles(self.tree.sysfs, self.tree.procfs)
        return replace(
            self.toy.host(),
            pci_devices=SysfsPci(self.tree.sysfs).devices,
            describe_devices=describe_devices_of(places, files),
        )

    def survey_reports(self) -> list[NodeSurveyed]:
        bodies = (report.body for report in self.spool._waiting)
        return [body for body in bodies if isinstance(body, NodeSurveyed)]

    def open(self) -> list[str]:
        """Return the kinds of open drift in the newest survey report."""
        reports = self.survey_reports()
        return [each.kind for each in reports[-1].drift] if reports else []

    def devices(self) -> list[str | None]:
        """Return the vendor and device numbers of the slot's devices in the newest survey report."""
        return [each.number for each in self.survey_reports()[-1].slots[0].devices]


@pytest.fixture
def toy() -> Iterator[Toy]:
    toy = Toy()
    yield toy
    if toy.gateway_read_blocks_until is not None:
        toy.gateway_read_blocks_until.set()


@pytest.fixture
def surveyed(tmp_path: Path, toy: Toy) -> Iterator[SurveyedNode]:
    with Timetable() as timetable:
        yield SurveyedNode(tmp_path, toy, timetable)


def test_new_open_drift_is_reported_at_once_while_a_survey_hangs(surveyed: SurveyedNode, toy: Toy) -> None:
    toy.gateway_read_blocks_until = threading.Event()
    surveyed.survey_due.wake()
    assert toy.hangs.wait(10)
    surveyed.drifts.record(SlotIndex(0), left=[PORT])
    eventually(lambda: surveyed.open() == ["port.absent"])


def test_drift_that_is_no_longer_open_is_absent_from_the_next_survey_report(surveyed: SurveyedNode) -> None:
    surveyed.drifts.record(SlotIndex(0), left=[PORT])
    eventually(lambda: surveyed.open() == ["port.absent"])
    surveyed.drifts.record(SlotIndex(0))
    eventually(lambda: surveyed.open() == [])


def test_pci_devices_that_are_unreadable_after_an_agent_restart_are_reported_with_their_last_values(
    tmp_path: Path, toy: Toy, surveyed: SurveyedNode
) -> None:
    toy.pci = (GPU,)
    surveyed.survey.survey_host()
    assert surveyed.devices() == ["10de:2330"]
    toy.unreadable.add("pci")
    with Timetable() as timetable:
        restarted = SurveyedNode(tmp_path, toy, timetable)
        restarted.survey.survey_host()
        assert restarted.open() == ["host.unreadable"]
        assert restarted.devices() == ["10de:2330"]


def test_another_gpu_in_the_same_place_and_a_lost_gpu_are_reported_by_the_next_survey_and_only_once(
    tmp_path: Path, toy: Toy
) -> None:
    tree = hgx_h200(tmp_path / "host")
    tree.load_nvidia_driver(HGX_GPU, "NVIDIA H200", "GPU-1")
    with Timetable() as timetable:
        node = SurveyedNode(tmp_path, toy, timetable, tree, HGX_GPU)
        for uuid in ("GPU-1", "GPU-1", "GPU-2", "GPU-2"):
            tree.load_nvidia_driver(HGX_GPU, "NVIDIA H200", uuid)
            node.survey.survey_host()
        tree.vanish(HGX_GPU)
        node.survey.survey_host()
        node.survey.survey_host()
        described = [report.slots[0].devices[0] for report in node.survey_reports()]
    # The agent also describes the node when it starts, which may be before the first survey.
    assert [(each.number, each.uuid) for each in described[-3:]] == [
        ("10de:2335", "GPU-1"),
        ("10de:2335", "GPU-2"),
        (None, None),
    ]


def test_survey_of_a_host_reads_the_host_state_once_even_if_the_spool_is_full(
    surveyed: SurveyedNode, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Spool, "full", property(lambda _: True))
    surveyed.survey_due.wake()
    eventually(lambda: toy.reads_per_snapshot != [])
    assert toy.reads_per_snapshot == [1]
