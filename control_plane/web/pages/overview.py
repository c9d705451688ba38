"""Overview: what needs attention, and what changed in the last hour, without the parts that the caller may not read."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from control_plane.web.actions import by_scope
from control_plane.web.capacity_chart import charts
from control_plane.web.rendering import obstacle, tone_of
from control_plane.web.timeline import IMPORTANT
from control_plane.web.visits import Visit, both, nothing

COUNTED: Final = 50
"""Number of the newest allocations that the overview counts by state."""
_SHOWN: Final = 8
_CHANGES: Final = 15
"""Number of the newest important events that the overview shows."""
_NODES_BLOCKED: Final = {
    "unreachable": "/ui/nodes?state=unreachable",
    "resyncing": "/ui/nodes?state=resyncing",
    "registered": "/ui/nodes?state=registered",
    "revoked": "/ui/nodes?state=revoked",
    "cordoned": "/ui/nodes?cordoned=true",
    "bring_ups_failed": "/ui/nodes?excluded=true",
    "missing": "/ui/nodes",
    "simulated": "/ui/nodes",
}
"""Lists with the nodes of the slots that are blocked for a reason. The other reasons are kinds of drift."""
_DRIFTING: Final = "/ui/nodes?drift=true"


class Concern(NamedTuple):
    """A number of things that need an operator. `target` is the page that lists them, None if the console has none.
    `slots` are the first of them, if they are slots: the console has no list of slots. `tone` is the
    kind of their state, so that a state has one colour on all pages.
    """

    title: str
    number: int
    target: str | None
    tone: str = "bad"
    slots: tuple[Mapping[str, Any], ...] = ()


async def show(visit: Visit) -> Response:
    fleet, own = visit.allows("fleet:read"), visit.allows("allocations:read")
    since = f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    status, drift, capacity, allocations, tasks, events = await both(
        visit.get("status") if fleet else nothing(),
        visit.get("drift") if fleet else nothing(),
        visit.get_if_available("capacity", "history") if fleet else nothing(),
        visit.get("allocations", limit=COUNTED) if own else nothing(),
        visit.get("tasks", state="failed", limit=_SHOWN) if visit.allows("tasks:read") else nothing(),
        visit.get("events", order="desc", limit=_CHANGES, type=sorted(IMPORTANT), **{"from": since})
        if visit.allows("events:read")
        else nothing(),
    )
    states = _states(allocations)
    concerns = None if status is None else await _concerns(visit, status, states.get("failed", 0))
    return visit.render(
        "overview.html",
        status=status,
        concerns=concerns,
        slots=None if status is None else _slots(status),
        blocked_by=None if status is None else _reasons(status["blocked_slots"]["by_reason"]),
        drift=None if drift is None else drift["items"][:_SHOWN],
        drift_is_cut=drift is not None and (len(drift["items"]) > _SHOWN or drift["next_cursor"] is not None),
        capacity=None if capacity is None else charts(capacity, status["blocked_slots"]["by_sku"]),
        allocations=None if allocations is None else allocations["items"][:_SHOWN],
        states=states,
        creating=by_scope(visit, "create", scope="allocations:write")["create"],
        counted=COUNTED if allocations and allocations["next_cursor"] is not None else None,
        tasks=None if tasks is None else tasks["items"],
        changes=events,
        since=since,
    )


async def _concerns(visit: Visit, status: Any, failed: int) -> list[Concern]:
    """Return everything that needs an operator, the most urgent first. `failed` is the number of failed allocations
    among the newest ones.
    """
    numbers = status["slots"]
    held, found, releasing = await both(
        visit.get("slots", state="quarantined", limit=_SHOWN) if numbers.get("quarantined") else nothing(),
        visit.get("slots", state="discovered", limit=_SHOWN) if numbers.get("discovered") else nothing(),
        visit.get("allocations", state="releasing", limit=COUNTED)
        if numbers.get("releasing") and visit.allows("allocations:read")
        else nothing(),
    )
    overdue = sum(each["release_overdue"] is not None for each in _items(releasing))
    possible = _possible_concerns(status, failed, overdue, held=_items(held), found=_items(found))
    return [each for each in possible if each.number]


def _items(page: Any) -> tuple[Any, ...]:
    return () if page is None else tuple(page["items"])


def _possible_concerns(
    status: Any, failed: int, overdue: int, *, held: tuple[Any, ...], found: tuple[Any, ...]
) -> Iterator[Concern]:
    """Yield every kind of concern in the order of urgency, also those of which there are none. `held` and `found` are
    the first quarantined and discovered slots.
    """
    nodes, slots, drift, tasks = (status[each] for each in ("nodes", "slots", "drift", "tasks"))
    failing = sum(each["status"] != "ok" for each in status["checks"])
    yield Concern("checks of the control plane that are not ok", failing, "#checks")
    yield Concern("parked streams", tasks["parked"], None)
    yield Concern("unreachable nodes", nodes.get("unreachable", 0), "/ui/nodes?state=unreachable")
    newest = f"failed allocations, of the newest {COUNTED}"
    yield Concern(newest, failed, "/ui/allocations?state=failed")
    yield Concern("allocations with an overdue release", overdue, "/ui/allocations?state=releasing")
    yield Concern("drift that blocks placement", drift["blocking"], _DRIFTING)
    yield Concern("quarantined slots", slots.get("quarantined", 0), None, tone_of("quarantined"), slots=held)
    for state in ("poisoned", "failed"):
        yield Concern(f"{state} tasks", tasks[state], f"/ui/tasks?state={state}")
    yield Concern("sinks of signed heads that store none", len(status["failing_sinks"]), None)
    for reason, number in Counter(status["blocked_slots"]["by_reason"]).most_common():
        target = _NODES_BLOCKED.get(reason, _DRIFTING)
        yield Concern(f"blocked slots: {obstacle(reason)}", number, target, tone_of("blocked"))
    for state in ("refused", "expired"):
        yield Concern(f"{state} tasks", tasks[state], f"/ui/tasks?state={state}", tone_of(state))
    yield Concern("other open drift", drift["open"] - drift["blocking"], _DRIFTING, "busy")
    yield Concern("slots to approve", slots.get("discovered", 0), None, tone_of("discovered"), slots=found)
    yield Concern(
        "nodes to enrol", nodes.get("registered", 0), "/ui/nodes?state=registered", tone_of("registered")
    )


def _slots(status: Any) -> dict[str, int]:
    """Return the number of slots in each state. Free slots in which no slice can be placed now count as blocked."""
    blocked = sum(status["blocked_slots"]["by_reason"].values())
    found = {"free": 0, **status["slots"]}
    return {**found, "free": max(0, found["free"] - blocked), "blocked": blocked}


def _reasons(numbers: Mapping[str, int]) -> str:
    """Return the reasons for which slots are blocked, each with the number of slots, the most frequent first."""
    found = Counter(numbers).most_common()
    return ", ".join(f"{number} {obstacle(reason)}" for reason, number in found)


def _states(allocations: Any) -> dict[str, int]:
    """Return the number of listed allocations in each state, the most frequent first."""
    listed = [] if allocations is None else allocations["items"]
    return dict(Counter(each["state"] for each in listed).most_common())
