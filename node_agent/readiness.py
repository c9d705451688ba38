"""Readiness: does the slice answer as its image promises (ALC-9)?

One bounded try; whoever waits decides how often and until when, and can stop between two tries. The agent asks
from the node's own network, over the bridge, as the gateway: what answers is the guest and no proxy before it.
"""

import socket
from dataclasses import dataclass
from time import monotonic
from typing import Final

from events.values import Ipv4Address
from node_agent.host import Answered, NotYet

_LONGEST_GREETING: Final = 4096
"""Bytes. An SSH server may send other lines before its version (RFC 4253 section 4.2)."""
_LONGEST_BANNER: Final = 255


@dataclass(frozen=True, slots=True)
class BannerProbe:
    """`node_agent.host.Probe`. A try takes at most `seconds`; an empty `banner` asks for an open port only."""

    seconds: float = 2.0

    def __call__(self, address: Ipv4Address, port: int, banner: str) -> Answered | NotYet:
        ends = monotonic() + self.seconds
        try:
            with socket.create_connection((address, port), timeout=self.seconds) as connection:
                return _listen(connection, banner, ends) if banner else Answered("")
        except TimeoutError:
            return NotYet(f"port {port} did not answer within {self.seconds:g} s")
        except OSError as error:
            return NotYet(f"port {port}: {error.strerror or error}")


def _listen(connection: socket.socket, banner: str, ends: float) -> Answered | NotYet:
    heard = b""
    while len(heard) < _LONGEST_GREETING:
        # The time left for all of it: a guest that sends a byte a second must not hold the try open.
        connection.settimeout(max(0.001, ends - monotonic()))
        received = connection.recv(_LONGEST_GREETING - len(heard))
        if not received:
            break
        heard += received
        for line in heard.split(b"\n")[:-1]:
            if line.startswith(banner.encode()):
                return Answered(_printable(line))
    return NotYet(f"the port answered {_printable(heard)[:80]!r}, not {banner!r}")


def _printable(line: bytes) -> str:
    """The guest chose these bytes, and people will see them on a terminal: printable ASCII only."""
    text = line.rstrip(b"\r\n")[:_LONGEST_BANNER].decode("ascii", "replace")
    return "".join(
        character if character.isascii() and character.isprintable() else "?" for character in text
    )
