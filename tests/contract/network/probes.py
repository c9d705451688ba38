"""What no slice may send, sent again and again; each kind of it bears a mark by which it is found where it arrives."""

import threading
from collections.abc import Iterable, Iterator
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

Probe = Literal["by his card", "by the gateway", "by everybody", "in his name"]

PROBES: Final[tuple[Probe, ...]] = get_args(Probe)
DOOR: Final = gateway_mac(GATEWAY)
WORLD: Final = "198.51.100.1"
EVERY: Final = 0.01
"""Seconds from one round of probes to the next."""
_MARK: Final = b"<probe %s>"


def probes(sender: SliceNetwork, victim: SliceNetwork) -> tuple[Packet, ...]:
    """To a neighbour by three roads; and to the world in his name."""
    to_him = IP(src=sender.ip, dst=victim.ip) / ICMP(id=7)
    stolen = IP(src=victim.ip, dst=WORLD) / UDP(sport=4000, dport=9)
    bare: dict[Probe, Packet] = {
        "by his card": Ether(src=sender.mac, dst=victim.mac) / to_him,
        "by the gateway": Ether(src=sender.mac, dst=DOOR) / to_him,
        "by everybody": Ether(src=sender.mac, dst=BROADCAST) / to_him,
        "in his name": Ether(src=sender.mac, dst=DOOR) / stolen,
    }
    return tuple(frame / (_MARK % probe.encode()) for probe, frame in bare.items())


def leaked(frames: Iterable[Packet]) -> set[str]:
    """The kinds of probes among what arrived."""
    contents = [bytes(frame) for frame in frames]
    return {probe for probe in PROBES if any(_MARK % probe.encode() in content for content in contents)}


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
