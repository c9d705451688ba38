"""The node's own filter rules: deny what comes from the bridge, translate what leaves, by default and for all slots.

`input` and `forward` accept what is not the slices' business, because the host has other traffic, and send everything
from and to the bridge into chains that end in a drop. What a slot may do is inserted before it (`translations`).
"""

from typing import Final

from events.values import Ipv4Address, Ipv4Subnet
from node_agent.reaching import PROBE_LINK
from node_agent.rules import (
    ACCEPT,
    COMES_IN,
    DROP,
    ESTABLISHED,
    FROM_SLICES,
    INTO_SLICES,
    MAPPED,
    MAPPING,
    MASQUERADE,
    NODE,
    NOTRACK,
    OUT_OF_SLICES,
    REPLIES,
    Chain,
    Expression,
    Rule,
    field,
    jump,
    match,
    meta,
    prefix,
    rule,
)

PRIVATE: Final = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
"""RFC 1918, shared address space (RFC 6598) and link-local: no business of any uplink."""

TAPS: Final = "slice*"
"""Every tap of a slot, and nothing else, is called like this (`slices.tap_of`)."""


def chains_on(bridge: str) -> tuple[Chain, ...]:
    """The chains of a node with this bridge. Each accepts what no rule decides: the host has other traffic."""
    return (
        # DHCP is not tracked: it is checked message by message, and would leave traces of released addresses.
        Chain("inet", "untracked_in", "filter", "prerouting", -300, "accept"),
        Chain("inet", "untracked_out", "filter", "output", -300, "accept"),
        Chain("inet", "input", "filter", "input", 0, "accept"),
        Chain("inet", "forward", "filter", "forward", 0, "accept"),
        Chain("inet", MAPPING, "nat", "prerouting", -100, "accept"),
        Chain("inet", "source_nat", "nat", "postrouting", 100, "accept"),
        # After translation: whatever still has a private source here was not, or could not be, translated.
        Chain("inet", "leaving", "filter", "postrouting", 300, "accept"),
        Chain("inet", FROM_SLICES),
        Chain("inet", OUT_OF_SLICES),
        Chain("inet", INTO_SLICES),
        Chain("inet", MAPPED),
        Chain("netdev", REPLIES, "filter", "egress", 0, "accept", bridge),
    )


def node_rules(
    bridge: str, uplink: str, subnet: Ipv4Subnet, uplink_addresses: tuple[Ipv4Address, ...]
) -> tuple[Rule, ...]:
    """In the order in which they must stand. An uplink may bear a private address itself, and may use it."""

    def inet(chain: str, *body: Expression) -> Rule:
        return rule("inet", chain, NODE, *body)

    source = field("ip", "saddr")
    own = tuple(match(source, address, op="!=") for address in sorted(uplink_addresses))
    return (
        inet("untracked_in", meta("iifname", bridge), match(field("udp", "dport"), 67), NOTRACK),
        inet("untracked_in", meta("iifname", "lo"), match(field("udp", "dport"), 67), NOTRACK),
        inet("untracked_out", match(field("udp", "dport"), {"set": [67, 68]}), NOTRACK),
        inet("input", meta("iifname", bridge), jump(FROM_SLICES)),
        # With the userspace datapath the host's own stack sees the frames of the taps as well.
        inet("input", meta("iifname", TAPS), DROP),
        inet("forward", meta("iifname", TAPS), DROP),
        inet("forward", meta("iifname", bridge), jump(OUT_OF_SLICES)),
        inet("forward", meta("oifname", bridge), jump(INTO_SLICES)),
        inet("source_nat", meta("oifname", uplink), match(source, prefix(subnet)), MASQUERADE),
        # A slice that comes in by another's mapping does so as the gateway: an answer to its own address would stay
        # on the bridge, where no slice reaches another.
        inet("source_nat", meta("oifname", bridge), match(source, prefix(subnet)), COMES_IN, MASQUERADE),
        inet("leaving", meta("oifname", uplink), match(source, {"set": [*map(prefix, PRIVATE)]}), *own, DROP),
        # Answers to the host's own questions. What goes on with the world is for the slot's rules to permit, packet by
        # packet: a permission here would outlive them.
        inet(FROM_SLICES, ESTABLISHED, ACCEPT),
        inet(FROM_SLICES, DROP),
        inet(OUT_OF_SLICES, DROP),
        inet(INTO_SLICES, meta("iifname", uplink), COMES_IN, jump(MAPPED)),
        # Probes of ingresses come from a device of the agent's own, and are answered there. Those that only some
        # sources may use let the probe pass too; what comes with its address by another link is not from there.
        inet(INTO_SLICES, meta("iifname", PROBE_LINK), COMES_IN, jump(MAPPED)),
        inet(INTO_SLICES, DROP),
        inet(MAPPED, meta("iifname", PROBE_LINK), ACCEPT),
        inet(MAPPED, meta("oifname", PROBE_LINK), ACCEPT),
        inet(MAPPED, DROP),
    )
