"""The two wires over which the agent sends probes: a raw socket at the gateway, and a TUN device beside the uplink.

Neither is a connection of the host's stack. What answers the gateway's SYN finds no socket, so the kernel resets it by
itself; what answers on the device is reset by hand. The guest's service never sees either.
"""

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from events.values import Ipv4Address
from node_agent.drivers import conntrack
from node_agent.drivers.netlink import Refused
from node_agent.drivers.segments import End, Segment, packet, parsed, reset, syn
from node_agent.reaching import PROBE_ADDRESS, PROBE_LINK
from node_agent.reaching import Path as ProbePath

_LONGEST: Final = 2048
_MOST_AT_ONCE: Final = 256
_DEADLINE: Final = 1.0
_SO_ATTACH_FILTER: Final = 26
_FROM_LINK: Final = 0xFFFF_F000 + 8
"""SKF_AD_OFF + SKF_AD_IFINDEX (linux/filter.h)."""
_LOOPBACK: Final = 1
"""Number of the loopback device in every network namespace."""
_IP_PKTINFO: Final = 8
_PKTINFO: Final = struct.Struct("=i4s4s")
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_FIRST_PORT: Final = 40000
_PORTS: Final = 64
"""Source ports of what is written to the device, whose address nothing else uses. Each probe takes one of them by its
sequence number: a guest that was stopped may hold half-open connections of earlier probes for a minute, and answers a
new SYN from the same port with an old acknowledgement.
"""


class Wire(Protocol):
    """A socket or device over which probes are sent. All methods raise `OSError`."""

    def fileno(self) -> int: ...

    def send(self, path: ProbePath, sequence: int) -> None: ...

    def received(self) -> Iterator[tuple[Segment, str]]:
        """Yield the segments received since the last call, each with its link."""
        ...

    def misled(self, path: ProbePath, sequence: int, link: str) -> str:
        """Describe what answered in place of the guest; empty if the guest answered."""
        ...

    def forget(self, path: ProbePath, sequence: int, *, opened: bool) -> None:
        """End an exchange, and what the kernel tracks of it."""
        ...

    def close(self) -> None: ...


class GatewayWire:
    """Sends probes from the gateway's address, by the host's own routes and rules."""

    def __init__(self, gateway: Ipv4Address, bridge: str) -> None:
        self._bridge = bridge
        # Bound and never connected: so no program of the host is given the port for a connection of its own.
        self._reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._reserved.bind((gateway, 0))
            self._own: End = gateway, self._reserved.getsockname()[1]
            self._raw = _raw_socket(self._own)
        except OSError:
            self._reserved.close()
            raise

    def fileno(self) -> int:
        return self._raw.fileno()

    def send(self, path: ProbePath, sequence: int) -> None:
        to = path.destination
        self._raw.sendto(syn(self._own, to, sequence), (to[0], 0))

    def received(self) -> Iterator[tuple[Segment, str]]:
        for _ in range(_MOST_AT_ONCE):
            try:
                data, ancillary, *_ = self._raw.recvmsg(_LONGEST, socket.CMSG_SPACE(_PKTINFO.size))
            except BlockingIOError:
                return
            if (segment := parsed(data)) is not None and segment.destination == self._own:
                yield segment, _link_in(ancillary)

    def misled(self, path: ProbePath, sequence: int, link: str) -> str:
        return "" if link == self._bridge else f"{path.network.ip} is answered over {link or 'another link'}"

    def forget(self, path: ProbePath, sequence: int, *, opened: bool) -> None:
        _forget(conntrack.tcp_tuple(self._own, path.destination))

    def close(self) -> None:
        self._raw.close()
        self._reserved.close()


class UplinkWire:
    """Sends probes through the agent's TUN device, which the kernel removes with the agent. Packets written to it pass
    the same translation and forwarding rules as packets that arrive by the uplink.
    """

    def __init__(self) -> None:
        self._file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            request = struct.pack("16sH22x", PROBE_LINK.encode(), _IFF_TUN | _IFF_NO_PI)
            fcntl.ioctl(self._file, _TUNSETIFF, request)
            _set_up()
        except OSError:
            os.close(self._file)
            raise

    def fileno(self) -> int:
        return self._file

    def send(self, path: ProbePath, sequence: int) -> None:
        self._write(path, sequence, syn(_own(sequence), path.destination, sequence))

    def received(self) -> Iterator[tuple[Segment, str]]:
        for _ in range(_MOST_AT_ONCE):
            try:
                data = os.read(self._file, _LONGEST)
            except BlockingIOError:
                return
            if (segment := parsed(data)) is not None and segment.destination[0] == PROBE_ADDRESS:
                yield segment, PROBE_LINK

    def misled(self, path: ProbePath, sequence: int, link: str) -> str:
        """Compare the destination that the kernel tracked for the probe with the slice."""
        try:
            found = conntrack.find(conntrack.tcp_tuple(_own(sequence), path.destination), _DEADLINE)
        except Refused as refused:
            raise OSError(str(refused)) from refused
        if found is None:
            return "the host itself answers or refuses it"
        if (found.target, found.target_port) != (path.network.ip, path.port):
            return f"it is sent to {found.target} port {found.target_port}"
        return ""

    def forget(self, path: ProbePath, sequence: int, *, opened: bool) -> None:
        if opened:
            self._write(path, sequence, reset(_own(sequence), path.destination, sequence))
        _forget(conntrack.tcp_tuple(_own(sequence), path.destination))

    def close(self) -> None:
        os.close(self._file)

    def _write(self, path: ProbePath, sequence: int, segment: bytes) -> None:
        os.write(self._file, packet(_own(sequence), path.destination, segment))


def _own(sequence: int) -> End:
    """The source of a probe on the device."""
    return PROBE_ADDRESS, _FIRST_PORT + sequence % _PORTS


def _raw_socket(own: End) -> socket.socket:
    """Return a raw socket that receives only TCP segments to this address and port."""
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    try:
        _filter_by_port(raw, own[1])
        raw.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        raw.bind((own[0], 0))
        raw.settimeout(0)
    except OSError:
        raw.close()
        raise
    return raw


def _filter_by_port(raw: socket.socket, port: int) -> None:
    """Classic BPF (linux/filter.h): X is the IP header's length, and the port is the second half-word behind it.

    What comes over the loopback device is left out here, because the kernel reports it as if it came over the link of
    the address that it was sent to: a host that has taken a slice's address answers itself.
    """
    lines = (
        (0x20, 0, 0, _FROM_LINK),
        (0x15, 4, 0, _LOOPBACK),
        (0xB1, 0, 0, 0),
        (0x48, 0, 0, 2),
        (0x15, 0, 1, port),
        (0x06, 0, 0, 0xFFFF),
        (0x06, 0, 0, 0),
    )
    program = b"".join(struct.pack("=HBBI", *line) for line in lines)
    held = ctypes.create_string_buffer(program, len(program))
    raw.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(lines), ctypes.addressof(held))
    )


def _link_in(ancillary: list[tuple[int, int, bytes]]) -> str:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            with suppress(OSError):
                return socket.if_indextoname(_PKTINFO.unpack_from(data)[0])
    return ""


def _set_up() -> None:
    """Set the device up, without IPv6 and with forwarding, and add the route to the probes. Raises `OSError`."""
    _write_setting("ipv6", "disable_ipv6")
    _write_setting("ipv4", "forwarding")
    try:
        with IPRoute() as netlink:
            number = socket.if_nametoindex(PROBE_LINK)
            netlink.link("set", index=number, state="up")
            netlink.route("replace", dst=f"{PROBE_ADDRESS}/32", oif=number)
    except NetlinkError as error:
        raise OSError(f"set up {PROBE_LINK}: {error}") from error


def _write_setting(family: str, name: str) -> None:
    # Without the file the kernel has no IPv6 at all.
    with suppress(FileNotFoundError):
        Path(f"/proc/sys/net/{family}/conf/{PROBE_LINK}/{name}").write_text("1\n")


def _forget(original: bytes) -> None:
    try:
        conntrack.forget([original], _DEADLINE)
    except Refused as refused:
        raise OSError(str(refused)) from refused
