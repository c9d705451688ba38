"""Drift of a node: differences between desired and observed state, either repaired at once or left open.

Each repair of drift is reported. Drift that recurs often counts as open instead: its repair does not end it, and
reports about each repair would fill the ledger if another program configures the host too. The node's description
(`NodeSurveyed`) lists all open drift and is reported as a whole when it changes: so the control plane cannot miss the
end of a drift, and drift that was open before a restart of the agent keeps its start time.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

import structlog

from events.values import IngressId, SlotIndex
from node_agent.host.slices import Difference, HostUnreadable, Step
from tasks.drift import DriftKind, Evidence, LocatedEvidence, TimedEvidence
from tasks.fields import sentence
from tasks.orders import Order
from tasks.reports import MOST_DRIFT, DriftRepaired, ReportBody

log = structlog.get_logger(__name__)

Item = TypeVar("Item", Difference, TimedEvidence)
Subject = tuple[str, str, IngressId | None]
"""Identity of a drift within one slot or the node: its kind, the desired state, and the ingress. The description of the
observed state is not part of it, since it may change with each survey."""
Report = Callable[[ReportBody, Order | None], None]
"""Function that sends a report with this body to the control plane. The order is the cause of the report; None: it has
no such cause. Raises `OSError`."""

_RATE_LIMITS: Final = ((3, timedelta(minutes=1)), (60, timedelta(hours=1)))
"""Pairs of a number and a period. A drift that occurs more often than this number within the period stays open until it
occurs less often."""
_LONGEST_PERIOD: Final = max(period for _, period in _RATE_LIMITS)
_BLOCKING: Final = frozenset({"slot.device", "foreign.mirror"})
"""Kinds of drift that make a slot unusable, whatever the slot's order is."""
NODE: Final = None
"""Value used in place of a slot index for drift of the node as a whole."""


def differences(steps: Iterable[Step]) -> tuple[Difference, ...]:
    """Return the drift that the steps of a repair plan repair, without duplicates, in the order of the steps."""
    return merged(step.repairs for step in steps if step.repairs is not None)


def merged(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Merge differences with the same kind, desired state and ingress into one difference that lists all of their
    observed states.
    """
    found: dict[Subject, list[Difference]] = {}
    for each in dict.fromkeys(differences):
        found.setdefault(_subject(each), []).append(each)
    return tuple(
        replace(same[0], observed="; ".join(each.observed for each in same)) for same in found.values()
    )


def newest(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return the last of the differences with the same kind, desired state and ingress, for each such combination."""
    return tuple({_subject(each): each for each in differences}.values())


def evidence(differences: Iterable[Difference]) -> tuple[Evidence, ...]:
    """Convert differences between desired and observed state to the evidence in drift reports."""
    return tuple(
        Evidence(
            kind=each.kind,
            desired=sentence(each.desired),
            observed=sentence(each.observed),
            ingress_id=each.ingress_id,
        )
        for each in differences
    )


def unreadable(error: HostUnreadable) -> Difference:
    """Return the drift `host.unreadable`: a part of the host does not answer, with the error as its evidence."""
    return Difference("host.unreadable", "an answer", str(error))


def occupied(found: Sequence[str]) -> Difference:
    """Return the drift `slot.occupied`: a slot with a stopped or removed slice has running or remaining objects."""
    return Difference("slot.occupied", "no running or reachable object of a slice", "; ".join(found))


class Drifts:
    """Open drift of one node. Thread-safe.

    `report` is called for repaired drift; `changed` is called when drift opens or ends, and must return at once.
    """

    def __init__(self, report: Report, now: Callable[[], datetime], changed: Callable[[], None]) -> None:
        self._report, self._now, self._changed = report, now, changed
        self._lock = threading.Lock()
        self._open: dict[SlotIndex | None, tuple[TimedEvidence, ...]] = {}
        self._blocking: dict[SlotIndex | None, tuple[TimedEvidence, ...]] = {}
        """Open drift of slots that does not depend on their orders: no order opens or ends it."""
        self._present: dict[SlotIndex | None, set[Subject]] = {}
        """Drift of each slot that the last survey did not repair. All other open drift is open only because it recurs
        often."""
        self._recent: dict[SlotIndex | None, list[tuple[datetime, Difference]]] = {}
        """Occurrences of drift within the longest period of the rate limits, each with its time, by slot."""

    def restore(self, open_before: Iterable[LocatedEvidence]) -> None:
        """Restore the open drift of the node from before the agent's restart."""
        with self._lock:
            for each in open_before:
                slot = NODE if each.slot is None else SlotIndex(each.slot)
                target = self._blocking if each.kind in _BLOCKING else self._open
                target[slot] = (*target.get(slot, ()), TimedEvidence(**each.model_dump(exclude={"slot"})))

    def record(
        self,
        slot: SlotIndex | None,
        found: Iterable[Difference] = (),
        left: Iterable[Difference] = (),
        cause: Order | None = None,
    ) -> None:
        """Record the drift of a slot or node from a complete survey: `found` before the repair, `left` after it.

        `cause` is the order that the repair was part of, if any. Raises `OSError`.
        """
        left = tuple(left)
        with self._lock:
            before, now = self._open.get(slot, ()), self._now()
            ended = _without(found, left)
            recurring = self._recurring(slot, (*ended, *left), now)
            self._present[slot] = {*map(_subject, left)}
            lasting = _dated((*left, *_without(recurring, left)), before, now)
            repaired = _without(_dated(ended, before, now), lasting)
            if repaired:
                log.info("drift_repaired", slot=slot, kinds=[each.kind for each in repaired])
                self._report(DriftRepaired(slot=slot, drift=repaired[:MOST_DRIFT]), cause)
            self._open[slot] = lasting
        self._notify_changed(slot, before, lasting)

    def add(self, slot: SlotIndex | None, left: Iterable[Difference]) -> None:
        """Record the drift of a slot or node from an incomplete survey; drift that was open before stays open."""
        with self._lock:
            before, now = self._open.get(slot, ()), self._now()
            more = _without(left, before)
            self._recurring(slot, more, now)
            self._present.setdefault(slot, set()).update(map(_subject, more))
            self._open[slot] = lasting = (*before, *_dated(more, (), now))
        self._notify_changed(slot, before, lasting)

    def record_blocking(self, lost: Mapping[SlotIndex, Iterable[Difference]]) -> None:
        """Record the drift that makes slots unusable: lost PCI devices, and foreign rules that copy frames of slots.

        `lost` contains all such drift that a survey found; open drift of these kinds that is not in `lost` has ended.
        """
        with self._lock:
            before, now = self._blocking, self._now()
            found = {slot: _dated(drift, before.get(slot, ()), now) for slot, drift in lost.items()}
            self._blocking = {slot: drift for slot, drift in found.items() if drift}
        if self._blocking != before:
            slots = sorted(slot for slot, drift in found.items() if drift)
            write = log.warning if slots else log.info
            write("blocked_slots_changed", slots=slots)
            self._changed()

    def _notify_changed(
        self, slot: SlotIndex | None, before: tuple[TimedEvidence, ...], lasting: tuple[TimedEvidence, ...]
    ) -> None:
        if lasting != before:
            log.warning("open_drift_changed", slot=slot, kinds=[each.kind for each in lasting])
            self._changed()

    def _recurring(
        self, slot: SlotIndex | None, found: Iterable[Difference], now: datetime
    ) -> tuple[Difference, ...]:
        """Count the new drift in `found`, and return the drift that occurs more often than a rate limit allows."""
        present = self._present.get(slot, set())
        new = [each for each in found if _subject(each) not in present]
        before = [(at, each) for at, each in self._recent.get(slot, ()) if at > now - _LONGEST_PERIOD]
        self._recent[slot] = recent = [*before, *((now, each) for each in new)]
        newest = {_subject(each): each for _, each in recent}
        too_often = set[Subject]()
        for most, period in _RATE_LIMITS:
            times = Counter(_subject(each) for at, each in recent if at > now - period)
            too_often |= {subject for subject, count in times.items() if count > most}
        return tuple(
            replace(each, observed=f"{each.observed}; the drift recurs although it is repaired")
            for subject, each in newest.items()
            if subject in too_often
        )

    def has_exactly_open(self, slot: SlotIndex | None, lasting: Iterable[Difference]) -> bool:
        """Return whether the open drift of the slot consists of exactly the given differences."""
        with self._lock:
            return {*map(_subject, self._open.get(slot, ()))} == {*map(_subject, lasting)}

    def open_in(self, slot: SlotIndex, kind: DriftKind) -> tuple[Difference, ...]:
        """Return the open drift of one kind in a slot."""
        with self._lock:
            found = [each for each in self._open.get(slot, ()) if each.kind == kind]
        return tuple(Difference(kind, each.desired, each.observed, each.ingress_id) for each in found)

    def open(self) -> tuple[LocatedEvidence, ...]:
        """Return all open drift: first the drift of the node as a whole, then that of each slot.

        If there is more drift than a report may contain, the list of each slot is shortened, but keeps at least one
        entry, because a slot without reported drift counts as recovered.
        """
        with self._lock:
            open_ = {
                slot: (*self._blocking.get(slot, ()), *self._open.get(slot, ()))
                for slot in frozenset((*self._blocking, *self._open))
            }
            in_order = sorted(open_.items(), key=lambda each: -1 if each[0] is NODE else each[0])
        drifting = [(slot, drift) for slot, drift in in_order if drift]
        share = MOST_DRIFT // max(1, len(drifting))
        most = share if sum(len(drift) for _, drift in drifting) > MOST_DRIFT else MOST_DRIFT
        return tuple(
            LocatedEvidence(slot=slot, **dict(each)) for slot, drift in drifting for each in drift[:most]
        )


def _without(items: Iterable[Item], others: Iterable[Difference | TimedEvidence]) -> tuple[Item, ...]:
    """Return the drift in `items` that does not occur in `others` with the same kind, desired state and ingress."""
    subjects = {*map(_subject, others)}
    return tuple(each for each in items if _subject(each) not in subjects)


def _dated(
    differences: Iterable[Difference], before: Iterable[TimedEvidence], now: datetime
) -> tuple[TimedEvidence, ...]:
    """Convert differences to drift with its start time: `now`, or the earlier time if it was open `before`."""
    open_before = {_subject(each): each for each in before}
    fresh = (TimedEvidence(since=now, **dict(each)) for each in evidence(differences))
    return tuple(open_before.get(_subject(each), each) for each in fresh)


def _subject(drift: Difference | TimedEvidence) -> Subject:
    return drift.kind, sentence(drift.desired), drift.ingress_id
