"""Conversion of `iptables-save` output to the JSON form in which nftables lists its rules.

nftables does not list rules of iptables-legacy at all, and lists those of iptables-nft without the parameters of their
matches and targets. A match that is not supported here keeps only its name, and counts as matching some packets.
"""

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from node_agent.packets.foreign_rules import ForeignRule, ForeignTable
from node_agent.packets.rules import Chain, Policy

_HOOKS: Final = {
    "PREROUTING": "prerouting", "INPUT": "input", "FORWARD": "forward", "OUTPUT": "output",
    "POSTROUTING": "postrouting",
}  # fmt: skip
_PRIORITIES: Final = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
_SOURCE_NAT: Final = 100
_POLICIES: Final[dict[str, Policy]] = {"ACCEPT": "accept", "DROP": "drop"}
_VERDICTS: Final = {"ACCEPT": "accept", "DROP": "drop", "RETURN": "return"}
_TARGETS: Final = {
    "REJECT": "reject", "NFQUEUE": "queue", "QUEUE": "queue", "TPROXY": "tproxy", "DNAT": "dnat",
    "REDIRECT": "redirect", "NETMAP": "dnat", "SNAT": "snat", "NOTRACK": "notrack", "TEE": "dup",
    "SYNPROXY": "synproxy",
}  # fmt: skip
_ADDRESSES: Final = {"--to-destination", "--to-source", "--to", "--gateway"}

Statement = dict[str, Any]


def tables(saved: str, program: str) -> tuple[ForeignTable, ...]:
    """Parse the tables in `iptables-save` output.

    `program` is the first part of the tables' names in findings (`iptables-legacy`).
    """
    found = list[ForeignTable]()
    name, lines = "", list[str]()
    for line in saved.splitlines():
        if line.startswith("*"):
            name, lines = line[1:], []
        elif line == "COMMIT":
            found.append(_table(name, lines, program))
        elif line and not line.startswith("#"):
            lines.append(line)
    return tuple(found)


def _table(name: str, lines: list[str], program: str) -> ForeignTable:
    chains = tuple(_chain(name, line) for line in lines if line.startswith(":"))
    names = {chain.name for chain in chains}
    numbers = dict.fromkeys(names, 0)
    rules = list[ForeignRule]()
    for line in lines:
        if line.startswith("-A "):
            words = shlex.split(line)
            numbers[words[1]] += 1
            body = json.dumps(_Words(words[2:]).statements(names))
            rules.append(ForeignRule(words[1], f"rule {numbers[words[1]]}", body))
    return ForeignTable(f"{program} {name}", "ip", chains, tuple(rules))


def _chain(table: str, line: str) -> Chain:
    name, policy, *_ = line[1:].split()
    if policy == "-":
        return Chain("ip", name)
    is_source = table == "nat" and name in {"POSTROUTING", "INPUT"}
    priority = _SOURCE_NAT if is_source else _PRIORITIES.get(table, 0)
    kind = "nat" if table == "nat" else "filter"
    return Chain("ip", name, kind, _HOOKS.get(name, name.lower()), priority, _POLICIES.get(policy, "accept"))


@dataclass
class _Words:
    """Parser of one rule in the format of iptables-save, which consumes the words of the rule from the left."""

    words: list[str]
    read: list[Statement] = field(default_factory=list)

    def statements(self, chains: set[str]) -> list[Statement]:
        """Parse the iptables rule. `chains` are the names of the table's chains, which are targets of jumps."""
        while self.words:
            is_not = self._taken("!")
            self._option(self.words.pop(0), "!=" if is_not else "==", chains)
        return self.read

    def _option(self, option: str, op: str, chains: set[str]) -> None:
        match option:
            case "-j" | "--jump":
                self._target(self.words.pop(0), chains)
            case "-g" | "--goto":
                self.read.append({"goto": {"target": self.words.pop(0)}})
            case "-m" | "--match":
                # The options of a supported match are parsed as conditions of their own.
                if self.words.pop(0) not in _READ_BY_OPTIONS:
                    self.read.append({"xt": {"type": "match", "name": ""}})
            case _ if (condition := _CONDITIONS.get(option)) is not None:
                left, parse = condition
                self._match(left, parse(self.words.pop(0)), op)
            case _:
                self._skip(option)

    def _match(self, left: Statement, right: Any, op: str) -> None:
        self.read.append({"match": {"op": op, "left": left, "right": right}})

    def _skip(self, option: str) -> None:
        values = self._values()
        if option not in _IGNORED:
            self.read.append({"xt": {"type": "match", "name": " ".join((option, *values))}})

    def _target(self, target: str, chains: set[str]) -> None:
        if target in _VERDICTS:
            self.read.append({_VERDICTS[target]: None})
        elif target in chains:
            self.read.append({"jump": {"target": target}})
        else:
            self.read += _statement(target, dict(self._options()))
        self.words.clear()

    def _options(self) -> Iterator[tuple[str, str]]:
        while self.words:
            option = self.words.pop(0)
            yield option, " ".join(self._values())

    def _values(self) -> list[str]:
        values = list[str]()
        while self.words and not self.words[0].startswith("-") and self.words[0] != "!":
            values.append(self.words.pop(0))
        return values

    def _taken(self, word: str) -> bool:
        if self.words[0] != word:
            return False
        self.words.pop(0)
        return True


def _statement(target: str, options: dict[str, str]) -> list[Statement]:
    address = next((options[each] for each in _ADDRESSES if each in options), None)
    match target:
        case "MASQUERADE":
            return [{"masquerade": {"port": options["--to-ports"]} if "--to-ports" in options else None}]
        case "CT":
            return [{"notrack": None}] if "--notrack" in options else []
        case "REDIRECT":
            return [{"redirect": None}]
        case _ if target in _TARGETS:
            return [{_TARGETS[target]: None if address is None else {"addr": _sent_to(address)}}]
        case _:
            return []  # Targets that mark, count or log do not change the path of a packet.


def _sent_to(text: str) -> Any:
    """Parse the addresses, without the ports, to which a rule translates packets, such as `10.0.0.1-10.0.0.9:80`."""
    first, _, last = text.partition(":")[0].partition("-")
    return {"range": [first, last]} if last else _network(first)


def _network(text: str) -> Any:
    address, _, length = text.partition("/")
    return {"prefix": {"addr": address, "len": int(length)}} if length.isdigit() else address


def _networks(text: str) -> Any:
    return {"set": [_network(each) for each in text.split(",")]}


def _link(text: str) -> str:
    return f"{text[:-1]}*" if text.endswith("+") else text


def _ports(text: str) -> Any:
    return {"set": [_port(each) for each in text.split(",")]}


def _port(text: str) -> Any:
    first, is_range, last = text.partition(":")
    return {"range": [int(first or 0), int(last or 65535)]} if is_range else int(first)


def _states(text: str) -> Any:
    return {"set": [each.lower() for each in text.split(",")]}


def _types(text: str) -> Any:
    return {"set": [each.lower() for each in text.split(",")]}


def _protocol(text: str) -> Any:
    return int(text) if text.isdigit() else {"icmpv6": "ipv6-icmp"}.get(text, text)


def _mark(text: str) -> Any:
    return int(text.partition("/")[0], 0)


def _payload(protocol: str, name: str) -> Statement:
    return {"payload": {"protocol": protocol, "field": name}}


_CONDITIONS: Final[dict[str, tuple[Statement, Callable[[str], Any]]]] = {
    "-s": (_payload("ip", "saddr"), _networks),
    "-d": (_payload("ip", "daddr"), _networks),
    "-i": ({"meta": {"key": "iifname"}}, _link),
    "-o": ({"meta": {"key": "oifname"}}, _link),
    "-p": ({"meta": {"key": "l4proto"}}, _protocol),
    "--sport": (_payload("th", "sport"), _ports),
    "--dport": (_payload("th", "dport"), _ports),
    "--sports": (_payload("th", "sport"), _ports),
    "--dports": (_payload("th", "dport"), _ports),
    "--ctstate": ({"ct": {"key": "state"}}, _states),
    "--state": ({"ct": {"key": "state"}}, _states),
    "--dst-type": ({"fib": {"result": "type", "flags": ["daddr"]}}, _types),
    "--mark": ({"meta": {"key": "mark"}}, _mark),
    "--pkt-type": ({"meta": {"key": "pkttype"}}, _types),
}
"""Supported options of iptables rules, each with the left side of the equivalent nftables comparison and the parser of
the option's value."""
_READ_BY_OPTIONS: Final = {
    "tcp", "udp", "sctp", "icmp", "multiport", "conntrack", "state", "addrtype", "mark", "pkttype", "comment",
}  # fmt: skip
"""Supported iptables matches (`-m`). Each option of such a match is parsed as a separate condition."""
_IGNORED: Final = {"--comment"}
"""iptables options that do not restrict the packets that a rule matches."""
