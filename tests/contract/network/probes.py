"""Probe packets that no slice is allowed to send, sent repeatedly. Each kind of probe contains a mark by which its
arrival is recognized.
"""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, get_args

from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from node_agent.aspects.flows import gateway_mac
from node_agent.host.slices import SliceNetwork
from tests.contract.network.slices import GATEWAY
from tests.contract.network.traffic.wire import BROADCAST, Wire

Probe = Literal[
    "to the neighbour's MAC", "by the gateway", "by broadcast", "with the neighbour's address", "to the host"
]
Received = Callable[[], list[bytes]]
"""Function that returns the frames or datagrams that were received so far."""

PROBES: Final[tuple[Probe, ...]] = get_args(Probe)
GATEWAY_MAC: Final = gateway_mac(GATEWAY)
WORLD: Final = "198.51.100.1"
PORT: Final = 9999
"""A port of the host at which nothing from a slice may arrive."""
EVERY: Final = 0.01
"""Seconds from one round of probes to the next."""
_MARK: Final = b"<probe %s>"


def probes(sender: SliceNetwork, victim: SliceNetwork) -> tuple[Packet, ...]:
    """Return one probe of each kind: to the neighbour slice by three paths, to an external address with the neighbour's
    source address, and to a UDP port of the host.
    """
    to_neighbour = IP(src=sender.ip, dst=victim.ip) / ICMP(id=7)
    to_host = IP(src=sender.ip, dst=GATEWAY) / UDP(sport=4000, dport=PORT)
    stolen = IP(src=victim.ip, dst=WORLD) / UDP(sport=4000, dport=9)
    bare: dict[Probe, Packet] = {
        "to the neighbour's MAC": Ether(src=sender.mac, dst=victim.mac) / to_neighbour,
        "by the gateway": Ether(src=sender.mac, dst=GATEWAY_MAC) / to_neighbour,
        "by broadcast": Ether(src=sender.mac, dst=BROADCAST) / to_neighbour,
        "with the neighbour's address": Ether(src=sender.mac, dst=GATEWAY_MAC) / stolen,
        "to the host": Ether(src=sender.mac, dst=GATEWAY_MAC) / to_host,
    }
    return tuple(frame / (_MARK % probe.encode()) for probe, frame in bare.items())


def leaked(frames: Iterable[Packet | bytes]) -> set[str]:
    """Return the kinds of forbidden probes that these received frames contain."""
    contents = [bytes(frame) for frame in frames]
    return {probe for probe in PROBES if any(_MARK % probe.encode() in content for content in contents)}


@contextmanager
def listening(service: socket.socket) -> Iterator[Received]:
    """Bind the given unbound UDP socket to the probed port at all addresses of the host, and yield a function that
    returns the datagrams received since its last call.
    """

    def received() -> list[bytes]:
        service.sendto(b"", ("127.0.0.1", PORT))
        return list(iter(lambda: service.recv(65536), b""))

    with service:
        service.settimeout(5.0)
        service.bind(("", PORT))
        yield received


@dataclass
class Sent:
    rounds: int = 0


@contextmanager
def probing(wire: Wire, frames: Iterable[Packet]) -> Iterator[Sent]:
    """Send the probe frames from the slice's tap every ten milliseconds, and count the rounds. An error of the tap is
    raised at the end of the context.
    """
    sent, over = Sent(), threading.Event()

    def send() -> None:
        while not over.wait(EVERY):
            for frame in frames:
                wire.send(frame)
            sent.rounds += 1

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send)
        try:
            yield sent
        finally:
            over.set()
        sending.result()
