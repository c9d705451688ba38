"""Guest end of a tap device, which sends and receives raw frames, as a tenant could that ignores every rule."""

import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Final, Self

from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet

from events.values import Ipv4Address

BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
_TUNSETIFF: Final = 0x400454CA
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCGIFHWADDR = 0x8913, 0x8914, 0x8927
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_IFF_UP: Final = 0x0001


class Wire:
    """Tap device, opened as it is for a guest: libvirt sets the device up, and QEMU keeps it open. The device has a
    carrier while a process keeps it open.
    """

    def __init__(self, tap: str) -> None:
        self._file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self._file, _TUNSETIFF, struct.pack("16sH22x", tap.encode(), _IFF_TAP | _IFF_NO_PI))
        _set_up(tap)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)

    def send(self, frame: Packet) -> None:
        os.write(self._file, bytes(frame))

    def receive(self, wanted: Callable[[Packet], bool], seconds: float = 2.0) -> Packet | None:
        """Return the first received frame for which `wanted` is true, or None if no such frame arrives within
        `seconds`.
        """
        ends = monotonic() + seconds
        while (left := ends - monotonic()) > 0:
            if select.select([self._file], [], [], left)[0]:
                frame = Ether(os.read(self._file, 65536))
                if wanted(frame):
                    return frame
        return None

    def until(self, last: Callable[[Packet], bool]) -> list[Packet]:
        """Return all frames that arrive before the first frame for which `last` is true. Raises `AssertionError` if no
        such frame arrives.
        """
        before: list[Packet] = []

        def is_last(frame: Packet) -> bool:
            before.append(frame)
            return last(frame)

        assert self.receive(is_last, seconds=5.0) is not None, "the last frame did not arrive"
        return before[:-1]

    def ask(self, frame: Packet, wanted: Callable[[Packet], bool]) -> Packet | None:
        """Send the frame repeatedly until a frame arrives for which `wanted` is true, because OVS detects the carrier
        of a tap with a delay.
        """
        for _ in range(30):
            self.send(frame)
            if (answer := self.receive(wanted, seconds=0.1)) is not None:
                return answer
        return None


class FarEnd(Wire):
    """Raw socket on the far end of a link that is not a tap, for instance of a veth pair. It sends and receives frames
    as a guest would.
    """

    def __init__(self, link: str) -> None:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        end.bind((link, 0))
        self._file = end.detach()


class Capture:
    """Capture of all frames that pass a network link of the node, in both directions."""

    def __init__(self, link: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        self._socket.bind((link, 0))
        self._socket.settimeout(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def until(self, last: Callable[[Packet], bool]) -> list[Packet]:
        """Return all captured frames before the first frame for which `last` is true. Raises `TimeoutError` if no such
        frame passes.
        """
        before: list[Packet] = []
        while not last(frame := Ether(self._socket.recv(65536))):
            before.append(frame)
        return before


def _set_up(tap: str) -> None:
    """Set the device up. It is down if a virtual machine that used it has ended."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        found = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sH22x", tap.encode(), 0))
        name, flags = struct.unpack("16sH22x", found)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | _IFF_UP))


def hardware_address(link: str) -> str:
    """Return the MAC of a network link of the host (netdevice(7), SIOCGIFHWADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _SIOCGIFHWADDR, struct.pack("16s16x8x", link.encode()))
    return answer[18:24].hex(":")


def arp_request(ip: str, *, mac: str, own: str) -> Packet:
    return Ether(src=mac, dst=BROADCAST) / ARP(op=1, hwsrc=mac, psrc=own, pdst=ip)


def is_arp_reply(frame: Packet) -> bool:
    return ARP in frame and frame[ARP].op == 2


def dhcp(
    kind: str,
    *,
    mac: str,
    chaddr: str | None = None,
    flags: int = 0,
    ciaddr: str = "0.0.0.0",
    client_id: bytes | None = None,
    **options: str,
) -> Packet:
    """Return a DHCP message as a client broadcasts it. `chaddr` is the client's MAC in the message, by
    default `mac`.
    """
    words = [("message-type", kind), *options.items(), *([("client_id", client_id)] if client_id else [])]
    hardware = bytes.fromhex((chaddr or mac).replace(":", ""))
    return (
        Ether(src=mac, dst=BROADCAST)
        / IP(src="0.0.0.0", dst="255.255.255.255")
        / UDP(sport=68, dport=67)
        / BOOTP(chaddr=hardware, xid=0x5C1CE, flags=flags, ciaddr=ciaddr)
        / DHCP(options=[*words, "end"])
    )


def is_dhcp(kind: int) -> Callable[[Packet], bool]:
    return lambda frame: DHCP in frame and ("message-type", kind) in frame[DHCP].options


def lease(wire: Wire, mac: str, flags: int = 0, client_id: bytes | None = None) -> Ipv4Address | None:
    """Send a DHCP discover and a DHCP request. Return the address that the server acknowledged, or None."""
    offer = wire.ask(dhcp("discover", mac=mac, flags=flags, client_id=client_id), is_dhcp(2))
    if offer is None:
        return None
    wanted = offer[BOOTP].yiaddr
    request = dhcp("request", mac=mac, flags=flags, client_id=client_id, requested_addr=wanted)
    ack = wire.ask(request, is_dhcp(5))
    return Ipv4Address(ack[BOOTP].yiaddr) if ack is not None else None
