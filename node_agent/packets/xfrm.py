"""IPsec policies (ip-xfrm(8)) that affect packets of slices: they drop packets, or send packets through a tunnel.

Policies belong to another program, usually a VPN, and are reported. A policy does not affect slices if its selector
names other networks, or if it lets packets pass unchanged.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from node_agent.host.slices import Difference
from node_agent.packets.traffic import overlap


@dataclass(frozen=True, slots=True, order=True)
class XfrmPolicy:
    """An IPsec policy for IPv4. `source` and `destination` are the networks that the policy selects."""

    direction: str
    source: str
    destination: str
    action: str

    def __str__(self) -> str:
        return f"{self.action} {self.source} to {self.destination} ({self.direction})"


PASSES = "pass"
"""Action of an IPsec policy that lets packets pass unchanged."""


def policies_drift(policies: Iterable[XfrmPolicy], subnet: str) -> Difference | None:
    """Return the drift about IPsec policies that affect packets from or to the slices' network, or None."""
    found = sorted(
        each
        for each in policies
        if each.action != PASSES and overlap((each.source, each.destination), subnet)
    )
    if not found:
        return None
    return Difference(
        "foreign.xfrm_policy", f"no IPsec policy for {subnet}", "; ".join(dict.fromkeys(map(str, found)))
    )
