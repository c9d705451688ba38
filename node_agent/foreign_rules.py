"""Rules of other programs that drop, translate, divert, copy or rewrite packets of slices.

Other programs have their rules on a node too (Docker, libvirt, a firewall), and the agent changes none of them. A rule
is reported when it can match the slices' traffic (`traffic`) at its hook, so that one whose conditions exclude it
(another link, another network, another port) is not. A base chain ends for the packets that it accepts, and its policy
concerns the rest. A copy or a redirect of frames to a slice's link breaks isolation: it concerns that slot, and the one
that the frames are taken from.

No rule of another table can let a packet through that a rule of ours drops.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import structlog

from events.values import MAX_SLOTS, SlotIndex
from node_agent.rules import Chain, Rule
from node_agent.slices import Difference, tap_of
from node_agent.traffic import (
    NodeView,
    Sets,
    Share,
    Traffic,
    Way,
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
"""Rules that are judged of one table, each for each kind of traffic."""
_DEEPEST: Final = 32
_MOST_NAMED: Final = 8
_DOES: Final = {
    "drop": "drop",
    "reject": "reject",
    "queue": "queue to a program",
    "synproxy": "answer in its place",
    "tproxy": "hand over to a local program",
    "flow": "forward past all rules",
    "dnat": "translate the destination",
    "redirect": "redirect to the host",
    "snat": "translate the source",
    "masquerade": "translate the source",
    "notrack": "do not track",
    "dup": "copy",
    "fwd": "send",
}
"""Statements that take packets from their way, and what each does."""
_ENDS: Final = {"drop", "reject", "queue", "synproxy", "dnat", "redirect", "snat", "masquerade", "fwd"}
"""Statements after which no rule of the chain receives the packet."""
_OF_IPTABLES: Final = {
    "REJECT": "reject", "NFQUEUE": "queue", "QUEUE": "queue", "SYNPROXY": "synproxy",
    "TPROXY": "tproxy", "FLOWOFFLOAD": "flow",
    "DNAT": "dnat", "REDIRECT": "redirect", "NETMAP": "dnat", "SNAT": "snat", "MASQUERADE": "masquerade",
    "NOTRACK": "notrack", "CT": "notrack", "TEE": "dup",
}  # fmt: skip
"""Targets of iptables that a listing in JSON has by name alone."""
_SENDS: Final = ("dnat", "redirect")
_REWRITTEN: Final = {"saddr", "daddr", "sport", "dport"}
_UNCERTAIN: Final = {"limit", "quota", "ct count", "last"}
"""Statements that let some packets pass to the next one."""


@dataclass(frozen=True, slots=True)
class ForeignRule:
    """`place` is how an administrator finds it (`handle 7`); `body` is its statements in JSON (libnftables-json(5))."""

    chain: str
    place: str
    body: str


@dataclass(frozen=True)
class ForeignTable:
    """A table of another program, named as its own tool names it. `sets` are the elements of named sets, in JSON."""

    name: str
    family: str
    chains: tuple[Chain, ...] = ()
    rules: tuple[ForeignRule, ...] = ()
    sets: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ForeignTables:
    """All tables of other programs in one listing. Compared by identity: an unchanged listing is the same object."""

    tables: tuple[ForeignTable, ...] = ()
    unread: tuple[str, ...] = ()
    """Names of tables of iptables-legacy that could not be read."""

    @property
    def is_empty(self) -> bool:
        return not self.tables and not self.unread


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A rule, or a chain's policy, that can match packets of slices; `slots` are those whose isolation it breaks."""

    table: str
    chain: str
    hook: str
    place: str
    does: str
    slots: tuple[SlotIndex, ...] = ()

    def __str__(self) -> str:
        return f"{self.table} {self.chain} ({self.hook}), {self.place}: {self.does}"


# A survey reads the same tables again and again, and to judge them takes longer than to read them.
@lru_cache(maxsize=2)
def findings(tables: ForeignTables, node: NodeView) -> tuple[Finding, ...]:
    """All that can match the slices' traffic, each once."""
    found = {each for table in tables.tables for each in _judged(table, node)}
    unread = (
        Finding(
            f"iptables-legacy {name}", "all chains", "any hook", "all rules", "not readable; install iptables"
        )
        for name in tables.unread
    )
    return (*sorted(found), *unread)


def _judged(table: ForeignTable, node: NodeView) -> set[Finding]:
    """The findings of one table. A table that cannot be judged is a finding itself, and hides no other one."""
    try:
        return _Judged(table, node).findings()
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        log.warning("foreign_table_not_judged", table=table.name, error=repr(error))
        return {Finding(table.name, "all chains", "any hook", "all rules", "not understood by the agent")}


def reported(found: Sequence[Finding]) -> Difference | None:
    """Return the drift of the node: findings that do not break isolation between slices."""
    return _difference("foreign.rules", [each for each in found if not each.slots])


def mirrored(found: Sequence[Finding]) -> dict[SlotIndex, Difference]:
    """Return the drift of each slot whose frames reach another slice, or that receives another's frames."""
    slots = {slot for each in found for slot in each.slots}
    of = {
        slot: _difference("foreign.mirror", [each for each in found if slot in each.slots]) for slot in slots
    }
    return {slot: each for slot, each in of.items() if each is not None}


def _difference(kind: Any, found: Sequence[Finding]) -> Difference | None:
    if not found:
        return None
    named = "; ".join(map(str, found[:_MOST_NAMED]))
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    wanted = {
        "foreign.rules": "no rule of another program that takes packets of slices",
        "foreign.mirror": "no rule of another program that sends frames to another slice",
    }
    return Difference(kind, wanted[kind], named + more)


@lru_cache(maxsize=2)
def ways_of(own: tuple[Rule, ...]) -> tuple[Way, ...]:
    """The public addresses and ports that these rules of the chain `mapping` lead in by."""
    ports: dict[tuple[str, str | None], list[tuple[int, int]]] = {}
    for each in own:
        address, protocol, ranges = _way(json.loads(each.body))
        ports.setdefault((address, protocol), []).extend(ranges)
    return tuple(
        Way(address, protocol, tuple(sorted(ranges)) if protocol else None)
        for (address, protocol), ranges in sorted(ports.items(), key=str)
    )


def _way(body: list[Any]) -> tuple[str, str | None, list[tuple[int, int]]]:
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
    """A rule of a chain that packets reach from a base chain."""

    base: Chain
    chain: str
    rule: str


class _Judged:
    """One table, walked as packets pass it, from each base chain with each kind of traffic."""

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
        left = _Walk(self, base, traffic).through(base.name)
        if left != "none" and base.policy == "drop":
            self.add(_Place(base, base.name, "its policy"), "drop")

    def _check_targets(self, base: Chain) -> None:
        """A translation into the slices' network concerns slices whatever it takes."""
        if base.kind != "nat" or self._table.family not in {"ip", "inet"}:
            return
        for chain, (place, body) in self._reached(base.name):
            sent = next((each[name] for each in body for name in _SENDS if each.get(name)), None)
            if sent is not None and overlap(networks_in(sent), self._node.subnet):
                self.add(_Place(base, chain, place), f"translate the destination to {_targets(sent)}")

    def _reached(self, chain: str) -> Iterator[tuple[str, tuple[str, list[Any]]]]:
        """All rules of the chain, and of those that it leads to."""
        seen, due = {chain}, [chain]
        while due:
            name = due.pop()
            for rule in self._rules.get(name, ()):
                yield name, rule
                new = {*_chains_in(rule[1])} - seen
                seen |= new
                due += new

    def rules(self, chain: str) -> Sequence[tuple[str, list[Any]]]:
        return self._rules.get(chain, ())

    def judge(self, statement: dict[str, Any], traffic: Traffic) -> Share:
        return share(statement, traffic, self._sets)

    def resolved(self, data: Any) -> Any:
        return self._sets.get(data[1:]) if isinstance(data, str) else data.get("set")

    def step(self) -> bool:
        """Whether there is room for one more. A table with more is a finding: the rest of it is not judged."""
        self._steps -= 1
        if self._steps <= 0:
            self._found.add(
                Finding(self._table.name, "other chains", "any hook", "other rules", "too many to judge all")
            )
        return self._steps > 0

    def take(self, at: _Place, traffic: Traffic, name: str, of: Any) -> None:
        """Add a finding for a statement that the traffic reaches."""
        does, node = _DOES[name], self._node
        match name:
            case "notrack" if "untracked" in traffic.states:
                return
            case "masquerade" if traffic.leaves and traffic.oif == node.uplink and not of:
                return  # As the node's own rules do.
            case "dnat" | "redirect" | "snat" | "masquerade" if _is_ip6(of) or "new" not in traffic.states:
                return  # Of a connection the first packet alone is translated.
            case "dnat" | "snat" if _targets(of):
                does = f"{does} to {_targets(of)}"
            case "dup" | "fwd":
                self._copy(at, does, of)
                return
            case _:
                pass
        self.add(at, does)

    def _copy(self, at: _Place, does: str, of: Any) -> None:
        sent = of if isinstance(of, dict) else {}
        to = str(sent.get("dev", sent.get("addr", "another place")))
        taken = (at.base.device or "").split(", ")
        if to in taken:
            return
        slots = {*_slots((to,)), *_slots(taken)} if to in _SLOTS else set()
        self.add(at, f"{does} to {to}", tuple(sorted(slots)))

    def add(self, at: _Place, does: str, slots: tuple[SlotIndex, ...] = ()) -> None:
        base = at.base
        hook = f"{base.hook} of {base.device}" if base.device else str(base.hook)
        self._found.add(Finding(self._table.name, at.chain, hook, at.rule, does, slots))


class _Outcome(NamedTuple):
    """How many packets end at a rule, and how many return from its chain."""

    ends: Share
    returns: Share


class _Walk:
    """One kind of traffic on its way through one base chain."""

    def __init__(self, judged: _Judged, base: Chain, traffic: Traffic) -> None:
        self._judged, self._base, self._traffic = judged, base, traffic
        self._left: dict[str, Share] = {}

    def through(self, chain: str, depth: int = 0) -> Share:
        """How many packets of those that enter the chain leave it at its end, or by a `return`."""
        if chain not in self._left:
            self._left[chain] = self._through(chain, depth)
        return self._left[chain]

    def _through(self, chain: str, depth: int) -> Share:
        left: Share = "all"
        for place, body in self._judged.rules(chain):
            if not self._judged.step() or depth > _DEEPEST:
                break
            ends, returns = self._rule(_Place(self._base, chain, place), body, depth)
            if returns == "all":
                break
            if ends == "all":
                return "none"
            if ends == "some" or returns == "some":
                left = "some"
        return left

    def _rule(self, at: _Place, body: Sequence[Any], depth: int) -> _Outcome:
        matched: Share = "all"
        for statement in body:
            [(name, of)] = statement.items()
            matched = both(matched, self._condition(name, of))
            if matched == "none":
                break
            outcome = self._verdict(name, of, matched, depth) or self._effect(at, name, of, matched, depth)
            if outcome is not None:
                return outcome
        return _Outcome("none", "none")

    def _condition(self, name: str, of: Any) -> Share:
        match name:
            case "match":
                return self._judged.judge(of, self._traffic)
            case "xt" if (of or {}).get("name") not in _OF_IPTABLES:
                return "some"
            case _ if name in _UNCERTAIN:
                return "some"
            case _:
                return "all"

    def _verdict(self, name: str, of: Any, matched: Share, depth: int) -> _Outcome | None:
        match name:
            case "accept":
                return _Outcome(matched, "none")
            case "return":
                return _Outcome("none", matched)
            case "jump":
                return _Outcome(self._ended_in(of["target"], matched, depth), "none")
            case "goto":
                ended = self._ended_in(of["target"], matched, depth)
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

    def _effect(self, at: _Place, name: str, of: Any, matched: Share, depth: int) -> _Outcome | None:
        if name == "vmap":
            return self._vmap(at, matched, of, depth)
        if name == "mangle" and _is_rewritten(of["key"]):
            self._judged.add(at, "rewrite")
        does = _OF_IPTABLES.get((of or {}).get("name", "")) if name == "xt" else name
        if does not in _DOES:
            return None
        self._judged.take(at, self._traffic, does, None if name == "xt" else of)
        return _Outcome(matched, "none") if does in _ENDS else None

    def _vmap(self, at: _Place, matched: Share, of: Any, depth: int) -> _Outcome:
        """One rule for each element of the map."""
        ends: Share = "none"
        returns: Share = "none"
        for key, verdict in self._judged.resolved(of["data"]) or ():
            condition = {"match": {"op": "==", "left": of["key"], "right": key}}
            done = self._rule(at, (condition, verdict), depth)
            ends, returns = _more(ends, both(matched, done.ends)), _more(returns, both(matched, done.returns))
        return _Outcome(ends, returns)


def _more(one: Share, other: Share) -> Share:
    if "all" in (one, other):
        return "all"
    return "some" if "some" in (one, other) else "none"


def _is_ip6(of: Any) -> bool:
    return isinstance(of, dict) and of.get("family") == "ip6"


def _is_rewritten(key: Any) -> bool:
    return isinstance(key, dict) and key.get("payload", {}).get("field") in _REWRITTEN


def _slots(links: Sequence[str]) -> Iterator[SlotIndex]:
    return (_SLOTS[each] for each in links if each in _SLOTS)


def _chains_in(body: Any) -> Iterator[str]:
    """The chains that a rule leads to."""
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


def _targets(of: Any) -> str:
    return ", ".join(each.removesuffix("/32") for each in networks_in(of))
