"""The translation aspect: what the gateway lets one slice do, at layer 3 and inside DHCP.

The gateway denies by default (`gateway`), so a slot's rules are permissions: leave by the uplink with its own MAC and
address, where the node's masquerade takes over, and ask DHCP about itself. A slot without its rules is cut off,
never open: a crash in the middle of a release leaves it so.

DHCP messages are checked down to `chaddr` (RFC 2131, 2), which OpenFlow cannot match: a neighbour's forged
DHCPRELEASE or DHCPDECLINE carries the victim's. A relay's address in a slice's message would send the answer elsewhere,
so it must be zero. Answers that DHCP broadcasts get their client's MAC at the gateway's egress, so that no other slice
hears them.

Flushing comes after the rules are gone: an established connection would go on past them, and one that is flushed
first may come back through them.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from events.values import Ipv4Address, MacAddress
from node_agent.looks import look
from node_agent.rules import (
    ACCEPT,
    FROM_SLICES,
    OUT_OF_SLICES,
    REPLIES,
    Change,
    FoundRule,
    Rule,
    Ruleset,
    field,
    in_words,
    match,
    meta,
    raw,
    rule,
)
from node_agent.slices import Difference, Slice, SliceNetwork, Step

# BOOTP after the 8 bytes of the UDP header: op, htype, hlen; giaddr and the first six bytes of chaddr.
REQUEST_OVER_ETHERNET: Final = (raw(64, 24), 0x01_01_06)
RELAY_AND_CLIENT: Final = raw(256, 80)
CLIENT: Final = raw(288, 48)


class Filter(Protocol):
    """The host's packet filter and connection tracking. Reads raise `HostUnreadable`, changes `HostRefused`."""

    def ruleset(self) -> Ruleset: ...

    def change(self, change: Change) -> None: ...

    def connections(self, ip: Ipv4Address) -> int:
        """How many tracked connections have `ip` on any side, before or after translation."""
        ...

    def flush_connections(self, ip: Ipv4Address) -> None: ...


class TranslationAspect:
    name = "translation"

    def __init__(self, filter_: Filter, uplink: str) -> None:
        self._filter, self._uplink = filter_, uplink

    def to_apply(self, wanted: Slice) -> tuple[Step, ...]:
        return plan(rules_of(wanted.network, self._uplink), self._found(wanted.network), self._filter)

    def to_remove(self, gone: SliceNetwork) -> tuple[Step, ...]:
        steps: tuple[Step, ...] = ()
        if found := self._found(gone):
            steps += (Step("translation.delete_rules", lambda: self._filter.change(Change(delete=found))),)
        if self._filter.connections(gone.ip):
            steps += (Step("translation.flush_connections", lambda: self._filter.flush_connections(gone.ip)),)
        return steps

    def remains(self, gone: SliceNetwork) -> tuple[str, ...]:
        connections = self._filter.connections(gone.ip)
        return (
            *(f"nft rule of {gone.tap} in {found.rule.chain}" for found in self._found(gone)),
            *((f"{connections} tracked connections of {gone.ip}",) if connections else ()),
        )

    to_stop, still_on = to_remove, remains

    def _found(self, network: SliceNetwork) -> tuple[FoundRule, ...]:
        return tuple(look((self._filter, "rules by owner"), self._by_owner).get(network.tap, ()))

    def _by_owner(self) -> Mapping[str, Sequence[FoundRule]]:
        found: dict[str, list[FoundRule]] = {}
        for each in self._filter.ruleset().rules:
            found.setdefault(each.rule.owner, []).append(each)
        return found


def plan(wanted: tuple[Rule, ...], found: tuple[FoundRule, ...], filter_: Filter) -> tuple[Step, ...]:
    """One transaction that leaves equal rules alone, or nothing. A rule found twice is once too many."""
    keep: dict[Rule, FoundRule] = {each.rule: each for each in found if each.rule in wanted}
    stale = tuple(each for each in found if each not in keep.values())
    missing = tuple(rule for rule in wanted if rule not in keep)
    if not stale and not missing:
        return ()
    change = Change(delete=stale, insert=missing)
    differs = Difference(
        "rules.changed",
        f"{len(wanted)} rules",
        in_words(len(found), missing, tuple(each.rule for each in stale)),
    )
    return (Step("translation.set_rules", lambda: filter_.change(change), differs),)


def rules_of(slice_: SliceNetwork, uplink: str) -> tuple[Rule, ...]:
    owner, client = slice_.tap, int(slice_.mac.replace(":", ""), 16)
    return (
        rule(
            "inet",
            FROM_SLICES,
            owner,
            match(field("ether", "saddr"), slice_.mac),
            match(field("udp", "dport"), 67),
            match(*REQUEST_OVER_ETHERNET),
            match(RELAY_AND_CLIENT, client),
            ACCEPT,
        ),
        rule(
            "inet",
            OUT_OF_SLICES,
            owner,
            meta("oifname", uplink),
            match(field("ether", "saddr"), slice_.mac),
            match(field("ip", "saddr"), slice_.ip),
            ACCEPT,
        ),
        rule(
            "netdev",
            REPLIES,
            owner,
            match(field("udp", "sport"), 67),
            match(field("udp", "dport"), 68),
            match(CLIENT, client),
            _set_destination(slice_.mac),
        ),
    )


def _set_destination(mac: MacAddress) -> dict[str, object]:
    return {"mangle": {"key": field("ether", "daddr"), "value": mac}}
