"""Capture of every frame that leaves a lab node through its uplink.

The frames are recorded at the other end of the uplink, which is in the lab's site (`node_agent.lab.site`). The recorder
runs in the site's namespaces, to which the node has no access, and writes a pcap file (readable by tcpdump and scapy).
When its stdin is closed, it records the frames that have already arrived and exits. After a crash the last record of
the file may be incomplete; reading ignores it.
"""

import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

from node_agent.lab.namespaces import HostFailed, LabHost

_ALL_PROTOCOLS: Final = 0x0003
_RECEIVE_BUFFER: Final = 8 << 20
_SNAP_LENGTH: Final = 65535
_HEADER: Final = struct.Struct("<IHHiIII")
_RECORD: Final = struct.Struct("<IIII")
_MAGIC: Final = 0xA1B2C3D4
_ETHERNET: Final = 1


class Capture:
    """A recording of the frames on one interface of a lab's site.

    `with Capture(site, "n1", path) as capture:` records inside the context; `frames` returns the frames afterwards.
    """

    def __init__(self, site: LabHost, interface: str, path: Path) -> None:
        self._site, self._interface, self.path = site, interface, path
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "node_agent.lab.capture", self._interface, str(self.path)]
        root = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            self._site.inside(["env", f"PYTHONPATH={root}", *command]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        # The first byte signals that the socket is open, so frames that are sent from now on are recorded.
        if not self._process.stdout.read(1):
            raise HostFailed(
                self._site.name, f"could not start a packet capture on the link {self._interface}", ""
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.communicate(timeout=10)

    def frames(self) -> list[bytes]:
        """Return the recorded Ethernet frames in the order of their arrival."""
        with self.path.open("rb") as recorded:
            return list(_frames(recorded))


def _frames(recorded: BinaryIO) -> Iterator[bytes]:
    recorded.read(_HEADER.size)
    while len(head := recorded.read(_RECORD.size)) == _RECORD.size:
        length = _RECORD.unpack(head)[2]
        frame = recorded.read(length)
        if len(frame) == length:
            yield frame


def main() -> None:
    interface, path = sys.argv[1:]
    # Protocol 0 receives nothing until the socket is bound; otherwise it would receive frames of other interfaces
    # (packet(7)).
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        link.bind((interface, _ALL_PROTOCOLS))
        with Path(path).open("wb", buffering=0) as record:
            record.write(_HEADER.pack(_MAGIC, 2, 4, 0, 0, _SNAP_LENGTH, _ETHERNET))
            sys.stdout.write(".")
            sys.stdout.flush()
            while link.fileno() in _readable(link):
                _record(link, record)


def _readable(link: socket.socket) -> list[int]:
    """Wait for a frame or for the end of stdin, and return the readable file descriptors."""
    return select.select([link.fileno(), 0], [], [])[0]


def _record(link: socket.socket, record: BinaryIO) -> None:
    frame, (_, _, direction, *_) = link.recvfrom(_SNAP_LENGTH)
    if direction != socket.PACKET_OUTGOING:
        seconds, fraction = divmod(time.time(), 1)
        record.write(_RECORD.pack(int(seconds), int(fraction * 1e6), len(frame), len(frame)) + frame)


if __name__ == "__main__":
    main()
