"""What no slice may send, sent again and again; each kind of it bears a mark by which it is found where it arrives."""

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

from node_agent.flows import gateway_mac
from node_agent.slices import SliceNetwork
from tests.contract.network.slices import GATEWAY
from tests.contract.network.wire import BROADCAST, Wire

Probe = Literal["by his card", "by the gateway", "by everybody", "in his name", "to the host"]
Heard = Callable[[], list[bytes]]
"""All that has come so far."""

PROBES: Final[tuple[Probe, ...]] = get_args(Probe)
DOOR: Final = gateway_mac(GATEWAY)
WORLD: Final = "198.51.100.1"
PORT: Final = 9999
"""Of the host, where nobody from a slice is heard."""
EVERY: Final = 0.01
"""Seconds from one round of probes to the next."""
_MARK: Final = b"<probe %s>"


def probes(sender: SliceNetwork, victim: SliceNetwork) -> tuple[Packet, ...]:
    """To a neighbour by three roads, to the world in his name, and to a program of the host."""
    to_him = IP(src=sender.ip, dst=victim.ip) / ICMP(id=7)
    to_host = IP(src=sender.ip, dst=GATEWAY) / UDP(sport=4000, dport=PORT)
    stolen = IP(src=victim.ip, dst=WORLD) / UDP(sport=4000, dport=9)
    bare: dict[Probe, Packet] = {
        "by his card": Ether(src=sender.mac, dst=victim.mac) / to_him,
        "by the gateway": Ether(src=sender.mac, dst=DOOR) / to_him,
        "by everybody": Ether(src=sender.mac, dst=BROADCAST) / to_him,
        "in his name": Ether(src=sender.mac, dst=DOOR) / stolen,
        "to the host": Ether(src=sender.mac, dst=DOOR) / to_host,
    }
    return tuple(frame / (_MARK % probe.encode()) for probe, frame in bare.items())


def leaked(frames: Iterable[Packet | bytes]) -> set[str]:
    """The kinds of probes among what arrived."""
    contents = [bytes(frame) for frame in frames]
    return {probe for probe in PROBES if any(_MARK % probe.encode() in content for content in contents)}


@contextmanager
def listening(service: socket.socket) -> Iterator[Heard]:
    """A program of the host that the socket, still unbound, is of: hears all that reach its port, at any address."""

    def heard() -> list[bytes]:
        service.sendto(b"", ("127.0.0.1", PORT))
        return list(iter(lambda: service.recv(65536), b""))

    with service:
        service.settimeout(5.0)
        service.bind(("", PORT))
        yield heard


@dataclass
class Sent:
    rounds: int = 0


@contextmanager
def probing(wire: Wire, frames: Iterable[Packet]) -> Iterator[Sent]:
    """Send them all every ten milliseconds, and count how often; what the tap refuses is raised at the end."""
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
