"""Sockets of this host on the DHCP server port, and the processes that own them (sock_diag(7)).

A socket is relevant only if it receives requests on the slices' bridge: it is bound to the bridge's device or to no
device, and to an address to which requests on the bridge are sent.
"""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from node_agent.drivers.network.netlink import listed
from node_agent.drivers.processes import PROC, own_processes

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_REQUEST: Final = struct.Struct("=BBBxI")
"""Layout of a request for a list of sockets, up to the socket id (struct inet_diag_req_v2, linux/inet_diag.h): family,
protocol, extensions, states."""
_ID: Final = struct.Struct("!HH16s16s4s8s")
"""Layout of a socket id (struct inet_diag_sockid, linux/inet_diag.h): ports and addresses of both ends, interface index
in host byte order, cookie."""
_FOUND: Final = struct.Struct("=4x48s12xII")
"""Layout of a socket in the kernel's reply (struct inet_diag_msg, linux/inet_diag.h): socket id, user, inode."""
_ANY_STATE: Final = 0xFFFF_FFFF
_PORT: Final = 67
_ANY_ADDRESS: Final = bytes(16)


def listening_inodes(device: int, addresses: frozenset[str], deadline: float) -> frozenset[int]:
    """Return the inodes of DHCP server sockets that receive packets to these addresses on this device.

    Raises `OSError`.
    """
    receiving = {_ANY_ADDRESS, *(socket.inet_aton(each).ljust(16, b"\0") for each in addresses)}
    return frozenset(
        inode
        for source, bound_to, inode in _sockets(deadline)
        if source in receiving and bound_to in {0, device}
    )


def inodes_of(pid: int) -> frozenset[int]:
    """Return the inodes of all sockets of a process; empty if the process has exited."""
    with suppress(OSError):
        return frozenset(_held(PROC / str(pid)))
    return frozenset()


def owner_of(inode: int) -> str:
    """Describe the process that has a socket with this inode open, for an error message."""
    for pid, words in own_processes():
        if inode in inodes_of(pid):
            return f"process {pid}, {Path(words[0]).name}"
    return "a process outside this host's PID namespace"


def _sockets(deadline: float) -> Iterator[tuple[bytes, int, int]]:
    for family in (socket.AF_INET, socket.AF_INET6):
        head = _REQUEST.pack(family, socket.IPPROTO_UDP, 0, _ANY_STATE)
        request = head + _ID.pack(_PORT, 0, b"", b"", b"", b"\xff" * 8)
        for _, body in listed(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, request, deadline):
            found, _, inode = _FOUND.unpack_from(body)
            port, _, source, _, device, _ = _ID.unpack(found)
            if port == _PORT:
                yield source, struct.unpack("=I", device)[0], inode


def _held(process: Path) -> Iterator[int]:
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                yield int(target.removeprefix("socket:[").removesuffix("]"))
