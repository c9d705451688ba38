"""Interfaces through which the agent uses the hypervisor and the folders of the slots' virtual machines."""

from pathlib import Path
from typing import Protocol
from uuid import UUID

from node_agent.aspects.machine_plans import FoundDomain, FoundProcess
from node_agent.host.guests import DiskBoot, Guest, Hosting
from node_agent.host.host import Console
from node_agent.host.slices import SliceNetwork
from tasks.orders import RootDisk


class Hypervisor(Protocol):
    """Hypervisor of the host. Each call has a deadline.

    Reads raise `HostUnreadable`. Changes raise `HostRefused` if the hypervisor refuses them, and `HostUnreadable` if it
    does not answer: the change may have been made in that case.
    """

    def domains(self) -> tuple[FoundDomain, ...]: ...

    def processes(self) -> tuple[FoundProcess, ...]: ...

    def process(self, domain: FoundDomain) -> FoundProcess | None:
        """Return the QEMU process of a running domain, including its devices that the domain's XML does not show.

        Return None if the process has ended.
        """
        ...

    def continue_process(self, process: FoundProcess) -> None:
        """Continue a QEMU process that a signal stopped; do nothing if it runs or is gone."""
        ...

    def start(self, guest: Guest, hosting: Hosting) -> None:
        """Start a new libvirt domain.

        Raises `HostRefused` if a domain with the name or UUID exists, or if the tap, a PCI function or a file of the
        guest is missing or in use by another domain.
        """
        ...

    def shut_down(self, domain: UUID) -> None:
        """Request the guest to shut down, without waiting for it; do nothing if the domain is gone or does not run."""
        ...

    def resume(self, domain: UUID) -> None:
        """Resume a paused domain. Raises `HostUnreadable` if it is not paused any more: the snapshot is outdated."""
        ...

    def pin(self, domain: UUID, pins: tuple[str, ...]) -> None:
        """Pin the virtual CPUs of a domain to host CPUs. `pins` lists the host CPUs of each virtual CPU in order.

        Raises `HostUnreadable` if the domain does not run any more.
        """
        ...

    def destroy(self, domain: UUID) -> None:
        """Power a libvirt domain off at once and remove its definition; do nothing if it does not exist."""
        ...

    def open_display(self, domain: UUID) -> Console:
        """Open the display of a running domain, which listens on no address. Raises `ConsoleRefused` if the domain does
        not run, and `HostUnreadable`.
        """
        ...

    def open_ssh(self, domain: UUID, network: SliceNetwork) -> Console:
        """Open a connection to the SSH port of a running domain, over the bridge of its network only. Raises
        `ConsoleRefused` if the domain does not run, or if the port does not accept the connection in time.
        """
        ...

    def open_console(self, domain: UUID) -> Console:
        """Open the serial console of a running domain. Raises `ConsoleRefused` if the domain does not run, or if its
        console is open already; raises `HostUnreadable`.
        """
        ...

    def end(self, process: FoundProcess) -> None:
        """Kill a QEMU process and wait for its end; do nothing if it is gone."""
        ...


class Disks(Protocol):
    """Folders of the slots' machines. The names of folders and files, such as `slice0` and `slice0/console.log`, are
    relative to the common parent of these folders.
    """

    def path(self, name: str) -> Path: ...

    def found(self, slot: str) -> tuple[str, ...]:
        """Return the names of a slot's folder and everything in it; empty if the folder does not exist.

        A file or link in place of the folder is returned too.
        """
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file in a slot's folder atomically. The hypervisor can read the file."""
        ...

    def read_log(self, name: str, most: int) -> tuple[bytes, int]:
        """Return the last `most` bytes of a log file and of its rotated parts, and the size of all of them together.
        The log is empty if there is no such file. Raises `HostUnreadable`.
        """
        ...

    def wipe(self, slot: str) -> None:
        """Delete a slot's folder and everything in it; do nothing if the folder does not exist.

        The seeds are deleted first. They identify the guest of the log, and the rest of a log that an interrupted call
        has left must not replace the log that is kept.
        """
        ...


class KeptLogs(Protocol):
    """Serial logs of removed slices: at most one per slot, outside the slots' folders. They belong to the node, so they
    are not among the remains of a slot. Each belongs to one guest, and expires after `KEPT_LOG_SECONDS`.
    """

    def keep(self, slot: str, guest: UUID, content: bytes, size: int) -> None:
        """Keep `content`, the end of a guest's log of `size` bytes. It replaces the log that is kept for the slot.

        Raises `HostRefused`.
        """
        ...

    def find(self, slot: str, guest: UUID, most: int) -> tuple[bytes, int] | None:
        """Return the last `most` bytes of the log that is kept for the slot, and the size of the complete log; None if
        no log of this guest is kept. Raises `HostUnreadable`.
        """
        ...

    def delete_expired(self) -> None:
        """Delete the expired logs of all slots. Raises `HostRefused`."""
        ...


class RootDisks(Protocol):
    """Disk images that the node has cached, and one folder per slot with the root disk of the slot's machine.

    The names of folders and files, such as `slice0/root-UUID.qcow2`, are relative to the common parent of these
    folders. Unlike the files of `Disks`, they survive a reboot of the host.
    """

    def found(self, slot: str) -> tuple[str, ...]:
        """Return the names of a slot's folder and everything in it; empty if the folder does not exist."""
        ...

    def fetch(self, disk: RootDisk) -> None:
        """Make sure that the image of a root disk is cached: download it, and verify its size and digest.

        Raises `HostRefused` if the image cannot be used, and `HostUnreadable` while it is incomplete: a call ends after
        some seconds, and the next one continues the download.
        """
        ...

    def make(self, name: str, disk: RootDisk) -> None:
        """Create the file `name` in a slot's folder: a root disk on top of the cached image. Raises `HostRefused` if
        the image is not cached or is larger than the disk.
        """
        ...

    def wipe(self, slot: str) -> None:
        """Overwrite and delete the root disk of a slot; do nothing if its folder does not exist.

        Raises `HostUnreadable` while the disk is not completely overwritten: a call ends after some seconds, and the
        next one continues.
        """
        ...

    def boot(self, name: str, disk: RootDisk) -> DiskBoot:
        """Return the files from which a guest with the root disk `name` boots."""
        ...
