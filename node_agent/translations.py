"""The translation aspect: what the gateway lets one slice do, at layer 3 and inside DHCP.

The gateway denies by default (`gateway`), so a slot's rules are permissions: leave by the uplink with its own MAC and
address, where the node's masquerade takes over, be answered, and ask DHCP about itself. A slot without its rules is
cut off, what it had opened before too, and never open: a crash in the middle of a release leaves it so.

DHCP messages are checked down to `chaddr` (RFC 2131, 2), which OpenFlow cannot match: a neighbour's forged
DHCPRELEASE or DHCPDECLINE carries the victim's. A relay's address in a slice's message would send the answer elsewhere,
so it must be zero. Answers that DHCP broadcasts get their client's MAC at the gateway's egress, so that no other slice
hears them.

What a slot exposes is a permission of its own, `mappings`. The rules of each have a group of their own, so that what
differs in one is mended, and told, without the others.

Flushing comes after the rules are gone: one that is flushed first may come back through them. It comes before new ones
are made, so that a way in that cannot be made keeps back the end of no other. After a crash in between the connections
themselves tell that it is due. They are listed for a slice that has ways in or has just had some, and for no other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from events.values import IngressId, Ipv4Address, MacAddress
from node_agent.looks import look
from node_agent.mappings import Connection, ingress_in, owner_of, permits
from node_agent.mappings import rules_of as mapping_rules
from node_agent.rules import (
    ACCEPT,
    COMES_IN,
    ESTABLISHED,
    FROM_SLICES,
    GOES_OUT,
    INTO_SLICES,
    MAPPED,
    OUT_OF_SLICES,
    REPLIES,
    Change,
    Expression,
    Family,
    FoundRule,
    Rule,
    Ruleset,
    field,
    in_words,
    jump,
    match,
    meta,
    raw,
    rule,
)
from node_agent.slices import Difference, Slice, SliceNetwork, Step
from tasks.drift import DriftKind

# BOOTP after the 8 bytes of the UDP header: op, htype, hlen; giaddr and the first six bytes of chaddr.
REQUEST_OVER_ETHERNET: Final = (raw(64, 24), 0x01_01_06)
RELAY_AND_CLIENT: Final = raw(256, 80)
CLIENT: Final = raw(288, 48)


class Filter(Protocol):
    """The host's packet filter and connection tracking. Reads raise `HostUnreadable`. Changes raise `HostRefused` when
    the answer was no, and `HostUnreadable` when there was none: the change may then have been made.
    """

    def ruleset(self) -> Ruleset: ...

    def change(self, change: Change) -> None: ...

    def connections(self, ip: Ipv4Address) -> tuple[Connection, ...]:
        """Tracked connections that have `ip` on any side, before or after translation."""
        ...

    def forget(self, ip: Ipv4Address, which: Callable[[Connection], bool]) -> None:
        """Of those, as they are now, stop tracking these."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that come and go together: a slot's own, or those of one mapping."""

    owner: str
    rules: tuple[Rule, ...]
    ingress_id: IngressId | None = None


class TranslationAspect:
    name = "translation"

    def __init__(self, filter_: Filter, uplink: str) -> None:
        self._filter, self._uplink = filter_, uplink

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        groups, found = groups_of(wanted, self._uplink), self._found(wanted.network)
        foreign = sorted(found.keys() - {group.owner for group in groups})
        plans = ((group, plan(group.rules, found.get(group.owner, ()))) for group in groups)
        changes = [(group, change) for group, change in plans if change is not None]
        narrows = any(group.ingress_id and change.delete for group, change in changes)
        return (
            *(self._unmap(owner, found[owner]) for owner in foreign),
            *(self._set(group, change) for group, change in changes if group.ingress_id is None),
            *((self._flush_closed(wanted),) if foreign else self._flush_left(wanted)),
            *(self._set(group, change) for group, change in changes if group.ingress_id is not None),
            *((self._flush_closed(wanted),) if narrows else ()),
        )

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        steps: tuple[Step, ...] = ()
        if found := self._all_found(gone):
            steps += (Step("translation.delete_rules", lambda: self._filter.change(Change(delete=found))),)
        if self._filter.connections(gone.ip):
            steps += (self._flush(gone.ip, lambda _: True),)
        return steps

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        connections = len(self._filter.connections(gone.ip))
        return (
            *(f"nft rule of {found.rule.owner} in {found.rule.chain}" for found in self._all_found(gone)),
            *((f"{connections} tracked connections of {gone.ip}",) if connections else ()),
        )

    to_stop, still_on = to_remove, remains

    def _set(self, group: Group, change: Change) -> Step:
        def set_() -> None:
            self._filter.change(change)

        differs = _difference(group, change)
        if group.ingress_id is None:
            return Step("translation.set_rules", set_, differs)
        return Step("translation.map", set_, differs)

    def _unmap(self, owner: str, foreign: Sequence[FoundRule]) -> Step:
        found = f"{len(foreign)} rules of {owner}"
        differs = Difference("mapping.foreign", "no other ingress than ordered", found, ingress_in(owner))
        change = Change(delete=tuple(foreign))
        return Step("translation.unmap", lambda: self._filter.change(change), differs)

    def _flush_closed(self, wanted: Slice, differs: Difference | None = None) -> Step:
        """Forget what came in where nothing leads in any more: its packets are dropped already."""
        return self._flush(wanted.network.ip, lambda connection: _is_closed(wanted, connection), differs)

    def _flush_left(self, wanted: Slice) -> tuple[Step, ...]:
        """The same where a crash left some, or a flush that got no answer. It raises where connections cannot be
        listed: who took that for none would call an order done whose flush is not. A full table is no such case, it is
        listed far within the deadline.
        """
        if not wanted.ingress and not wanted.ways_changed:
            return ()
        left = sum(_is_closed(wanted, each) for each in self._filter.connections(wanted.network.ip))
        if not left:
            return ()
        found = f"{left} tracked connections that came in otherwise"
        differs = Difference("mapping.foreign", "connections by ordered ingresses alone", found)
        return (self._flush_closed(wanted, differs),)

    def _flush(
        self, ip: Ipv4Address, which: Callable[[Connection], bool], differs: Difference | None = None
    ) -> Step:
        return Step("translation.flush_connections", lambda: self._filter.forget(ip, which), differs)

    def _found(self, network: SliceNetwork) -> Mapping[str, Sequence[FoundRule]]:
        """The slot's rules by their owners."""
        return look((self._filter, "rules by slot"), self._by_slot).get(network.tap, {})

    def _all_found(self, network: SliceNetwork) -> tuple[FoundRule, ...]:
        return tuple(each for rules in self._found(network).values() for each in rules)

    def _by_slot(self) -> Mapping[str, Mapping[str, Sequence[FoundRule]]]:
        found: dict[str, dict[str, list[FoundRule]]] = {}
        for each in self._filter.ruleset().rules:
            found.setdefault(each.rule.place, {}).setdefault(each.rule.owner, []).append(each)
        return found


def _is_closed(wanted: Slice, connection: Connection) -> bool:
    ip = wanted.network.ip
    return connection.comes_in_to(ip) and not any(permits(way, ip, connection) for way in wanted.ingress)


def groups_of(wanted: Slice, uplink: str) -> tuple[Group, ...]:
    """All rules of a slice."""
    slot = wanted.network
    return (
        Group(slot.tap, rules_of(slot, uplink)),
        *(
            Group(owner_of(slot.tap, way), mapping_rules(slot.tap, slot.ip, way), way.ingress_id)
            for way in wanted.ingress
        ),
    )


def plan(wanted: tuple[Rule, ...], found: Sequence[FoundRule]) -> Change | None:
    """One transaction that leaves equal rules alone, or None. A rule found twice is once too many."""
    keep: dict[Rule, FoundRule] = {each.rule: each for each in found if each.rule in wanted}
    stale = tuple(each for each in found if each not in keep.values())
    missing = tuple(rule for rule in wanted if rule not in keep)
    return Change(delete=stale, insert=missing) if stale or missing else None


def _difference(group: Group, change: Change) -> Difference:
    strange = tuple(each.rule for each in change.delete)
    count = len(group.rules) - len(change.insert) + len(strange)
    kind: DriftKind = "rules.changed" if group.ingress_id is None else "mapping.changed"
    return Difference(
        kind, f"{len(group.rules)} rules", in_words(count, change.insert, strange), group.ingress_id
    )


def rules_of(slice_: SliceNetwork, uplink: str) -> tuple[Rule, ...]:
    """What it may by itself, without its ways in."""
    client = int(slice_.mac.replace(":", ""), 16)
    by_its_card = match(field("ether", "saddr"), slice_.mac)
    by_its_address = match(field("ip", "saddr"), slice_.ip)
    to_its_address = match(field("ip", "daddr"), slice_.ip)
    asks_dhcp, relay_and_client = match(field("udp", "dport"), 67), match(RELAY_AND_CLIENT, client)
    dhcp_answers = (match(field("udp", "sport"), 67), match(field("udp", "dport"), 68), match(CLIENT, client))

    def own(family: Family, chain: str, *body: Expression) -> Rule:
        return rule(family, chain, slice_.tap, *body)

    return (
        own(
            "inet",
            FROM_SLICES,
            by_its_card,
            asks_dhcp,
            match(*REQUEST_OVER_ETHERNET),
            relay_and_client,
            ACCEPT,
        ),
        own("inet", OUT_OF_SLICES, meta("oifname", uplink), GOES_OUT, by_its_card, by_its_address, ACCEPT),
        # What answers one who came in by a mapping, and what would come in by another's.
        own("inet", OUT_OF_SLICES, COMES_IN, by_its_card, by_its_address, jump(MAPPED)),
        # What answers the slice: a permission of the slot and not of the node, so that it ends with the slot's others.
        own("inet", INTO_SLICES, meta("iifname", uplink), GOES_OUT, ESTABLISHED, to_its_address, ACCEPT),
        own("netdev", REPLIES, *dhcp_answers, _set_destination(slice_.mac)),
    )


def _set_destination(mac: MacAddress) -> dict[str, object]:
    return {"mangle": {"key": field("ether", "daddr"), "value": mac}}
