"""The DHCP server's process on a lab node: it outlives its agent, and its death is heard of."""

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
from node_agent.drivers.dnsmasq import Dnsmasq
from node_agent.gateway import NodeNetwork, node_network
from node_agent.lab.lab import Lab
from node_agent.leases import LeaseAspect, LeaseSeen, Reservation
from node_agent.slices import HostRefused, HostUnreadable, SliceNetwork
from tests.agent.eventually import eventually
from tests.contract.network.hosts import aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network, run, slice_on
from tests.contract.network.wire import Wire, dhcp, is_dhcp
from tests.node.settings import SLOT, settings

if TYPE_CHECKING:
    from node_agent.drivers.dhcp import DnsmasqLeases
    from tests.contract.network.lab_host import Real

pytestmark = pytest.mark.node
THIEF: Final = "52:54:00:99:99:99"


@pytest.fixture
def host(lab: Lab) -> Iterator["Real"]:
    # Here and not above: OVS's packages are an extra, and these tests are collected without it too.
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
    """The driver of an agent that was started in place of the host's own."""
    from node_agent.drivers.dhcp import DnsmasqLeases
    from node_agent.drivers.links import NetlinkLinks

    return DnsmasqLeases(process(host)._folder, wanted, NetlinkLinks(), ended)


def is_bound(to_be: socket.socket, port: int) -> bool:
    with suppress(OSError):
        to_be.bind(("", port))
        return True
    return False


def test_the_death_of_a_server_is_heard_of_until_another_is_served(host: "Real") -> None:
    (pid,) = pids(host)
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):
        host.dhcp_ended.clear()
        eventually(host.dhcp_ended.is_set)
    assert run(gateway_of(host).to_apply()) == ["gateway.serve_dhcp"]
    assert len(pids(host)) == 1
    assert pids(host) != [pid]


def test_a_server_that_ended_does_not_pass_for_another_programs_that_listens(host: "Real") -> None:
    (pid,) = pids(host)
    os.kill(pid, signal.SIGKILL)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        # The dead one's is not closed at once.
        eventually(lambda: is_bound(other, 67))
        with pytest.raises(HostRefused, match="dnsmasq ended with 2"):
            host.leases.serve(NETWORK)
    host.leases.serve(NETWORK)
    assert len(pids(host)) == 1


def test_a_server_that_does_not_come_to_listen_gave_no_answer_and_is_ended(
    host: "Real", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from node_agent.drivers.links import NetlinkLinks

    slow = tmp_path / "dnsmasq"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    server = Dnsmasq(tmp_path, NetlinkLinks().index, lambda: None, 0.5)
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = children.read_text()
    with pytest.raises(HostUnreadable, match="did not listen within"):
        server.serve(NETWORK)
    assert children.read_text() == before


def test_the_next_agent_finds_the_server_that_runs_as_wanted_and_hears_of_its_end(host: "Real") -> None:
    before = pids(host)
    process(host).close()
    ended = threading.Event()
    successor = agent_after(host, NETWORK, ended.set)
    assert successor.serves(NETWORK)
    assert pids(host) == before
    os.kill(before[0], signal.SIGKILL)
    eventually(ended.is_set)
    successor.close()


def test_the_next_agent_replaces_a_server_that_runs_otherwise_and_keeps_its_leases(host: "Real") -> None:
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


def test_a_guest_is_told_of_the_resolvers_that_its_node_names(host: "Real") -> None:
    slot = network(0)
    resolvers = (Ipv4Address("192.0.2.53"), Ipv4Address("192.0.2.54"))
    told = settings(SLOT, resolvers=resolvers)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    with Wire(slot.tap) as wire:
        assert "name_server" not in offered(wire, slot)
        telling = replace(NETWORK, resolvers=node_network(told, NETWORK.subnet).resolvers)
        successor = agent_after(host, telling)
        successor.serve(telling)
        assert offered(wire, slot)["name_server"] == ["192.0.2.53", "192.0.2.54"]
    successor.close()


def offered(wire: Wire, slot: SliceNetwork) -> dict[str, list[str]]:
    """The options of what a card that asks is offered."""
    offer = wire.ask(dhcp("discover", mac=slot.mac), is_dhcp(2))
    assert offer is not None
    return {
        name: values for name, *values in filter(lambda each: isinstance(each, tuple), offer[DHCP].options)
    }


def test_a_server_whose_device_was_made_anew_is_replaced(host: "Real") -> None:
    from node_agent.drivers.links import NetlinkLinks

    before = pids(host)
    found = process(host).running()
    numbers = {each.link for each in found}
    assert numbers == {str(NetlinkLinks().index(NETWORK.bridge))}
    moved = Dnsmasq(process(host)._folder, lambda _: 4711, lambda: None, 5.0)
    assert not moved.serves(NETWORK)
    assert pids(host) == before


def test_a_server_of_another_host_on_this_machine_is_nobodys_business(host: "Real") -> None:
    mark = f"--dhcp-leasefile={process(host)._folder / 'leases'}"
    server = f"exec -a dnsmasq {sys.executable} -c 'print(flush=True); input()' {mark}"
    inside = ["unshare", "--pid", "--fork", "--kill-child", "bash", "-c", server]
    before = pids(host)
    with subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"\n"
        assert pids(host) == before
        other.kill()


def test_a_lease_that_is_cleared_while_the_server_is_down_does_not_come_back_with_it(host: "Real") -> None:
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


def test_a_lease_file_that_was_cut_off_does_not_stop_the_look(host: "Real") -> None:
    file = Path(process(host)._folder, "leases")
    file.write_text("1893456000 52:54:00:01:00:00 10.100.1.10 * *\n1893456")
    assert [(lease.mac, lease.ip) for lease in host.leases.leases()] == [(network(0).mac, network(0).ip)]
    file.write_text("")


def written(host: "Real", slot: SliceNetwork, mac: str, *, expired: bool = False) -> LeaseSeen:
    """Somebody writes a lease of the slot's address into the file that the server has open."""
    expiry = 1 if expired else 1893456000
    with Path(process(host)._folder, "leases").open("a") as file:
        file.write(f"{expiry} {mac} {slot.ip} * *\n")
    return LeaseSeen(MacAddress(mac), slot.ip, expired=expired)


def test_a_lease_that_only_the_file_knows_is_cleared_and_the_server_goes_on_with_its_own(
    host: "Real",
) -> None:
    slot, other = network(0), network(1)
    for each in (slot, other):
        for aspect in aspects_of(host):
            run(aspect.to_apply(slice_on(each)))
    assert host.lease(slot.tap, slot.mac) == slot.ip
    before, [own] = pids(host), host.leases.leases()
    host.leases.clear(written(host, other, THIEF))
    assert (host.leases.leases(), pids(host)) == (frozenset({own}), before)
    assert host.lease(other.tap, other.mac) == other.ip
    assert {each.ip for each in host.leases.leases()} == {slot.ip, other.ip}
    for aspect in reversed(aspects_of(host)):
        run(aspect.to_remove(other))


def test_a_server_that_its_agent_held_still_when_it_died_serves_for_the_next(host: "Real") -> None:
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


def test_server_frozen_by_signal_is_reported_within_seconds_and_replaced(host: "Real") -> None:
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


def test_a_lease_is_seen_while_the_server_writes_its_file_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from node_agent.drivers import dhcp
    from node_agent.drivers.links import NetlinkLinks

    leases = dhcp.DnsmasqLeases(tmp_path, NETWORK, NetlinkLinks())
    file, pause = tmp_path / "leases", time.sleep

    def write_the_rest(seconds: float) -> None:
        if not file.read_text():
            file.write_text(f"4000000000 {network(0).mac} {network(0).ip} * *\n")
        pause(seconds)

    monkeypatch.setattr(time, "sleep", write_the_rest)
    # As dnsmasq does (lease_update_file): it is empty before its lines come.
    file.write_text("")
    assert [each.ip for each in leases.leases()] == [network(0).ip]


def test_a_server_is_not_told_again_and_again_while_a_clock_that_was_set_back_catches_up(
    host: "Real", monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    host.leases.reserve(Reservation(network(0).tap, network(0).mac, network(0).ip))
    monkeypatch.setattr(time, "time", lambda: now() - 3600)
    host.leases.reservations()
    eventually(lambda: not is_told(host))
    with process(host).held_still():
        host.leases.reservations()
        assert not is_told(host)
        host.leases.reserve(Reservation(network(1).tap, network(1).mac, network(1).ip))
        host.leases.reservations()
        assert is_told(host)
    removed_by(host.leases_driver, network(1))


def is_told(host: "Real") -> bool:
    """Whether a SIGHUP is on its way to the server (proc(5), ShdPnd)."""
    [pid] = pids(host)
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["ShdPnd"], 16) & 1 << signal.SIGHUP - 1)


def hosts(host: "Real") -> Path:
    return process(host)._folder / "hosts"


def removed_by(leases: "DnsmasqLeases", slot: SliceNetwork) -> None:
    """As an agent removes a slot's: what stands there goes, and a look proves that nothing does."""
    aspect = LeaseAspect(leases)
    run(aspect.to_remove(slot))
    assert aspect.remains(slot) == ()


def test_a_reservation_whose_agent_died_before_the_server_was_told_is_not_served_once_it_is_proved_gone(
    host: "Real",
) -> None:
    slot = network(0)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    process(host).close()
    (hosts(host) / slot.tap).unlink()
    assert host.lease(slot.tap, slot.mac) == slot.ip, "the server knows it still"
    before, successor = pids(host), agent_after(host, NETWORK)
    assert successor.serves(NETWORK)
    removed_by(successor, slot)
    assert host.lease(slot.tap, slot.mac) is None
    assert (successor.leases(), pids(host)) == (frozenset(), before)
    successor.close()


@pytest.mark.parametrize("while_away", [True, False], ids=["no agent was there", "the agent was there"])
def test_a_reservation_that_came_and_went_is_not_served_once_a_slot_is_proved_to_have_none(
    host: "Real", while_away: bool
) -> None:
    slot, leases = network(0), host.leases_driver
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))
    removed_by(leases, slot)
    if while_away:
        process(host).close()
    rival = hosts(host) / "rival"
    rival.write_text(f"{slot.mac},{slot.ip}\n")
    rival.chmod(0o644)
    eventually(lambda: host.lease(slot.tap, slot.mac) == slot.ip)
    rival.unlink()
    if while_away:
        leases = agent_after(host, NETWORK)
        assert leases.serves(NETWORK)
    removed_by(leases, slot)
    assert host.lease(slot.tap, slot.mac) is None
    leases.close()


def test_a_reservation_that_was_edited_and_edited_back_is_served_as_it_stands(host: "Real") -> None:
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


def test_a_server_reads_its_reservations_again_only_if_they_changed(host: "Real") -> None:
    slot = network(0)
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(slot)))

    def read_after_a_look() -> str:
        """It writes down what it reads; it does so before it answers whoever asks later."""
        host.leases.reservations()
        assert host.lease(slot.tap, slot.mac) == slot.ip
        return (process(host)._folder / "log").read_text()

    eventually(lambda: read_after_a_look() == read_after_a_look())
    before = read_after_a_look()
    (hosts(host) / slot.tap).touch()
    assert read_after_a_look() != before
