"""dnsmasq's files: reservations a line each in its hosts folder, and leases (dnsmasq(8), --dhcp-hostsdir)."""

from collections.abc import Iterator
from typing import Final

from node_agent.lab.leaks.target import HostTarget

_LEASE_FIELDS: Final = 5


def reservations(host: HostTarget) -> Iterator[str]:
    for name, file in host.files(host.dhcp_hosts).items():
        for line in file.read_text(errors="replace").splitlines():
            if line.strip():
                yield f"{name}: {line.strip()}"


def leases(host: HostTarget) -> Iterator[str]:
    """MAC, address and name of every lease; when it ends is left out. No file means no lease."""
    file = host.path(host.dhcp_leases)
    if not file.exists():
        return
    for line in file.read_text(errors="replace").splitlines():
        fields = line.split()
        if len(fields) == _LEASE_FIELDS:
            yield " ".join(fields[1:4])
