"""Value types for nftables rules and chains. Desired rules and listed rules have the same type and can be compared.

All rules are in tables named `sliceplane` in the families inet and netdev, so that foreign rules are not touched;
`foreign_rules` evaluates those. The desired state covers these tables completely: flags, chains with hooks, priorities,
devices and policies, and rules in order; nothing else may be in the tables. Each rule names its owner in its comment:
`node`, a slot's tap, or a slot's tap and an ingress id. A slot's rules are inserted at the head of a chain and the
node's are appended, so the node's final rule (drop) stays last whatever slots are added or removed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

Family = Literal["inet", "netdev"]
Policy = Literal["accept", "drop"]
AddressTranslation = Literal["masquerade", "dnat"]
"""Kinds of address translation by rules: `masquerade` replaces the source of a packet by the address of its outgoing
link, and `dnat` replaces its destination."""
Expression = Mapping[str, object]

TABLE: Final = "sliceplane"
NODE: Final = "node"
FROM_SLICES: Final = "from_slices"
OUT_OF_SLICES: Final = "out_of_slices"
INTO_SLICES: Final = "into_slices"
MAPPING: Final = "mapping"
MAPPED: Final = "mapped"
REPLIES: Final = "replies"


@dataclass(frozen=True, slots=True)
class Chain:
    """An nftables chain. A base chain has a `hook`, where it receives packets; any other chain is jumped to.

    `device` names the devices of a chain in family netdev, as `a, b`. `policy` is the verdict of a base chain for
    packets that no rule decides.
    """

    family: str
    name: str
    kind: str | None = None
    hook: str | None = None
    priority: int | None = None
    policy: Policy | None = None
    device: str | None = None

    def __str__(self) -> str:
        place = f" on {self.device}" if self.device is not None else ""
        hook = f" ({self.kind} {self.hook} {self.priority}{place}, policy {self.policy})" if self.hook else ""
        return f"{self.family} {self.name}{hook}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as nftables lists it (libnftables-json(5)); `body` contains its expressions in canonical JSON."""

    family: Family
    chain: str
    owner: str
    body: str

    @property
    def place(self) -> str:
        """First word of the owner of the nftables rule: `node`, or the tap of a slot. An ingress id may follow it."""
        return self.owner.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class FoundRule:
    """A rule that nftables listed, and the handle by which nftables deletes the rule."""

    rule: Rule
    handle: int


@dataclass(frozen=True, slots=True)
class Ruleset:
    """Observed nftables tables of this program, with their rules in order.

    `others` describes all other objects in the tables (`set inet s`, `table inet with dormant`); the desired state has
    none.
    """

    chains: frozenset[Chain]
    rules: tuple[FoundRule, ...]
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """One atomic nftables transaction. With `afresh`, the tables are emptied and created again after `delete`.

    With `afresh`, a rule that must be kept is in `delete` and in `insert`. If another thread has deleted this rule in
    the meantime, the deletion and therefore the whole transaction fail, so that the rule is not inserted again.
    """

    afresh: bool = False
    chains: tuple[Chain, ...] = ()
    delete: tuple[FoundRule, ...] = ()
    insert: tuple[Rule, ...] = ()
    append: tuple[Rule, ...] = ()


def rule(family: Family, chain: str, owner: str, *body: Expression) -> Rule:
    """Return an nftables rule of the owner `owner` in a chain. The rule consists of the expressions in `body`."""
    return Rule(family, chain, owner, canonical(body))


def canonical(body: Sequence[Expression]) -> str:
    """Return the expressions of an nftables rule as canonical JSON, so that equal rules have equal text."""
    return msgspec.json.encode(body, order="sorted").decode()


def match(left: Expression, right: object, op: str = "==") -> Expression:
    """Return an nftables match: the rule applies to a packet only if `left` compares with `right` as `op` requires."""
    return {"match": {"op": op, "left": left, "right": right}}


def meta(key: str, value: str) -> Expression:
    """Return an nftables match on a packet's metadata, such as the name of its incoming link (`iifname`)."""
    return match({"meta": {"key": key}}, value)


def field(protocol: str, name: str) -> Expression:
    """Return the nftables expression that reads a field of a protocol's header, such as the source address of `ip`."""
    return {"payload": {"protocol": protocol, "field": name}}


def raw(offset: int, bits: int) -> Expression:
    """Return the nftables expression that reads `bits` bits of a packet, beginning `offset` bits after the start of its
    transport header.
    """
    return {"payload": {"base": "th", "offset": offset, "len": bits}}


def tracked(direction: Literal["original", "reply"], key: str, value: object) -> Expression:
    """Return an nftables match on an address or port of a packet's tracked connection.

    The value is that of the client's packets before translation (`original`), or of the slice's replies (`reply`).
    """
    return match({"ct": {"key": key, "dir": direction}}, value)


def prefix(network: str) -> Expression:
    """Return the nftables expression for all addresses of an IPv4 network, given as `10.0.0.0/8`."""
    address, _, length = network.partition("/")
    return {"prefix": {"addr": address, "len": int(length)}}


def describe_rule_difference(count: int, missing: Sequence[Rule], unexpected: Sequence[Rule]) -> str:
    """Describe how the `count` observed nftables rules differ from the desired rules."""
    return f"{count} rules, missing: {_chains(missing)}, unexpected: {_chains(unexpected)}"


def _chains(rules: Sequence[Rule]) -> str:
    return (
        ", ".join(f"{number} in {chain}" for chain, number in Counter(each.chain for each in rules).items())
        or "none"
    )


def jump(chain: str) -> Expression:
    """Return the nftables statement that continues with the rules of another chain, and then returns."""
    return {"jump": {"target": chain}}


def dnat(address: str, port: int | None = None) -> Expression:
    """Return the nftables statement that replaces a packet's destination address, and its port if `port` is given."""
    return {"dnat": {"family": "ip", "addr": address} | ({} if port is None else {"port": port})}


ESTABLISHED: Final[Expression] = match({"ct": {"key": "state"}}, ["established", "related"], op="in")
COMES_IN: Final[Expression] = match({"ct": {"key": "status"}}, "dnat", op="in")
"""Condition: the packet belongs to a connection that entered by an ingress rule, in either direction."""
GOES_OUT: Final[Expression] = match({"ct": {"key": "status"}}, "dnat", op="!")
ACCEPT: Final[Expression] = {"accept": None}
DROP: Final[Expression] = {"drop": None}
MASQUERADE: Final[Expression] = {"masquerade": None}
NOTRACK: Final[Expression] = {"notrack": None}
