"""Readiness probe: one attempt to connect to a slice's port and to receive the banner of its image (ALC-9).

A probe is one bounded attempt; the caller decides how often and until when to repeat it. The agent probes from the
gateway's address over the bridge, so the guest itself answers, and not a proxy in front of it.
"""

import socket
from dataclasses import dataclass
from time import monotonic
from typing import Final

from events.values import Ipv4Address
from node_agent.host.host import Answered, NotYet

_LONGEST_GREETING: Final = 4096
"""Maximum number of bytes that a probe reads in search of the banner. An SSH server may send other lines before its
version (RFC 4253 section 4.2)."""
_LONGEST_BANNER: Final = 255


@dataclass(frozen=True, slots=True)
class BannerProbe:
    """Readiness probe that connects to a port and waits for a banner; implements `node_agent.host.host.Probe`.

    One attempt takes at most `seconds`. An empty `banner` requires an open port only.
    """

    seconds: float = 2.0

    def __call__(self, address: Ipv4Address, port: int, banner: str) -> Answered | NotYet:
        deadline = monotonic() + self.seconds
        try:
            with socket.create_connection((address, port), timeout=self.seconds) as connection:
                return _read_banner(connection, banner, deadline) if banner else Answered("")
        except TimeoutError:
            return NotYet(f"the readiness port {port} did not answer within {self.seconds:g} s")
        except OSError as error:
            return NotYet(f"cannot connect to the readiness port {port}: {error.strerror or error}")


def _read_banner(connection: socket.socket, banner: str, deadline: float) -> Answered | NotYet:
    greeting = b""
    while len(greeting) < _LONGEST_GREETING:
        # The timeout is the time left for the whole attempt, so that a guest that sends one byte per second cannot
        # prolong it.
        connection.settimeout(max(0.001, deadline - monotonic()))
        received = connection.recv(_LONGEST_GREETING - len(greeting))
        if not received:
            break
        greeting += received
        for line in greeting.split(b"\n")[:-1]:
            if line.startswith(banner.encode()):
                return Answered(_printable(line))
    return NotYet(f"the readiness port answered {_printable(greeting)[:80]!r}, not {banner!r}")


def _printable(line: bytes) -> str:
    """Return a line of a guest's banner as printable ASCII, so that it cannot contain terminal control sequences."""
    text = line.rstrip(b"\r\n")[:_LONGEST_BANNER].decode("ascii", "replace")
    return "".join(
        character if character.isascii() and character.isprintable() else "?" for character in text
    )
