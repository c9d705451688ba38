"""What stands on the bridge and belongs to no slot: somebody else's flows and meters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from node_agent.flows import COOKIE, COOKIE_MASK, Flow
from node_agent.meters import foreign_meters
from node_agent.slices import Difference

STANDALONE: Final = Flow(0, frozenset(), "NORMAL")
"""OVS's own, on a bridge that is not secure. It goes when the bridge is made so, not before."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """Flows by their cookies, and meters by their numbers."""

    cookies: tuple[int, ...]
    meters: tuple[int, ...]

    def difference(self) -> Difference | None:
        if not self.cookies and not self.meters:
            return None
        flows = f"flows with cookie {', '.join(map(hex, self.cookies))}" if self.cookies else "no flows"
        meters = f"meters {', '.join(map(str, self.meters))}" if self.meters else "no meters"
        return Difference("bridge.foreign_flows", "flows and meters of slots alone", f"{flows}, {meters}")


def foreign_on(flows: Mapping[int, frozenset[Flow]], meters: Iterable[int], *, secure: bool) -> Foreign:
    standalone = frozenset() if secure else {STANDALONE}
    others = (
        cookie for cookie, held in flows.items() if cookie & COOKIE_MASK != COOKIE and held - standalone
    )
    return Foreign(tuple(sorted(others)), foreign_meters(meters))
