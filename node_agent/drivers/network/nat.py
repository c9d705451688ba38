"""Driver of nftables through `nft -j -f -`, and of connection tracking (`conntrack`).

Only tables named `sliceplane` are written; all others are only read. `nft` runs a list of commands as one kernel
transaction. Flags of tables and devices of chains are read from the kernel (`nfnetlink`), because nft 1.0.6 lists
neither correctly in JSON. The listing omits the details of matches and targets that iptables-nft created, and it does
not contain the rules of iptables-legacy. If there are such rules, they are read through `iptables-save`.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, assert_never, get_args

from events.values import Ipv4Address
from node_agent.aspects.ingress_rules import Connection
from node_agent.drivers.network import conntrack, nfnetlink, xfrm
from node_agent.drivers.network.netlink import Refused
from node_agent.drivers.network.nfnetlink import FoundChain, FoundTable
from node_agent.drivers.programs import PendingQuery, run_change, start_query
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.host.snapshots import invalidate_reads, look, start_reading
from node_agent.packets import iptables
from node_agent.packets.foreign_rules import ForeignRule, ForeignTable, ForeignTables
from node_agent.packets.rules import (
    MASQUERADE,
    TABLE,
    AddressTranslation,
    Chain,
    Change,
    Expression,
    Family,
    FoundRule,
    Rule,
    Ruleset,
    canonical,
    dnat,
)
from node_agent.packets.xfrm import XfrmPolicy

_TRANSLATIONS: Final[tuple[AddressTranslation, ...]] = get_args(AddressTranslation)
FAMILIES: Final[tuple[Family, ...]] = ("inet", "netdev")

_DECLARED: Final = {"metainfo", "table", "chain", "rule"}
"""Kinds of objects in nft's JSON listing that are metadata or are read separately. Objects of all other kinds in the
agent's tables are foreign."""

_LIST: Final = ("nft", "-j", "-s", "list")
_MOST_ELEMENTS: Final = 256
_LEGACY: Final = Path("/proc/thread-self/net/ip_tables_names")

Command = dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Listed:
    """One listing of the nftables rules in the agent's tables and in foreign tables.

    Listings are compared by identity: an unchanged listing is the same object.
    """

    own: Ruleset
    rules: Mapping[str, tuple[ForeignRule, ...]]
    """Rules of other programs, by family and name of their nftables table (`ip filter`)."""
    sets: Mapping[str, dict[str, str]]
    is_opaque: bool
    """Whether the listing of foreign rules is incomplete: it omits details of matches and targets that iptables-nft
    created.
    """


class _Declared(NamedTuple):
    """The chains of all nftables tables and the flags of the agent's tables, as the kernel lists them."""

    chains: frozenset[Chain]
    flags: frozenset[str]
    foreign: tuple[tuple[str, Chain], ...]
    """Chains of foreign tables, each with the name of its table."""


class Nftables:
    """Packet filter and connection tracking of the host. `deadline` is in seconds and applies to each call."""

    def __init__(self, deadline: float = 5.0) -> None:
        self._deadline = deadline
        self._saved: tuple[_Listed, str] | None = None
        """The last nftables listing for which `iptables-nft-save` printed the omitted details, and its output; None if
        there is none."""
        self._accepted = set[AddressTranslation]()
        """Kinds of address translation that the kernel accepts."""

    def missing(self) -> tuple[str, ...]:
        return () if shutil.which("nft") else ("program nft",)

    def unsupported(self) -> Mapping[AddressTranslation, str]:
        return look((self, "unsupported"), self._refused_translations)

    def _refused_translations(self) -> Mapping[AddressTranslation, str]:
        found = ((each, self._refusal_of(each)) for each in _TRANSLATIONS)
        return {each: refusal for each, refusal in found if refusal is not None}

    def _refusal_of(self, translation: AddressTranslation) -> str | None:
        """Return the kernel's refusal of a rule with this translation, or None if it accepts the rule.

        The rule is checked, and never set. What the kernel accepted is not checked again until it refuses a change.
        """
        if translation in self._accepted:
            return None
        try:
            run_change(
                f"add a rule with {translation}",
                ("nft", "--check", "-j", "-f", "-"),
                json.dumps({"nftables": [*_checked(translation)]}),
                self._deadline,
            )
        except HostRefused as refused:
            return str(refused)
        self._accepted.add(translation)
        return None

    def ruleset(self) -> Ruleset:
        listed, declared = self._listed().own, look((self, "declared"), self._declared)
        return replace(listed, chains=declared.chains, others=listed.others | declared.flags)

    def foreign(self) -> ForeignTables:
        listed, declared = self._listed(), look((self, "declared"), self._declared)
        unread, legacy = look((self, "legacy"), self._legacy)
        return _foreign(listed, declared, self._saved_rules_of(listed), unread, legacy)

    def policies(self) -> tuple[XfrmPolicy, ...]:
        return look((self, "policies"), self._policies)

    def _policies(self) -> tuple[XfrmPolicy, ...]:
        try:
            return xfrm.policies(self._deadline)
        except (Refused, OSError) as error:
            raise HostUnreadable(f"cannot list IPsec policies: {error}") from error

    def _listed(self) -> _Listed:
        return look((self, "ruleset"), lambda: self._ask_ruleset().answer())

    def _saved_rules_of(self, listed: _Listed) -> str:
        if not listed.is_opaque:
            return ""
        if self._saved is None or self._saved[0] is not listed:
            # Without the output, such a rule counts as a rule that may match.
            with suppress(HostUnreadable):
                self._saved = listed, self._ask_save("iptables-nft-save").answer()
        return self._saved[1] if self._saved is not None and self._saved[0] is listed else ""

    def _legacy(self) -> tuple[tuple[str, ...], str]:
        """Return the names of unreadable iptables-legacy tables, and the rules of readable iptables-legacy tables."""
        names = _legacy_names()
        if not names:
            return (), ""
        try:
            return (), self._ask_save("iptables-legacy-save").answer()
        except HostUnreadable:
            return names, ""

    def _ask_save(self, program: str) -> PendingQuery[str]:
        return start_query(f"run {program}", [(program,)], str, self._deadline)

    def _declared(self) -> _Declared:
        try:
            return _declared_by(nfnetlink.tables(self._deadline), nfnetlink.chains(self._deadline))
        except (Refused, OSError) as error:
            raise HostUnreadable(f"cannot list nftables tables: {error}") from error

    def start_reading(self) -> None:
        start_reading((self, "ruleset"), self._ask_ruleset)

    def change(self, change: Change) -> None:
        invalidate_reads(self)
        # Deletions come first: the handle proves that no other thread deleted the rule since it was listed.
        commands = [*map(_delete, change.delete), *_recreate_tables(change)]
        # `insert` places a rule at the head of the chain, so the rules are inserted in reverse order.
        commands += [{"insert": {"rule": _rule(rule)}} for rule in reversed(change.insert)]
        commands += [{"add": {"rule": _rule(rule)}} for rule in change.append]
        try:
            run_change(
                "change nftables rules",
                ("nft", "-j", "-f", "-"),
                json.dumps({"nftables": commands}),
                self._deadline,
            )
        except HostRefused:
            self._accepted.clear()
            raise

    def connections(self, ip: Ipv4Address) -> tuple[Connection, ...]:
        listed = look((self, "connections"), self._tracked)
        return tuple(each.connection for each in conntrack.connections_with(ip, listed))

    def forget(self, ip: Ipv4Address, which: Callable[[Connection], bool]) -> None:
        invalidate_reads(self)
        tracked = conntrack.connections_with(ip, self._tracked())
        originals = [each.original for each in tracked if which(each.connection)]
        try:
            conntrack.delete(originals, self._deadline)
        except Refused as error:
            raise HostRefused(f"cannot delete tracked connections of {ip}: {error}") from error
        except OSError as error:
            raise HostUnreadable(f"cannot delete tracked connections of {ip}: {error}") from error

    def _tracked(self) -> tuple[bytes, ...]:
        try:
            return conntrack.tracked(self._deadline)
        except (Refused, OSError) as error:
            raise HostUnreadable(f"cannot read connection tracking: {error}") from error

    def _ask_ruleset(self) -> PendingQuery[_Listed]:
        return start_query("list the nftables ruleset", self._listings(), _listed_together, self._deadline)

    def _listings(self) -> list[Sequence[str]]:
        """Return the `nft` commands that list all rules: a single command, unless a table has a flag.

        The listing of a table with a flag is invalid JSON (nft 1.0.6 writes the flag from freed memory), so its chains
        are listed one by one.
        """
        try:
            flagged = {(each.family, each.name) for each in nfnetlink.tables(self._deadline) if each.flags}
            if not flagged:
                return [(*_LIST, "ruleset")]
            unflagged = [each for each in nfnetlink.tables(self._deadline) if not each.flags]
            parts = nfnetlink.chains(self._deadline)
        except (Refused, OSError) as error:
            raise HostUnreadable(f"cannot list nftables tables: {error}") from error
        return [
            *((*_LIST, "table", each.family, each.name) for each in unflagged),
            *(
                (*_LIST, "chain", each.chain.family, each.table, each.chain.name)
                for each in parts
                if (each.chain.family, each.table) in flagged
            ),
        ]


def _listed_together(*texts: str) -> _Listed:
    if len(texts) == 1:
        return _listed(texts[0])
    parts = [each for text in texts for each in json.loads(text)["nftables"]]
    return _listed(json.dumps({"nftables": parts}))


# Every survey parses the same rules.
@lru_cache(maxsize=2)
def _listed(text: str) -> _Listed:
    listed = json.loads(text)["nftables"]
    rules = [each["rule"] for each in listed if "rule" in each]
    foreign = [each for each in rules if not _is_own(each)]
    own = Ruleset(
        frozenset(),
        tuple(_found_rule(rule) for rule in rules if _is_own(rule)),
        frozenset(_other(each) for each in listed if not each.keys() & _DECLARED and _is_own(*each.values())),
    )
    return _Listed(
        own, _by_table(foreign), _sets(listed), any("xt" in each for rule in foreign for each in rule["expr"])
    )


def _by_table(rules: Iterable[Command]) -> Mapping[str, tuple[ForeignRule, ...]]:
    found: dict[str, list[ForeignRule]] = {}
    for each in rules:
        rule = ForeignRule(each["chain"], f"handle {each['handle']}", canonical(each["expr"]))
        found.setdefault(_name(each), []).append(rule)
    return {table: tuple(of) for table, of in found.items()}


def _sets(listed: Iterable[Command]) -> Mapping[str, dict[str, str]]:
    """Return the elements of nftables sets and maps. A large set is omitted and counts as matching any packet."""
    found: dict[str, dict[str, str]] = {}
    for each in listed:
        for kind in ("set", "map"):
            if (named := each.get(kind)) is not None and len(
                elements := named.get("elem", [])
            ) <= _MOST_ELEMENTS:
                found.setdefault(_name(named), {})[named["name"]] = canonical(elements)
    return found


@lru_cache(maxsize=2)
def _foreign(
    listed: _Listed, declared: _Declared, saved: str, unread: tuple[str, ...], legacy: str
) -> ForeignTables:
    read = {each.name: each for each in iptables.tables(saved, "ip")}
    names = sorted({name for name, _ in declared.foreign} | listed.rules.keys())
    tables = (
        read.get(name)
        or ForeignTable(
            name,
            name.partition(" ")[0],
            tuple(chain for table, chain in declared.foreign if table == name),
            listed.rules.get(name, ()),
            listed.sets.get(name, {}),
        )
        for name in names
    )
    return ForeignTables((*tables, *iptables.tables(legacy, "iptables-legacy")), unread)


def _name(listed: Command) -> str:
    return f"{listed['family']} {listed['table']}"


def _legacy_names() -> tuple[str, ...]:
    """Return the names of the iptables-legacy tables of this network namespace.

    The kernel's list of tables is a file, which is missing if the kernel module is not loaded.
    """
    try:
        return tuple(_LEGACY.read_text().split())
    except FileNotFoundError:
        return ()


def _is_own(listed: Command) -> bool:
    return bool(listed["table"] == TABLE and listed["family"] in FAMILIES)


def _other(listed: Command) -> str:
    """Describe an object of an nftables table that is neither a rule nor a chain, such as a set, map or counter."""
    [(kind, fields)] = listed.items()
    return f"{kind} {fields['family']} {fields['name']}"


# Every survey reads the same tables and chains.
@lru_cache(maxsize=2)
def _declared_by(tables: tuple[FoundTable, ...], chains: tuple[FoundChain, ...]) -> _Declared:
    own = [each for each in tables if each.name == TABLE and each.family in FAMILIES]
    flags = (f"table {each.family} with {' and '.join(each.flags)}" for each in own if each.flags)
    own_chains = [each for each in chains if each.table == TABLE and each.chain.family in FAMILIES]
    dormant = {(each.family, each.name) for each in tables if "dormant" in each.flags}
    foreign = tuple(
        (f"{each.chain.family} {each.table}", each.chain)
        for each in chains
        if each not in own_chains and (each.chain.family, each.table) not in dormant
    )
    offloaded = (f"offload of chain {each.chain.name}" for each in own_chains if each.is_offloaded)
    return _Declared(frozenset(each.chain for each in own_chains), frozenset((*flags, *offloaded)), foreign)


def _found_rule(listed: Command) -> FoundRule:
    rule = Rule(listed["family"], listed["chain"], listed.get("comment", ""), canonical(listed["expr"]))
    return FoundRule(rule, listed["handle"])


def _checked(translation: AddressTranslation) -> Iterator[Command]:
    """Yield the nft commands that add a rule with this address translation to a separate table, to check whether the
    kernel accepts it.
    """
    place: Command = {"family": "inet", "table": f"{TABLE}_check"}
    hook, statement = _statement(translation)
    yield {"add": {"table": {"family": "inet", "name": f"{TABLE}_check"}}}
    chain = {"name": "checked", "type": "nat", "hook": hook, "prio": 0, "policy": "accept"}
    yield {"add": {"chain": {**place, **chain}}}
    yield {"add": {"rule": {**place, "chain": "checked", "expr": [statement]}}}


def _statement(translation: AddressTranslation) -> tuple[str, Expression]:
    match translation:
        case "masquerade":
            return "postrouting", MASQUERADE
        case "dnat":
            return "prerouting", dnat("192.0.2.1")
        case _:
            assert_never(translation)


def _rule(rule: Rule) -> Command:
    return {
        "family": rule.family,
        "table": TABLE,
        "chain": rule.chain,
        "comment": rule.owner,
        "expr": json.loads(rule.body),
    }


def _delete(found: FoundRule) -> Command:
    place = {"family": found.rule.family, "table": TABLE, "chain": found.rule.chain}
    return {"delete": {"rule": {**place, "handle": found.handle}}}


def _recreate_tables(change: Change) -> Iterator[Command]:
    tables = [{"table": {"family": family, "name": TABLE}} for family in FAMILIES if change.afresh]
    # The table is added before it is deleted, because deleting a missing table would fail the transaction.
    yield from ({"add": table} for table in tables)
    yield from ({"delete": table} for table in tables)
    yield from ({"add": table} for table in tables)
    yield from ({"add": {"chain": _chain(chain)}} for chain in change.chains)


def _chain(chain: Chain) -> Command:
    fields: Command = {"family": chain.family, "table": TABLE, "name": chain.name}
    if chain.hook is not None:
        fields |= {"type": chain.kind, "hook": chain.hook, "prio": chain.priority, "policy": chain.policy}
    if chain.device is not None:
        fields["dev"] = chain.device
    return fields
