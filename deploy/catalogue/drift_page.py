"""Generator of docs/drift.md from the catalogue of drift kinds."""

from collections.abc import Iterable
from typing import Final

from deploy.catalogue.fields import table
from tasks.drift import TYPES, DriftType, Policy, Scope, Source

HEAD: Final = """# Drift

Every difference between the desired and the observed state of a node, how the node detects it, and what it does about it. This
page is generated from `tasks/drift.py` by `./dev drift`, and `./dev check` fails if the two differ. The catalogue is closed: a
node reports no other kind. The tests produce each kind that a node reports on a real node, with another program. Exceptions are
`machine.devices`, which is produced on a simulated node because no lab has a spare PCI device, and `slot.ungranted`, `slot.changed` and
`slot.absent`, which the control plane detects.

The periodic survey detects every kind at the latest, because it compares the complete desired state with a fresh snapshot. It
runs every 10 s (`survey_seconds` in the agent's settings), so drift that only the survey detects is reported within 15 s.
Notifications from the host only start the survey earlier: no decision is based on a notification alone.

Drift that is repaired at once is recorded as `node.repaired` or `slot.repaired`. Drift that is not repaired is open: `node.degraded` or
`slot.degraded` lists all open drift, until `node.recovered` or `slot.recovered` follows. Nothing is placed on a node or in a slot
while blocking drift is open. Each event contains the evidence: the desired state, the observed state and the time of detection, and
the ingress rule if it concerns only one. Drift that occurs more than three times a minute, or sixty times an hour, stays open until
it occurs less often, even if it is repaired each time. Drift of a slot does not degrade its node: only drift of what all slots need
does.

An object that is created for the first time is not drift; an object that could not be created is.

Open drift that concerns one ingress, such as a port on which nothing in the slice answers, withdraws its endpoint (`ingress.lost`) and does not affect the other ingresses of the slot.

Probes detect outages that no comparison detects. Each ready slice is probed every 5 s, and at once when the host reports
a change, by a TCP SYN that never completes a connection: from the gateway's address to the readiness port, and, if that
responds, at each ingress from the agent's own device (`sp-probe`) beside the uplink. `slice.unreachable` opens after 5 s without
a response (11 s after the outage at the latest), or after the readiness port was closed for 30 s; it ends with the next response. A
refused connection to an ingress, because nothing listens on its port in the slice, counts as no response: its state is `lost` after 5
to 11 s, until something listens. `observed` names the first hop that fails:

| hop | meaning |
| --- | --- |
| `gateway` | the host does not send to the slice over the bridge: its route, its own rules, or a policy |
| `address` | ARP requests are not answered, or the host's ARP entry has another MAC: the machine, its tap or the switch |
| `port` | ARP requests are answered, but the port does not respond or is closed: a rule in between, the tenant's own firewall, or a service that ended |
| `ingress` | probes from the gateway are answered, but probes of the public address and port are not, or something else answers them |

A UDP ingress is not probed, because a UDP service need not respond; its rules are compared. For an ingress with `sources`, the
probe bypasses the source condition, and the condition is compared. Probes do not match rules of other tools that name the uplink.

This page covers all seven signals (NOD-7). For the seventh (endpoints reachable as exposed) a node reports its own part: that
its rules forward to the slice, and that a probe beside its uplink is answered. It cannot check the network between clients and the
node. Before a slot's first order, the node reports only missing PCI devices and other programs that copy its frames.

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
    "ingress": "One ingress rule",
}
POLICIES: Final[dict[Policy, str]] = {
    "repair": "the drift is repaired at once, and blocks placement while it is open",
    "report": "reported only",
    "block": "the drift is reported, and blocks placement while it is open",
}
RESTARTS: Final = ". **The guest is restarted**, which interrupts its slice"
SOURCES: Final[dict[Source, str]] = {
    "ovsdb": "OVSDB monitor",
    "openflow": "flow monitor",
    "rtnetlink": "rtnetlink",
    "nfnetlink": "nftables' netlink",
    "xfrm": "IPsec's netlink",
    "libvirt": "libvirt's events",
    "inotify": "inotify on the files of the DHCP server",
    "pidfd": "pidfd of the DHCP server's process",
    "survey": "survey",
    "probe": "probe of the slice, every 5 s and after each change on the host",
}


def drift_page(types: Iterable[DriftType] = TYPES) -> str:
    """Return the complete page of drift kinds in Markdown."""
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
    head = ("kind", "difference", "evidence", "detected by", "action", "requirement")
    return f"## {SCOPES[scope]}\n\n{table(head, rows)}"
