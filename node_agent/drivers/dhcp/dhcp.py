"""DHCP through dnsmasq: one file per reservation, and dnsmasq's lease file as the evidence of leases.

A reservation is a file `hosts/<tap of the slot>` with the content `mac,ip`, which dnsmasq loads when it appears. The
file has no dnsmasq tag, because dnsmasq 2.90 aborts at SIGHUP if a reservation has a tag. dnsmasq drops the reservation
of a deleted file, and the previous lines of a rewritten file, only at SIGHUP. The files therefore match the
reservations that dnsmasq serves only if dnsmasq reloaded them after their last change, and every read first ensures
that. Otherwise dnsmasq could serve a reservation without a file: after an agent died between a change and the SIGHUP,
or after another program added and removed a file.

A lease is cleared by a DHCPRELEASE (RFC 2131, 4.4.6) that the gateway sends to itself, so that dnsmasq's memory and its
lease file change together. A lease that another program wrote into the lease file is not in dnsmasq's memory; the lease
is removed from the file while dnsmasq is suspended.
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
from node_agent.aspects.gateway import NodeNetwork
from node_agent.aspects.leases import ObservedLease, Reservation
from node_agent.drivers.dhcp.dhcp_files import (
    FILE_MODE,
    ForeignFile,
    foreign_files,
    line_of,
    make_folder,
    remove,
    reservations_of,
)
from node_agent.drivers.dhcp.dnsmasq import Dnsmasq
from node_agent.drivers.network.links import NetlinkLinks
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.host.snapshots import invalidate_reads, look

log = structlog.get_logger(__name__)

PAUSE: Final = 0.005
"""Seconds between two reads of the lease file while a release takes effect."""
SETTLED: Final = 0.05
"""Seconds after which a changed lease file is completely written, and a further change gets a different time stamp."""
RELEASE_SECONDS: Final = 0.1
"""Seconds during which the release of a lease (DHCPRELEASE) is repeated. If the lease is in the lease file afterwards,
it is considered absent from dnsmasq's memory."""
FolderState = frozenset[tuple[str, int, int]]
"""State of a folder and its files: the name, inode and ctime of each, by which a change is detected. Programs cannot
set the ctime back (inode(7)).
"""


class DnsmasqLeases:
    """Reservations and leases of one dnsmasq server.

    `folder` is created if it is missing. The user `dnsmasq` must be able to access it, so none of its parent folders
    may be private.
    """

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
        self._loaded: FolderState | None = None
        """State of the reservation folder at the last reload that this process requested; None if it requested none."""
        self._compared: tuple[FolderState, tuple[ForeignFile, ...]] | None = None
        """The reservation folder's state at the last search for foreign files, and the files found; None if the folder
        must be searched again."""

    def close(self) -> None:
        self._server.close()

    def stop(self) -> None:
        self._server.stop()

    @property
    def folders(self) -> tuple[Path, Path]:
        """Folder of the reservation files and folder of the lease file. Both exist once dnsmasq runs."""
        return self._hosts, self._file.parent

    def missing(self) -> tuple[str, ...]:
        return () if shutil.which("dnsmasq") else ("program dnsmasq",)

    def serves(self, network: NodeNetwork) -> bool:
        return look((self, "serves", network), lambda: self._server.serves(network))

    def serve(self, network: NodeNetwork) -> None:
        invalidate_reads(self)
        try:
            make_folder(self._hosts)
        except OSError as error:
            raise HostRefused(f"cannot create folder {self._hosts}: {error}") from error
        self._server.serve(network)

    def foreign_files(self) -> tuple[str, ...]:
        return tuple(
            f"file {each.path.name}, {each.reason}"
            for each in look((self, "foreign files"), self._foreign_files)
        )

    def remove_foreign_files(self) -> None:
        invalidate_reads(self)
        try:
            for each in foreign_files(self._hosts):
                log.warning("foreign_dhcp_reservation_file_removed", path=str(each.path), reason=each.reason)
                if each.path != self._hosts:
                    remove(each.path)
            make_folder(self._hosts)
            self._ensure_loaded()
        except OSError as error:
            raise HostRefused(f"cannot remove foreign files from {self._hosts}: {error}") from error

    def foreign_servers(self, network: NodeNetwork) -> tuple[str, ...]:
        return look((self, "foreign servers", network), lambda: self._server.foreign(network))

    def reservations(self) -> frozenset[Reservation]:
        return look((self, "reservations"), self._loaded_reservations)

    def leases(self) -> frozenset[ObservedLease]:
        return look((self, "leases"), self._leases)

    def reserve(self, reservation: Reservation) -> None:
        held = self._reservations()
        if any(
            r.name == reservation.name or r.mac == reservation.mac or r.ip == reservation.ip for r in held
        ):
            raise HostRefused(
                f"cannot reserve {reservation.ip} for {reservation.mac} as {reservation.name}: the name, MAC or address "
                "is reserved already; withdraw the existing reservation first"
            )
        invalidate_reads(self)
        try:
            make_folder(self._hosts)
            # dnsmasq ignores names that begin with a dot, and loads the file when it is renamed to its final name.
            draft = self._hosts / f".{reservation.name}"
            draft.write_text(line_of(reservation))
            draft.chmod(FILE_MODE)
            draft.rename(self._hosts / reservation.name)
        except OSError as error:
            raise HostRefused(f"cannot write the DHCP reservation of {reservation.ip}: {error}") from error

    def withdraw(self, reservation: Reservation) -> None:
        invalidate_reads(self)
        try:
            remove(self._hosts / reservation.name)
            self._ensure_loaded()
        except OSError as error:
            raise HostRefused(f"cannot withdraw the DHCP reservation of {reservation.ip}: {error}") from error

    def clear(self, lease: ObservedLease) -> None:
        invalidate_reads(self)
        # Prevent a start of the server during the edit: it would have read the lease before and would write it again.
        with self._server.locked() as is_running:
            if not is_running:
                self._remove_from_file(lease)
        began = monotonic()
        while _contains(self._leases(), lease):
            waited = monotonic() - began
            if waited > self._deadline:
                raise HostRefused(
                    f"dnsmasq did not remove the DHCP lease of {lease.ip} to {lease.mac} within {self._deadline:g} s"
                )
            if waited > RELEASE_SECONDS:
                self._remove_from_open_file(lease)
            else:
                self._send_release(lease)
            time.sleep(PAUSE)

    def _loaded_reservations(self) -> frozenset[Reservation]:
        try:
            self._ensure_loaded()
        except OSError as error:
            raise HostUnreadable(f"cannot read the DHCP reservations in {self._hosts}: {error}") from error
        return self._reservations()

    def _ensure_loaded(self) -> None:
        """Make dnsmasq reload the reservation files if they changed since the last reload. Raises `OSError`.

        dnsmasq handles SIGHUP before any packet that arrives later. If dnsmasq is not running, it loads the files when
        it starts.
        """
        began, state = time.time(), self._folder_state()
        if state == self._loaded:
            return
        self._server.reload()
        self._loaded = state if _is_settled(state, began) else None

    def _foreign_files(self) -> tuple[ForeignFile, ...]:
        try:
            began, state = time.time(), self._folder_state()
            if self._compared is None or self._compared[0] != state:
                found = foreign_files(self._hosts)
                self._compared = (state, found) if _is_settled(state, began) else None
                return found
        except OSError as error:
            raise HostUnreadable(f"cannot read the DHCP reservations in {self._hosts}: {error}") from error
        return self._compared[1]

    def _folder_state(self) -> FolderState:
        return frozenset(
            (path.name, stat.st_ino, stat.st_ctime_ns)
            for path in (self._hosts, *self._hosts.glob("*"))
            if (stat := _stat(path)) is not None
        )

    def _reservations(self) -> frozenset[Reservation]:
        try:
            return frozenset(reservations_of(self._hosts))
        except OSError as error:
            raise HostUnreadable(f"cannot read the DHCP reservations in {self._hosts}: {error}") from error

    def _leases(self) -> frozenset[ObservedLease]:
        try:
            lines = self._lease_file().splitlines()
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError) as error:
            raise HostUnreadable(f"cannot read the DHCP lease file {self._file}: {error}") from error
        return frozenset(seen for line in lines if (seen := _lease(line, time.time())))

    def _lease_file(self) -> str:
        """Return the complete content of dnsmasq's lease file. Raises `OSError`.

        dnsmasq empties the file before it rewrites it, so a recently changed file is read again.
        """
        ends = monotonic() + self._deadline
        while True:
            text = self._file.read_text()
            # Compared after the read, because the file could be emptied in between. The absolute value covers a clock
            # that was set back, which makes the time stamp lie in the future.
            if abs(time.time() - self._file.stat().st_mtime) >= SETTLED:
                return text
            if monotonic() > ends:
                raise OSError("dnsmasq rewrites the lease file too often to read it completely")
            time.sleep(PAUSE)

    def _send_release(self, lease: ObservedLease) -> None:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire:
                # dnsmasq receives only on the bridge's device, although this packet does not leave the host.
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._network.bridge.encode())
                wire.sendto(release_message(lease, self._network.gateway), (self._network.gateway, 67))
        except OSError as error:
            raise HostRefused(f"cannot release the DHCP lease of {lease.ip}: {error}") from error

    def _remove_from_file(self, lease: ObservedLease) -> None:
        """Remove a lease from dnsmasq's lease file while dnsmasq is not running."""
        draft = self._file.with_suffix(".draft")
        try:
            draft.write_text(_without(lease, self._file.read_text()))
            draft.rename(self._file)
        except OSError as error:
            raise HostRefused(
                f"cannot remove the DHCP lease of {lease.ip} from {self._file}: {error}"
            ) from error

    def _remove_from_open_file(self, lease: ObservedLease) -> None:
        """Remove a lease from dnsmasq's lease file in place, because a running dnsmasq keeps the file open."""
        log.warning("dhcp_lease_unknown_to_server", ip=lease.ip, mac=lease.mac)
        try:
            # If the server is suspended during a rewrite, it has already emptied the file, so the lease is not in it.
            with self._server.suspended(), self._file.open("r+") as file:
                kept = _without(lease, file.read())
                file.seek(0)
                file.write(kept)
                file.truncate()
        except OSError as error:
            raise HostRefused(
                f"cannot remove the DHCP lease of {lease.ip} from {self._file}: {error}"
            ) from error


def release_message(lease: ObservedLease, server: Ipv4Address) -> bytes:
    """Encode a DHCPRELEASE of `lease` (RFC 2131, 2 and RFC 2132, 9.6 and 9.7)."""
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


def _is_settled(state: FolderState, now: float) -> bool:
    """Return whether the newest file change in `state` is so old that no later change can have the same time stamp."""
    latest = max(changed for _, _, changed in state) / 1e9 if state else 0.0
    return abs(now - latest) >= SETTLED


def _stat(path: Path) -> os.stat_result | None:
    """Return the status of a file (stat(2)), or None if the file was deleted; its folder then has a new ctime."""
    with suppress(FileNotFoundError):
        return path.stat()
    return None


def _lease(line: str, now: float) -> ObservedLease | None:
    """Parse a line `expiry mac ip name client-id` of dnsmasq's lease file; return None if a line has another form.

    An expiry of 0 means that the lease never expires.
    """
    match line.split():
        case [expiry, mac, ip, _, _] if expiry.isdigit() and ":" not in ip:
            return ObservedLease(MacAddress(mac.lower()), Ipv4Address(ip), expired=0 < int(expiry) < now)
        case _:
            return None


def _same(seen: ObservedLease | None, lease: ObservedLease) -> bool:
    return seen is not None and (seen.mac, seen.ip) == (lease.mac, lease.ip)


def _without(lease: ObservedLease, content: str) -> str:
    """Return `content`, the text of dnsmasq's lease file, without the lines of this lease."""
    lines = content.splitlines(keepends=True)
    return "".join(line for line in lines if not _same(_lease(line, 0.0), lease))


def _contains(leases: frozenset[ObservedLease], lease: ObservedLease) -> bool:
    return any(_same(each, lease) for each in leases)
