"""TCP segments without options: encode the segments of a probe and decode the answers (RFC 9293)."""

import socket
import struct
from typing import Final, NamedTuple

from events.values import Ipv4Address

End = tuple[Ipv4Address, int]
"""One end of a connection: an address and a port."""
_TCP: Final = struct.Struct("!HHIIBBHHH")
_IP: Final = struct.Struct("!BBHHHBBH4s4s")
_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10
_WINDOW: Final = 1024
_TTL: Final = 64
_VERSION: Final = 4
_DO_NOT_FRAGMENT: Final = 0x4000


class Segment(NamedTuple):
    """A received TCP segment. `acknowledged` is None if the segment acknowledges nothing."""

    source: End
    destination: End
    acknowledged: int | None
    opens: bool
    refuses: bool

    def answers(self, sequence: int) -> bool:
        """Return whether this segment answers a SYN with this sequence number, by a SYN-ACK or by a RST."""
        return self.acknowledged == (sequence + 1) % 2**32 and (self.opens or self.refuses)


def syn(source: End, destination: End, sequence: int) -> bytes:
    """Encode a TCP SYN segment."""
    return _segment(source, destination, sequence, _SYN)


def reset(source: End, destination: End, sequence: int) -> bytes:
    """Encode the TCP RST segment that ends the half-open connection of a SYN with this sequence number."""
    return _segment(source, destination, (sequence + 1) % 2**32, _RST)


def packet(source: End, destination: End, segment: bytes) -> bytes:
    """Encode an IPv4 packet with a TCP segment as its payload."""
    length = _IP.size + len(segment)
    ends = socket.inet_aton(source[0]), socket.inet_aton(destination[0])
    header = _IP.pack(0x45, 0, length, 0, _DO_NOT_FRAGMENT, _TTL, socket.IPPROTO_TCP, 0, *ends)
    return header[:10] + struct.pack("!H", _checksum(header)) + header[12:] + segment


def parsed(data: bytes) -> Segment | None:
    """Decode the TCP segment of an IPv4 packet; return None if the packet has no complete TCP segment."""
    if len(data) < _IP.size or data[0] >> 4 != _VERSION or data[9] != socket.IPPROTO_TCP:
        return None
    begins = (data[0] & 0xF) * 4
    if len(data) < begins + _TCP.size:
        return None
    source, destination = (Ipv4Address(socket.inet_ntoa(data[at : at + 4])) for at in (12, 16))
    from_port, to_port, _, acknowledged, _, flags, *_ = _TCP.unpack_from(data, begins)
    return Segment(
        (source, from_port),
        (destination, to_port),
        acknowledged if flags & _ACK else None,
        opens=flags & (_SYN | _ACK | _RST) == _SYN | _ACK,
        refuses=bool(flags & _RST),
    )


def _segment(source: End, destination: End, sequence: int, flags: int) -> bytes:
    header = _TCP.pack(source[1], destination[1], sequence, 0, _TCP.size // 4 << 4, flags, _WINDOW, 0, 0)
    ends = socket.inet_aton(source[0]) + socket.inet_aton(destination[0])
    summed = _checksum(ends + struct.pack("!BBH", 0, socket.IPPROTO_TCP, len(header)) + header)
    return header[:16] + struct.pack("!H", summed) + header[18:]


def _checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while carry := total >> 16:
        total = (total & 0xFFFF) + carry
    return ~total & 0xFFFF
