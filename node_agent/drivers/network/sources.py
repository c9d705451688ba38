"""Sources of events about changes of the host: links and routes, packet filter, IPsec, Open vSwitch and folders.

The content of the events is discarded; only their arrival matters (`node_agent.drivers.watching`).
"""

import ctypes
import errno
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from inotify_simple import INotify, flags
from pyroute2.netlink.rtnl import (
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_NETCONF,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV4_RULE,
    RTNLGRP_LINK,
    RTNLGRP_NEIGH,
    RTNLGRP_TC,
)

from node_agent.drivers.network.ovsdb import DATABASE, FOREIGN_COLUMNS
from node_agent.drivers.network.routing import NOARP, PERMANENT
from node_agent.drivers.network.switch_rows import columns
from node_agent.drivers.network.xfrm import NETLINK_XFRM, POLICY_GROUP
from node_agent.drivers.watching import OpenSource, Source

_CHUNK: Final = 1 << 16
_OPEN_SECONDS: Final = 1.0
_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
"""Socket option NETLINK_ADD_MEMBERSHIP (netlink(7))."""
_NETLINK_NETFILTER: Final = 12
"""Netlink protocol NETLINK_NETFILTER (linux/netlink.h)."""
_NFNLGRP_NFTABLES: Final = 7
"""Multicast group NFNLGRP_NFTABLES (linux/netfilter/nfnetlink.h)."""
_PACKET_BYTES: Final = "1"
_ATTACH_FILTER: Final = 26
"""Socket option SO_ATTACH_FILTER (asm-generic/socket.h)"""
_INSTRUCTION: Final = struct.Struct("HBBI")
"""Layout of struct sock_filter (linux/filter.h): code, jumps if true and if false, value."""
_LOAD_BYTE, _JUMP_IF_SET, _RETURN = 0x30, 0x45, 0x06
"""BPF instructions BPF_LD|BPF_B|BPF_ABS, BPF_JMP|BPF_JSET|BPF_K, BPF_RET|BPF_K"""
_NEIGHBOUR_STATE: Final = 24
"""Offset of the field ndm_state in a netlink message about a neighbour: after struct nlmsghdr and the first fields of
struct ndmsg."""
_WATCHED_COLUMNS: Final = {
    "Bridge": (
        "name",
        "ports",
        "fail_mode",
        "datapath_id",
        "datapath_type",
        "protocols",
        *columns("Bridge"),
        *FOREIGN_COLUMNS,
    ),
    "Port": ("name", "interfaces", *columns("Port")),
    "Interface": ("name", "ofport", "mac_in_use", *columns("Interface")),
    "Manager": ("target",),
}


class _Socket:
    """An event source that reads a socket and discards the received content."""

    def __init__(self, own: socket.socket) -> None:
        own.settimeout(0)
        self._own = own

    def fileno(self) -> int:
        return self._own.fileno()

    def drain(self) -> bool:
        try:
            while chunk := self._own.recv(_CHUNK):
                self._handle(chunk)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._own.close()

    def _handle(self, chunk: bytes) -> None:
        pass


class _Netlink(_Socket):
    def attach(self, program: bytes) -> None:
        """Attach a BPF filter (struct sock_fprog) to the socket. On failure, close the socket and raise `OSError`."""
        try:
            self._own.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        except OSError:
            self._own.close()
            raise

    def drain(self) -> bool:
        try:
            return super().drain()
        except OSError as error:
            # The receive buffer overflowed; the lost messages count as an event.
            return error.errno == errno.ENOBUFS


class _Ovsdb(_Socket):
    def _handle(self, chunk: bytes) -> None:
        # The server closes the connection of a client that does not answer an echo request (RFC 7047, 4.1.11).
        if b'"echo"' in chunk:
            self._own.send(b'{"id":"echo","result":[],"error":null}')


class _Output:
    """An event source that reads the output of a running program."""

    def __init__(self, arguments: Iterable[str]) -> None:
        # The kernel kills the program when this thread ends, so it does not outlive the agent.
        self._program = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # ovs-ofctl prints monitored changes to stderr.
            stderr=subprocess.STDOUT,
        )
        assert self._program.stdout is not None
        self._stdout = self._program.stdout
        os.set_blocking(self.fileno(), False)

    def fileno(self) -> int:
        return self._stdout.fileno()

    def drain(self) -> bool:
        try:
            while os.read(self.fileno(), _CHUNK):
                pass
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._program.kill()
        self._program.wait()
        self._stdout.close()


class _Folders:
    """An event source for changes in folders (inotify(7))."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._events = INotify()
        watched = (
            flags.CREATE | flags.DELETE | flags.MODIFY | flags.ATTRIB | flags.MOVED_FROM | flags.MOVED_TO
        )
        try:
            for folder in folders:
                self._events.add_watch(folder, watched | flags.DELETE_SELF)
        except OSError:
            self._events.close()
            raise

    def fileno(self) -> int:
        return int(self._events.fileno())

    def drain(self) -> bool:
        return not any(event.mask & (flags.IGNORED | flags.UNMOUNT) for event in self._events.read(timeout=0))

    def close(self) -> None:
        self._events.close()


def links_and_routes() -> OpenSource:
    """Subscribe to changes of links, queueing disciplines, filters, IPv4 addresses, routes, rules and forwarding.

    The source is rtnetlink(7).
    """
    groups = (
        RTNLGRP_LINK,
        RTNLGRP_TC,
        RTNLGRP_IPV4_IFADDR,
        RTNLGRP_IPV4_ROUTE,
        RTNLGRP_IPV4_RULE,
        RTNLGRP_IPV4_NETCONF,
    )
    return _netlink(socket.NETLINK_ROUTE, groups)


def static_neighbours() -> OpenSource:
    """Subscribe to neighbour (ARP) entries that a program sets: permanent entries and entries without ARP.

    The kernel's own changes of neighbour entries are frequent on a busy host. A filter on the socket (socket(7),
    SO_ATTACH_FILTER) makes the kernel drop the messages about them, so they do not trigger a survey.
    """
    listening = _netlink(socket.NETLINK_ROUTE, (RTNLGRP_NEIGH,))
    low_byte = _NEIGHBOUR_STATE + (sys.byteorder == "big")
    program = b"".join(
        _INSTRUCTION.pack(*each)
        for each in (
            (_LOAD_BYTE, 0, 0, low_byte),
            (_JUMP_IF_SET, 0, 1, PERMANENT | NOARP),
            (_RETURN, 0, 0, 0xFFFFFFFF),
            (_RETURN, 0, 0, 0),
        )
    )
    buffer = ctypes.create_string_buffer(program)
    # struct sock_fprog: number of instructions and their address.
    listening.attach(struct.pack("HP", len(program) // _INSTRUCTION.size, ctypes.addressof(buffer)))
    return listening


def packet_filter() -> OpenSource:
    """Subscribe to changes of nftables."""
    return _netlink(_NETLINK_NETFILTER, (_NFNLGRP_NFTABLES,))


def ipsec_policies() -> OpenSource:
    """Subscribe to changes of IPsec policies (ip-xfrm(8))."""
    return _netlink(NETLINK_XFRM, (POLICY_GROUP,))


def switch_database(path: Path) -> Source:
    """Return a source for changes of bridges, ports and interfaces in the OVSDB server at `path` (RFC 7047, 4.1.5)."""

    def opened() -> OpenSource:
        tables = {table: [{"columns": list(columns)}] for table, columns in _WATCHED_COLUMNS.items()}
        request = {"id": 0, "method": "monitor", "params": [DATABASE, None, tables]}
        wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A hung server must not delay events of the other sources.
        wire.settimeout(_OPEN_SECONDS)
        try:
            wire.connect(str(path))
            wire.sendall(json.dumps(request).encode())
        except OSError:
            wire.close()
            raise
        return _Ovsdb(wire)

    return opened


def flows_of_bridge(management: Path) -> Source:
    """Return a source for changes of flows and ports of the bridge with this management socket (ovs-ofctl(8),
    `monitor`).
    """
    # With a packet length other than 0, ovs-ofctl also reports changes of ports.
    monitor = ("monitor", f"unix:{management}", _PACKET_BYTES, "watch:!initial")
    return lambda: _Output(("ovs-ofctl", "--unixctl=none", "-O", "OpenFlow14", *monitor))


def files_in(*folders: Path) -> Source:
    """Return an event source for changes of files directly in the given folders, including modes and owners
    (inotify(7)).
    """
    return lambda: _Folders(folders)


def _netlink(family: int, groups: Iterable[int]) -> _Netlink:
    own = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
    try:
        own.bind((0, 0))
        for group in groups:
            own.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
    except OSError:
        own.close()
        raise
    return _Netlink(own)
