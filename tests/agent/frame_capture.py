"""Capture the frames on a link of a lab node, with the kernel's receive time of each frame."""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

_EVERY_PROTOCOL: Final = 0x0003
_TIMESTAMPNS: Final = 35
"""Socket option SO_TIMESTAMPNS (socket(7)), and the type of the control message with the receive time."""


@dataclass
class CapturedFrames:
    """Receive times, in seconds since the Unix epoch, of the captured frames for which `wanted` returns True.

    `wanted` gets the bytes of a frame, because parsing every frame takes much processor time.
    """

    wanted: Callable[[bytes], bool]
    times: list[float] = field(default_factory=list)

    @property
    def last(self) -> float:
        return self.times[-1]


@contextmanager
def capture_frames(pid: int, link: str, *captures: CapturedFrames) -> Iterator[None]:
    """Capture frames on a link in the network namespace of process `pid`. The link may disappear during the capture."""
    capture_socket, stop_event = _socket_in(pid, link), os.eventfd(0)
    thread = threading.Thread(target=_receive, args=(capture_socket, stop_event, captures))
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(stop_event, 1)
        thread.join()
        os.close(stop_event)
        capture_socket.close()


def _socket_in(pid: int, link: str) -> socket.socket:
    """Return a packet socket in the network namespace of process `pid`. A thread enters the namespace to create it."""
    from pyroute2 import netns  # an optional dependency that is missing on machines without lab nodes

    sockets: list[socket.socket] = []

    def create() -> None:
        netns.setns(f"/proc/{pid}/ns/net")
        packet_socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
        packet_socket.setsockopt(socket.SOL_SOCKET, _TIMESTAMPNS, 1)
        packet_socket.bind((link, 0))
        sockets.append(packet_socket)

    thread = threading.Thread(target=create)
    thread.start()
    thread.join()
    return sockets[0]


def _receive(packet_socket: socket.socket, stop_event: int, captures: tuple[CapturedFrames, ...]) -> None:
    while True:
        ready, _, _ = select.select([packet_socket.fileno(), stop_event], [], [])
        if stop_event in ready:
            return
        try:
            content, control, _, _ = packet_socket.recvmsg(65536, 64)
        except OSError:  # the link was removed
            return
        [(_, _, stamp)] = control
        seconds, nanoseconds = struct.unpack("qq", stamp)
        for capture in captures:
            if capture.wanted(content):
                capture.times.append(seconds + nanoseconds / 1e9)
