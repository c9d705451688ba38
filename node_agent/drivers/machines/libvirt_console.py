"""The consoles of a domain: its serial port as a stream of libvirt, and its display as a socket of QEMU.

Each console has a connection of its own: one thread reads while another writes, and a blocked call must not occupy a
connection of the pool. libvirt permits one console of a serial port at a time. The display listens on no address:
libvirt passes a connected socket to QEMU, and returns its other end.
"""

import socket
import threading
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import libvirt

from node_agent.drivers.machines.socket_console import SocketConsole
from node_agent.host.host import ConsoleRefused
from node_agent.host.slices import HostUnreadable

_READ_BYTES: Final = 4096
_NOT_RUNNING: Final = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)

_IN_USE: Final = "Active console session exists"
"""Part of libvirt's message for a console that is open already; the error has no code of its own."""


class LibvirtConsole:
    """Open serial console of a libvirt domain: implementation of `node_agent.host.host.Console`."""

    def __init__(self, connection: Any, stream: Any) -> None:
        self._connection, self._stream = connection, stream
        self._lock = threading.Lock()
        self._closed = False

    def read(self) -> bytes:
        try:
            data = self._stream.recv(_READ_BYTES)
        except libvirt.libvirtError:
            return b""
        return data if isinstance(data, bytes) else b""

    def write(self, data: bytes) -> None:
        with suppress(libvirt.libvirtError):
            while data:
                sent = self._stream.send(data)
                if sent <= 0:
                    return
                data = data[sent:]

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with suppress(libvirt.libvirtError):
            self._stream.abort()
        with suppress(libvirt.libvirtError):
            self._connection.close()


def _connect(uri: str) -> Any:
    try:
        return libvirt.open(uri)
    except libvirt.libvirtError as error:
        raise HostUnreadable(f"cannot connect to libvirt to open a console: {error}") from error


def open_display(uri: str, domain: UUID) -> SocketConsole:
    """Open the display of a domain. Raises `ConsoleRefused`, `HostUnreadable`."""
    connection = _connect(uri)
    try:
        found = connection.lookupByUUIDString(str(domain))
        descriptor = found.openGraphicsFD(0, libvirt.VIR_DOMAIN_OPEN_GRAPHICS_SKIPAUTH)
    except libvirt.libvirtError as error:
        if error.get_error_code() in _NOT_RUNNING:
            raise ConsoleRefused("machine_not_running", str(error)) from error
        raise HostUnreadable(f"libvirt cannot open the display of {domain}: {error}") from error
    finally:
        # The socket is QEMU's and stays open.
        connection.close()
    return SocketConsole(socket.socket(fileno=descriptor))


def open_console(uri: str, domain: UUID) -> LibvirtConsole:
    """Open the serial console of a domain. Raises `ConsoleRefused`, `HostUnreadable`."""
    connection = _connect(uri)
    try:
        found = connection.lookupByUUIDString(str(domain))
        stream = connection.newStream(0)
        found.openConsole(None, stream, libvirt.VIR_DOMAIN_CONSOLE_SAFE)
    except libvirt.libvirtError as error:
        connection.close()
        if _IN_USE in str(error):
            raise ConsoleRefused("console_in_use", str(error)) from error
        if error.get_error_code() in _NOT_RUNNING:
            raise ConsoleRefused("machine_not_running", str(error)) from error
        raise HostUnreadable(f"libvirt cannot open the console of {domain}: {error}") from error
    return LibvirtConsole(connection, stream)
