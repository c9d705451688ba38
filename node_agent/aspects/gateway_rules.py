"""Packet filter rules of the node: deny traffic from and to the bridge by default, and masquerade slices' packets.

The chains `input` and `forward` accept packets that do not concern slices, because the host has other traffic, and send
all packets from and to the bridge into chains that end in a drop. The permissions of a slot are inserted before that
drop (`translations`).
"""

from typing import Final

from events.values import Ipv4Address, Ipv4Subnet
from node_agent.host.reachability import PROBE_LINK
from node_agent.packets.rules import (
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
"""Private (RFC 1918), shared (RFC 6598) and link-local networks, which must not appear as sources on an uplink."""

TAPS: Final = "slice*"
"""Pattern that matches the names of all slots' taps, and of no other link (`slices.tap_of`)."""


def chains_on(bridge: str) -> tuple[Chain, ...]:
    """Return the nftables chains of a node with this bridge.

    The policy of the base chains is to accept, because the host has other traffic.
    """
    return (
        # DHCP is not tracked: each message is checked by itself, and conntrack entries would outlive their addresses.
        Chain("inet", "untracked_in", "filter", "prerouting", -300, "accept"),
        Chain("inet", "untracked_out", "filter", "output", -300, "accept"),
        Chain("inet", "input", "filter", "input", 0, "accept"),
        Chain("inet", "forward", "filter", "forward", 0, "accept"),
        Chain("inet", MAPPING, "nat", "prerouting", -100, "accept"),
        Chain("inet", "source_nat", "nat", "postrouting", 100, "accept"),
        # After translation: a packet that still has a private source here was not, or could not be, translated.
        Chain("inet", "leaving", "filter", "postrouting", 300, "accept"),
        Chain("inet", FROM_SLICES),
        Chain("inet", OUT_OF_SLICES),
        Chain("inet", INTO_SLICES),
        Chain("inet", MAPPED),
        Chain("netdev", REPLIES, "filter", "egress", 0, "accept", bridge),
    )


def node_rules(
    bridge: str,
    uplink: str,
    subnet: Ipv4Subnet,
    uplink_addresses: tuple[Ipv4Address, ...],
    *,
    masquerades: bool = True,
) -> tuple[Rule, ...]:
    """Return the node's own nftables rules, in the order that they must have.

    Packets with a private source address may leave through the uplink only if the host sends them from one of the
    uplink's own addresses (`uplink_addresses`). `masquerades` is False on a host that refuses masquerade rules: what
    slices send to other networks is then dropped.
    """

    def inet(chain: str, *body: Expression) -> Rule:
        return rule("inet", chain, NODE, *body)

    source = field("ip", "saddr")
    masquerade = (
        inet("source_nat", meta("oifname", uplink), match(source, prefix(subnet)), MASQUERADE),
        # A slice that uses another slice's ingress rule gets the gateway's address as its source: a reply to its own
        # address would stay on the bridge, where no slice reaches another.
        inet("source_nat", meta("oifname", bridge), match(source, prefix(subnet)), COMES_IN, MASQUERADE),
    )
    own = tuple(match(source, address, op="!=") for address in sorted(uplink_addresses))
    return (
        inet("untracked_in", meta("iifname", bridge), match(field("udp", "dport"), 67), NOTRACK),
        inet("untracked_in", meta("iifname", "lo"), match(field("udp", "dport"), 67), NOTRACK),
        inet("untracked_out", match(field("udp", "dport"), {"set": [67, 68]}), NOTRACK),
        inet("input", meta("iifname", bridge), jump(FROM_SLICES)),
        # With the userspace datapath the host's own stack receives the frames of the taps too.
        inet("input", meta("iifname", TAPS), DROP),
        inet("forward", meta("iifname", TAPS), DROP),
        inet("forward", meta("iifname", bridge), jump(OUT_OF_SLICES)),
        inet("forward", meta("oifname", bridge), jump(INTO_SLICES)),
        *(masquerade if masquerades else ()),
        inet("leaving", meta("oifname", uplink), match(source, {"set": [*map(prefix, PRIVATE)]}), *own, DROP),
        # Replies to connections of the host itself. Packets of a slice's connections with other networks are permitted
        # one by one by the slot's rules: a permission here would outlive those rules.
        inet(FROM_SLICES, ESTABLISHED, ACCEPT),
        inet(FROM_SLICES, DROP),
        inet(OUT_OF_SLICES, DROP),
        inet(INTO_SLICES, meta("iifname", uplink), COMES_IN, jump(MAPPED)),
        # Probes of ingress rules come from a device of the agent's own, and are answered there. Ingress rules that are
        # limited to some sources permit the probe too; packets with the probe's address from another link are not
        # probes.
        inet(INTO_SLICES, meta("iifname", PROBE_LINK), COMES_IN, jump(MAPPED)),
        inet(INTO_SLICES, DROP),
        inet(MAPPED, meta("iifname", PROBE_LINK), ACCEPT),
        inet(MAPPED, meta("oifname", PROBE_LINK), ACCEPT),
        inet(MAPPED, DROP),
    )
