"""The agent's management of virtual machines in cases that need a real node: libvirtd dies or hangs, a guest boots and
answers.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest

from node_agent.aspects.machine_drift import describe_domain
from node_agent.aspects.machine_plans import FoundDomain
from node_agent.aspects.machines import Machines
from node_agent.host.host import Answered
from node_agent.host.slices import HostUnreadable
from node_agent.host.snapshots import host_snapshot
from node_agent.lab.lab import Lab, LabNode
from node_agent.slots.readiness import BannerProbe
from tests.contract.machines.hosts import ALTERATIONS, Real, machines_of, real_host
from tests.lab.awaiting import eventually
from tests.node.guests import slice_on

pytestmark = pytest.mark.node
WANTED = slice_on(0)
DEATHS = 4
_LISTENS = 0x10000
"""Flag of a unix socket that accepts connections (`__SO_ACCEPTCON`)."""


@pytest.fixture
def node(lab: Lab) -> LabNode:
    return lab.node("lab-a")


@pytest.fixture
def host(request: pytest.FixtureRequest, node: LabNode) -> Iterator[Real]:
    with real_host(node, request.getfixturevalue(getattr(request, "param", "halting_on_disk"))) as real:
        yield real


with_booting_guest = pytest.mark.parametrize("host", ["guest_on_disk"], indirect=True, ids=["booting"])


@pytest.fixture
def machines(host: Real) -> Machines:
    """The agent's management of virtual machines, on a node with the running guest."""
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


def test_guests_keep_running_when_libvirtd_is_killed_and_restarted(machines: Machines, node: LabNode) -> None:
    before, pid = qemu(node), node.daemons()["libvirtd"]
    node.kill("libvirtd")
    eventually(lambda: node.daemons().get("libvirtd", pid) != pid)
    eventually(lambda: readable(lambda: machines.to_apply(WANTED)))
    assert machines.to_apply(WANTED) == ()
    assert qemu(node) == before


def test_guest_that_ends_after_a_restart_of_libvirtd_is_reported_as_a_change_of_the_host(
    machines: Machines, host: Real, node: LabNode
) -> None:
    eventually(host.changed.is_set)
    host.changed.clear()
    node.kill("libvirtd")
    eventually(host.changed.is_set)
    # libvirtd accepts connections before it has found its guests again, and does not report the end of an unknown one.
    list_guests = ["virsh", "-c", "qemu:///system", "list", "--name"]
    eventually(lambda: node.run(list_guests, check=False).stdout.strip() != "")
    host.changed.clear()
    node.kill("qemu-system-x86_64")
    eventually(host.changed.is_set)
    assert [step.name for step in machines.to_apply(WANTED)] == ["machine.start"]


def test_agent_leaks_no_open_file_when_libvirtd_dies_repeatedly(host: Real, node: LabNode) -> None:
    def dies() -> int:
        host.changed.clear()
        node.kill("libvirtd")
        eventually(host.changed.is_set)
        eventually(lambda: readable(host.hypervisor.domains))
        return len(list(Path("/proc/self/fd").iterdir()))

    eventually(host.changed.is_set)
    after_one = dies()
    after_all = [dies() for _ in range(DEATHS)][-1]
    # Other threads of this process open and close files meanwhile, but fewer than one per second death.
    assert after_all - after_one < DEATHS / 2


def test_hung_libvirtd_makes_the_host_unreadable_within_the_timeout_until_it_continues(
    machines: Machines, host: Real, node: LabNode
) -> None:
    # Imported here and not above: the drivers' packages are an extra, and these tests are collected without it too.
    from node_agent.drivers.machines.libvirt import LibvirtHypervisor

    socket = f"/proc/{node.pid}/root/run/libvirt/libvirt-sock"
    with_short_timeout = LibvirtHypervisor(
        f"qemu:///system?socket={socket}", host.changed.set, read_seconds=1
    )
    eventually(lambda: readable(with_short_timeout.domains))
    with hung(node):
        began = monotonic()
        for _ in range(3):
            with pytest.raises(HostUnreadable, match="did not return within"):
                with_short_timeout.domains()
        assert monotonic() - began < 2 * 3
    eventually(lambda: readable(with_short_timeout.domains))
    assert with_short_timeout.domains() == host.hypervisor.domains()
    with_short_timeout.close()


def test_host_snapshot_uses_the_libvirt_domain_list_that_was_requested_before_the_snapshot(
    machines: Machines, host: Real, node: LabNode
) -> None:
    (domain,) = host.hypervisor.domains()
    listed = host.list_domains()
    assert listed.answer() == (domain,)
    with host_snapshot(), hung(node):
        machines.start_reading(lambda: listed)
        assert machines.still_on(WANTED.network)[:1] == (describe_domain(domain),)


@with_booting_guest
def test_disk_detached_by_the_guest_is_reported_as_a_change_of_the_host(
    machines: Machines, host: Real
) -> None:
    (domain,) = host.hypervisor.domains()
    host.alter(domain, ALTERATIONS["a disk is attached"])
    eventually(lambda: strange(host) == ("disk vdb",))
    while host.changed.wait(0.5):
        host.changed.clear()
    # A guest that has not booted far enough does not receive the request.
    eventually(lambda: detached(host, domain) and host.changed.wait(1), seconds=60)
    eventually(lambda: strange(host) == ())
    assert machines.to_apply(WANTED) == ()


def strange(host: Real) -> tuple[str, ...]:
    (domain,) = host.hypervisor.domains()
    assert domain.guest is not None
    return domain.guest.strange


def detached(host: Real, domain: FoundDomain) -> bool:
    host.virsh("detach-disk", str(domain.uuid), "vdb", check=False)
    return True


@with_booting_guest
def test_started_guest_boots_and_answers_with_its_ssh_banner_and_its_console_output_is_removed_with_its_folder(
    machines: Machines, host: Real, node: LabNode
) -> None:
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
            answered = eventually(lambda: probe_answer(machines), seconds=40)
            # The test has no bridge: its tap has the address of the gateway.
            connection = machines.open_ssh(replace(network, bridge="slice0"), WANTED.allocation_id)
            assert connection.read().startswith(b"SSH-2.0-")
            connection.close()
        finally:
            netns.setns(home.fileno())
            node.stop_daemon("dnsmasq")
    assert answered.banner.startswith("SSH-2.0-")
    folder = host.disks.path("slice0")
    content, size = machines.serial_log(network, WANTED.allocation_id, 100_000) or (b"", 0)
    assert size > 0, content
    for step in machines.to_remove(network):
        step.run()
    assert not folder.exists()
    assert machines.remains(network) == ()
    kept = machines.serial_log(network, WANTED.allocation_id, 100_000)
    assert kept is not None
    assert kept[1] >= size


@with_booting_guest
def test_shell_of_a_booted_guest_answers_on_its_serial_console(machines: Machines) -> None:
    console = machines.open_console(WANTED.network, WANTED.allocation_id)
    output = bytearray()

    def read() -> None:
        while data := console.read():
            output.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        eventually(lambda: b"press Enter" in output, 60)
        console.write(b"\r")
        eventually(lambda: b"#" in bytes(output).partition(b"press Enter")[2], 20)
        console.write(b"echo $((40 + 2))\r")
        eventually(lambda: b"\r\n42\r\n" in output, 20)
    finally:
        console.close()
        reader.join(10)
    assert not reader.is_alive()


def test_log_of_a_machine_that_is_started_again_keeps_the_output_of_the_earlier_boot(
    machines: Machines, host: Real
) -> None:
    (domain,) = host.hypervisor.domains()
    host.hypervisor.destroy(domain.uuid)
    with (host.disks.path("slice0") / "console.log").open("a") as log:
        log.write("first boot")
    for step in machines.to_apply(WANTED):
        step.run()
    content, _ = machines.serial_log(WANTED.network, WANTED.allocation_id, 1000) or (b"", 0)
    assert content.startswith(b"first boot")


def probe_answer(machines: Machines) -> Answered | None:
    assert machines.to_apply(WANTED) == ()
    answered = BannerProbe(seconds=0.5)(WANTED.network.ip, 22, "SSH-")
    return answered if isinstance(answered, Answered) else None


def test_running_guest_has_no_listening_socket_except_libvirts_monitor(
    machines: Machines, node: LabNode
) -> None:
    (pid,) = qemu(node)
    assert machines.to_apply(WANTED) == ()
    assert listening(pid) == ["monitor.sock"]


def test_display_of_a_guest_that_listens_on_tcp_is_detected_and_removed(
    machines: Machines, host: Real, node: LabNode
) -> None:
    (domain,) = host.hypervisor.domains()
    host.alter(domain, ALTERATIONS["its display listens"])
    eventually(lambda: "tcp 00000000:170C" in [each for pid in qemu(node) for each in listening(pid)])
    for step in machines.to_apply(WANTED):
        step.run()
    assert [listening(pid) for pid in qemu(node)] == [["monitor.sock"]]


def listening(pid: int) -> list[str]:
    """Return the TCP, UDP and raw sockets of a process, and the names of its listening Unix sockets (proc(5))."""
    of_process, net = Path(f"/proc/{pid}"), Path(f"/proc/{pid}/net")
    held = {str(file.readlink()) for file in (of_process / "fd").iterdir()}
    internet = (
        f"{family} {words[1]}"
        for family in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6")
        for words in map(str.split, (net / family).read_text().splitlines()[1:])
        if f"socket:[{words[9]}]" in held
    )
    local = (
        Path(words[7]).name
        for words in map(str.split, (net / "unix").read_text().splitlines()[1:])
        if int(words[3], 16) & _LISTENS and f"socket:[{words[6]}]" in held
    )
    return [*internet, *local]
