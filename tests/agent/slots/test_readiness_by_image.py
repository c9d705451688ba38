"""Readiness by the port and banner of a guest image: a port different from SSH's, with or without a banner."""

from pathlib import Path

import pytest

from events.values import image_name
from node_agent.lab.simulated.node import simulated_host
from node_agent.settings import SimulatedHostSettings, SimulatedImage
from tasks.operations import AddressReport, AddressReported, ReadinessPoll, ReadinessPolled
from tasks.reports import OperationDone, SliceFailed, SliceReady
from tests.agent.entrance import SUBNET, Entrance, settings_in
from tests.agent.operations import on_slot
from tests.agent.orders import apply

HELLO = "220 mail.example.org ESMTP"
IMAGES = (
    SimulatedImage(name=image_name("web"), port=8080, banner=""),
    SimulatedImage(name=image_name("mail"), port=2525, banner=HELLO),
)


@pytest.fixture
def node(tmp_path: Path) -> Entrance:
    simulated = SimulatedHostSettings(boot_seconds=0, images=IMAGES)
    settings = settings_in(tmp_path).model_copy(update={"simulated": simulated})
    return Entrance(tmp_path, host=simulated_host(settings, SUBNET, lambda: None))


@pytest.mark.parametrize(
    ("image", "port", "banner", "answer"), [("web", 8080, "", ""), ("mail", 2525, "220 ", HELLO)]
)
def test_guest_that_answers_at_the_port_and_with_the_banner_of_its_order_is_ready(
    node: Entrance, image: str, port: int, banner: str, answer: str
) -> None:
    order = apply(image=image, port=port, banner=banner)
    node.do(order)
    ready = node.reports()[-1]
    assert isinstance(ready, SliceReady), ready
    assert (ready.port, ready.banner) == (port, answer)

    address, poll = on_slot(AddressReport, order), on_slot(ReadinessPoll, order)
    node.do(address, poll)
    ends = [node.end_of(each) for each in (address, poll)]
    reported, polled = [end.result for end in ends if isinstance(end, OperationDone)]
    assert isinstance(reported, AddressReported)
    assert reported.endpoint_port == port
    assert polled == ReadinessPolled(address=ready.address, port=port, banner=answer)


@pytest.mark.parametrize(
    ("image", "port", "banner", "reason"),
    [
        ("web", 22, "SSH-", "cannot connect to the readiness port 22: Connection refused"),
        ("lab-guest", 8080, "", "cannot connect to the readiness port 8080: Connection refused"),
        ("mail", 2525, "SSH-", f"the readiness port answered '{HELLO}', not 'SSH-'"),
        ("web", 8080, "220 ", "the readiness port answered '', not '220 '"),
    ],
)
def test_guest_without_the_ordered_port_or_banner_fails_at_its_deadline_with_the_observed_answer(
    node: Entrance, image: str, port: int, banner: str, reason: str
) -> None:
    node.do(apply(image=image, port=port, banner=banner, deadline=1))
    failed = node.reports()[-1]
    assert isinstance(failed, SliceFailed), failed
    assert (failed.reason.code, failed.reason.message) == ("not_reachable", f"10.100.1.10: {reason}")
