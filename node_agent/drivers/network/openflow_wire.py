"""OpenFlow 1.4 messages on a bridge's management socket, which avoid starting `ovs-ofctl` once per request.

The module supports only the two requests of a survey: the switch's configuration (fragments) and its ports
(OpenFlow Switch Specification 1.4.1, 7.3.2 and 7.3.5.7).
"""

import socket
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import MappingProxyType
from typing import Final

from node_agent.aspects.ports import Switching
from node_agent.host.slices import HostUnreadable

_VERSION: Final = 5
_HEADER: Final = struct.Struct("!BBHI")
"""Layout of an OpenFlow message's header: version, type, length, transaction id."""
_MULTIPART: Final = struct.Struct("!HH4x")
"""Layout of the header of an OpenFlow multipart message: type, and whether more parts follow."""
_CONFIG: Final = struct.Struct("!HH")
"""Layout of a switch's configuration (struct ofp_switch_config): fragment handling, and the number of packet bytes sent
to a controller."""
_PORT: Final = struct.Struct("!IH2x6s2x16sII")
"""Layout of an OpenFlow port's description (struct ofp_port): number, length, address, name, configuration, state."""
_HELLO, _ERROR, _GET_CONFIG, _CONFIG_REPLY, _MULTIPART_REQUEST, _MULTIPART_REPLY = 0, 1, 7, 8, 18, 19
_PORT_DESC: Final = 13
_MORE: Final = 1
_FRAGMENTS: Final = MappingProxyType({0: "normal", 1: "drop", 2: "reassemble", 3: "nx-match"})
_FRAGMENT_BITS: Final = 0x3
_PORT_FLAGS: Final = MappingProxyType({1 << 2: "no-receive", 1 << 5: "no-forward", 1 << 6: "no-packet-in"})
"""Configuration bits of an OpenFlow port that are compared, with their names in ovs-ofctl(8). The bit of a port that is
set down is omitted, because the link aspect compares that state."""
_CHUNK: Final = 1 << 16
Message = tuple[int, bytes]
"""Type and body of an OpenFlow message."""


@dataclass(frozen=True, slots=True)
class Management:
    """The management socket of an OVS bridge. `deadline` is in seconds and applies to a complete exchange of request
    and reply.
    """

    path: Path
    deadline: float

    def request_switching(self) -> "SwitchingRequest":
        """Request the switch's fragment handling and port settings. Raises `HostUnreadable`."""
        wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            wire.settimeout(self.deadline)
            wire.connect(str(self.path))
            wire.sendall(_requests())
        except OSError as error:
            wire.close()
            raise HostUnreadable(
                f"cannot send a request to the OpenFlow switch at {self.path}: {error}"
            ) from error
        return SwitchingRequest(self.path, wire, monotonic() + self.deadline)


@dataclass(frozen=True, slots=True)
class SwitchingRequest:
    """A request for switch settings in progress. Implements `node_agent.host.snapshots.StartedRead`.

    `ends` is the deadline in monotonic time.
    """

    path: Path
    wire: socket.socket
    ends: float

    def answer(self) -> Switching:
        """Wait for the switch's reply and return its fragment handling and port settings. Raises `HostUnreadable`."""
        try:
            return _switching(_messages(self.wire, self.ends))
        except (OSError, struct.error) as error:
            raise HostUnreadable(
                f"cannot read the reply of the OpenFlow switch at {self.path}: {error}"
            ) from error
        finally:
            self.wire.close()

    def end(self) -> None:
        self.wire.close()


def _requests() -> bytes:
    ports = _MULTIPART.pack(_PORT_DESC, 0)
    return _framed(_HELLO) + _framed(_GET_CONFIG) + _framed(_MULTIPART_REQUEST, ports)


def _framed(kind: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(_VERSION, kind, _HEADER.size + len(body), kind) + body


def _messages(wire: socket.socket, ends: float) -> Iterator[Message]:
    received = b""
    while True:
        while len(received) >= _HEADER.size:
            _, kind, length, _ = _HEADER.unpack_from(received)
            if len(received) < length:
                break
            yield kind, received[_HEADER.size : length]
            received = received[length:]
        wire.settimeout(max(0.001, ends - monotonic()))
        chunk = wire.recv(_CHUNK)
        if not chunk:
            raise ConnectionError("the switch closed the OpenFlow connection before the end of its reply")
        received += chunk


def _switching(messages: Iterator[Message]) -> Switching:
    fragments, ports = "", dict[int, frozenset[str]]()
    for kind, body in messages:
        if kind == _ERROR:
            raise ConnectionError(f"the switch refused the OpenFlow request with error {body.hex()}")
        if kind == _CONFIG_REPLY:
            fragments = _FRAGMENTS[_CONFIG.unpack_from(body)[0] & _FRAGMENT_BITS]
        if kind == _MULTIPART_REPLY:
            ports |= _ports(body[_MULTIPART.size :])
            # The switch replies in the order of the requests, so this is the last reply.
            if not _MULTIPART.unpack_from(body)[1] & _MORE:
                break
    return Switching(fragments, _without_defaults(ports))


def _ports(body: bytes) -> Iterator[tuple[int, frozenset[str]]]:
    while body:
        number, length, _, _, config, _ = _PORT.unpack_from(body)
        yield number, frozenset(flag for bit, flag in _PORT_FLAGS.items() if config & bit)
        body = body[length:]


def _without_defaults(ports: Mapping[int, frozenset[str]]) -> Mapping[int, frozenset[str]]:
    return {number: flags for number, flags in ports.items() if flags}
