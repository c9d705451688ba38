"""Packet filter rules of other programs that drop, translate, divert, copy or rewrite packets of slices.

Other programs have rules on a node too (Docker, libvirt, a firewall), and the agent changes none of them. A rule is
reported if it can match the slices' traffic (`traffic`) at its hook, but not if its conditions exclude that traffic
(another link, another network, another port). The policy of a base chain applies to packets that no rule of the chain
accepts or drops. A rule that copies or redirects frames to a slice's link breaks the isolation of the slot of that
link, and of the slot that the frames come from, if any.

A foreign rule that accepts packets is not reported: it cannot pass a packet that a rule of the agent drops.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import structlog

from events.values import MAX_SLOTS, SlotIndex
from node_agent.host.slices import Difference, tap_of
from node_agent.packets.rules import Chain, Rule
from node_agent.packets.traffic import (
    NodeView,
    PublicEndpoint,
    Sets,
    Share,
    Traffic,
    both,
    networks_in,
    overlap,
    port_ranges,
    share,
    traffic_at,
)

log = structlog.get_logger(__name__)

_SLOTS: Final = {tap_of(SlotIndex(index)): SlotIndex(index) for index in range(MAX_SLOTS)}
_MOST_STEPS: Final = 100_000
"""Maximum number of rule evaluations per table; each rule is evaluated for each kind of traffic."""
_DEEPEST: Final = 32
"""Maximum depth of jumps between chains of a foreign table. Deeper jumps are not analyzed."""
_MOST_NAMED: Final = 8
"""Maximum number of findings that a drift names."""
_DOES: Final = {
    "drop": "drop",
    "reject": "reject",
    "queue": "packets are passed to a program",
    "synproxy": "TCP connections are answered in place of the slice",
    "tproxy": "packets are delivered to a program on the host",
    "flow": "packets bypass other rules through a flowtable",
    "dnat": "the destination of packets is translated",
    "redirect": "packets are redirected to the host itself",
    "snat": "the source of packets is translated",
    "masquerade": "the source of packets is translated",
    "notrack": "do not track",
    "dup": "copy",
    "fwd": "send",
}
"""Statements of nftables rules that drop, divert or change packets, each with a description of its effect."""
_ENDS: Final = {"drop", "reject", "queue", "synproxy", "dnat", "redirect", "snat", "masquerade", "fwd"}
"""Statements of nftables rules after which no further rule of the chain receives the packet."""
_OF_IPTABLES: Final = {
    "REJECT": "reject", "NFQUEUE": "queue", "QUEUE": "queue", "SYNPROXY": "synproxy",
    "TPROXY": "tproxy", "FLOWOFFLOAD": "flow",
    "DNAT": "dnat", "REDIRECT": "redirect", "NETMAP": "dnat", "SNAT": "snat", "MASQUERADE": "masquerade",
    "NOTRACK": "notrack", "CT": "notrack", "TEE": "dup",
}  # fmt: skip
"""Targets of iptables that nftables lists in JSON by their names only, and the equivalent nftables statements."""
_SENDS: Final = ("dnat", "redirect")
_REWRITTEN: Final = {"saddr", "daddr", "sport", "dport"}
_UNCERTAIN: Final = {"limit", "quota", "ct count", "last"}
"""nftables conditions that count as matching some packets, because the matched packets cannot be predicted."""


@dataclass(frozen=True, slots=True)
class ForeignRule:
    """A packet filter rule of another program.

    `place` identifies the rule for an administrator (`handle 7`); `body` holds its statements in JSON
    (libnftables-json(5)).
    """

    chain: str
    place: str
    body: str


@dataclass(frozen=True)
class ForeignTable:
    """A packet filter table of another program.

    `name` is the table's name in that program's tool; `sets` are the elements of named sets in JSON.
    """

    name: str
    family: str
    chains: tuple[Chain, ...] = ()
    rules: tuple[ForeignRule, ...] = ()
    sets: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ForeignTables:
    """All packet filter tables of other programs.

    Instances are compared by identity, because an unchanged listing is the same object.
    """

    tables: tuple[ForeignTable, ...] = ()
    unread: tuple[str, ...] = ()
    """Names of tables of iptables-legacy that could not be read."""

    @property
    def is_empty(self) -> bool:
        return not self.tables and not self.unread


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A packet filter rule, or a base chain's policy, of another program that can affect packets of slices.

    `does` is the effect on the packets. The rule breaks the isolation of the slots in `slots`.
    """

    table: str
    chain: str
    hook: str
    place: str
    does: str
    slots: tuple[SlotIndex, ...] = ()

    def __str__(self) -> str:
        return f"{self.table} {self.chain} ({self.hook}), {self.place}: {self.does}"


# Every survey reads the same tables, and their analysis takes longer than reading them.
@lru_cache(maxsize=2)
def findings(tables: ForeignTables, node: NodeView) -> tuple[Finding, ...]:
    """Return all foreign packet filter rules and chain policies that can match the slices' traffic."""
    found = {each for table in tables.tables for each in _findings_of(table, node)}
    unread = (
        Finding(
            f"iptables-legacy {name}",
            "all chains",
            "any hook",
            "all rules",
            "the agent cannot read the rules of iptables-legacy; install iptables",
        )
        for name in tables.unread
    )
    return (*sorted(found), *unread)


def _findings_of(table: ForeignTable, node: NodeView) -> set[Finding]:
    """Return the findings of one foreign table. A table that cannot be analyzed is a finding itself."""
    try:
        return _Analysis(table, node).findings()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        log.warning("foreign_firewall_table_analysis_failed", table=table.name, error=repr(error))
        return {
            Finding(
                table.name,
                "all chains",
                "any hook",
                "all rules",
                "the agent cannot analyze this nftables table",
            )
        }


def reported(found: Sequence[Finding]) -> Difference | None:
    """Return the drift `foreign.rules` about rules that do not break the isolation of slices, or None."""
    return _difference("foreign.rules", [each for each in found if not each.slots])


def mirrored(found: Sequence[Finding]) -> dict[SlotIndex, Difference]:
    """Return, by slot index, the drift about foreign packet filter rules that copy or redirect frames to the slot's
    link, or from the slot's link to the link of another slot.
    """
    slots = {slot for each in found for slot in each.slots}
    drift = {
        slot: _difference("foreign.mirror", [each for each in found if slot in each.slots]) for slot in slots
    }
    return {slot: each for slot, each in drift.items() if each is not None}


def _difference(kind: Any, found: Sequence[Finding]) -> Difference | None:
    if not found:
        return None
    named = "; ".join(map(str, found[:_MOST_NAMED]))
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    desired = {
        "foreign.rules": "no rule of another program that drops, diverts or changes packets of slices",
        "foreign.mirror": "no rule of another program that sends frames to another slice",
    }
    return Difference(kind, desired[kind], named + more)


@lru_cache(maxsize=2)
def public_endpoints(own: tuple[Rule, ...]) -> tuple[PublicEndpoint, ...]:
    """Return the public addresses and ports that lead to slices, from the agent's ingress rules (chain `mapping`)."""
    ports: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for each in own:
        address, protocol, ranges = _public_endpoint(json.loads(each.body))
        ports.setdefault((address, protocol), []).extend(ranges)
    return tuple(
        PublicEndpoint(address, protocol, tuple(sorted(ranges)) if protocol else None)
        for (address, protocol), ranges in sorted(ports.items(), key=str)
    )


def _public_endpoint(body: list[Any]) -> tuple[str, str | None, list[tuple[int, int]]]:
    fields = {
        each["match"]["left"]["payload"]["field"]: (each["match"]["left"]["payload"], each["match"]["right"])
        for each in body
        if "payload" in each.get("match", {}).get("left", {})
    }
    address = str(fields["daddr"][1])
    if "dport" not in fields:
        return address, None, []
    payload, ports = fields["dport"]
    return address, payload["protocol"], port_ranges(ports)


class _Place(NamedTuple):
    """Location of a foreign nftables rule: its chain, and the base chain from which packets reach it."""

    base: Chain
    chain: str
    rule: str


class _Analysis:
    """Analysis of one foreign nftables table: evaluates each base chain for each kind of the slices' traffic."""

    def __init__(self, table: ForeignTable, node: NodeView) -> None:
        self._table, self._node = table, node
        self._sets: Sets = {name: json.loads(elements) for name, elements in table.sets.items()}
        self._rules: dict[str, list[tuple[str, list[Any]]]] = {}
        for each in table.rules:
            self._rules.setdefault(each.chain, []).append((each.place, json.loads(each.body)))
        self._steps = _MOST_STEPS
        self._found: set[Finding] = set()

    def findings(self) -> set[Finding]:
        for chain in self._table.chains:
            if chain.hook is not None:
                for traffic in traffic_at(
                    self._table.family, chain.hook, chain.priority or 0, chain.device, self._node
                ):
                    self._pass(chain, traffic)
                self._check_targets(chain)
        return self._found

    def _pass(self, base: Chain, traffic: Traffic) -> None:
        remaining = _Walk(self, base, traffic).through(base.name)
        if remaining != "none" and base.policy == "drop":
            self.add(_Place(base, base.name, "its policy"), "drop")

    def _check_targets(self, base: Chain) -> None:
        """Add a finding for each rule that translates destinations to the slices' network, under any conditions."""
        if base.kind != "nat" or self._table.family not in {"ip", "inet"}:
            return
        for chain, (place, body) in self._reached(base.name):
            destination = next((each[name] for each in body for name in _SENDS if each.get(name)), None)
            if destination is not None and overlap(networks_in(destination), self._node.subnet):
                does = f"the destination of packets is translated to {_targets(destination)}"
                self.add(_Place(base, chain, place), does)

    def _reached(self, chain: str) -> Iterator[tuple[str, tuple[str, list[Any]]]]:
        """Yield all rules of an nftables chain, and of the chains that it jumps to."""
        seen, pending = {chain}, [chain]
        while pending:
            name = pending.pop()
            for rule in self._rules.get(name, ()):
                yield name, rule
                new = {*_chains_in(rule[1])} - seen
                seen |= new
                pending += new

    def rules(self, chain: str) -> Sequence[tuple[str, list[Any]]]:
        """Return the rules of an nftables chain, each as its location and its statements."""
        return self._rules.get(chain, ())

    def evaluate(self, statement: dict[str, Any], traffic: Traffic) -> Share:
        """Return whether an nftables match statement matches all, some or none of the packets of `traffic`."""
        return share(statement, traffic, self._sets)

    def resolved(self, data: Any) -> Any:
        """Return the elements of an nftables set or map, which is named (`@name`) or written in the rule itself."""
        return self._sets.get(data[1:]) if isinstance(data, str) else data.get("set")

    def step(self) -> bool:
        """Count one more evaluated rule of the table. If there are too many, add a finding and return False."""
        self._steps -= 1
        if self._steps <= 0:
            self._found.add(
                Finding(
                    self._table.name,
                    "other chains",
                    "any hook",
                    "other rules",
                    "the agent did not analyze all rules of this table, because there are too many",
                )
            )
        return self._steps > 0

    def take(self, at: _Place, traffic: Traffic, name: str, argument: Any) -> None:
        """Add a finding if a statement of a foreign rule affects the packets of `traffic` that reach the rule."""
        does, node = _DOES[name], self._node
        match name:
            case "notrack" if "untracked" in traffic.states:
                return
            case "masquerade" if traffic.leaves and traffic.oif == node.uplink and not argument:
                return  # The node's own rules masquerade these packets too.
            case "dnat" | "redirect" | "snat" | "masquerade" if (
                _is_ip6(argument) or "new" not in traffic.states
            ):
                return  # Only the first packet of a connection is matched against translations.
            case "dnat" | "snat" if _targets(argument):
                does = f"{does} to {_targets(argument)}"
            case "dup" | "fwd":
                self._copy(at, does, argument)
                return
            case _:
                pass
        self.add(at, does)

    def _copy(self, at: _Place, does: str, argument: Any) -> None:
        target = argument if isinstance(argument, dict) else {}
        to = str(target.get("dev", target.get("addr", "another place")))
        sources = (at.base.device or "").split(", ")
        if to in sources:
            return
        slots = {*_slots((to,)), *_slots(sources)} if to in _SLOTS else set()
        self.add(at, f"{does} to {to}", tuple(sorted(slots)))

    def add(self, at: _Place, does: str, slots: tuple[SlotIndex, ...] = ()) -> None:
        base = at.base
        hook = f"{base.hook} of {base.device}" if base.device else str(base.hook)
        self._found.add(Finding(self._table.name, at.chain, hook, at.rule, does, slots))


class _Outcome(NamedTuple):
    """Effect of an nftables rule: whether it accepts or drops all, some or none of the packets (`ends`), and whether
    all, some or none of them leave the chain by its `return` (`returns`).
    """

    ends: Share
    returns: Share


class _Walk:
    """Evaluation of one nftables base chain, and the chains that it jumps to, for one kind of traffic."""

    def __init__(self, analysis: _Analysis, base: Chain, traffic: Traffic) -> None:
        self._analysis, self._base, self._traffic = analysis, base, traffic
        self._remaining: dict[str, Share] = {}

    def through(self, chain: str, depth: int = 0) -> Share:
        """Return how many packets (all, some or none) leave a chain at its end or by a `return`."""
        if chain not in self._remaining:
            self._remaining[chain] = self._through(chain, depth)
        return self._remaining[chain]

    def _through(self, chain: str, depth: int) -> Share:
        remaining: Share = "all"
        for place, body in self._analysis.rules(chain):
            if not self._analysis.step() or depth > _DEEPEST:
                break
            ends, returns = self._rule(_Place(self._base, chain, place), body, depth)
            if returns == "all":
                break
            if ends == "all":
                return "none"
            if ends == "some" or returns == "some":
                remaining = "some"
        return remaining

    def _rule(self, at: _Place, body: Sequence[Any], depth: int) -> _Outcome:
        matched: Share = "all"
        for statement in body:
            [(name, argument)] = statement.items()
            matched = both(matched, self._condition(name, argument))
            if matched == "none":
                break
            outcome = self._verdict(name, argument, matched, depth) or self._effect(
                at, name, argument, matched, depth
            )
            if outcome is not None:
                return outcome
        return _Outcome("none", "none")

    def _condition(self, name: str, argument: Any) -> Share:
        match name:
            case "match":
                return self._analysis.evaluate(argument, self._traffic)
            case "xt" if (argument or {}).get("name") not in _OF_IPTABLES:
                return "some"
            case _ if name in _UNCERTAIN:
                return "some"
            case _:
                return "all"

    def _verdict(self, name: str, argument: Any, matched: Share, depth: int) -> _Outcome | None:
        match name:
            case "accept":
                return _Outcome(matched, "none")
            case "return":
                return _Outcome("none", matched)
            case "jump":
                return _Outcome(self._ended_in(argument["target"], matched, depth), "none")
            case "goto":
                ended = self._ended_in(argument["target"], matched, depth)
                return _Outcome(ended, "none" if ended == "all" else matched)
            case _:
                return None

    def _ended_in(self, chain: str, matched: Share, depth: int) -> Share:
        match self.through(chain, depth + 1):
            case "all":
                return "none"
            case "none":
                return matched
            case _:
                return "some"

    def _effect(self, at: _Place, name: str, argument: Any, matched: Share, depth: int) -> _Outcome | None:
        if name == "vmap":
            return self._vmap(at, matched, argument, depth)
        if name == "mangle" and _is_rewritten(argument["key"]):
            self._analysis.add(at, "rewrite")
        does = _OF_IPTABLES.get((argument or {}).get("name", "")) if name == "xt" else name
        if does not in _DOES:
            return None
        self._analysis.take(at, self._traffic, does, None if name == "xt" else argument)
        return _Outcome(matched, "none") if does in _ENDS else None

    def _vmap(self, at: _Place, matched: Share, argument: Any, depth: int) -> _Outcome:
        """Evaluate each element of an nftables verdict map like a rule of its own."""
        ends: Share = "none"
        returns: Share = "none"
        for key, verdict in self._analysis.resolved(argument["data"]) or ():
            condition = {"match": {"op": "==", "left": argument["key"], "right": key}}
            outcome = self._rule(at, (condition, verdict), depth)
            ends, returns = (
                _larger(ends, both(matched, outcome.ends)),
                _larger(returns, both(matched, outcome.returns)),
            )
        return _Outcome(ends, returns)


def _larger(one: Share, other: Share) -> Share:
    if "all" in (one, other):
        return "all"
    return "some" if "some" in (one, other) else "none"


def _is_ip6(argument: Any) -> bool:
    return isinstance(argument, dict) and argument.get("family") == "ip6"


def _is_rewritten(key: Any) -> bool:
    return isinstance(key, dict) and key.get("payload", {}).get("field") in _REWRITTEN


def _slots(links: Sequence[str]) -> Iterator[SlotIndex]:
    return (_SLOTS[each] for each in links if each in _SLOTS)


def _chains_in(body: Any) -> Iterator[str]:
    """Yield the names of the chains that an nftables rule jumps to."""
    match body:
        case {"jump": {"target": str() as target}} | {"goto": {"target": str() as target}}:
            yield target
        case dict():
            for each in body.values():
                yield from _chains_in(each)
        case list():
            for each in body:
                yield from _chains_in(each)
        case _:
            pass


def _targets(argument: Any) -> str:
    return ", ".join(each.removesuffix("/32") for each in networks_in(argument))
