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

All seven signals (NOD-7) are here. Of the seventh, endpoints that are reachable as exposed, a node tells its own part: that
its rules lead to the slice. Whether the world's road leads to the node, it cannot see. Before its first order nothing is known of a
slot but whether its PCI devices are there, and nobody looks further.
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
    "libvirt": "libvirt's events",
    "inotify": "the DHCP server's files",
    "pidfd": "the DHCP server's end",
    "survey": "the survey",
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
