"""The serial console of a domain, as a stream of libvirt.

Each console has a connection of its own: one thread reads while another writes, and a blocked call must not occupy a
connection of the pool. libvirt permits one console of a device at a time.
"""

import threading
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import libvirt

from node_agent.host.host import ConsoleRefused
from node_agent.host.slices import HostUnreadable

_READ_BYTES: Final = 4096
_NOT_RUNNING: Final = (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID)

_IN_USE: Final = "Active console session exists"
"""Part of libvirt's message for a console that is open already; the error has no code of its own."""


class LibvirtConsole:
    """Implementation of `node_agent.host.host.SerialConsole`."""

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


def open_console(uri: str, domain: UUID) -> LibvirtConsole:
    """Open the serial console of a domain. Raises `ConsoleRefused`, `HostUnreadable`."""
    try:
        connection = libvirt.open(uri)
    except libvirt.libvirtError as error:
        raise HostUnreadable(f"libvirt cannot open a console: {error}") from error
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
