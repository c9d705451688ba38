"""What other tables of the packet filter do to packets that are the slices': rules that send them elsewhere (DNAT).

Others have their rules on a node too (Docker, iptables), and nobody touches them: they are told of when one sends into
the slices' network, or takes what comes to a way in that a slice has. Which of two translations wins depends on who
came first, and no plan of ours decides that.

What cannot be seen counts as any: a named set or map of addresses, and conditions of the chains before.
"""

import ipaddress
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from node_agent.rules import MAPPING, Rule
from node_agent.slices import Difference

_DIVERTING: Final = ("dnat", "redirect")
_PROTOCOLS: Final = ("tcp", "udp")
_TABLE: Final = re.compile(r"table (\S+ \S+) \{")
_SENDS: Final = re.compile(r" dnat (?:ip )?to (\d[\d.]*)(?:-(\d[\d.]*))?\S* .*# handle (\d+)$")
_ANYWHERE: Final = "0.0.0.0/0"
Ports = tuple[tuple[int, int], ...]
Targets = dict[tuple[str, int], tuple[str, ...]]
"""Where rules send to, as networks, by their tables and handles."""


@dataclass(frozen=True, slots=True)
class Diversion:
    """A rule that sends packets elsewhere, by its table and the handle that it has there.

    `of` are the addresses that it takes packets of and `to` those that it sends them to, as IPv4 networks; `ports` are
    ranges, first and last, of a `protocol`. Nothing at all stands for any. `is_opaque`: the listing in JSON does not
    say where to.
    """

    table: str
    chain: str
    handle: int
    of: tuple[str, ...] = ()
    protocol: str | None = None
    ports: Ports = ()
    to: tuple[str, ...] = ()
    is_opaque: bool = False

    def __str__(self) -> str:
        return f"{self.table} {self.chain} to {', '.join(map(_host_or_network, self.to)) or 'elsewhere'}"


def diversion(table: str, chain: str, handle: int, body: Iterable[Any]) -> Diversion | None:
    """What a rule with this body (libnftables-json(5)) diverts; None where it diverts no IPv4 packet."""
    verdicts = [each for each in body if _diverts(each)]
    if not verdicts:
        return None
    matches = [each["match"] for each in body if "match" in each and each["match"]["op"] in {"==", "in"}]
    of, protocol, ports = tuple[str, ...](), None, Ports()
    for match in matches:
        field = match["left"].get("payload", {}) if isinstance(match["left"], dict) else {}
        match field.get("protocol"), field.get("field"):
            case "ip", "daddr":
                of = tuple(_networks(match["right"]))
            case named, "dport":
                protocol = named if named in _PROTOCOLS else None
                ports = tuple(_ports(match["right"]))
            case _:
                pass
    is_opaque, to = "xt" in verdicts[0], tuple(_networks(verdicts))
    if not to and "addr" in (verdicts[0].get("dnat") or {}):
        to = (_ANYWHERE,)
    return Diversion(table, chain, handle, of, protocol, ports, to, is_opaque)


def targets(listing: str) -> Targets:
    """Where rules send to, by a listing for people with handles (nft(8), `-a`): it translates those of iptables."""
    table, found = "", Targets()
    for line in listing.splitlines():
        if begins := _TABLE.match(line):
            table = begins[1]
        elif sends := _SENDS.search(line):
            found[table, int(sends[3])] = tuple(_range(sends[1], sends[2] or sends[1]))
    return found


def rivals(others: Iterable[Diversion], own: Iterable[Rule], subnet: str) -> Difference | None:
    """Those that send into the slices' network, or take what comes to a mapping of one."""
    mapped = [_own(rule) for rule in own if rule.chain == MAPPING]
    ways = [each for each in mapped if each is not None]
    found = [each for each in others if _meet(each.to, (subnet,)) or any(_takes(each, way) for way in ways)]
    if not found:
        return None
    return Difference(
        "rules.rival",
        f"no other translation into {subnet}, or of what comes to a slice",
        "; ".join(sorted(map(str, found))),
    )


def _own(rule: Rule) -> Diversion | None:
    return diversion("", rule.chain, 0, json.loads(rule.body))


def _takes(other: Diversion, way: Diversion) -> bool:
    if other.of and not _meet(other.of, way.of):
        return False
    if None not in (other.protocol, way.protocol) and other.protocol != way.protocol:
        return False
    return not (other.ports and way.ports) or any(
        first <= last_ and first_ <= last for first, last in other.ports for first_, last_ in way.ports
    )


def _meet(networks: Iterable[str], others: Iterable[str]) -> bool:
    ours = [*map(ipaddress.IPv4Network, others)]
    return any(ipaddress.IPv4Network(each).overlaps(our) for each in networks for our in ours)


def _diverts(statement: dict[str, Any]) -> bool:
    if "xt" in statement:
        # A rule of iptables; a listing that does not even say what it does tells nothing here.
        return (statement["xt"] or {}).get("name") in {"DNAT", "REDIRECT"}
    verdict = next((statement[each] or {} for each in _DIVERTING if each in statement), None)
    return verdict is not None and verdict.get("family") != "ip6"


def _networks(value: Any) -> Iterator[str]:
    """All IPv4 addresses in a value, however it is written."""
    match value:
        case str():
            yield from _network(value)
        case {"prefix": {"addr": str() as address, "len": int() as length}}:
            yield from _network(f"{address}/{length}")
        case {"range": [str() as first, str() as last]}:
            yield from _range(first, last)
        case dict():
            for each in value.values():
                yield from _networks(each)
        case list():
            for each in value:
                yield from _networks(each)
        case _:
            pass


def _network(text: str) -> Iterator[str]:
    try:
        yield str(ipaddress.IPv4Network(text))
    except ValueError:
        return


def _range(first: str, last: str) -> Iterator[str]:
    try:
        ends = ipaddress.IPv4Address(first), ipaddress.IPv4Address(last)
    except ValueError:
        return
    yield from map(str, ipaddress.summarize_address_range(*ends))


def _ports(value: Any) -> Iterator[tuple[int, int]]:
    match value:
        case int():
            yield value, value
        case {"range": [int() as first, int() as last]}:
            yield first, last
        case {"set": list() as members}:
            for each in members:
                yield from _ports(each)
        case _:
            pass


def _host_or_network(network: str) -> str:
    return network.removesuffix("/32")
