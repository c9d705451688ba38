"""What only a real node can show: libvirtd or QEMU dying in the middle of a start, and a QEMU that ends of itself."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from node_agent.guests import Guest, Hosting, guest_for
from node_agent.lab.lab import Lab, LabNode
from node_agent.machines import Machines
from node_agent.slices import HostRefused, HostUnreadable
from tests.contract.machines.hosts import Real, machines_of, real_host
from tests.lab.awaiting import eventually
from tests.lab.machine_log import lives
from tests.node.guests import slice_on

pytestmark = pytest.mark.node
WANTED = slice_on(0)


@pytest.fixture
def node(lab: Lab) -> LabNode:
    return lab.node("lab-a")


@pytest.fixture
def host(node: LabNode, guest_on_disk: Path) -> Iterator[Real]:
    with real_host(node, guest_on_disk) as real:
        real.add_tap("slice0")
        yield real


@pytest.fixture
def machines(host: Real) -> Machines:
    """Of a node where the guest's seed is written, and the guest not started."""
    machines = machines_of(host)
    seed, _start = machines.to_apply(WANTED)
    seed.run()
    return machines


def in_the_middle_of(start: Callable[[], object], node: LabNode, dying: str) -> Future[object]:
    """Kill a program of the node when the new guest's process is there, and libvirt is not done with its start."""
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(start)
        eventually(lambda: started.done() or is_there(node))
        assert not started.done()
        node.kill(dying)
    return started


def is_there(node: LabNode) -> bool:
    return any(
        argv[0].endswith("qemu-system-x86_64") and "-name" in argv for argv in node.processes().values()
    )


def applied(machines: Machines) -> bool:
    """Whether the machine is as wanted after one more try; a host that cannot be read is tried again."""
    try:
        for step in machines.to_apply(WANTED):
            step.run()
        return not machines.to_apply(WANTED)
    except HostUnreadable:
        return False


def starting(host: Real, machines: Machines) -> Callable[[], None]:
    guest = guest_for(WANTED)
    return lambda: host.hypervisor.start(guest, machines.hosting(guest))


def test_a_start_that_libvirtd_died_in_is_made_good_and_nothing_is_refused(
    host: Real, machines: Machines, node: LabNode
) -> None:
    before = lives(node)
    died = in_the_middle_of(starting(host, machines), node, "libvirtd")
    assert isinstance(died.exception(), HostUnreadable)
    eventually(lambda: applied(machines), 20)
    told = lives(node).since(before)
    assert told.starts == 1 + told.ends("daemon")
    (domain,) = host.hypervisor.domains()
    assert (domain.guest, domain.state) == (guest_for(WANTED), "running")


def test_a_machine_that_is_killed_at_its_start_is_started_once_more(
    host: Real, machines: Machines, node: LabNode
) -> None:
    before = lives(node)
    in_the_middle_of(starting(host, machines), node, "qemu-system-x86_64").result()
    assert lives(node).since(before).told == ("started", "ended, failed", "started")
    assert machines.to_apply(WANTED) == ()


def test_a_machine_that_ends_of_itself_is_refused_with_its_words_and_not_started_again(
    host: Real, machines: Machines, node: LabNode
) -> None:
    before, guest = lives(node), guest_for(WANTED)
    with pytest.raises(HostRefused, match="kernel too old"):
        host.hypervisor.start(guest, without_a_kernel(guest, machines, host))
    assert lives(node).since(before).told == ("started", "ended, failed")


def without_a_kernel(guest: Guest, machines: Machines, host: Real) -> Hosting:
    host.disks.write(f"{guest.name}/kernel", b"none")
    hosting = machines.hosting(guest)
    return replace(hosting, image=replace(hosting.image, kernel=host.disks.path(f"{guest.name}/kernel")))
