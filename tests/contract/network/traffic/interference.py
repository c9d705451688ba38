"""Foreign changes of a host's routing and uplink, as an administrator could make them, on a simulated or
a real host.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from events.values import Ipv4Address, Ipv4Subnet
from node_agent.lab.simulated.host import GATEWAY_OF_UPLINK, HeldNeighbour, State
from node_agent.packets.routing import ANYWHERE, LOCAL, MAIN, Neighbour, PolicyRule, Route
from tests.contract.network.slices import NETWORK, SUBNET

Interference = Literal[
    "subnet route deleted", "local route deleted", "static neighbour",
    "blackhole", "route elsewhere", "rule that drops", "rule to another table", "main rule deleted",
    "macvlan on the bridge", "uplink MTU", "uplink without ARP", "uplink throttled", "uplink filtered", "silent gateway",
]  # fmt: skip
"""Names of the foreign changes of a host's routing or uplink. In `rule to another table`, the other table is routing
table 77.
"""
_STATIC: Final = Neighbour(Ipv4Address("10.100.1.10"), "02:00:00:00:00:99")
_HALF: Final = Ipv4Subnet("10.100.1.0/25")

CHANGED: Final[Mapping[Interference, Callable[[State], dict[str, Any]]]] = {
    "subnet route deleted": lambda now: {"routes": [each for each in now.routes if each.to != SUBNET]},
    "local route deleted": lambda now: {"routes": [each for each in now.routes if each.table != LOCAL]},
    "static neighbour": lambda _: {"neighbours": [HeldNeighbour(NETWORK.bridge, _STATIC)]},
    "blackhole": lambda now: {"routes": [*now.routes, Route("blackhole", Ipv4Subnet("10.100.1.10/32"))]},
    "route elsewhere": lambda now: {
        "routes": [*now.routes, Route("unicast", _HALF, MAIN, (NETWORK.uplink,), (GATEWAY_OF_UPLINK,))]
    },
    "rule that drops": lambda now: {
        "policy_rules": [*now.policy_rules, PolicyRule(100, "blackhole", 0, SUBNET)]
    },
    "rule to another table": lambda now: {
        "policy_rules": [*now.policy_rules, PolicyRule(100, table=77, to=SUBNET)],
        "routes": [*now.routes, Route("unreachable", ANYWHERE, 77)],
    },
    "main rule deleted": lambda now: {
        "policy_rules": [each for each in now.policy_rules if each.table != MAIN]
    },
    "macvlan on the bridge": lambda _: {"upper_links": ["macvlan link spy0"]},
    "uplink MTU": lambda now: {"uplink": replace(now.uplink, mtu=1400)},
    "uplink without ARP": lambda now: {"uplink": replace(now.uplink, arp=False)},
    "uplink throttled": lambda now: {
        "uplink": replace(now.uplink, queueing=frozenset({"qdisc tbf at its root"}))
    },
    "uplink filtered": lambda now: {
        "uplink": replace(now.uplink, queueing=frozenset({"bpf filter that is there"}))
    },
    "silent gateway": lambda _: {"silent": [GATEWAY_OF_UPLINK]},
}
"""For each foreign change, a function that returns the changed fields of a simulated host's state."""


class Commands(NamedTuple):
    """Shell commands that make a foreign change on a real host, and commands that undo the change if the agent does not
    repair it.
    """

    done: str
    undone: str = ":"


BY_COMMANDS: Final[Mapping[Interference, Commands]] = {
    "subnet route deleted": Commands("ip route del 10.100.1.0/24"),
    "local route deleted": Commands("ip route del local 10.100.1.1 table local"),
    "static neighbour": Commands(
        "ip neigh replace 10.100.1.10 lladdr 02:00:00:00:00:99 dev br-slice nud permanent"
    ),
    "blackhole": Commands("ip route add blackhole 10.100.1.10/32", "ip route del blackhole 10.100.1.10/32"),
    "route elsewhere": Commands(
        "ip route add 10.100.1.0/25 via 198.51.100.1 dev uplink0",
        "ip route del 10.100.1.0/25",
    ),
    "rule that drops": Commands(
        "ip rule add priority 100 from 10.100.1.0/24 blackhole",
        "ip rule del priority 100",
    ),
    "rule to another table": Commands(
        "ip route add unreachable default table 77; ip rule add priority 100 to 10.100.1.0/24 table 77",
        "ip rule del priority 100; ip route flush table 77",
    ),
    "main rule deleted": Commands("ip rule del priority 32766", "ip rule add priority 32766 table main"),
    "macvlan on the bridge": Commands(
        "ip link add link br-slice name spy0 type macvlan",
        "ip link del spy0",
    ),
    "uplink MTU": Commands("ip link set uplink0 mtu 1400", "ip link set uplink0 mtu 1500"),
    "uplink without ARP": Commands("ip link set uplink0 arp off", "ip link set uplink0 arp on"),
    "uplink throttled": Commands(
        "tc qdisc add dev uplink0 root tbf rate 1mbit burst 10k latency 50ms",
        "tc qdisc del dev uplink0 root",
    ),
    "uplink filtered": Commands(
        "tc qdisc add dev uplink0 clsact; tc filter add dev uplink0 egress bpf da bytecode '1,6 0 0 2,'",
        "tc qdisc del dev uplink0 clsact",
    ),
    "silent gateway": Commands(
        "ip route replace default via 198.51.100.254 dev uplink0",
        "ip route replace default via 198.51.100.1 dev uplink0",
    ),
}
