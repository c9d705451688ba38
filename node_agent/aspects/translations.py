"""The translation aspect: the gateway's permissions for one slice, at layer 3 and inside DHCP.

The gateway denies by default (`gateway`), so a slot's rules are permissions: send through the uplink with the slice's
own MAC and address, where the node masquerades it; receive replies; and send DHCP messages about itself. A slot without
its rules is cut off, with all its connections, and never open: a crash during a release leaves it in this state.

DHCP messages are checked down to `chaddr` (RFC 2131, 2), which OpenFlow cannot match: a DHCPRELEASE or DHCPDECLINE that
another slice forges contains the victim's address. A relay address in a slice's message would redirect the reply, so
the relay address must be zero. Broadcast DHCP replies get their client's MAC at the gateway's egress, so that no other
slice receives them.

Each ingress rule of a slot is a permission of its own (`ingress_rules`). The packet filter rules of each ingress rule
are a separate group, so that drift in one group is repaired and reported separately.

Connections are flushed (deleted from conntrack) after their rules are deleted, because otherwise a flushed connection
may be established again. They are flushed before new rules are added, so that an ingress rule that cannot be added does
not delay the end of another one. After a crash in between, the connections themselves show that a flush is due.
Connections are listed only for a slice that has ingress rules or had some until this change.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, assert_never

from events.values import IngressId, Ipv4Address, MacAddress
from node_agent.aspects.ingress_rules import Connection, ingress_in, owner_of, permits
from node_agent.aspects.ingress_rules import rules_of as mapping_rules
from node_agent.host.slices import Difference, Slice, SliceNetwork, Step
from node_agent.host.snapshots import look
from node_agent.packets.rules import (
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
    describe_rule_difference,
    field,
    jump,
    match,
    meta,
    raw,
    rule,
)
from tasks.drift import DriftKind
from tasks.orders import Mapping as Ingress

# BOOTP after the 8 bytes of the UDP header: op, htype, hlen; giaddr and the first six bytes of chaddr.
REQUEST_OVER_ETHERNET: Final = (raw(64, 24), 0x01_01_06)
RELAY_AND_CLIENT: Final = raw(256, 80)
CLIENT: Final = raw(288, 48)


class Filter(Protocol):
    """Interface to the packet filter and the connection tracking of a host.

    Reads raise `HostUnreadable`. Changes raise `HostRefused` if the host refuses, and `HostUnreadable` if it does not
    answer: the change may then have been made.
    """

    def ruleset(self) -> Ruleset: ...

    def change(self, change: Change) -> None: ...

    def connections(self, ip: Ipv4Address) -> tuple[Connection, ...]:
        """Return the tracked connections (conntrack) with the address `ip` at any end, before or after translation."""
        ...

    def forget(self, ip: Ipv4Address, which: Callable[[Connection], bool]) -> None:
        """Read the tracked connections of the address `ip` again, and delete from conntrack those for which `which`
        returns True.
        """
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """Packet filter rules that are set and deleted together: a slot's own rules, or the rules of one ingress."""

    owner: str
    rules: tuple[Rule, ...]
    ingress_id: IngressId | None = None


class TranslationAspect:
    """Aspect `translation` of all slots: packet filter rules and tracked connections."""

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
        found = f"{len(foreign)} nftables rules of {owner}"
        differs = Difference(
            "ingress.foreign", "no ingress rules except those of the slot's order", found, ingress_in(owner)
        )
        change = Change(delete=tuple(foreign))
        return Step("translation.unmap", lambda: self._filter.change(change), differs)

    def _flush_closed(self, wanted: Slice, differs: Difference | None = None) -> Step:
        """Return a step that deletes tracked connections without an ingress rule; their packets are dropped already."""
        return self._flush(wanted.network.ip, lambda connection: _is_closed(wanted, connection), differs)

    def _flush_left(self, wanted: Slice) -> tuple[Step, ...]:
        """Return the step that deletes tracked connections without an ingress rule, if a crash left such connections.

        Raises `HostUnreadable` if connections cannot be listed: an order must not be completed while these connections
        may exist. Even a full connection table can be listed within the deadline.
        """
        if not wanted.ingress and not wanted.ingress_changed:
            return ()
        left = sum(_is_closed(wanted, each) for each in self._filter.connections(wanted.network.ip))
        if not left:
            return ()
        found = f"{left} tracked connections that no ingress rule of the slot's order permits"
        differs = Difference(
            "ingress.foreign",
            "no connections from outside except by ingress rules of the slot's order",
            found,
        )
        return (self._flush_closed(wanted, differs),)

    def _flush(
        self, ip: Ipv4Address, which: Callable[[Connection], bool], differs: Difference | None = None
    ) -> Step:
        return Step("translation.flush_connections", lambda: self._filter.forget(ip, which), differs)

    def _found(self, network: SliceNetwork) -> Mapping[str, Sequence[FoundRule]]:
        """Return the observed packet filter rules of the slot, by their owner."""
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
    return connection.comes_in_to(ip) and not any(
        permits(ingress, ip, connection) for ingress in wanted.ingress
    )


def groups_of(wanted: Slice, uplink: str) -> tuple[Group, ...]:
    """Return the desired packet filter rules of a slice in groups: its own rules, and the rules of each ingress."""
    own = Group(wanted.network.tap, rules_of(wanted.network, uplink))
    match wanted.network_mode:
        case "private-nat":
            return (own,)
        case "public-nat":
            return own, *(_ingress_group(wanted.network, each) for each in wanted.ingress)
        case mode:
            assert_never(mode)


def _ingress_group(slot: SliceNetwork, ingress: Ingress) -> Group:
    return Group(owner_of(slot.tap, ingress), mapping_rules(slot.tap, slot.ip, ingress), ingress.ingress_id)


def plan(wanted: tuple[Rule, ...], found: Sequence[FoundRule]) -> Change | None:
    """Return the nftables transaction that changes only the rules that differ, or None if none differs.

    Duplicates of a rule are deleted.
    """
    keep: dict[Rule, FoundRule] = {each.rule: each for each in found if each.rule in wanted}
    stale = tuple(each for each in found if each not in keep.values())
    missing = tuple(rule for rule in wanted if rule not in keep)
    return Change(delete=stale, insert=missing) if stale or missing else None


def _difference(group: Group, change: Change) -> Difference:
    unexpected = tuple(each.rule for each in change.delete)
    count = len(group.rules) - len(change.insert) + len(unexpected)
    kind: DriftKind = "rules.changed" if group.ingress_id is None else "ingress.changed"
    return Difference(
        kind,
        f"{len(group.rules)} rules",
        describe_rule_difference(count, change.insert, unexpected),
        group.ingress_id,
    )


def rules_of(slice_: SliceNetwork, uplink: str) -> tuple[Rule, ...]:
    """Return the desired packet filter rules of a slice, without the rules of its ingresses."""
    client = int(slice_.mac.replace(":", ""), 16)
    from_its_mac = match(field("ether", "saddr"), slice_.mac)
    from_its_address = match(field("ip", "saddr"), slice_.ip)
    to_its_address = match(field("ip", "daddr"), slice_.ip)
    dhcp_request, relay_and_client = match(field("udp", "dport"), 67), match(RELAY_AND_CLIENT, client)
    dhcp_reply = (match(field("udp", "sport"), 67), match(field("udp", "dport"), 68), match(CLIENT, client))

    def own(family: Family, chain: str, *body: Expression) -> Rule:
        return rule(family, chain, slice_.tap, *body)

    return (
        own(
            "inet",
            FROM_SLICES,
            from_its_mac,
            dhcp_request,
            match(*REQUEST_OVER_ETHERNET),
            relay_and_client,
            ACCEPT,
        ),
        own("inet", OUT_OF_SLICES, meta("oifname", uplink), GOES_OUT, from_its_mac, from_its_address, ACCEPT),
        # Replies to a client that entered by an ingress, and packets that enter another slice by its ingress.
        own("inet", OUT_OF_SLICES, COMES_IN, from_its_mac, from_its_address, jump(MAPPED)),
        # Replies to the slice: a permission of the slot and not of the node, so that it ends with the slot's others.
        own("inet", INTO_SLICES, meta("iifname", uplink), GOES_OUT, ESTABLISHED, to_its_address, ACCEPT),
        own("netdev", REPLIES, *dhcp_reply, _set_destination(slice_.mac)),
    )


def _set_destination(mac: MacAddress) -> dict[str, object]:
    return {"mangle": {"key": field("ether", "daddr"), "value": mac}}
