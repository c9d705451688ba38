"""What passes a link of a lab node, heard from inside its network, with the time at which the kernel saw it."""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from scapy.layers.l2 import Ether
from scapy.packet import Packet

_EVERY_PROTOCOL: Final = 0x0003
_TIMESTAMPNS: Final = 35
"""SO_TIMESTAMPNS of socket(7) and its control message."""


@dataclass
class Overheard:
    """The times, in seconds since the epoch, of frames that are `wanted`."""

    wanted: Callable[[Packet], bool]
    times: list[float] = field(default_factory=list)

    @property
    def last(self) -> float:
        return self.times[-1]


@contextmanager
def overhearing(pid: int, link: str, *ears: Overheard) -> Iterator[None]:
    """Listen on a link of the host of process `pid`; the link may go meanwhile."""
    ears_open, leaving = _socket_in(pid, link), os.eventfd(0)
    thread = threading.Thread(target=_listen, args=(ears_open, leaving, ears))
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(leaving, 1)
        thread.join()
        os.close(leaving)
        ears_open.close()


def _socket_in(pid: int, link: str) -> socket.socket:
    """A thread goes to that network to make it, and the socket stays there."""
    from pyroute2 import netns  # an extra, which a machine without lab nodes may lack

    made: list[socket.socket] = []

    def make() -> None:
        netns.setns(f"/proc/{pid}/ns/net")
        heard = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
        heard.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        heard.bind((link, 0))
        made.append(heard)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def _listen(heard: socket.socket, leaving: int, ears: tuple[Overheard, ...]) -> None:
    while True:
        ready, _, _ = select.select([heard.fileno(), leaving], [], [])
        if leaving in ready:
            return
        try:
            content, control, _, _ = heard.recvmsg(65536, 64)
        except OSError:  # the link is gone: nothing passes it
            return
        [(_, _, stamp)] = control
        seconds, nanoseconds = struct.unpack("qq", stamp)
        frame = Ether(content)
        for ear in ears:
            if ear.wanted(frame):
                ear.times.append(seconds + nanoseconds / 1e9)
