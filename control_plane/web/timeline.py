"""Timelines: lists of events, each with the time since the event before it.

Consecutive events below the chosen level of importance are shown as one row with their number (a fold), and a link in
it shows them singly. The level and the open folds are in the address of the page. An hour without an event is a row of
its own, except in a filtered list, where most events are hours apart. Callers with the scope `audit:read` see which
events are not sealed yet.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

from control_plane.web.visits import Visit

LEVELS: Final = ("routine", "normal", "important")
"""Levels of importance, ascending. Events below the chosen level are folded."""
_DEFAULT: Final = "normal"
IMPORTANT: Final = frozenset({
    "access.key_revoked", "access.principal_revoked", "allocation.failed",
    "allocation.release_overdue", "allocation.replaced", "allocation.slice_interrupted", "allocation.slice_removal_incomplete",
    "allocation.slice_removal_overridden", "console.failed", "ingress.lost", "node.agent_superseded", "node.bring_up_failed",
    "node.degraded", "node.excluded", "node.head_refused", "node.reports_throttled", "node.revoked", "order.message_refused",
    "order.refused", "projection.event_skipped", "slot.bring_up_failed", "slot.degraded", "slot.excluded", "slot.force_released",
    "slot.quarantined", "task.failed",
})  # fmt: skip
"""Types of events that report a failure, or an intervention. The API filters by at most 50 types."""
IMPORTANT_IN_WORDS: Final = (
    "failed and replaced allocations, interrupted slices, and overdue releases",
    "removals of slices that are incomplete or were overridden",
    "failed tasks, lost ingress rules, and failed consoles",
    "nodes and slots that were excluded, are degraded, or could not start a slice",
    "quarantined and force-released slots",
    "revoked nodes, API keys and callers",
    "refused orders, messages and signed heads of the ledger; nodes that sent too many reports; replaced agents",
    "events that a read model skips",
)
"""What the important events report, as a list for users."""
ROUTINE: Final = frozenset({
    "access.session_ended", "access.session_started", "allocation.lease_granted", "allocation.lease_renewed",
    "allocation.readiness_check_set", "allocation.slice_address_observed", "allocation.specified", "node.inspected",
    "node.repaired", "node.reports_resumed", "slot.devices_checked", "slot.devices_described", "slot.devices_granted",
    "slot.repaired", "task.requested", "task.retried", "task.succeeded",
})  # fmt: skip
"""Types of events that repeat, or that follow from another."""
TIMELINE_PAGE: Final = 250
"""Number of events of one page of a timeline; a run is folded within a page."""
_SHORTEST: Final = 2
"""Number of consecutive events from which they are folded."""
IDLE_SECONDS: Final = 3600
"""Time without an event, in seconds, from which a timeline shows it as idle."""
_MOST_OPEN: Final = 20


class Step(NamedTuple):
    """An event, and the seconds since the event before it; None if the page does not have that."""

    event: Mapping[str, Any]
    level: str
    since_previous: float | None


class Fold(NamedTuple):
    """Consecutive events below the chosen level, newest first, which are shown as one row unless `is_open`. `url` is
    the address of the page with this fold opened or closed.
    """

    steps: Sequence[Step]
    is_open: bool
    url: str

    @property
    def id(self) -> int:
        """Position of the oldest event: newer events can join the run."""
        return int(self.steps[-1].event["position"])

    @property
    def seconds(self) -> float:
        """Time from the oldest to the newest event."""
        return sum(each.since_previous or 0 for each in self.steps[:-1])

    @property
    def types(self) -> list[tuple[str, int]]:
        """The types of the events with their numbers, the most frequent first."""
        return Counter(each.event["type"] for each in self.steps).most_common()


class Seal(NamedTuple):
    """How much of the ledger is sealed: the newest signed head covers positions 1 to `size`. `sealed_at` is None if
    nothing is sealed.
    """

    size: int
    sealed_at: str | None = None


class Timeline(NamedTuple):
    """Rows of a timeline, newest first: steps, folds, and the seconds of idle times."""

    rows: Sequence[tuple[str, Any]]
    level: str
    levels: Sequence[tuple[str, str]]
    """Each level with the address of the page at this level."""
    size: int
    """Number of the events on the page."""
    has_shown: bool
    """Whether an event of the page has the chosen level or a higher one."""
    seal: Seal | None
    """None if the caller may not read the audit."""

    @property
    def folded(self) -> int:
        """Number of events that the page does not show because their folds are closed."""
        return sum(len(row.steps) for kind, row in self.rows if kind == "fold" and not row.is_open)


def level_of(kind: str) -> str:
    """Return the importance of a type of event. A type that the console does not know is normal."""
    if kind in IMPORTANT:
        return "important"
    return "routine" if kind in ROUTINE else "normal"


def chosen_level(visit: Visit) -> str:
    """Return the level of importance in the page's address, or the default."""
    level = visit.query("level")
    return level if level in LEVELS else _DEFAULT


async def read_seal(visit: Visit) -> Seal | None:
    """Return how much of the ledger is sealed, None if the caller may not read the audit.

    A page must read it before its events, or at the same time: an event that is newer than the head is shown as not
    sealed, which is true at most a second longer than necessary.
    """
    if not visit.allows("audit:read"):
        return None
    heads = (await visit.get("audit", "heads", limit=1))["items"]
    return Seal(heads[0]["size"], heads[0]["sealed_at"]) if heads else Seal(0)


def timeline_of(
    visit: Visit, events: Sequence[Mapping[str, Any]], seal: Seal | None, *, filtered: bool = False
) -> Timeline:
    """Return the timeline of events, newest first, at the level and with the open folds of the page's address.
    `filtered`: the list has only the events that match filters, and no rows of idle time.
    """
    chosen = chosen_level(visit)
    opened = {int(each) for each in (visit.query("open") or "").split(",")[:_MOST_OPEN] if _is_position(each)}
    levels = [(each, visit.url(level=None if each == _DEFAULT else each, open=None)) for each in LEVELS]
    steps = _steps(events)
    has_shown = any(LEVELS.index(each.level) >= LEVELS.index(chosen) for each in steps)
    rows = [each for each in _rows(visit, steps, chosen, opened) if not (filtered and each[0] == "idle")]
    return Timeline(rows, chosen, levels, len(steps), has_shown, seal)


def _is_position(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < len(str(2**63))


def _steps(events: Sequence[Mapping[str, Any]]) -> list[Step]:
    times = [datetime.fromisoformat(each["recorded_at"]) for each in events]
    gaps = [(one - before).total_seconds() for one, before in pairwise(times)]
    return [
        Step(each, level_of(each["type"]), seconds)
        for each, seconds in zip(events, [*gaps, None], strict=False)
    ]


def _rows(visit: Visit, steps: Sequence[Step], level: str, opened: set[int]) -> Iterator[tuple[str, Any]]:
    least = LEVELS.index(level)
    for is_less, run in groupby(steps, lambda each: LEVELS.index(each.level) < least):
        found = list(run)
        if is_less and len(found) >= _SHORTEST:
            fold = _fold(visit, found, opened)
            yield "fold", fold
            shown, kind = (found if fold.is_open else found[-1:]), "folded"
        else:
            fold, shown, kind = None, found, "step"
        for each in shown:
            if fold is None or fold.is_open:
                yield kind, each
            if (each.since_previous or 0) >= IDLE_SECONDS:
                yield "idle", each.since_previous


def _fold(visit: Visit, steps: Sequence[Step], opened: set[int]) -> Fold:
    newest, oldest = steps[0].event["position"], steps[-1].event["position"]
    own = {each for each in opened if oldest <= each <= newest}
    others = opened - own if own else opened | {oldest}
    url = visit.url(open=",".join(map(str, sorted(others))) or None)
    return Fold(steps, bool(own), f"{url}#fold-{oldest}")
