"""Tests with real frames on a lab node: a slice with a rate limit passes no more than this rate in either direction,
and a slice without a rate limit passes all frames.

Frames are sent in batches, each followed by an ARP request for the gateway's MAC. ARP bypasses the OpenFlow meters and
stays in order, so the ARP reply shows that the switch has handled all frames before it, and no frame is lost because
the test reads too slowly. The number of frames that a rate allows follows from its burst and the elapsed time.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from node_agent.aspects.flows import gateway_mac
from node_agent.aspects.meters import from_slice, meters_of
from node_agent.host.slices import SliceNetwork
from tests.contract.network.conftest import clear
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.slices import GATEWAY, network, run, slice_on
from tests.contract.network.traffic.wire import Capture, Wire, arp_request, is_arp_reply

FREE, LIMITED = network(0), network(1, rate_mbit=1)
SLOTS: Final = pytest.mark.parametrize("slot", [FREE, LIMITED], ids=["without a rate", "with a rate"])
BATCHES, BATCH_SIZE, PAYLOAD = 60, 10, 1400
SENT: Final = BATCHES * BATCH_SIZE
HEADERS: Final = len(Ether() / IP() / UDP())
FRAME_KBIT: Final = (HEADERS + PAYLOAD) * 8 / 1000
PORT: Final = 4007

pytestmark = pytest.mark.parametrize(
    "node_host", [pytest.param("real", marks=pytest.mark.node)], indirect=True, scope="module"
)


@pytest.fixture(scope="module")
def carrying(node_host: Host) -> Iterator[Host]:
    run(gateway_of(node_host).to_apply())
    for slot in (FREE, LIMITED):
        for aspect in aspects_of(node_host):
            run(aspect.to_apply(slice_on(slot)))
    yield node_host
    clear(node_host)


@contextmanager
def wire_of(slot: SliceNetwork) -> Iterator[Wire]:
    """Yield the guest's end of the slot's tap, after it has exchanged ARP with the gateway."""
    with Wire(slot.tap) as wire:
        assert wire.ask(question(slot), is_arp_reply) is not None
        yield wire


def question(slot: SliceNetwork) -> Packet:
    return arp_request(GATEWAY, mac=slot.mac, own=slot.ip)


def counted(frames: list[Packet]) -> int:
    return sum(UDP in frame and frame[UDP].dport == PORT for frame in frames)


def allowed(slot: SliceNetwork, seconds: float) -> float:
    """Return how many frames the slice's rate limit allows in this time, beginning with a full token bucket."""
    meter = meters_of(slot)[from_slice(slot.index)]
    return (meter.burst_kbit + meter.rate_kbps * seconds) / FRAME_KBIT


def check(slot: SliceNetwork, passed: int, seconds: float) -> None:
    if slot.rate_mbit is None:
        assert passed == SENT
    else:
        assert 0.9 * allowed(slot, 0) <= passed <= allowed(slot, seconds) + 1
        assert passed < SENT


@SLOTS
def test_frames_that_a_slice_sends_are_limited_to_its_configured_rate(
    slot: SliceNetwork, carrying: Host
) -> None:
    frame = (
        Ether(src=slot.mac, dst=gateway_mac(GATEWAY))
        / IP(src=slot.ip, dst=GATEWAY)
        / UDP(sport=PORT, dport=PORT)
        / bytes(PAYLOAD)
    )
    passed = 0
    with wire_of(slot) as wire, Capture("br-slice") as gateway:
        began = monotonic()
        for _ in range(BATCHES):
            for _ in range(BATCH_SIZE):
                wire.send(frame)
            wire.send(question(slot))
            passed += counted(gateway.until(lambda frame: is_arp_reply(frame) and frame.dst == slot.mac))
        seconds = monotonic() - began
    check(slot, passed, seconds)


@SLOTS
def test_frames_that_a_slice_receives_are_limited_to_its_configured_rate(
    slot: SliceNetwork, carrying: Host
) -> None:
    passed = 0
    with wire_of(slot) as wire, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        began = monotonic()
        for _ in range(BATCHES):
            for _ in range(BATCH_SIZE):
                host.sendto(bytes(PAYLOAD), (slot.ip, PORT))
            wire.send(question(slot))
            passed += counted(wire.until(is_arp_reply))
        seconds = monotonic() - began
    check(slot, passed, seconds)
