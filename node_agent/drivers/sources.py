"""The kernel and the daemons as sources for `watching`: links and routes, the packet filter, the switch, folders.

What they say is thrown away; each is only asked to say something whenever it has news.
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

from node_agent.drivers.ovsdb import DATABASE, STRANGERS
from node_agent.drivers.routing import NOARP, PERMANENT
from node_agent.drivers.switch_rows import columns
from node_agent.drivers.watching import Listening, Source
from node_agent.drivers.xfrm import NETLINK_XFRM, POLICY_GROUP

_CHUNK: Final = 1 << 16
_OPEN_SECONDS: Final = 1.0
_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
"""NETLINK_ADD_MEMBERSHIP (netlink(7))."""
_NETLINK_NETFILTER: Final = 12
"""linux/netlink.h"""
_NFNLGRP_NFTABLES: Final = 7
"""linux/netfilter/nfnetlink.h"""
_PACKET_BYTES: Final = "1"
_ATTACH_FILTER: Final = 26
"""SO_ATTACH_FILTER (asm-generic/socket.h)"""
_INSTRUCTION: Final = struct.Struct("HBBI")
"""struct sock_filter (linux/filter.h): code, jumps if true and if false, value."""
_LOAD_BYTE, _JUMP_IF_SET, _RETURN = 0x30, 0x45, 0x06
"""BPF_LD|BPF_B|BPF_ABS, BPF_JMP|BPF_JSET|BPF_K, BPF_RET|BPF_K"""
_NEIGHBOUR_STATE: Final = 24
"""Where ndm_state is in a message: behind struct nlmsghdr and the first fields of struct ndmsg."""
_WATCHED_COLUMNS: Final = {
    "Bridge": (
        "name",
        "ports",
        "fail_mode",
        "datapath_id",
        "datapath_type",
        "protocols",
        *columns("Bridge"),
        *STRANGERS,
    ),
    "Port": ("name", "interfaces", *columns("Port")),
    "Interface": ("name", "ofport", "mac_in_use", *columns("Interface")),
    "Manager": ("target",),
}


class _Socket:
    """Of any kind; what comes is thrown away."""

    def __init__(self, own: socket.socket) -> None:
        own.settimeout(0)
        self._own = own

    def fileno(self) -> int:
        return self._own.fileno()

    def drain(self) -> bool:
        try:
            while chunk := self._own.recv(_CHUNK):
                self._heard(chunk)
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        self._own.close()

    def _heard(self, chunk: bytes) -> None:
        pass


class _Netlink(_Socket):
    def attach(self, program: bytes) -> None:
        """Attach a filter (struct sock_fprog). Raises `OSError`, and the socket is closed then."""
        try:
            self._own.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
        except OSError:
            self._own.close()
            raise

    def drain(self) -> bool:
        try:
            return super().drain()
        except OSError as error:
            # More came than there was room for.
            return error.errno == errno.ENOBUFS


class _Ovsdb(_Socket):
    def _heard(self, chunk: bytes) -> None:
        # The server hangs up on who does not answer this (RFC 7047, 4.1.11).
        if b'"echo"' in chunk:
            self._own.send(b'{"id":"echo","result":[],"error":null}')


class _Output:
    """What a program prints, as long as it runs."""

    def __init__(self, arguments: Iterable[str]) -> None:
        # It dies with this thread, which lives as long as the agent: nobody else would end it.
        self._program = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # ovs-ofctl prints there what it monitors.
            stderr=subprocess.STDOUT,
        )
        assert self._program.stdout is not None
        self._printed = self._program.stdout
        os.set_blocking(self.fileno(), False)

    def fileno(self) -> int:
        return self._printed.fileno()

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
        self._printed.close()


class _Folders:
    def __init__(self, folders: Iterable[Path]) -> None:
        self._events = INotify()
        told = flags.CREATE | flags.DELETE | flags.MODIFY | flags.ATTRIB | flags.MOVED_FROM | flags.MOVED_TO
        try:
            for folder in folders:
                self._events.add_watch(folder, told | flags.DELETE_SELF)
        except OSError:
            self._events.close()
            raise

    def fileno(self) -> int:
        return int(self._events.fileno())

    def drain(self) -> bool:
        return not any(event.mask & (flags.IGNORED | flags.UNMOUNT) for event in self._events.read(timeout=0))

    def close(self) -> None:
        self._events.close()


def links_and_routes() -> Listening:
    """Changes of links, their disciplines and filters, IPv4 addresses, routes, rules and forwarding (rtnetlink(7))."""
    groups = (
        RTNLGRP_LINK,
        RTNLGRP_TC,
        RTNLGRP_IPV4_IFADDR,
        RTNLGRP_IPV4_ROUTE,
        RTNLGRP_IPV4_RULE,
        RTNLGRP_IPV4_NETCONF,
    )
    return _netlink(socket.NETLINK_ROUTE, groups)


def static_neighbours() -> Listening:
    """Neighbour entries that a program sets, permanent or without ARP.

    The kernel's own changes of neighbours are frequent on a busy host. A filter on the socket (socket(7),
    SO_ATTACH_FILTER) has the kernel drop them, so they wake no survey.
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
    kept = ctypes.create_string_buffer(program)
    # struct sock_fprog: how many instructions, and where they are.
    listening.attach(struct.pack("HP", len(program) // _INSTRUCTION.size, ctypes.addressof(kept)))
    return listening


def packet_filter() -> Listening:
    """The kernel's word on nftables."""
    return _netlink(_NETLINK_NETFILTER, (_NFNLGRP_NFTABLES,))


def ipsec_policies() -> Listening:
    """Changes of IPsec policies, as the kernel reports them (ip-xfrm(8))."""
    return _netlink(NETLINK_XFRM, (POLICY_GROUP,))


def switch_database(path: Path) -> Source:
    """The OVSDB server at this socket, on bridges, ports and interfaces (RFC 7047, 4.1.5)."""

    def opened() -> Listening:
        tables = {table: [{"columns": list(columns)}] for table, columns in _WATCHED_COLUMNS.items()}
        asked = {"id": 0, "method": "monitor", "params": [DATABASE, None, tables]}
        wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A server that hangs must not keep the others from being heard.
        wire.settimeout(_OPEN_SECONDS)
        try:
            wire.connect(str(path))
            wire.sendall(json.dumps(asked).encode())
        except OSError:
            wire.close()
            raise
        return _Ovsdb(wire)

    return opened


def flows_of_bridge(management: Path) -> Source:
    """The switch, on the flows and ports of the bridge with this management socket (ovs-ofctl(8), `monitor`)."""
    # A length of packets that is not 0 has it report changes of ports too.
    monitor = ("monitor", f"unix:{management}", _PACKET_BYTES, "watch:!initial")
    return lambda: _Output(("ovs-ofctl", "--unixctl=none", "-O", "OpenFlow14", *monitor))


def files_in(*folders: Path) -> Source:
    """Changes of files right in these folders, of their modes and owners too (inotify(7))."""
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
