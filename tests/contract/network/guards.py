"""What keeps an attack from arriving, taken away: as little as lets that one through. A survey puts it back.

A guard that is a condition of a permission is taken away by a permission without it, for what is forged alone.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from node_agent.drivers.dnsmasq import LINK
from node_agent.flows import UNTAGGED, Flow, cookie_of, flows_of, port_number
from node_agent.gateway_rules import TAPS
from node_agent.rules import (
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
from tests.contract.network.scene import BOB, BRIDGE, Scene, setting
from tests.contract.network.senders import ALICE

Removal = Callable[[Scene, ExitStack], None]
"""Takes a guard away; what no survey puts back is put back by the stack."""

FORGED: Final = 0x77
"""A cookie of nobody's."""
INPUT: Final = rule("inet", FROM_SLICES, NODE, DROP)
LEAVING: Final = rule("inet", OUT_OF_SLICES, NODE, DROP)
ENTERING: Final = rule("inet", INTO_SLICES, NODE, DROP)
AROUND: Final = rule("inet", "forward", NODE, meta("iifname", TAPS), DROP)
AT_TAPS: Final = rule("inet", "input", NODE, meta("iifname", TAPS), DROP)


@contextmanager
def taken_away(scene: Scene, *removals: Removal) -> Iterator[None]:
    with ExitStack() as after:
        after.callback(scene.mend)
        for remove in removals:
            remove(scene, after)
        yield


def to_bob(**fields: str) -> Removal:
    """Frames of Alice's port that match these fields pass to Bob's."""
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
    """A flow of Alice's is gone that drops what matches these fields."""
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
    """The server's answers to Alice's card go where they say."""
    found = scene.host.filter.ruleset().rules
    hers = tuple(each for each in found if (each.rule.chain, each.rule.owner) == (REPLIES, ALICE.tap))
    assert len(hers) == 1
    scene.host.filter.change(Change(delete=hers))


def any_client(scene: Scene, after: ExitStack) -> None:
    """Alice's DHCP messages are not looked at for whose they are."""
    own = match(field("ether", "saddr"), ALICE.mac), match(field("udp", "dport"), 67)
    scene.host.filter.change(Change(insert=(rule("inet", FROM_SLICES, NODE, *own, ACCEPT),)))
    after.callback(scene.reserve_anew)


def leases_by_client_id(scene: Scene, after: ExitStack) -> None:
    """The DHCP server finds a lease by the client's id as well."""
    server = scene.host.leases_driver._server
    [running] = server.running()
    server._end(running.pid)
    arguments = [word for word in running.arguments if word != "--dhcp-ignore-clid"]
    assert len(arguments) == len(running.arguments) - 1
    child = subprocess.Popen(arguments, env={"PATH": os.environ["PATH"], LINK: running.link})
    after.callback(child.wait)
    after.callback(child.send_signal, signal.SIGTERM)
    after.callback(scene.reserve_anew)
    server._await_socket(child)


def arp_heard(scene: Scene, _after: ExitStack) -> None:
    """On the host's end of Alice's tap."""
    scene.node.run(["ip", "link", "set", ALICE.tap, "arp", "on"])


def ipv6_heard(_scene: Scene, _after: ExitStack) -> None:
    """On the host's end of Alice's tap."""
    setting("ipv6", ALICE.tap, "disable_ipv6").write_text("0")


def loopback_routed(link: str) -> Removal:
    """What is addressed to loopback is no martian on this link."""

    def remove(_scene: Scene, after: ExitStack) -> None:
        routed = setting("ipv4", link, "route_localnet")
        after.callback(routed.write_text, routed.read_text())
        routed.write_text("1")

    return remove
