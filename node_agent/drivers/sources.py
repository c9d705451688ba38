"""The kernel and the daemons as sources for `watching`: links and routes, the packet filter, the switch, folders.

What they say is thrown away; each is only asked to say something whenever it has news.
"""

import errno
import json
import os
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from inotify_simple import INotify, flags
from pyroute2.netlink.rtnl import (
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_NETCONF,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_LINK,
)

from node_agent.drivers.ovsdb import DATABASE, STRANGERS
from node_agent.drivers.watching import Listening, Source

_CHUNK: Final = 1 << 16
_OPEN_SECONDS: Final = 1.0
_SOL_NETLINK: Final = 270
_ADD_MEMBERSHIP: Final = 1
"""NETLINK_ADD_MEMBERSHIP (netlink(7))."""
_NETLINK_NETFILTER: Final = 12
"""linux/netlink.h"""
_NFNLGRP_NFTABLES: Final = 7
"""linux/netfilter/nfnetlink.h"""
_WATCHED_COLUMNS: Final = {
    "Bridge": ("name", "ports", "fail_mode", "datapath_type", "protocols", "other_config", *STRANGERS),
    "Port": ("name", "interfaces", "tag", "trunks"),
    "Interface": ("name", "type", "ofport", "mac_in_use"),
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
        told = flags.CREATE | flags.DELETE | flags.MODIFY | flags.MOVED_FROM | flags.MOVED_TO
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
    """The kernel's word on links, IPv4 addresses, routes and forwarding (rtnetlink(7))."""
    groups = (RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_NETCONF)
    return _netlink(socket.NETLINK_ROUTE, groups)


def packet_filter() -> Listening:
    """The kernel's word on nftables."""
    return _netlink(_NETLINK_NETFILTER, (_NFNLGRP_NFTABLES,))


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
    """The switch, on the flows of the bridge with this management socket (ovs-ofctl(8), `monitor`)."""
    return lambda: _Output(
        ("ovs-ofctl", "--unixctl=none", "-O", "OpenFlow14", "monitor", f"unix:{management}", "watch:!initial")
    )


def files_in(*folders: Path) -> Source:
    """Changes of files right in these folders (inotify(7))."""
    return lambda: _Folders(folders)


def _netlink(family: int, groups: Iterable[int]) -> Listening:
    own = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
    try:
        own.bind((0, 0))
        for group in groups:
            own.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
    except OSError:
        own.close()
        raise
    return _Netlink(own)
