"""A guest that is ready by the sign of its image: another port than SSH's, with a line from there or without one."""

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
    SimulatedImage(name=image_name("web"), port=8080, says=""),
    SimulatedImage(name=image_name("mail"), port=2525, says=HELLO),
)


@pytest.fixture
def node(tmp_path: Path) -> Entrance:
    simulated = SimulatedHostSettings(boot_seconds=0, images=IMAGES)
    settings = settings_in(tmp_path).model_copy(update={"simulated": simulated})
    return Entrance(tmp_path, host=simulated_host(settings, SUBNET, lambda: None))


@pytest.mark.parametrize(
    ("image", "port", "banner", "said"), [("web", 8080, "", ""), ("mail", 2525, "220 ", HELLO)]
)
def test_a_guest_is_ready_by_the_sign_that_its_order_names(
    node: Entrance, image: str, port: int, banner: str, said: str
) -> None:
    wish = apply(image=image, port=port, banner=banner)
    node.do(wish)
    ready = node.told()[-1]
    assert isinstance(ready, SliceReady), ready
    assert (ready.port, ready.banner) == (port, said)

    address, poll = on_slot(AddressReport, wish), on_slot(ReadinessPoll, wish)
    node.do(address, poll)
    ends = [node.end_of(each) for each in (address, poll)]
    reported, polled = [end.result for end in ends if isinstance(end, OperationDone)]
    assert isinstance(reported, AddressReported)
    assert reported.endpoint_port == port
    assert polled == ReadinessPolled(address=ready.address, port=port, banner=said)


@pytest.mark.parametrize(
    ("image", "port", "banner", "why"),
    [
        ("web", 22, "SSH-", "port 22: Connection refused"),
        ("lab-guest", 8080, "", "port 8080: Connection refused"),
        ("mail", 2525, "SSH-", f"the port answered '{HELLO}', not 'SSH-'"),
        ("web", 8080, "220 ", "the port answered '', not '220 '"),
    ],
)
def test_a_guest_that_gives_another_sign_fails_at_its_deadline_and_says_which(
    node: Entrance, image: str, port: int, banner: str, why: str
) -> None:
    node.do(apply(image=image, port=port, banner=banner, deadline=1))
    failed = node.told()[-1]
    assert isinstance(failed, SliceFailed), failed
    assert (failed.reason.code, failed.reason.message) == ("not_reachable", f"10.100.1.10: {why}")
