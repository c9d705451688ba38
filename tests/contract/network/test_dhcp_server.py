"""Tests of the dnsmasq process on a lab node: it continues to run after the end of its agent, and its own end is
reported.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from scapy.layers.dhcp import DHCP

from events.values import Ipv4Address, MacAddress
from node_agent.aspects.gateway import NodeNetwork, node_network
from node_agent.aspects.leases import LeaseAspect, ObservedLease, Reservation
from node_agent.drivers.dhcp.dnsmasq import Dnsmasq
from node_agent.host.slices import HostRefused, HostUnreadable, SliceNetwork
from node_agent.lab.lab import Lab
from tests.agent.eventually import eventually
from tests.contract.network.hosts import aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, run, slice_on
from tests.contract.network.traffic.wire import Wire, dhcp, is_dhcp
from tests.node.settings import SLOT, settings

if TYPE_CHECKING:
    from node_agent.drivers.dhcp.dhcp import DnsmasqLeases
    from tests.contract.network.lab_host import Real

pytestmark = pytest.mark.node
FOREIGN_MAC: Final = "52:54:00:99:99:99"


@pytest.fixture
def host(lab: Lab) -> Iterator["Real"]:
    # Imported here and not above: OVS's packages are an extra, and these tests are collected without it too.
    from tests.contract.network.lab_host import real_host

    with real_host(lab.node("lab-b"), NETWORK) as host:
        run(gateway_of(host).to_apply())
        yield host
        for aspect in reversed(aspects_of(host)):
            run(aspect.to_remove(network(0)))


def pids(host: "Real") -> list[int]:
    return [each.pid for each in process(host).running()]


def process(host: "Real") -> Dnsmasq:
    return host.leases_driver._server


def agent_after(
    host: "Real", wanted: NodeNetwork, ended: Callable[[], None] = lambda: None
) -> "DnsmasqLeases":
    """Return the DHCP driver of a second agent, as if this agent had been started after the first agent of the host."""
    from node_agent.drivers.dhcp.dhcp import DnsmasqLeases
    from node_agent.drivers.network.links import NetlinkLinks

    return DnsmasqLeases(process(host)._folder, wanted, NetlinkLinks(), ended)


def is_bound(to_be: socket.socket, port: int) -> bool:
    with suppress(OSError):
        to_be.bind(("", port))
        return True
    return False


def test_end_of_the_dhcp_server_is_reported_until_a_new_server_is_started(host: "Real") -> None:
    (pid,) = pids(host)
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):
        host.dhcp_ended.clear()
        eventually(host.dhcp_ended.is_set)
    assert run(gateway_of(host).to_apply()) == ["gateway.serve_dhcp"]
    assert len(pids(host)) == 1
    assert pids(host) != [pid]


def test_dhcp_server_start_while_another_program_holds_the_dhcp_port_is_refused(host: "Real") -> None:
    (pid,) = pids(host)
    os.kill(pid, signal.SIGKILL)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        # The socket of the dead server is not closed immediately.
        eventually(lambda: is_bound(other, 67))
        with pytest.raises(HostRefused, match="dnsmasq exited with status 2"):
            host.leases.serve(NETWORK)
    host.leases.serve(NETWORK)
    assert len(pids(host)) == 1


def test_dhcp_server_that_never_listens_makes_the_host_unreadable_and_is_ended(
    host: "Real", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from node_agent.drivers.network.links import NetlinkLinks

    slow = tmp_path / "dnsmasq"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    server = Dnsmasq(tmp_path, NetlinkLinks().index, lambda: None, 0.5)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    with pytest.raises(HostUnreadable, match="did not listen for DHCP requests within"):
        server.serve(NETWORK)
    assert children.read_text() == before


def test_next_agent_keeps_a_dhcp_server_with_the_desired_settings_and_is_notified_of_its_end(
    host: "Real",
) -> None:
    before = pids(host)
    process(host).close()
    ended = threading.Event()
    successor = agent_after(host, NETWORK, ended.set)
    assert successor.serves(NETWORK)
    assert pids(host) == before
    os.kill(before[0], signal.SIGKILL)
    eventually(ended.is_set)
    successor.close()


def test_next_agent_replaces_a_dhcp_server_with_other_settings_and_keeps_its_leases(host: "Real") -> None:
    slot, other = network(0), replace(NETWORK, lease_seconds=120)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    assert host.lease(slot.tap, slot.mac) == slot.ip
    before, leased = pids(host), host.leases.leases()
    successor = agent_after(host, other)
    successor.serve(other)
    assert len(pids(host)) == 1
    assert pids(host) != before
    assert successor.leases() == leased
    successor.close()


def test_guest_is_offered_by_dhcp_the_dns_resolvers_of_its_nodes_settings(host: "Real") -> None:
    slot = network(0)
    resolvers = (Ipv4Address("192.0.2.53"), Ipv4Address("192.0.2.54"))
    node_settings = settings(SLOT, resolvers=resolvers)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    with Wire(slot.tap) as wire:
        assert "name_server" not in offered(wire, slot)
        with_resolvers = replace(NETWORK, resolvers=node_network(node_settings, NETWORK.subnet).resolvers)
        successor = agent_after(host, with_resolvers)
        successor.serve(with_resolvers)
        assert offered(wire, slot)["name_server"] == ["192.0.2.53", "192.0.2.54"]
    successor.close()


def offered(wire: Wire, slot: SliceNetwork) -> dict[str, list[str]]:
    """Send a DHCP discover with the slot's MAC and return the options of the server's offer."""
    offer = wire.ask(dhcp("discover", mac=slot.mac), is_dhcp(2))
    assert offer is not None
    return {
        name: values for name, *values in filter(lambda each: isinstance(each, tuple), offer[DHCP].options)
    }


def test_dhcp_server_is_replaced_after_its_network_device_was_created_again(host: "Real") -> None:
    from node_agent.drivers.network.links import NetlinkLinks

    before = pids(host)
    found = process(host).running()
    numbers = {each.link for each in found}
    assert numbers == {str(NetlinkLinks().index(NETWORK.bridge))}
    moved = Dnsmasq(process(host)._folder, lambda _: 4711, lambda: None, 5.0)
    assert not moved.serves(NETWORK)
    assert pids(host) == before


def test_dhcp_server_of_another_pid_namespace_is_ignored(host: "Real") -> None:
    mark = f"--dhcp-leasefile={process(host)._folder / 'leases'}"
    server = f"exec -a dnsmasq {sys.executable} -c 'print(flush=True); input()' {mark}"
    inside = ["unshare", "--pid", "--fork", "--kill-child", "bash", "-c", server]
    before = pids(host)
    with subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        assert pids(host) == before
        other.kill()


def test_dhcp_lease_cleared_while_the_server_is_down_stays_absent_after_its_restart(host: "Real") -> None:
    slot = network(0)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    assert host.lease(slot.tap, slot.mac) == slot.ip
    [pid] = pids(host)
    process(host).close()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: pids(host) == [])
    [leased] = host.leases.leases()
    host.leases.clear(leased)
    assert host.leases.leases() == frozenset()
    successor = agent_after(host, NETWORK)
    successor.serve(NETWORK)
    assert successor.leases() == frozenset()
    successor.close()


def test_truncated_dhcp_lease_file_does_not_prevent_reading_its_complete_leases(host: "Real") -> None:
    file = Path(process(host)._folder, "leases")
    file.write_text("1893456000 52:54:00:01:00:00 10.100.1.10 * *\n1893456")
    assert [(lease.mac, lease.ip) for lease in host.leases.leases()] == [(network(0).mac, network(0).ip)]
    file.write_text("")


def written(host: "Real", slot: SliceNetwork, mac: str, *, expired: bool = False) -> ObservedLease:
    """Append a lease of the slot's address to the lease file that dnsmasq has open, as a foreign program would. Return
    this lease.
    """
    expiry = 1 if expired else 1893456000
    with Path(process(host)._folder, "leases").open("a") as file:
        file.write(f"{expiry} {mac} {slot.ip} * *\n")
    return ObservedLease(MacAddress(mac), slot.ip, expired=expired)


def test_dhcp_lease_that_only_the_lease_file_contains_is_cleared_and_the_server_keeps_its_other_leases(
    host: "Real",
) -> None:
    slot, other = network(0), network(1)
    for each in (slot, other):
        for aspect in aspects_of(host):
            run(aspect.to_apply(slice_on(each)))
    assert host.lease(slot.tap, slot.mac) == slot.ip
    before, [own] = pids(host), host.leases.leases()
    host.leases.clear(written(host, other, FOREIGN_MAC))
    assert (host.leases.leases(), pids(host)) == (frozenset({own}), before)
    assert host.lease(other.tap, other.mac) == other.ip
    assert {each.ip for each in host.leases.leases()} == {slot.ip, other.ip}
    for aspect in reversed(aspects_of(host)):
        run(aspect.to_remove(other))


def test_dhcp_server_suspended_by_a_killed_agent_is_continued_by_the_next_agent(host: "Real") -> None:
    slot = network(0)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    process(host).close()
    [pid] = pids(host)
    os.kill(pid, signal.SIGSTOP)
    successor = agent_after(host, NETWORK)
    assert successor.serves(NETWORK)
    assert host.lease(slot.tap, slot.mac) == slot.ip
    successor.close()


def test_dhcp_server_stopped_by_a_signal_is_reported_within_seconds_and_replaced(host: "Real") -> None:
    slot = network(0)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    assert host.leases.serves(NETWORK)
    host.dhcp_ended.clear()
    [frozen] = pids(host)
    os.kill(frozen, signal.SIGSTOP)
    assert host.dhcp_ended.wait(10)
    assert run(gateway_of(host).to_apply()) == ["gateway.serve_dhcp"]
    assert frozen not in pids(host)
    assert host.lease(slot.tap, slot.mac) == slot.ip
    assert gateway_of(host).to_apply() == ()


def test_dhcp_leases_are_read_correctly_while_the_dhcp_server_rewrites_its_lease_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from node_agent.drivers.dhcp import dhcp
    from node_agent.drivers.network.links import NetlinkLinks

    leases = dhcp.DnsmasqLeases(tmp_path, NETWORK, NetlinkLinks())
    file, pause = tmp_path / "leases", time.sleep

    def write_the_rest(seconds: float) -> None:
        if not file.read_text():
            file.write_text(f"4000000000 {network(0).mac} {network(0).ip} * *\n")
        pause(seconds)

    monkeypatch.setattr(time, "sleep", write_the_rest)
    # dnsmasq empties the file before it writes its lines (lease_update_file).
    file.write_text("")
    assert [each.ip for each in leases.leases()] == [network(0).ip]


def test_dhcp_server_is_not_signalled_repeatedly_after_the_clock_of_the_host_was_set_back(
    host: "Real", monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    host.leases.reserve(Reservation(network(0).tap, network(0).mac, network(0).ip))
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    host.leases.reservations()
    eventually(lambda: not is_signal_pending(host))
    with process(host).suspended():
        host.leases.reservations()
        assert not is_signal_pending(host)
        host.leases.reserve(Reservation(network(1).tap, network(1).mac, network(1).ip))
        host.leases.reservations()
        assert is_signal_pending(host)
    removed_by(host.leases_driver, network(1))


def is_signal_pending(host: "Real") -> bool:
    """Return whether a SIGHUP is pending for the dnsmasq process (proc(5), ShdPnd)."""
    [pid] = pids(host)
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["ShdPnd"], 16) & 1 << signal.SIGHUP - 1)


def hosts(host: "Real") -> Path:
    return process(host)._folder / "hosts"


def removed_by(leases: "DnsmasqLeases", slot: SliceNetwork) -> None:
    """Remove a slot's DHCP reservation as an agent does, and check that the agent's DHCP aspect finds nothing of the
    slot afterwards.
    """
    aspect = LeaseAspect(leases)
    run(aspect.to_remove(slot))
    assert aspect.remains(slot) == ()


def test_removed_dhcp_reservation_is_not_served_although_the_agent_died_before_notifying_the_server(
    host: "Real",
) -> None:
    slot = network(0)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    process(host).close()
    (hosts(host) / slot.tap).unlink()
    assert host.lease(slot.tap, slot.mac) == slot.ip, "the server still has it in memory"
    before, successor = pids(host), agent_after(host, NETWORK)
    assert successor.serves(NETWORK)
    removed_by(successor, slot)
    assert host.lease(slot.tap, slot.mac) is None
    assert (successor.leases(), pids(host)) == (frozenset(), before)
    successor.close()


@pytest.mark.parametrize("without_agent", [True, False], ids=["without an agent", "with an agent"])
def test_foreign_dhcp_reservation_that_was_removed_is_not_served_after_the_slot_is_proved_empty(
    host: "Real", without_agent: bool
) -> None:
    slot, leases = network(0), host.leases_driver
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    removed_by(leases, slot)
    if without_agent:
        process(host).close()
    foreign = hosts(host) / "foreign"
    foreign.write_text(f"{slot.mac},{slot.ip}\n")
    foreign.chmod(0o644)
    eventually(lambda: host.lease(slot.tap, slot.mac) == slot.ip)
    foreign.unlink()
    if without_agent:
        leases = agent_after(host, NETWORK)
        assert leases.serves(NETWORK)
    removed_by(leases, slot)
    assert host.lease(slot.tap, slot.mac) is None
    leases.close()


def test_dhcp_reservation_that_was_edited_and_restored_is_served_as_restored(host: "Real") -> None:
    slot, other = network(0), network(1)
    for each in (slot, other):
        for aspect in aspects_of(host):
            run(aspect.to_apply(slice_on(each)))
    removed_by(host.leases_driver, other)
    file = hosts(host) / slot.tap
    as_ordered = file.read_text()
    file.write_text(f"{other.mac},{other.ip}\n")
    eventually(lambda: host.lease(other.tap, other.mac) == other.ip)
    file.write_text(as_ordered)
    removed_by(host.leases_driver, other)
    assert host.lease(other.tap, other.mac) is None
    assert host.lease(slot.tap, slot.mac) == slot.ip
    for aspect in reversed(aspects_of(host)):
        run(aspect.to_remove(other))


def test_dhcp_server_reads_its_reservations_again_only_after_they_changed(host: "Real") -> None:
    slot = network(0)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))

    def log_after_snapshot() -> str:
        """Return the log of dnsmasq after a snapshot of the host. dnsmasq logs the files that it reads before it
        answers later requests.
        """
        host.leases.reservations()
        assert host.lease(slot.tap, slot.mac) == slot.ip
        return (process(host)._folder / "log").read_text()

    eventually(lambda: log_after_snapshot() == log_after_snapshot())
    before = log_after_snapshot()
    (hosts(host) / slot.tap).touch()
    assert log_after_snapshot() != before
