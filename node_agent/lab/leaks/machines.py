"""Libvirt domains, disks and processes that serve slices, read by virsh(1), from files and from proc(5)."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from node_agent.lab.leaks.target import HostTarget, TargetUnreadable
from node_agent.lab.namespace_access import processes_in

_SERVING: Final = ("qemu-system-", "dnsmasq", "swtpm")
_NAME_OPTION: Final = "-name"


def domains(host: HostTarget) -> Iterator[str]:
    """Return the names of all libvirt domains of a host."""
    listing = host.read("virsh", "--connect", "qemu:///system", "list", "--all", "--name")
    return (name for name in listing.splitlines() if name)


def disks(host: HostTarget) -> Iterator[str]:
    """Return every file below the folder that holds the disks of a host's slices."""
    return iter(host.files(host.disks))


def root_disks(host: HostTarget) -> Iterator[str]:
    """Return every file below the folder with the root disks of a host's slices; none without such a folder."""
    return iter(()) if host.root_disks is None else iter(host.files(host.root_disks))


def processes(host: HostTarget) -> Iterator[str]:
    """Yield the processes of a host that serve slices: QEMU with the name of its guest, and DHCP servers."""
    try:
        running = processes_in(host.pid)
    except OSError as error:
        raise TargetUnreadable(f"cannot read the PID namespace of process {host.pid}: {error}") from error
    for argv in running.values():
        program = Path(argv[0]).name
        if program.startswith(_SERVING):
            yield f"{program} {_guest(argv)}".strip()


def _guest(argv: tuple[str, ...]) -> str:
    follower = dict(pairwise(argv)).get(_NAME_OPTION, "")
    return follower.partition(",")[0]
