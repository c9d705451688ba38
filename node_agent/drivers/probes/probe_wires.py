"""The agent's two transports for TCP probes of slices: a raw socket on the gateway's address, and a TUN device.

Neither transport uses a TCP connection of the host's network stack. An answer to the gateway's SYN matches no socket,
so the kernel resets that connection. If the answer arrives on the TUN device, this module resets the connection. The
guest's service never accepts either connection.
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
from node_agent.drivers.network import conntrack
from node_agent.drivers.network.netlink import Refused
from node_agent.drivers.network.segments import End, Segment, packet, parsed, reset, syn
from node_agent.host.reachability import PROBE_ADDRESS, PROBE_LINK
from node_agent.host.reachability import Path as ProbePath

_MAX_LENGTH: Final = 2048
_MAX_PER_READ: Final = 256
_DEADLINE: Final = 1.0
_SO_ATTACH_FILTER: Final = 26
_FROM_LINK: Final = 0xFFFF_F000 + 8
"""Offset of the interface index in a BPF program: SKF_AD_OFF + SKF_AD_IFINDEX (linux/filter.h)."""
_LOOPBACK: Final = 1
"""Interface index of the loopback device in every network namespace."""
_IP_PKTINFO: Final = 8
_PKTINFO: Final = struct.Struct("=i4s4s")
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_FIRST_PORT: Final = 40000
_PORTS: Final = 64
"""Number of source ports for probes that are written to the TUN device. No other program uses the device's address.

The sequence number of a probe selects its port. A guest that was suspended may keep half-open connections of earlier
probes for a minute, and would answer a new SYN from the same port with an old acknowledgement.
"""


class Wire(Protocol):
    """A socket or device over which the agent sends TCP probes. All methods raise `OSError`."""

    def fileno(self) -> int: ...

    def send(self, path: ProbePath, sequence: int) -> None: ...

    def received(self) -> Iterator[tuple[Segment, str]]:
        """Yield the TCP segments that were received since the last call, each with the name of its incoming link."""
        ...

    def misled(self, path: ProbePath, sequence: int, link: str) -> str:
        """Return a description of the destination that answered a probe instead of the guest; empty if the guest
        answered.
        """
        ...

    def forget(self, path: ProbePath, sequence: int, *, opened: bool) -> None:
        """End the exchange of a probe, and delete the probe's entry in connection tracking."""
        ...

    def close(self) -> None: ...


class GatewayWire:
    """Raw socket for probes that the host sends from the gateway's address, subject to the host's routes and rules."""

    def __init__(self, gateway: Ipv4Address, bridge: str) -> None:
        self._bridge = bridge
        # Bound but never connected, so that the kernel assigns the port to no connection of another program.
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
        for _ in range(_MAX_PER_READ):
            try:
                data, ancillary, *_ = self._raw.recvmsg(_MAX_LENGTH, socket.CMSG_SPACE(_PKTINFO.size))
            except BlockingIOError:
                return
            if (segment := parsed(data)) is not None and segment.destination == self._own:
                yield segment, _link_in(ancillary)

    def misled(self, path: ProbePath, sequence: int, link: str) -> str:
        return (
            ""
            if link == self._bridge
            else f"the answer of {path.network.ip} arrived over {link or 'another link'} instead of {self._bridge}"
        )

    def forget(self, path: ProbePath, sequence: int, *, opened: bool) -> None:
        _forget(conntrack.tcp_tuple(self._own, path.destination))

    def close(self) -> None:
        self._raw.close()
        self._reserved.close()


class UplinkWire:
    """TUN device of the agent for probes that enter the host like packets from outside.

    Packets written to the device pass the same translation and forwarding rules as packets that arrive over the uplink.
    The kernel removes the device when the agent exits.
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
        for _ in range(_MAX_PER_READ):
            try:
                data = os.read(self._file, _MAX_LENGTH)
            except BlockingIOError:
                return
            if (segment := parsed(data)) is not None and segment.destination[0] == PROBE_ADDRESS:
                yield segment, PROBE_LINK

    def misled(self, path: ProbePath, sequence: int, link: str) -> str:
        """Compare the destination of the probe in the kernel's connection tracking with the slice.

        Return a description of a different destination; empty if the kernel sent the probe to the slice.
        """
        try:
            found = conntrack.find(conntrack.tcp_tuple(_own(sequence), path.destination), _DEADLINE)
        except Refused as refused:
            raise OSError(str(refused)) from refused
        if found is None:
            # The kernel forgets a connection as soon as the guest refuses it, so both causes look the same here.
            return "the connection is refused: nothing listens on the port in the slice, or the host itself answers"
        if (found.target, found.target_port) != (path.network.ip, path.port):
            return (
                f"the probe is sent to {found.target} port {found.target_port} "
                f"instead of {path.network.ip} port {path.port}"
            )
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
    """Return the source address and port of a probe on the TUN device."""
    return PROBE_ADDRESS, _FIRST_PORT + sequence % _PORTS


def _raw_socket(own: End) -> socket.socket:
    """Return a raw socket that receives only TCP segments to the address and port `own`."""
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
    """Attach a classic BPF filter (linux/filter.h) for one destination port to the socket.

    The filter loads the length of the IP header into the register X; the port is the second half-word after the header.
    The filter drops packets from the loopback device, because the kernel reports them as if they came over the link of
    their destination address: a host that uses a slice's address itself would answer its own probes.
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
    """Set the probes' TUN device up, without IPv6 and with forwarding, and route the probe address to the device.

    Raises `OSError`.
    """
    _write_setting("ipv6", "disable_ipv6")
    _write_setting("ipv4", "forwarding")
    try:
        with IPRoute() as netlink:
            number = socket.if_nametoindex(PROBE_LINK)
            netlink.link("set", index=number, state="up")
            netlink.route("replace", dst=f"{PROBE_ADDRESS}/32", oif=number)
    except NetlinkError as error:
        raise OSError(f"cannot set up the link {PROBE_LINK} of the probes: {error}") from error


def _write_setting(family: str, name: str) -> None:
    # The file is missing if the kernel has no IPv6.
    with suppress(FileNotFoundError):
        Path(f"/proc/sys/net/{family}/conf/{PROBE_LINK}/{name}").write_text("1\n")


def _forget(original: bytes) -> None:
    try:
        conntrack.delete([original], _DEADLINE)
    except Refused as refused:
        raise OSError(str(refused)) from refused
