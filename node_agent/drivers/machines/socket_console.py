"""Consoles of a machine that are a connected socket: its display, and its SSH port."""

import socket
from contextlib import suppress
from typing import Final
from uuid import UUID

from node_agent.host.host import ConsoleRefused
from node_agent.host.slices import SliceNetwork
from tasks.streams import SSH_PORT

_READ_BYTES: Final = 4096
_CONNECT_SECONDS: Final = 4.0
"""Timeout in seconds for the connection to a guest's SSH port. It is shorter than the time for which the API waits for
the answer of a node.
"""


class SocketConsole:
    """Console of a machine over a connected socket. Implements `node_agent.host.host.Console`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def read(self) -> bytes:
        try:
            return self._socket.recv(_READ_BYTES)
        except OSError:
            return b""

    def write(self, data: bytes) -> None:
        with suppress(OSError):
            self._socket.sendall(data)

    def close(self) -> None:
        # Without `shutdown`, a `recv` in another thread would go on waiting.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def connect_to_ssh(domain: UUID, network: SliceNetwork) -> SocketConsole:
    """Connect to the SSH port of a domain, over the bridge of its network. Raises `ConsoleRefused` if the port does not
    accept the connection.
    """
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without the bridge, a route of the host could lead the connection to another machine or to the host itself.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, network.bridge.encode())
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_CONNECT_SECONDS)
        connection.connect((network.ip, SSH_PORT))
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        reason = (
            f"did not answer within {_CONNECT_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
        )
        message = f"port {SSH_PORT} of domain {domain} at {network.ip}: {reason}"
        raise ConsoleRefused("ssh_not_reachable", message) from error
    return SocketConsole(connection)
