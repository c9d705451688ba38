"""Links, addresses, routes, queueing disciplines and tracked connections: ip(8), tc(8), conntrack(8)."""

import ipaddress
from collections.abc import Iterator
from typing import Final
from xml.etree import ElementTree as ET

import msgspec

from node_agent.lab.leaks.target import HostTarget, TargetUnreadable

_DEFAULT_QDISCS: Final = frozenset({"noqueue", "fq_codel", "pfifo_fast", "mq", "fq"})
_OWN_ROUTES: Final = frozenset({"local", "broadcast", "multicast", "anycast"})
"""Kinds of routes that the kernel adds and removes together with an address."""


class _Kind(msgspec.Struct):
    info_kind: str = ""


class _Link(msgspec.Struct):
    ifname: str
    mtu: int = 0
    master: str = ""
    linkinfo: _Kind = msgspec.field(default_factory=_Kind)


class _Local(msgspec.Struct):
    family: str = ""
    local: str = ""
    prefixlen: int = 0
    scope: str = ""


class _Addressed(msgspec.Struct):
    ifname: str
    addr_info: list[_Local] = []


class _Route(msgspec.Struct):
    dst: str
    type: str = "unicast"
    gateway: str = ""
    dev: str = ""
    table: str = "main"


class _Rule(msgspec.Struct):
    priority: int
    src: str = ""
    srclen: int = 32
    dst: str = ""
    dstlen: int = 32
    iif: str = ""
    oif: str = ""
    fwmark: str = ""
    table: str = ""


class _Neighbour(msgspec.Struct):
    dst: str
    dev: str
    lladdr: str = ""


class _Qdisc(msgspec.Struct):
    kind: str
    dev: str
    parent: str = "root"


def links(host: HostTarget) -> Iterator[str]:
    """Yield descriptions of all links of a host except taps, which are a separate kind of object."""
    for link in _links(host):
        if link.linkinfo.info_kind != "tun":
            yield f"{link.ifname} {link.linkinfo.info_kind or 'device'} mtu={link.mtu} master={link.master or '-'}"


def taps(host: HostTarget) -> Iterator[str]:
    """Yield the names of all tap devices of a host."""
    return (link.ifname for link in _links(host) if link.linkinfo.info_kind == "tun")


def addresses(host: HostTarget) -> Iterator[str]:
    """Yield all addresses of a host's links except link-local IPv6, which the kernel adds and removes with the link."""
    for link in msgspec.json.decode(host.read("ip", "-j", "address"), type=list[_Addressed]):
        for found in link.addr_info:
            if not (found.family == "inet6" and found.scope == "link"):
                yield f"{link.ifname} {found.local}/{found.prefixlen}"


def routes(host: HostTarget) -> Iterator[str]:
    """Yield descriptions of a host's IPv4 routes, policy rules and permanent neighbour entries."""
    listing = host.read("ip", "-j", "-4", "route", "show", "table", "all")
    for route in msgspec.json.decode(listing or "[]", type=list[_Route]):
        if route.type not in _OWN_ROUTES:
            yield f"route {route.type} {route.dst} via={route.gateway or '-'} dev={route.dev or '-'} table={route.table}"
    for rule in msgspec.json.decode(host.read("ip", "-j", "-4", "rule") or "[]", type=list[_Rule]):
        yield f"rule {msgspec.json.encode(rule, order='sorted').decode()}"
    for neighbour in msgspec.json.decode(
        host.read("ip", "-j", "neighbour", "show", "nud", "permanent") or "[]", type=list[_Neighbour]
    ):
        yield f"neighbour {neighbour.dst} {neighbour.lladdr} dev={neighbour.dev}"


def disciplines(host: HostTarget) -> Iterator[str]:
    """Yield descriptions of a host's queueing disciplines (tc) that are not a default of the kernel."""
    for found in msgspec.json.decode(host.read("tc", "-j", "qdisc", "show") or "[]", type=list[_Qdisc]):
        if found.kind not in _DEFAULT_QDISCS:
            yield f"{found.dev} {found.kind} parent={found.parent}"


def connections(host: HostTarget) -> Iterator[str]:
    """Yield the tracked connections of slices: protocol, and addresses and ports of both directions."""
    slices = ipaddress.ip_network(host.slices)
    listing = host.read("conntrack", "-L", "-o", "xml").strip()
    if not listing:
        return
    try:
        root = ET.fromstring(listing)
    except ET.ParseError as error:
        raise TargetUnreadable(f"cannot parse the output of conntrack: {error}") from error
    for flow in root.iter("flow"):
        ends = [ipaddress.ip_address(end.text or "") for name in ("src", "dst") for end in flow.iter(name)]
        if any(end in slices for end in ends):
            yield _described(flow)


def _described(flow: ET.Element) -> str:
    directions = [each for each in flow.findall("meta") if each.get("direction") in {"original", "reply"}]
    return " ".join(f"{each.get('direction')} {_direction(each)}" for each in directions)


def _direction(meta: ET.Element) -> str:
    protocol = next(layer.get("protoname", "?") for layer in meta.iter("layer4"))
    ends = {
        end: next((found.text for found in meta.iter(end)), "") for end in ("src", "sport", "dst", "dport")
    }
    return f"{protocol} {ends['src']}:{ends['sport']} > {ends['dst']}:{ends['dport']}"


def _links(host: HostTarget) -> list[_Link]:
    return msgspec.json.decode(host.read("ip", "-j", "-d", "link"), type=list[_Link])
