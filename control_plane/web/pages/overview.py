"""Overview: what needs attention, and what changed in the last hour, without the parts that the caller may not read."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from control_plane.web.actions import by_scope
from control_plane.web.capacity_chart import Chart, charts
from control_plane.web.rendering import obstacle, span_in_words, tone_of
from control_plane.web.timeline import IMPORTANT, IMPORTANT_IN_WORDS
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


_CHECKS: Final = {
    "postgres": "Postgres: the database with the ledger and the read models",
    "redis": "Redis: the queues of the tasks of nodes",
    "dispatcher": "Dispatcher: processes the events of the ledger in order, and sends tasks to nodes",
    "projector": "Projector: fills the read models, from which pages and lists are made, with the events of the ledger",
    "sealer": "Sealer: signs the events of the ledger, so that later changes of them are detected",
}
"""Descriptions of the parts of the control plane, by the names of their checks."""


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
    status, drift, capacity, allocations, waiting, tasks, events = await both(
        visit.get("status") if fleet else nothing(),
        visit.get("drift") if fleet else nothing(),
        visit.get_if_available("capacity", "history") if fleet else nothing(),
        visit.get("allocations", limit=COUNTED) if own else nothing(),
        visit.get("allocations", state="waiting", limit=COUNTED) if own and fleet else nothing(),
        visit.get("tasks", state="failed", limit=_SHOWN) if visit.allows("tasks:read") else nothing(),
        visit.get("events", order="desc", limit=_CHANGES, type=sorted(IMPORTANT), **{"from": since})
        if visit.allows("events:read")
        else nothing(),
    )
    states = _states(allocations)
    drawn = None if capacity is None else charts(capacity, status["blocked_slots"]["by_sku"])
    short = (_waiting(waiting), _without_free_slot(drawn or []))
    concerns = None if status is None else await _concerns(visit, status, states.get("failed", 0), short)
    is_all = status is not None and visit.user["projects"] is None
    return visit.render(
        "overview.html",
        status=status,
        concerns=concerns,
        slots=None if status is None else _slots(status),
        blocked_by=None if status is None else _reasons(status["blocked_slots"]["by_reason"]),
        drift=None if drift is None else drift["items"][:_SHOWN],
        drift_is_cut=drift is not None and (len(drift["items"]) > _SHOWN or drift["next_cursor"] is not None),
        capacity=drawn,
        check_titles=_CHECKS,
        allocations=None if allocations is None else allocations["items"][:_SHOWN],
        states=states,
        creating=by_scope(visit, "create", scope="allocations:write")["create"],
        counted=COUNTED if allocations and allocations["next_cursor"] is not None else None,
        tasks=None if tasks is None else tasks["items"],
        failed_tasks=status["tasks"]["failed"] if is_all else None,
        changes=events,
        important=IMPORTANT_IN_WORDS,
        since=since,
    )


async def _concerns(visit: Visit, status: Any, failed: int, short: tuple[Concern, ...]) -> list[Concern]:
    """Return everything that needs an operator, the most urgent first. `failed` is the number of failed allocations
    among the newest ones, and `short` are the concerns about missing capacity.
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
    kept = span_in_words(visit.user["failed_tasks_kept_seconds"])
    possible = _possible_concerns(
        status, failed, overdue, kept, short=short, held=_items(held), found=_items(found)
    )
    return [each for each in possible if each.number]


def _items(page: Any) -> tuple[Any, ...]:
    return () if page is None else tuple(page["items"])


def _waiting(found: Any) -> Concern:
    """Return the concern about allocations that wait for slots. `found` is a list of them, None if it is unknown."""
    more = " (at least)" if found is not None and found["next_cursor"] is not None else ""
    title = f"waiting allocations{more}"
    return Concern(title, len(_items(found)), "/ui/allocations?state=waiting", tone_of("waiting"))


def _without_free_slot(drawn: Sequence[Chart]) -> Concern:
    """Return the concern about SKUs that have slots, none of which can get a slice now."""
    names = [each.sku for each in drawn if any(each.now.values()) and not each.now["free"]]
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    return Concern(f"SKUs without a free slot: {shown}", len(names), "#capacity", "busy")


def _possible_concerns(
    status: Any,
    failed: int,
    overdue: int,
    kept: str,
    *,
    short: tuple[Concern, ...],
    held: tuple[Any, ...],
    found: tuple[Any, ...],
) -> Iterator[Concern]:
    """Yield every kind of concern in the order of urgency, also those of which there are none. `kept` is for how long
    failed tasks are listed. `short` are the concerns about missing capacity, and `held` and `found` the first
    quarantined and discovered slots.
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
        yield Concern(f"{state} tasks, listed for {kept}", tasks[state], f"/ui/tasks?state={state}")
    yield Concern("sinks of signed heads that store none", len(status["failing_sinks"]), None)
    for reason, number in Counter(status["blocked_slots"]["by_reason"]).most_common():
        target = _NODES_BLOCKED.get(reason, _DRIFTING)
        yield Concern(f"blocked slots: {obstacle(reason)}", number, target, tone_of("blocked"))
    yield from short
    for state in ("refused", "expired"):
        title = f"{state} tasks, listed for {kept}"
        yield Concern(title, tasks[state], f"/ui/tasks?state={state}", tone_of(state))
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
