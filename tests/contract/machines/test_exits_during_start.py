"""Failures during a machine's start that only a real node shows: libvirtd or QEMU dies during the start, or QEMU exits
by itself.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from node_agent.aspects.machines import Machines
from node_agent.host.guests import Guest, Hosting, guest_for
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.lab.lab import Lab, LabNode
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
def host(node: LabNode, halting_on_disk: Path) -> Iterator[Real]:
    with real_host(node, halting_on_disk) as real:
        real.add_tap("slice0")
        yield real


@pytest.fixture
def machines(host: Real) -> Machines:
    """The agent's management of virtual machines, on a node with a guest's seed image; the guest is not started."""
    machines = machines_of(host)
    seed, _start = machines.to_apply(WANTED)
    seed.run()
    return machines


def kill_during(start: Callable[[], object], node: LabNode, dying: str) -> Future[object]:
    """Kill a program of the node after the QEMU process of the new guest exists and before libvirt has finished the
    guest's start.
    """
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(start)
        eventually(lambda: started.done() or qemu_runs(node))
        assert not started.done()
        node.kill(dying)
    return started


def qemu_runs(node: LabNode) -> bool:
    return any(
        argv[0].endswith("qemu-system-x86_64") and "-name" in argv for argv in node.processes().values()
    )


def is_applied(machines: Machines) -> bool:
    """Apply the slice's desired state again. Return whether the virtual machine is in this state; return False if the
    host cannot be read.
    """
    try:
        for step in machines.to_apply(WANTED):
            step.run()
        return not machines.to_apply(WANTED)
    except HostUnreadable:
        return False


def starting(host: Real, machines: Machines) -> Callable[[], None]:
    guest = guest_for(WANTED)
    return lambda: host.hypervisor.start(guest, machines.hosting(guest))


def test_machine_start_during_which_libvirtd_dies_is_repeated_and_not_reported_as_a_refusal(
    host: Real, machines: Machines, node: LabNode
) -> None:
    before = lives(node)
    died = kill_during(starting(host, machines), node, "libvirtd")
    assert isinstance(died.exception(), HostUnreadable)
    eventually(lambda: is_applied(machines), 20)
    events = lives(node).since(before)
    assert events.starts == 1 + events.ends("daemon")
    (domain,) = host.hypervisor.domains()
    assert (domain.guest, domain.state) == (guest_for(WANTED), "running")


def test_virtual_machine_that_is_killed_during_its_start_is_started_once_more(
    host: Real, machines: Machines, node: LabNode
) -> None:
    before = lives(node)
    kill_during(starting(host, machines), node, "qemu-system-x86_64").result()
    assert lives(node).since(before).events == ("started", "ended, failed", "started")
    assert machines.to_apply(WANTED) == ()


def test_start_of_a_virtual_machine_that_exits_at_once_is_refused_with_its_error_message_and_not_repeated(
    host: Real, machines: Machines, node: LabNode
) -> None:
    before, guest = lives(node), guest_for(WANTED)
    with pytest.raises(HostRefused, match="kernel too old"):
        host.hypervisor.start(guest, with_invalid_kernel(guest, machines, host))
    assert lives(node).since(before).events == ("started", "ended, failed")


def with_invalid_kernel(guest: Guest, machines: Machines, host: Real) -> Hosting:
    host.disks.write(f"{guest.name}/kernel", b"none")
    image = replace(host.images.find(guest.image), kernel=host.disks.path(f"{guest.name}/kernel"))
    return replace(machines.hosting(guest), boot=image)
