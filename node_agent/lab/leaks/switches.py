"""Ports, flows, meters and QoS records of Open vSwitch, read with ovs-vsctl(8) and ovs-ofctl(8)."""

from collections.abc import Iterator
from typing import Final

import msgspec

from node_agent.lab.leaks.target import HostTarget

_PROTOCOLS: Final = "--protocols=OpenFlow10,OpenFlow13,OpenFlow15"


class _Table(msgspec.Struct):
    """Output of `ovs-vsctl --format=json`: column values are strings, numbers, or tagged lists (RFC 7047, 5.1)."""

    headings: list[str]
    data: list[list[object]]


def ports(host: HostTarget) -> Iterator[str]:
    """Yield all Open vSwitch bridges of a host and their ports."""
    for bridge in _bridges(host):
        yield bridge
        yield from (f"{bridge}/{port}" for port in _vsctl(host, "list-ports", bridge).split())


def flows(host: HostTarget) -> Iterator[str]:
    """Yield the OpenFlow flows of all bridges: match, actions and port names, without ages and counters."""
    for bridge in _bridges(host):
        listing = _ofctl(host, "--names", "--no-stats", "dump-flows", bridge)
        yield from (f"{bridge}: {flow.strip()}" for flow in listing.splitlines() if "actions=" in flow)


def meters(host: HostTarget) -> Iterator[str]:
    """Yield the OpenFlow meters of all bridges."""
    for bridge in _bridges(host):
        listing = _ofctl(host, "dump-meters", bridge)
        yield from (f"{bridge}: {line.strip()}" for line in listing.splitlines() if line.startswith("meter="))


def rates(host: HostTarget) -> Iterator[str]:
    """Yield Open vSwitch's QoS and queue records (kept when their port is deleted) and interfaces' policing rates."""
    for table in ("QoS", "Queue"):
        yield from (f"{table} {row}" for row in _rows(host, table, "_uuid", "other_config"))
    policed = _rows(host, "Interface", "name", "ingress_policing_rate", "ingress_policing_burst")
    yield from (f"Interface {row}" for row in policed if not row.endswith(",0,0]"))


def _rows(host: HostTarget, table: str, *columns: str) -> Iterator[str]:
    listing = _vsctl(host, "--format=json", f"--columns={','.join(columns)}", "list", table)
    if listing.strip():
        for row in msgspec.json.decode(listing, type=_Table).data:
            yield msgspec.json.encode(row, order="sorted").decode()


def _bridges(host: HostTarget) -> list[str]:
    return _vsctl(host, "list-br").split()


def _vsctl(host: HostTarget, *arguments: str) -> str:
    return host.read("ovs-vsctl", "--timeout=5", *arguments)


def _ofctl(host: HostTarget, *arguments: str) -> str:
    return host.read("ovs-ofctl", "--timeout=5", _PROTOCOLS, *arguments)
