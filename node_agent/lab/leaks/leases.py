"""Reservations and leases in dnsmasq's files (dnsmasq(8), --dhcp-hostsdir). A reservation is one line of a file."""

from collections.abc import Iterator
from typing import Final

from node_agent.lab.leaks.target import HostTarget

_LEASE_FIELDS: Final = 5


def reservations(host: HostTarget) -> Iterator[str]:
    """Yield the reservations in all files of dnsmasq's hosts folder."""
    for name, file in host.files(host.dhcp_hosts).items():
        for line in file.read_text(errors="replace").splitlines():
            if line.strip():
                yield f"{name}: {line.strip()}"


def leases(host: HostTarget) -> Iterator[str]:
    """Yield MAC address, IP address and name of every lease of dnsmasq. A missing lease file means no leases."""
    file = host.path(host.dhcp_leases)
    if not file.exists():
        return
    for line in file.read_text(errors="replace").splitlines():
        fields = line.split()
        if len(fields) == _LEASE_FIELDS:
            yield " ".join(fields[1:4])
