"""What only a real node can show: libvirtd dying and hanging under its guests, and a guest that boots and answers."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from node_agent.host import Answered
from node_agent.lab.lab import Lab, LabNode
from node_agent.machines import Machines
from node_agent.readiness import BannerProbe
from node_agent.slices import HostUnreadable
from tests.contract.machines.hosts import Real, machines_of, real_host
from tests.lab.awaiting import eventually
from tests.node.guests import slice_on

pytestmark = pytest.mark.node
WANTED = slice_on(0)
DEATHS = 4


@pytest.fixture
def node(lab: Lab) -> LabNode:
    return lab.node("lab-a")


@pytest.fixture
def host(node: LabNode, guest_on_disk: Path) -> Iterator[Real]:
    with real_host(node, guest_on_disk) as real:
        yield real


@pytest.fixture
def machines(host: Real) -> Machines:
    """Of a node on which the guest runs."""
    machines = machines_of(host)
    host.add_tap("slice0")
    for step in machines.to_apply(WANTED):
        step.run()
    return machines


def qemu(node: LabNode) -> list[int]:
    return [pid for pid, argv in node.processes().items() if argv[0].startswith("/usr/bin/qemu-system")]


def readable(look: Callable[[], object]) -> bool:
    try:
        look()
    except HostUnreadable:
        return False
    return True


@contextmanager
def hung(node: LabNode) -> Iterator[None]:
    node.kill("libvirtd", signal.SIGSTOP)
    try:
        yield
    finally:
        node.kill("libvirtd", signal.SIGCONT)


def test_guests_do_not_notice_that_libvirtd_died(machines: Machines, node: LabNode) -> None:
    before, pid = qemu(node), node.daemons()["libvirtd"]
    node.kill("libvirtd")
    eventually(lambda: node.daemons().get("libvirtd", pid) != pid)
    eventually(lambda: readable(lambda: machines.to_apply(WANTED)))
    assert machines.to_apply(WANTED) == ()
    assert qemu(node) == before


def test_a_guest_that_ends_after_libvirtd_came_back_is_still_told(
    machines: Machines, host: Real, node: LabNode
) -> None:
    eventually(host.changed.is_set)
    host.changed.clear()
    node.kill("libvirtd")
    eventually(host.changed.is_set)
    host.changed.clear()
    node.kill("qemu-system-x86_64")
    eventually(host.changed.is_set)
    assert [step.name for step in machines.to_apply(WANTED)] == ["machine.start"]


def test_a_libvirtd_that_dies_again_and_again_costs_no_open_file(host: Real, node: LabNode) -> None:
    def dies() -> int:
        host.changed.clear()
        node.kill("libvirtd")
        eventually(host.changed.is_set)
        eventually(lambda: readable(host.hypervisor.domains))
        return len(list(Path("/proc/self/fd").iterdir()))

    eventually(host.changed.is_set)
    after_one = dies()
    after_all = [dies() for _ in range(DEATHS)][-1]
    # Others in this process open and close files meanwhile, and fewer than every second death would cost.
    assert after_all - after_one < DEATHS / 2


def test_a_hung_libvirtd_makes_the_host_unreadable_in_time_and_comes_back(
    machines: Machines, host: Real, node: LabNode
) -> None:
    # Here and not above: the drivers' packages are an extra, and these tests are collected without it too.
    from node_agent.drivers.libvirt import LibvirtHypervisor

    socket = f"/proc/{node.pid}/root/run/libvirt/libvirt-sock"
    hasty = LibvirtHypervisor(f"qemu:///system?socket={socket}", host.changed.set, read_seconds=1)
    eventually(lambda: readable(hasty.domains))
    with hung(node):
        began = monotonic()
        for _ in range(3):
            with pytest.raises(HostUnreadable, match="no answer within"):
                hasty.domains()
        assert monotonic() - began < 2 * 3
    eventually(lambda: readable(hasty.domains))
    assert hasty.domains() == host.hypervisor.domains()
    hasty.close()


def test_a_started_guest_boots_and_answers_with_its_ssh_banner(machines: Machines, node: LabNode) -> None:
    network = WANTED.network
    node.run(["ip", "address", "add", f"{network.gateway}/24", "dev", "slice0"])
    node.start_daemon(
        "dnsmasq",
        [
            "dnsmasq",
            *("--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--interface=slice0"),
            *("--bind-interfaces", "--no-ping", "--dhcp-authoritative", "--dhcp-leasefile=/run/leases"),
            *(f"--dhcp-range={network.gateway},static", f"--dhcp-host={network.mac},{network.ip},infinite"),
        ],
    )
    from pyroute2 import netns

    with open("/proc/self/ns/net") as home:
        netns.setns(f"/proc/{node.pid}/ns/net")
        try:
            heard = eventually(lambda: answer(machines), seconds=40)
        finally:
            netns.setns(home.fileno())
            node.stop_daemon("dnsmasq")
    assert heard.banner.startswith("SSH-2.0-")


def answer(machines: Machines) -> Answered | None:
    assert machines.to_apply(WANTED) == ()
    heard = BannerProbe(seconds=0.5)(WANTED.network.ip, 22, "SSH-")
    return heard if isinstance(heard, Answered) else None


def test_what_a_guest_said_is_gone_with_its_folder(machines: Machines, host: Real) -> None:
    folder = host.disks.path("slice0")
    eventually(lambda: (folder / "console.log").stat().st_size > 0, seconds=40)
    for step in machines.to_remove(WANTED.network):
        step.run()
    assert not folder.exists()
    assert machines.remains(WANTED.network) == ()
