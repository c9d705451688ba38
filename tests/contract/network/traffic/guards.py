"""Removal of the guards that stop an attack. Each function removes only as much as lets that attack through, and a
later survey restores the guards.

If the guard is a condition of a flow or rule that permits frames, the function adds a flow or rule that permits the
forged frames, and only these, without this condition.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from node_agent.aspects.flows import UNTAGGED, Flow, cookie_of, flows_of, port_number
from node_agent.aspects.gateway_rules import TAPS
from node_agent.drivers.dhcp.dnsmasq import LINK
from node_agent.packets.rules import (
    ACCEPT,
    DROP,
    FROM_SLICES,
    INTO_SLICES,
    NODE,
    OUT_OF_SLICES,
    REPLIES,
    Change,
    Rule,
    field,
    match,
    meta,
    rule,
)
from tests.contract.network.senders import ALICE
from tests.contract.network.traffic.scene import BOB, BRIDGE, Scene, setting

Removal = Callable[[Scene, ExitStack], None]
"""Function that removes a guard. The exit stack restores afterwards what a survey does not restore."""

FORGED: Final = 0x77
"""OpenFlow cookie that belongs to no slot."""
INPUT: Final = rule("inet", FROM_SLICES, NODE, DROP)
LEAVING: Final = rule("inet", OUT_OF_SLICES, NODE, DROP)
ENTERING: Final = rule("inet", INTO_SLICES, NODE, DROP)
AROUND: Final = rule("inet", "forward", NODE, meta("iifname", TAPS), DROP)
AT_TAPS: Final = rule("inet", "input", NODE, meta("iifname", TAPS), DROP)


@contextmanager
def taken_away(scene: Scene, *removals: Removal) -> Iterator[None]:
    with ExitStack() as after:
        after.callback(scene.repair)
        for remove in removals:
            remove(scene, after)
        yield


def to_bob(**fields: str) -> Removal:
    """Add a flow that passes frames of Alice's OVS port with these fields to Bob's port."""
    return _permitted(f"output:{port_number(BOB.index)}", fields)


def to_gateway(**fields: str) -> Removal:
    return _permitted("LOCAL", fields)


def _permitted(to: str, fields: Mapping[str, str]) -> Removal:
    matched = {"in_port": str(port_number(ALICE.index)), **fields}

    def remove(scene: Scene, _after: ExitStack) -> None:
        flow = Flow(900, frozenset(matched.items()), to)
        scene.host.switch.set_flows(BRIDGE, FORGED, frozenset({flow}))
        scene.settle()

    return remove


def without_flow(**fields: str) -> Removal:
    """Remove the OpenFlow flow that drops frames of Alice's port with these fields."""
    matched = {"in_port": str(port_number(ALICE.index)), **UNTAGGED, **fields}

    def remove(scene: Scene, _after: ExitStack) -> None:
        flows = flows_of(ALICE)
        left = frozenset(flow for flow in flows if flow.match != frozenset(matched.items()))
        assert len(left) == len(flows) - 1
        scene.host.switch.set_flows(BRIDGE, cookie_of(ALICE.index), left)
        scene.settle()

    return remove


def without(rule: Rule) -> Removal:
    def remove(scene: Scene, _after: ExitStack) -> None:
        found = tuple(each for each in scene.host.filter.ruleset().rules if each.rule == rule)
        assert len(found) == 1
        scene.host.filter.change(Change(delete=found))

    return remove


def replies_as_sent(scene: Scene, _after: ExitStack) -> None:
    """Remove the nftables rule that gives DHCP replies for Alice's slice the MAC of this slice as destination."""
    found = scene.host.filter.ruleset().rules
    of_alice = tuple(each for each in found if (each.rule.chain, each.rule.owner) == (REPLIES, ALICE.tap))
    assert len(of_alice) == 1
    scene.host.filter.change(Change(delete=of_alice))


def any_client(scene: Scene, after: ExitStack) -> None:
    """Accept DHCP messages from Alice's slice without checking which client MAC they contain."""
    own = match(field("ether", "saddr"), ALICE.mac), match(field("udp", "dport"), 67)
    scene.host.filter.change(Change(insert=(rule("inet", FROM_SLICES, NODE, *own, ACCEPT),)))
    after.callback(scene.reserve_again)


def leases_by_client_id(scene: Scene, after: ExitStack) -> None:
    """Restart the DHCP server without the option that ignores client ids, so that it also finds a lease by the client
    id.
    """
    server = scene.host.leases_driver._server
    [running] = server.running()
    server._end(running.pid)
    arguments = [word for word in running.arguments if word != "--dhcp-ignore-clid"]
    assert len(arguments) == len(running.arguments) - 1
    child = subprocess.Popen(arguments, env={"PATH": os.environ["PATH"], LINK: running.link})
    after.callback(child.wait)
    after.callback(child.send_signal, signal.SIGTERM)
    after.callback(scene.reserve_again)
    server._await_socket(child)


def arp_enabled(scene: Scene, _after: ExitStack) -> None:
    """Enable ARP on the host's end of the attacking slice's tap (Alice)."""
    scene.node.run(["ip", "link", "set", ALICE.tap, "arp", "on"])


def ipv6_enabled(_scene: Scene, _after: ExitStack) -> None:
    """Enable IPv6 on the host's end of the attacking slice's tap (Alice)."""
    setting("ipv6", ALICE.tap, "disable_ipv6").write_text("0")


def loopback_routed(link: str) -> Removal:
    """Enable routing of packets addressed to loopback (`route_localnet`) that arrive at this link."""

    def remove(_scene: Scene, after: ExitStack) -> None:
        routed = setting("ipv4", link, "route_localnet")
        after.callback(routed.write_text, routed.read_text())
        routed.write_text("1")

    return remove
