"""Simulated guest that runs in a thread: it holds a slot's tap open, and answers ARP and TCP as the kernel of a guest
does.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from node_agent.host.slices import SliceNetwork
from tests.contract.network.traffic.wire import Wire


@contextmanager
def answering(slot: SliceNetwork) -> Iterator[None]:
    """Answer ARP, and TCP connections to every port, on the slot's tap while the context is open."""
    ended = threading.Event()
    with Wire(slot.tap) as wire:
        thread = threading.Thread(target=_answer, args=(wire, slot, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _answer(wire: Wire, slot: SliceNetwork, ended: threading.Event) -> None:
    while not ended.is_set():
        frame = wire.receive(lambda _: True, seconds=0.1)
        if frame is not None and (answer := _answer_to(frame, slot)) is not None:
            wire.send(answer)


def _answer_to(frame: Packet, slot: SliceNetwork) -> Packet | None:
    back = Ether(src=slot.mac, dst=frame.src)
    if ARP in frame and (frame[ARP].op, frame[ARP].pdst) == (1, slot.ip):
        return back / ARP(op=2, hwsrc=slot.mac, psrc=slot.ip, hwdst=frame.src, pdst=frame[ARP].psrc)
    if TCP in frame and frame[TCP].flags == "S" and frame[IP].dst == slot.ip:
        asked = frame[TCP]
        ends = {"sport": asked.dport, "dport": asked.sport}
        return back / IP(src=slot.ip, dst=frame[IP].src) / TCP(**ends, flags="SA", seq=1, ack=asked.seq + 1)
    return None
