"""DHCP by dnsmasq: one file per reservation, and its lease file as evidence.

A reservation is a file `hosts/<slot's tap>`, `mac,ip`, which dnsmasq notices by itself. It carries no tag: dnsmasq 2.90
aborts at SIGHUP over one. A deleted file ends its reservation at SIGHUP and not before, and so do the former lines of
one that was written anew. So its files say what it serves only once it read them since their last change: whoever looks
makes sure of that first. An agent that died between the two, or somebody who added a file and took it away, would else
leave a reservation that is served and that no file shows. A lease is cleared by a
DHCPRELEASE (RFC 2131, 4.4.6) from the gateway to itself, so that dnsmasq's memory and its file change together. What
somebody wrote into the file is not in that memory, and is struck from the file while dnsmasq is held still.
"""

import os
import shutil
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path
from time import monotonic
from typing import Final

import structlog

from events.values import Ipv4Address, MacAddress
from node_agent.drivers.dhcp_files import (
    FILE_MODE,
    ForeignFile,
    foreign_files,
    line_of,
    make_folder,
    remove,
    reservations_of,
)
from node_agent.drivers.dnsmasq import Dnsmasq
from node_agent.drivers.links import NetlinkLinks
from node_agent.gateway import NodeNetwork
from node_agent.leases import LeaseSeen, Reservation
from node_agent.looks import look, look_again
from node_agent.slices import HostRefused, HostUnreadable

log = structlog.get_logger(__name__)

PAUSE: Final = 0.005
"""Seconds between two looks at the lease file while a release takes effect."""
SETTLED: Final = 0.05
"""Seconds since its last change after which the lease file is whole, and a folder's next change bears another time."""
HEEDED: Final = 0.1
"""Seconds after which a lease that was released again and again is one that the server does not know."""
Stand = frozenset[tuple[str, int, int]]
"""A folder and its files by name, inode and the time of its last change, which nobody can set back (inode(7))."""


class DnsmasqLeases:
    """`folder` is made if it is missing and must be reachable for the user dnsmasq, so not within a private one."""

    def __init__(
        self,
        folder: Path,
        network: NodeNetwork,
        links: NetlinkLinks,
        ended: Callable[[], None] = lambda: None,
        deadline: float = 5.0,
    ) -> None:
        self._hosts, self._file = folder / "hosts", folder / "leases"
        self._network, self._deadline = network, deadline
        self._server = Dnsmasq(folder, links.index, ended, deadline)
        self._heeded: Stand | None = None
        """How the reservations stood when the server was last told to read them; nobody knows of an earlier agent's."""

        self._compared: tuple[Stand, tuple[ForeignFile, ...]] | None = None
        """The foreign files among the reservations as they stood then."""

    def close(self) -> None:
        self._server.close()

    def stop(self) -> None:
        self._server.stop()

    @property
    def folders(self) -> tuple[Path, Path]:
        """Of the reservations, and of the leases; they are there once it serves."""
        return self._hosts, self._file.parent

    def missing(self) -> tuple[str, ...]:
        return () if shutil.which("dnsmasq") else ("program dnsmasq",)

    def serves(self, network: NodeNetwork) -> bool:
        return look((self, "serves", network), lambda: self._server.serves(network))

    def serve(self, network: NodeNetwork) -> None:
        look_again(self)
        try:
            make_folder(self._hosts)
        except OSError as error:
            raise HostRefused(f"make {self._hosts}: {error}") from error
        self._server.serve(network)

    def foreign_files(self) -> tuple[str, ...]:
        return tuple(
            f"file {each.path.name}, {each.why}"
            for each in look((self, "foreign files"), self._foreign_files)
        )

    def remove_foreign_files(self) -> None:
        look_again(self)
        try:
            for each in foreign_files(self._hosts):
                log.warning("foreign_dhcp_file_removed", path=str(each.path), why=each.why)
                if each.path != self._hosts:
                    remove(each.path)
            make_folder(self._hosts)
            self._be_heeded()
        except OSError as error:
            raise HostRefused(f"remove foreign files from {self._hosts}: {error}") from error

    def foreign_servers(self, network: NodeNetwork) -> tuple[str, ...]:
        return look((self, "foreign servers", network), lambda: self._server.foreign(network))

    def reservations(self) -> frozenset[Reservation]:
        return look((self, "reservations"), self._heeded_reservations)

    def leases(self) -> frozenset[LeaseSeen]:
        return look((self, "leases"), self._leases)

    def reserve(self, reservation: Reservation) -> None:
        held = self._reservations()
        if any(
            r.name == reservation.name or r.mac == reservation.mac or r.ip == reservation.ip for r in held
        ):
            raise HostRefused(f"reserve {reservation.ip} for {reservation.mac}: reserved already")
        look_again(self)
        try:
            make_folder(self._hosts)
            # dnsmasq passes over a name that begins with a dot, and reads the file when it takes its real name.
            draft = self._hosts / f".{reservation.name}"
            draft.write_text(line_of(reservation))
            draft.chmod(FILE_MODE)
            draft.rename(self._hosts / reservation.name)
        except OSError as error:
            raise HostRefused(f"reserve {reservation.ip}: {error}") from error

    def withdraw(self, reservation: Reservation) -> None:
        look_again(self)
        try:
            remove(self._hosts / reservation.name)
            self._be_heeded()
        except OSError as error:
            raise HostRefused(f"withdraw {reservation.ip}: {error}") from error

    def clear(self, lease: LeaseSeen) -> None:
        look_again(self)
        # Held, or a server that comes back meanwhile has read the lease already, and writes it down again.
        with self._server.held() as runs:
            if not runs:
                self._strike(lease)
        began = monotonic()
        while _of(lease, self._leases()):
            waited = monotonic() - began
            if waited > self._deadline:
                raise HostRefused(f"dnsmasq keeps the lease of {lease.ip} to {lease.mac}")
            if waited > HEEDED:
                self._strike_beside_it(lease)
            else:
                self._release(lease)
            time.sleep(PAUSE)

    def _heeded_reservations(self) -> frozenset[Reservation]:
        try:
            self._be_heeded()
        except OSError as error:
            raise HostUnreadable(f"reservations in {self._hosts}: {error}") from error
        return self._reservations()

    def _be_heeded(self) -> None:
        """Have the server read the reservations anew if they changed since it was told to. Raises `OSError`.

        It handles a signal before any packet that comes after it, and one that does not run reads them when it starts.
        """
        began, stand = time.time(), self._stand()
        if stand == self._heeded:
            return
        self._server.hang_up()
        self._heeded = stand if _is_settled(stand, began) else None

    def _foreign_files(self) -> tuple[ForeignFile, ...]:
        try:
            began, stand = time.time(), self._stand()
            if self._compared is None or self._compared[0] != stand:
                found = foreign_files(self._hosts)
                self._compared = (stand, found) if _is_settled(stand, began) else None
                return found
        except OSError as error:
            raise HostUnreadable(f"reservations in {self._hosts}: {error}") from error
        return self._compared[1]

    def _stand(self) -> Stand:
        return frozenset(
            (path.name, stat.st_ino, stat.st_ctime_ns)
            for path in (self._hosts, *self._hosts.glob("*"))
            if (stat := _stat(path)) is not None
        )

    def _reservations(self) -> frozenset[Reservation]:
        try:
            return frozenset(reservations_of(self._hosts))
        except OSError as error:
            raise HostUnreadable(f"reservations in {self._hosts}: {error}") from error

    def _leases(self) -> frozenset[LeaseSeen]:
        try:
            lines = self._written().splitlines()
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError) as error:
            raise HostUnreadable(f"lease file {self._file}: {error}") from error
        return frozenset(seen for line in lines if (seen := _lease(line, time.time())))

    def _written(self) -> str:
        """The lease file, and not what stands there while dnsmasq writes it anew, which empties it first."""
        ends = monotonic() + self._deadline
        while True:
            text = self._file.read_text()
            # Asked afterwards, or it could have been emptied in between; a clock that was set back puts it ahead.
            if abs(time.time() - self._file.stat().st_mtime) >= SETTLED:
                return text
            if monotonic() > ends:
                raise OSError("it does not stop changing")
            time.sleep(PAUSE)

    def _release(self, lease: LeaseSeen) -> None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
                # By way of the bridge's device, although it never leaves the host: dnsmasq listens there alone.
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._network.bridge.encode())
                wire.sendto(release_message(lease, self._network.gateway), (self._network.gateway, 67))
        except OSError as error:
            raise HostRefused(f"release {lease.ip}: {error}") from error

    def _strike(self, lease: LeaseSeen) -> None:
        """Take the lease out of the file of a server that does not run."""
        draft = self._file.with_suffix(".draft")
        try:
            draft.write_text(_without(lease, self._file.read_text()))
            draft.rename(self._file)
        except OSError as error:
            raise HostRefused(f"strike the lease of {lease.ip}: {error}") from error

    def _strike_beside_it(self, lease: LeaseSeen) -> None:
        """The same while the server runs, which appends to the file that it opened."""
        log.warning("lease_unknown_to_server", ip=lease.ip, mac=lease.mac)
        try:
            # Stopped while it writes the file anew, it has emptied it before, and the line is not there.
            with self._server.held_still(), self._file.open("r+") as file:
                kept = _without(lease, file.read())
                file.seek(0)
                file.write(kept)
                file.truncate()
        except OSError as error:
            raise HostRefused(f"strike the lease of {lease.ip}: {error}") from error


def release_message(lease: LeaseSeen, server: Ipv4Address) -> bytes:
    """A DHCPRELEASE of `lease` (RFC 2131, 2 and RFC 2132, 9.6 and 9.7)."""
    chaddr = bytes.fromhex(lease.mac.replace(":", ""))
    head = struct.pack(
        "!BBBBIHH4s12x16s192x",
        1,
        1,
        6,
        0,
        int.from_bytes(os.urandom(4)),
        0,
        0,
        IPv4Address(lease.ip).packed,
        chaddr,
    )
    return head + b"\x63\x82\x53\x63" + b"\x35\x01\x07" + b"\x36\x04" + IPv4Address(server).packed + b"\xff"


def _is_settled(stand: Stand, now: float) -> bool:
    """Whether the newest change is more than a clock tick away: a second change within the tick is not visible."""
    latest = max(changed for _, _, changed in stand) / 1e9 if stand else 0.0
    return abs(now - latest) >= SETTLED


def _stat(path: Path) -> os.stat_result | None:
    """None if it is gone: its folder bears the time at which it went."""
    with suppress(FileNotFoundError):
        return path.stat()
    return None


def _lease(line: str, now: float) -> LeaseSeen | None:
    """A line of the lease file, `expiry mac ip name client-id`, with 0 for never; None for what is not IPv4."""
    match line.split():
        case [expiry, mac, ip, _, _] if expiry.isdigit() and ":" not in ip:
            return LeaseSeen(MacAddress(mac.lower()), Ipv4Address(ip), expired=0 < int(expiry) < now)
        case _:
            return None


def _same(seen: LeaseSeen | None, lease: LeaseSeen) -> bool:
    return seen is not None and (seen.mac, seen.ip) == (lease.mac, lease.ip)


def _without(lease: LeaseSeen, content: str) -> str:
    """The lines of the file but for those of a lease."""
    lines = content.splitlines(keepends=True)
    return "".join(line for line in lines if not _same(_lease(line, 0.0), lease))


def _of(lease: LeaseSeen, seen: frozenset[LeaseSeen]) -> bool:
    return any(_same(each, lease) for each in seen)
