"""Foreign flows and meters on the node's OVS bridge: flows and meters that belong to no slot."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from node_agent.aspects.flows import COOKIE, COOKIE_MASK, Flow
from node_agent.aspects.meters import foreign_meters
from node_agent.host.slices import Difference

STANDALONE: Final = Flow(0, frozenset(), "NORMAL")
"""The flow that OVS itself adds to a bridge that is not `secure`. It is removed by making the bridge secure."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Cookies of the foreign flows, and numbers of the foreign meters, of one OVS bridge."""

    cookies: tuple[int, ...]
    meters: tuple[int, ...]

    def difference(self) -> Difference | None:
        """Return these foreign flows and meters of a bridge as one drift, or None if there are none."""
        if not self.cookies and not self.meters:
            return None
        flows = f"flows with cookie {', '.join(map(hex, self.cookies))}" if self.cookies else "no flows"
        meters = f"meters {', '.join(map(str, self.meters))}" if self.meters else "no meters"
        return Difference(
            "bridge.foreign_flows",
            "no flows or meters on the bridge except those of slots",
            f"{flows}, {meters}",
        )


def foreign_on(flows: Mapping[int, frozenset[Flow]], meters: Iterable[int], *, secure: bool) -> Foreign:
    """Return which of an OVS bridge's flows and meters are foreign. `flows` are grouped by their cookies."""
    standalone = frozenset() if secure else {STANDALONE}
    cookies = (
        cookie for cookie, rules in flows.items() if cookie & COOKIE_MASK != COOKIE and rules - standalone
    )
    return Foreign(tuple(sorted(cookies)), foreign_meters(meters))
