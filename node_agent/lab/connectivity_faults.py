"""Connectivity faults: changes of a real node that make a slice unreachable, for tests of the probes.

The agent does not repair these changes; `node_agent.lab.fault_injection` contains changes that the agent repairs. The
shell commands of both modules use the variables that `fault_injection` describes. The commands of this module also use
`$public` and `$public_port`, the public address and port of an ingress of the slice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from node_agent.host.reachability import Hop

_FLOWS: Final = "ovs-ofctl -O OpenFlow14"


@dataclass(frozen=True)
class ConnectivityFault:
    """A change of a real node that interrupts the traffic of a slice."""

    hop: Hop
    """The hop that the agent reports as failed while the fault is present."""
    inject_command: str
    """Shell commands that inject the fault."""
    revert_command: str
    """Shell commands that revert the fault."""


def _table(hop: Hop, hook: str, rule: str, policy: str = "accept") -> ConnectivityFault:
    """Return a connectivity fault that adds a foreign nftables table with one rule at this netfilter hook."""
    chain = f"nft 'add chain ip other others {{ {hook}; policy {policy}; }}'"
    return ConnectivityFault(
        hop,
        f"nft add table ip other; {chain}; nft add rule ip other others {rule}",
        "nft delete table ip other",
    )


def _reversible(hop: Hop, command: str, inject_command: str, revert_command: str) -> ConnectivityFault:
    """Return a connectivity fault that is injected and reverted by the same shell command, except for one word such as
    `add` or `del`, which replaces `{}` in `command`.
    """
    return ConnectivityFault(hop, command.format(inject_command), command.format(revert_command))


_INPUT: Final = "type filter hook input priority 10"
_OUTPUT: Final = "type filter hook output priority 10"
_FORWARD: Final = "type filter hook forward priority 10"
_TRANSLATION: Final = "type nat hook prerouting priority -110"
_BEFORE_TRACKING: Final = "type filter hook prerouting priority -310"
_OF_INGRESS: Final = "ip daddr $public tcp dport $public_port"

CONNECTIVITY_FAULTS: Final[Mapping[str, ConnectivityFault]] = MappingProxyType(
    {
        "arp.dropped": ConnectivityFault(
            "address",
            "nft add table arp other;"
            " nft 'add chain arp other others { type filter hook input priority 0; policy drop; }';"
            " ip neigh flush dev br-slice",
            "nft delete table arp other",
        ),
        "route.blackhole": _reversible("gateway", "ip route {} blackhole $ip/32", "add", "del"),
        "route.unreachable": _reversible("gateway", "ip route {} unreachable $ip/32", "add", "del"),
        "route.by_uplink": _reversible("gateway", "ip route {} $ip/32 dev uplink0", "add", "del"),
        "route.blackhole_policy": _reversible("gateway", "ip rule {} to $ip blackhole", "add", "del"),
        "filter.input_dropped": _table("port", _INPUT, "ip saddr $ip drop"),
        "filter.output_dropped": _table("gateway", _OUTPUT, "ip daddr $ip drop"),
        "filter.output_rejected": _table("gateway", _OUTPUT, "ip daddr $ip reject with tcp reset"),
        "filter.input_dropped_by_iptables": _reversible(
            "port", "iptables-legacy {} INPUT -s $ip -j DROP", "-I", "-D"
        ),
        "filter.bridge_link_dropped": ConnectivityFault(
            "port",
            "nft add table netdev other; nft 'add chain netdev other others"
            " { type filter hook ingress device br-slice priority 0; }';"
            " nft add rule netdev other others ip saddr $ip drop",
            "nft delete table netdev other",
        ),
        "xfrm.out": ConnectivityFault(
            "gateway",
            "ip xfrm policy add src 0.0.0.0/0 dst $ip/32 dir out action block",
            "ip xfrm policy delete src 0.0.0.0/0 dst $ip/32 dir out",
        ),
        "xfrm.in": ConnectivityFault(
            "port",
            "ip xfrm policy add src $ip/32 dst 0.0.0.0/0 dir in action block",
            "ip xfrm policy delete src $ip/32 dst 0.0.0.0/0 dir in",
        ),
        "xfrm.forwarded": ConnectivityFault(
            "ingress",
            # The kernel matches forward policies against the address before the translation.
            "ip xfrm policy add src 0.0.0.0/0 dst $public/32 dir fwd action block",
            "ip xfrm policy delete src 0.0.0.0/0 dst $public/32 dir fwd",
        ),
        "ingress.translated_elsewhere": _table("ingress", _TRANSLATION, f"{_OF_INGRESS} dnat to 192.0.2.77"),
        "ingress.to_another_slice": _table("ingress", _TRANSLATION, f"{_OF_INGRESS} dnat to 10.100.1.77"),
        "ingress.redirected": _table("ingress", _TRANSLATION, f"{_OF_INGRESS} redirect to :9"),
        "ingress.not_tracked": _table("ingress", _BEFORE_TRACKING, "ip daddr $public notrack"),
        "ingress.dropped": _table("ingress", _BEFORE_TRACKING, f"{_OF_INGRESS} drop"),
        "ingress.policy_of_forward": _table("ingress", _FORWARD, "counter", policy="drop"),
        "ingress.forward_rejected": _table("ingress", _FORWARD, "ip daddr $ip reject with tcp reset"),
        "ingress.dropped_by_iptables": _reversible(
            "ingress", "iptables-legacy {} FORWARD -d $ip -j DROP", "-I", "-D"
        ),
    }
)
"""All connectivity faults by name."""
