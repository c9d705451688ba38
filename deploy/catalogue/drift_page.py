"""docs/drift.md, made of the catalogue of drift."""

from collections.abc import Iterable
from typing import Final

from deploy.catalogue.fields import table
from tasks.drift import TYPES, DriftType, Policy, Scope, Source

HEAD: Final = """# Drift

What on a node can differ from what is wanted, how the node notices it, and what it does. This page is made from
`tasks/drift.py` by `./dev drift`, and `./dev check` fails when the two differ. The catalogue is closed: a node names no kind
that is not on this page. The tests make each that a node names on a real one, by another program's hand; `machine.devices` is made
on a simulated one, because no lab has a PCI device that a machine could be given, and `slot.ungranted` and `slot.absent` the
control plane names by itself.

Every kind is found by the periodic survey at the latest, since that compares all that is wanted with a fresh look. It comes
every 10 s (`survey_seconds` of the agent's settings), so that what it finds is told within 15. What tells a node at once
only makes the survey come now: nothing is decided on an event.

What is mended at once is an event, `node.mended` or `slot.mended`. What is not is open: `node.degraded` or `slot.degraded` tells
all that is, until `node.recovered` or `slot.recovered` follows. Nothing is placed on a node or in a slot while any of it blocks. Each tells its
evidence: what was wanted, what was found, and since when; what is about one way in from outside names that. Whatever comes up more than three times a minute, or sixty
times an hour, stays open until it comes up less, mended or not. A slot's drift says nothing of its node: only what all
slots need degrades the node.

What is made for the first time was not lost, and so is not drift; what could not be made is.

What concerns one ingress takes its endpoint away while it is open (`ingress.lost`), and leaves the others of its slot as they are.

Outages that no comparison finds are detected by probes. Each ready slice is probed every 5 s, and at once when the host reports
a change, by a TCP SYN that never completes a connection: from the gateway's address to the readiness port, and, while that is
answered, at each ingress from the agent's own device (`sp-probe`) beside the uplink. `slice.unreachable` opens after 5 s without
an answer (11 s after the outage at the latest), or after the port was closed for 30 s; it ends with the next answer. `found` names
the first hop that fails:

| hop | meaning |
| --- | --- |
| `gateway` | the host does not send to the slice over the bridge: its route, its own rules, or a policy |
| `address` | ARP requests are not answered, or the host's ARP entry has another MAC: the machine, its tap or the switch |
| `port` | ARP requests are answered, but the port does not answer or is closed: a rule between them, the tenant's own firewall, or a service that ended |
| `ingress` | probes from the gateway are answered, but probes of the public address and port are not, or something else answers them |

A UDP ingress is not probed, because a UDP service need not answer; its rules are compared. For an ingress with `sources`, the
probe bypasses the source condition, and the condition is compared. Probes do not match rules of other tools that name the uplink.

This page covers all seven signals (NOD-7). For the seventh (endpoints reachable as exposed) a node reports its own part: that
its rules lead to the slice, and that a probe beside its uplink is answered. It cannot check the network between clients and the node.
Before a slot's first order, the node reports only missing PCI devices and other programs that copy its frames.

Objects of other programs are reported as `foreign.*` and never changed. A rule of another table is reported if it can match
packets of slices at its hook: their DHCP, their connections to and from the world, connections to their ingresses, the
gateway's readiness checks, and ARP. The agent reads tables of nftables in the families ip, inet, arp and netdev (devices: the
bridge, the uplink and the slices' links), and tables of iptables and iptables-legacy; iptables-legacy sends no events, so only the
survey finds its changes. A rule is reported if it drops, rejects, queues, translates, hands over to a proxy, offloads, copies, rewrites addresses or ports, or switches
tracking off; a chain's policy `drop` is reported unless all of that traffic was accepted before it. A firewall that drops by default has
to accept, at its forward hook, what comes from the bridge or goes to it, and at its input hook, UDP port 67 from the bridge.
Rules for other links, networks, ports or connection states are not reported, nor are masquerading at the uplink, marks and
clamped segment sizes. Slices connect to public addresses only, so rules for private addresses are not reported. A match that the
agent does not evaluate, such as a rate limit, is taken to match any packet. Only `foreign.mirror` blocks placement: frames of one
slice reach another.
"""

SCOPES: Final[dict[Scope, str]] = {
    "node": "The node, with all its slots",
    "slot": "One slot",
    "exposure": "One way in from outside",
}
POLICIES: Final[dict[Policy, str]] = {
    "repair": "mended at once; blocks while it is open",
    "report": "reported only",
    "block": "reported, and blocks while it lasts",
}
RESTARTS: Final = ". **The guest starts anew**, which is an interruption of its slice"
SOURCES: Final[dict[Source, str]] = {
    "ovsdb": "OVSDB monitor",
    "openflow": "flow monitor",
    "rtnetlink": "rtnetlink",
    "nfnetlink": "nftables' netlink",
    "xfrm": "IPsec's netlink",
    "libvirt": "libvirt's events",
    "inotify": "the DHCP server's files",
    "pidfd": "the DHCP server's end",
    "survey": "the survey",
    "probe": "the probe of the slice, every 5 s and at each hint",
}


def drift_page(types: Iterable[DriftType] = TYPES) -> str:
    """The whole page, in Markdown."""
    kinds = tuple(types)
    sections = (_section(scope, [each for each in kinds if each.scope == scope]) for scope in SCOPES)
    return "\n".join((HEAD, *sections))


def _section(scope: Scope, types: list[DriftType]) -> str:
    rows = (
        (
            f"`{each.kind}`",
            each.means,
            each.evidence,
            SOURCES[each.source],
            POLICIES[each.policy] + (RESTARTS if each.restarts else ""),
            each.serves,
        )
        for each in types
    )
    head = ("kind", "what differs", "evidence: wanted; found", "noticed by", "what is done", "serves")
    return f"## {SCOPES[scope]}\n\n{table(head, rows)}"
