"""What left a node: every frame that came out of its uplink, recorded at the site's end of the cable.

The recorder runs in the site's namespaces, out of the node's reach, and writes a pcap file (tcpdump and scapy read
it). It ends when its stdin does, after the frames that had arrived by then; a crash leaves a file whose last
record may be cut short, which reading ignores.
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

from node_agent.lab.namespaces import HostFailed, LittleHost

_ALL_PROTOCOLS: Final = 0x0003
_RECEIVE_BUFFER: Final = 8 << 20
_SNAP_LENGTH: Final = 65535
_HEADER: Final = struct.Struct("<IHHiIII")
_RECORD: Final = struct.Struct("<IIII")
_MAGIC: Final = 0xA1B2C3D4
_ETHERNET: Final = 1


class Capture:
    """`with Capture(site, "n1", path) as capture:` records; `frames` gives what was there at the end."""

    def __init__(self, site: LittleHost, interface: str, path: Path) -> None:
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
        # The first byte says that the socket is open: what is sent from now on is seen.
        if not self._process.stdout.read(1):
            raise HostFailed(self._site.name, f"records nothing on {self._interface}", "")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.communicate(timeout=10)

    def frames(self) -> list[bytes]:
        """Ethernet frames in the order of their arrival."""
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
    # Deaf until it is bound, or it would begin with frames of other cables (packet(7)).
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as cable:
        cable.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        cable.bind((interface, _ALL_PROTOCOLS))
        with Path(path).open("wb", buffering=0) as record:
            record.write(_HEADER.pack(_MAGIC, 2, 4, 0, 0, _SNAP_LENGTH, _ETHERNET))
            sys.stdout.write(".")
            sys.stdout.flush()
            while cable.fileno() in _what_speaks(cable):
                _record(cable, record)


def _what_speaks(cable: socket.socket) -> list[int]:
    """The cable, for as long as there is a frame; else the end of stdin."""
    return select.select([cable.fileno(), 0], [], [])[0]


def _record(cable: socket.socket, record: BinaryIO) -> None:
    frame, (_, _, direction, *_) = cable.recvfrom(_SNAP_LENGTH)
    if direction != socket.PACKET_OUTGOING:
        seconds, fraction = divmod(time.time(), 1)
        record.write(_RECORD.pack(int(seconds), int(fraction * 1e6), len(frame), len(frame)) + frame)


if __name__ == "__main__":
    main()
