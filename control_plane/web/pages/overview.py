"""Overview: what needs attention, and what changed last. Parts that the caller may not read are left out."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from control_plane.web.capacity_chart import charts
from control_plane.web.visits import Visit, both, nothing

COUNTED: Final = 50
"""Number of the newest allocations that the overview counts by state."""
_SHOWN: Final = 8


async def show(visit: Visit) -> Response:
    fleet, own = visit.allows("fleet:read"), visit.allows("allocations:read")
    status, drift, capacity, allocations, tasks, events = await both(
        visit.get("status") if fleet else nothing(),
        visit.get("drift") if fleet else nothing(),
        visit.get_if_available("capacity", "history") if fleet else nothing(),
        visit.get("allocations", limit=COUNTED) if own else nothing(),
        visit.get("tasks", state="failed", limit=_SHOWN) if visit.allows("tasks:read") else nothing(),
        visit.get("events", order="desc", limit=15) if visit.allows("events:read") else nothing(),
    )
    return visit.render(
        "overview.html",
        status=status,
        slots=None if status is None else _slots(status),
        blocked_by=None if status is None else _reasons(status["blocked_slots"]["by_reason"]),
        drift=None if drift is None else drift["items"][:_SHOWN],
        drift_is_cut=drift is not None and (len(drift["items"]) > _SHOWN or drift["next_cursor"] is not None),
        capacity=None if capacity is None else charts(capacity, status["blocked_slots"]["by_sku"]),
        allocations=None if allocations is None else allocations["items"][:_SHOWN],
        states=_states(allocations),
        counted=COUNTED if allocations and allocations["next_cursor"] is not None else None,
        tasks=None if tasks is None else tasks["items"],
        events=None if events is None else events["items"],
    )


def _slots(status: Any) -> dict[str, int]:
    """Return the number of slots in each state. Free slots in which no slice can be placed now count as blocked."""
    blocked = sum(status["blocked_slots"]["by_reason"].values())
    found = {"free": 0, **status["slots"]}
    return {**found, "free": max(0, found["free"] - blocked), "blocked": blocked}


def _reasons(numbers: Mapping[str, int]) -> str:
    """Return the reasons for which slots are blocked, each with the number of slots, the most frequent first."""
    found = Counter(numbers).most_common()
    return ", ".join(f"{number} {reason.replace('_', ' ')}" for reason, number in found)


def _states(allocations: Any) -> dict[str, int]:
    """Return the number of listed allocations in each state, the most frequent first."""
    listed = [] if allocations is None else allocations["items"]
    return dict(Counter(each["state"] for each in listed).most_common())
