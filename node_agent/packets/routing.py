"""IPv4 routes, policy rules and ARP entries of the host, and which of them cut off or divert slices' traffic.

The agent manages the routes that the kernel makes for the gateway's address (the slices' subnet, and the address
itself as local) and the ARP entries on the bridge, which must all be learned, not permanent. All other objects are
foreign. A route is reported if it is in the table main or local and sends packets for the slices' subnet elsewhere. A
policy rule is reported if it can match packets from or to the subnet and looks them up in another table. Routes to all
other networks are chosen by the operator of the host and are not reported.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final, Literal

from events.values import Ipv4Address, Ipv4Subnet
from node_agent.host.slices import Difference

LOCAL, MAIN, DEFAULT = 255, 254, 253
"""Numbers of the routing tables that every host has, in the order in which the kernel consults them (ip-rule(8))."""
USUAL: Final = frozenset({LOCAL, MAIN, DEFAULT})
ANYWHERE: Final = Ipv4Subnet("0.0.0.0/0")
RouteKind = Literal["unicast", "local", "broadcast", "blackhole", "unreachable", "prohibit", "throw", "other"]


@dataclass(frozen=True, slots=True)
class Route:
    """One IPv4 route. `links` are names; a blackhole route has none. The route with the lowest `metric` is preferred.

    `is_plain`: the route has only the attributes of routes that the kernel itself adds for an address.
    """

    kind: RouteKind
    to: Ipv4Subnet
    table: int = MAIN
    links: tuple[str, ...] = ()
    gateways: tuple[Ipv4Address, ...] = ()
    source: Ipv4Address | None = None
    metric: int = 0
    is_plain: bool = True

    def __str__(self) -> str:
        via = "".join(f" via {each}" for each in self.gateways)
        dev = "".join(f" dev {each}" for each in self.links)
        table = "" if self.table == MAIN else f" table {self.table}"
        return f"{self.kind} {self.to}{via}{dev}{table}"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One IPv4 policy rule (ip-rule(8)). `action` is `lookup` or another action, such as `goto`.

    `marked`: the rule matches only packets with a mark. `of_host`: the rule matches only packets that the host itself
    sends. `inverted`: the rule matches packets that its selectors exclude (`not`). `partial`: the rule has a further
    condition, such as a port, or ignores some of the routes in its table.
    """

    priority: int
    action: str = "lookup"
    table: int = MAIN
    source: Ipv4Subnet | None = None
    to: Ipv4Subnet | None = None
    link: str | None = None
    marked: bool = False
    of_host: bool = False
    inverted: bool = False
    partial: bool = False

    def __str__(self) -> str:
        inverted = "not " if self.inverted else ""
        to = f" to {self.to}" if self.to else ""
        link = f" iif {self.link}" if self.link else ""
        part = " (in part)" if self.partial else ""
        does = f"lookup {self.table}" if self.action == "lookup" else self.action
        return f"{self.priority}: {inverted}from {self.source or 'all'}{to}{link} {does}{part}"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A permanent ARP entry that a program set, so that the host does not resolve the MAC of the address."""

    address: Ipv4Address
    mac: str | None

    def __str__(self) -> str:
        return f"{self.address} at {self.mac or 'no MAC'}"


def own_routes(bridge: str, subnet: Ipv4Subnet, gateway: Ipv4Address) -> tuple[Route, ...]:
    """Return the routes that the kernel creates by itself for the gateway's address on the bridge."""
    return (
        Route("unicast", subnet, MAIN, (bridge,), (), gateway),
        Route("local", Ipv4Subnet(f"{gateway}/32"), LOCAL, (bridge,), (), gateway),
    )


def foreign_routes(routes: Iterable[Route], bridge: str, subnet: Ipv4Subnet) -> Difference | None:
    """Return the drift about routes in the tables main and local that lead packets for the slices' subnet elsewhere
    than to the bridge; None if there is no such route.
    """
    own = IPv4Network(subnet)
    found = [
        each
        for each in routes
        if each.table in USUAL and IPv4Network(each.to).subnet_of(own) and not _leads_to(bridge, each)
    ]
    if not found:
        return None
    wanted = f"no route to {subnet} except over {bridge}"
    return Difference("foreign.route", wanted, "; ".join(sorted(map(str, found))))


def diverting_rules(
    rules: Iterable[PolicyRule], routes: Iterable[Route], subnet: Ipv4Subnet, bridge: str
) -> Difference | None:
    """Return the drift about policy rules that keep packets of slices from the routing tables main and local.

    The drift names rules that look the packets up elsewhere, and missing rules for these two tables.
    """
    rules, routes = tuple(rules), tuple(routes)
    found = [
        *(
            f"no rule that looks up table {table}"
            for table in (LOCAL, MAIN)
            if not _is_consulted(table, rules)
        ),
        *(str(each) for each in rules if _matches(each, subnet) and _diverts(each, routes, bridge, subnet)),
    ]
    if not found:
        return None
    wanted = f"packets from and to {subnet} routed only by the tables local and main"
    return Difference("foreign.policy_rule", wanted, "; ".join(found))


def gateways_of(routes: Iterable[Route], uplink: str) -> frozenset[Ipv4Address]:
    """Return the gateways of the preferred default route, if this route leads over the uplink; else an empty set."""
    defaults = sorted(
        (each for each in routes if each.to == ANYWHERE and each.table == MAIN), key=lambda each: each.metric
    )
    if not defaults or uplink not in defaults[0].links:
        return frozenset()
    return frozenset(defaults[0].gateways)


def _leads_to(bridge: str, route: Route) -> bool:
    kinds = {"unicast", "local", "broadcast"}
    return route.kind in kinds and route.links == (bridge,) and not route.gateways and route.is_plain


def _is_consulted(table: int, rules: Iterable[PolicyRule]) -> bool:
    return any(each == PolicyRule(each.priority, table=table) for each in rules)


def _matches(rule: PolicyRule, subnet: Ipv4Subnet) -> bool:
    """Whether a policy rule can match forwarded packets from or to slices in general, not only to one destination."""
    if rule.of_host:
        return False
    names_slices = any(each is not None and _meets(each, subnet) for each in (rule.source, rule.to))
    if rule.inverted:
        return not names_slices
    # Packets of slices have no mark, unless another program gives them one.
    return not rule.marked and (names_slices or (rule.source is None and rule.to is None))


def _diverts(rule: PolicyRule, routes: tuple[Route, ...], bridge: str, subnet: Ipv4Subnet) -> bool:
    if rule.action == "nop":
        return False
    if rule.action != "lookup":
        return True
    if rule.table in USUAL:
        return False
    return any(_takes(each, bridge, subnet) for each in routes if each.table == rule.table)


def _takes(route: Route, bridge: str, subnet: Ipv4Subnet) -> bool:
    """Whether a route that a foreign policy rule selects diverts packets of slices.

    The route's destination overlaps the slices' subnet, as that of a default route does, and the route does not lead to
    the bridge.
    """
    if route.kind == "throw" or _leads_to(bridge, route):
        return False
    return _meets(route.to, subnet)


def _meets(network: Ipv4Subnet, subnet: Ipv4Subnet) -> bool:
    return IPv4Network(network).overlaps(IPv4Network(subnet))
