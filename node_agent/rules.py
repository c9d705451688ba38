"""Packet filter rules as values: what is wanted and what nftables lists are the same type, so they can be compared.

All of it lives in tables of our own, `sliceplane` in the families inet and netdev, so that nobody else's rules are
touched; `foreign_rules` judges those. The desired state of our tables is their whole declaration: flags, chains with
hooks, priorities, devices and policies, rules in order, and nothing else. Each rule names its owner in its comment:
`node`, a slot's tap, or that and an ingress of the slot. A slot's rules are inserted at the head of a chain and the
node's are appended, so the node's final rule (drop) stays last whatever slots are added or removed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

Family = Literal["inet", "netdev"]
Policy = Literal["accept", "drop"]
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
    """A chain. A base chain has a `hook`, where it receives packets; any other chain is jumped to.

    `device` is for family netdev, and names several as `a, b`. `policy` is what a base chain does with packets that no
    rule decides.
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
    """A rule as nftables lists it (libnftables-json(5)); `body` is its expressions in canonical JSON."""

    family: Family
    chain: str
    owner: str
    body: str

    @property
    def place(self) -> str:
        """`node`, or the tap of the slot that it is a rule of."""
        return self.owner.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class FoundRule:
    rule: Rule
    handle: int


@dataclass(frozen=True, slots=True)
class Ruleset:
    """Our tables as found, rules in their order.

    `others` are everything else that their declaration holds, in words (`set inet s`, `table inet with dormant`): the
    desired state has none.
    """

    chains: frozenset[Chain]
    rules: tuple[FoundRule, ...]
    others: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """One transaction: all of it or nothing. With `afresh` the tables are emptied and made again, after `delete`.

    A rule that is in `delete` and in `insert` is kept by such a change: if another thread deletes it first, its handle
    is unknown and nothing of the transaction is done, so it does not come back.
    """

    afresh: bool = False
    chains: tuple[Chain, ...] = ()
    delete: tuple[FoundRule, ...] = ()
    insert: tuple[Rule, ...] = ()
    append: tuple[Rule, ...] = ()


def rule(family: Family, chain: str, owner: str, *body: Expression) -> Rule:
    return Rule(family, chain, owner, canonical(body))


def canonical(body: Sequence[Expression]) -> str:
    return msgspec.json.encode(body, order="sorted").decode()


def match(left: Expression, right: object, op: str = "==") -> Expression:
    return {"match": {"op": op, "left": left, "right": right}}


def meta(key: str, value: str) -> Expression:
    return match({"meta": {"key": key}}, value)


def field(protocol: str, name: str) -> Expression:
    return {"payload": {"protocol": protocol, "field": name}}


def raw(offset: int, bits: int) -> Expression:
    """Bits of the packet from the start of its transport header."""
    return {"payload": {"base": "th", "offset": offset, "len": bits}}


def tracked(direction: Literal["original", "reply"], key: str, value: object) -> Expression:
    """One side of the packet's connection, as it was before translation (`original`) or as it is after (`reply`)."""
    return match({"ct": {"key": key, "dir": direction}}, value)


def prefix(network: str) -> Expression:
    address, _, length = network.partition("/")
    return {"prefix": {"addr": address, "len": int(length)}}


def in_words(count: int, missing: Sequence[Rule], strange: Sequence[Rule]) -> str:
    """How so many rules that were found differ from those that were wanted."""
    return f"{count} rules, missing: {_chains(missing)}, strange: {_chains(strange)}"


def _chains(rules: Sequence[Rule]) -> str:
    return (
        ", ".join(f"{number} in {chain}" for chain, number in Counter(each.chain for each in rules).items())
        or "none"
    )


def jump(chain: str) -> Expression:
    return {"jump": {"target": chain}}


def dnat(address: str, port: int | None = None) -> Expression:
    return {"dnat": {"family": "ip", "addr": address} | ({} if port is None else {"port": port})}


ESTABLISHED: Final[Expression] = match({"ct": {"key": "state"}}, ["established", "related"], op="in")
COMES_IN: Final[Expression] = match({"ct": {"key": "status"}}, "dnat", op="in")
"""The packet's connection came in by a mapping, whichever way the packet goes."""
GOES_OUT: Final[Expression] = match({"ct": {"key": "status"}}, "dnat", op="!")
ACCEPT: Final[Expression] = {"accept": None}
DROP: Final[Expression] = {"drop": None}
MASQUERADE: Final[Expression] = {"masquerade": None}
NOTRACK: Final[Expression] = {"notrack": None}
