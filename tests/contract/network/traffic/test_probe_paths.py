"""Tests with real packets on a real node: the network device of the agent's reachability probes opens no path for other
packets.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from events.values import Ipv4Address
from node_agent.host.reachability import PROBE_ADDRESS, PROBE_LINK
from node_agent.lab.lab import Lab
from tests.contract.network.hosts import Host, aspects_of
from tests.contract.network.slices import GATEWAY, network, port_mapping, run, slice_on
from tests.contract.network.traffic.test_ingress_frames import GATEWAY_MAC, receive_datagram
from tests.contract.network.traffic.wire import Capture, Wire, arp_request, is_arp_reply

SLOT: Final = network(0)
WORLD: Final = "198.51.100.1"
OPEN, CLOSED = 20053, 20054
PORT: Final = 53

pytestmark = pytest.mark.parametrize(
    "node_host", [pytest.param("real", marks=pytest.mark.node)], indirect=True, scope="module"
)


@pytest.fixture
def public(host: Host) -> Ipv4Address:
    (address,) = host.links.addresses("uplink0")
    return address


@pytest.fixture
def guest(host: Host, public: Ipv4Address) -> Iterator[Wire]:
    """Guest end of the slice's tap. One ingress rule of the slice is open to all sources, the other to one network
    only.
    """
    ingresses = (
        port_mapping(1, public, OPEN, PORT).model_copy(update={"protocol": "udp"}),
        port_mapping(2, public, CLOSED, PORT, "192.0.2.0/25").model_copy(update={"protocol": "udp"}),
    )
    for aspect in aspects_of(host):
        run(aspect.to_apply(slice_on(SLOT, *ingresses)))
    with Wire(SLOT.tap) as wire:
        assert wire.ask(arp_request(GATEWAY, mac=SLOT.mac, own=SLOT.ip), is_arp_reply) is not None
        yield wire


@pytest.fixture
def device(host: Host) -> Iterator[int]:
    """File descriptor of the network device of the agent's probes. Packets sent to this device can be read from it."""
    from node_agent.drivers.probes.probe_wires import UplinkWire

    with ExitStack() as ends:
        wire = UplinkWire()
        ends.callback(wire.close)
        yield wire.fileno()


def read_from(device: int) -> list[Packet]:
    read = list[Packet]()
    while True:
        try:
            read.append(IP(os.read(device, 2048)))
        except BlockingIOError:
            return read


def from_guest(packet: Packet) -> Packet:
    return Ether(src=SLOT.mac, dst=GATEWAY_MAC) / packet


@pytest.mark.parametrize(
    "sent",
    [
        IP(src=SLOT.ip, dst=PROBE_ADDRESS) / UDP(sport=4000, dport=40000) / b"out",
        IP(src=SLOT.ip, dst=PROBE_ADDRESS) / TCP(sport=PORT, dport=40000, flags="S"),
        IP(src=SLOT.ip, dst=PROBE_ADDRESS) / TCP(sport=PORT, dport=40000, flags="SA"),
        IP(src=PROBE_ADDRESS, dst=PROBE_ADDRESS) / UDP(sport=4000, dport=40000) / b"forged",
    ],
    ids=["UDP", "SYN", "SYN-ACK", "forged source"],
)
def test_packet_of_a_slice_to_the_source_address_of_the_agents_probes_is_dropped(
    host: Host, guest: Wire, device: int, sent: Packet
) -> None:
    last = from_guest(IP(src=SLOT.ip, dst=WORLD) / UDP(sport=4000, dport=7) / b"the last")
    with Capture("uplink0") as uplink:
        guest.send(from_guest(sent))
        guest.send(last)
        passed = uplink.until(lambda frame: b"the last" in bytes(frame))
    assert [packet for packet in read_from(device) if IP in packet and packet[IP].src == SLOT.ip] == []
    assert [frame for frame in passed if IP in frame and frame[IP].dst == PROBE_ADDRESS] == []


def test_packet_from_the_network_device_of_the_agents_probes_reaches_a_slice_only_by_an_ingress_rule(
    host: Host, guest: Wire, device: int, public: Ipv4Address
) -> None:
    def write(destination: str, port: int, payload: bytes) -> None:
        packet = IP(src=PROBE_ADDRESS, dst=destination) / UDP(sport=40000, dport=port) / payload
        os.write(device, bytes(packet))

    write(SLOT.ip, PORT, b"past the translation")
    write(public, CLOSED, b"by the one for others")
    write(public, OPEN, b"by the one for all")
    first, second = (receive_datagram(guest, SLOT, b"") for _ in range(2))
    assert first is not None
    assert second is not None
    assert [bytes(each[UDP].payload)[:6] for each in (first, second)] == [b"by the"] * 2


def test_external_packet_with_the_probes_source_address_does_not_enter_by_an_ingress_rule_for_other_sources(
    host: Host, guest: Wire, device: int, public: Ipv4Address, lab: Lab
) -> None:
    forged = IP(src=PROBE_ADDRESS, dst=public) / UDP(sport=40000, dport=CLOSED) / b"forged"
    words = f"import socket; s = socket.socket(2, 3, 255); s.sendto({bytes(forged)!r}, ({public!r}, 0))"
    lab.site.run(["python3", "-c", words])
    packet = IP(src=PROBE_ADDRESS, dst=public) / UDP(sport=40000, dport=OPEN) / b"the last"
    os.write(device, bytes(packet))
    received = receive_datagram(guest, SLOT, b"")
    assert received is not None
    assert bytes(received[UDP].payload).startswith(b"the last")


def test_network_device_of_the_agents_probes_exists_and_sends_nothing_by_itself(
    host: Host, device: int
) -> None:
    assert socket.if_nametoindex(PROBE_LINK) > 0
    assert read_from(device) == []
