"""What differs on the host from what is wanted: found by a look, mended at once or left open, told either way.

What was mended is told by a report of its own, unless it comes up again and again: then it is open, since mending it
is no end of it, and a node whose host somebody else configures too does not fill the ledger. What is open belongs to
the node's description, which is told whole when it changes: so an end of a drift cannot be missed, and one that was
open before the agent started has the age it had.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

import structlog

from events.values import IngressId, SlotIndex
from node_agent.slices import Difference, HostUnreadable, Step
from tasks.drift import DriftKind, DriftSeen, Evidence, Sighting
from tasks.fields import sentence
from tasks.orders import Order
from tasks.reports import MOST_DRIFT, DriftMended, ReportBody

log = structlog.get_logger(__name__)

Told = TypeVar("Told", Difference, Sighting)
Subject = tuple[str, str, IngressId | None]
"""What makes two sightings in one place the same drift: its kind, what is wanted, and of which ingress. What was found
may be told in other words with each look."""
Tell = Callable[[ReportBody, Order | None], None]
"""Report something as come of an order, or of nobody's asking. Raises `OSError`."""

_OFTEN: Final = ((3, timedelta(minutes=1)), (60, timedelta(hours=1)))
"""Times that the same may come up in one place within a while; after one more it stays open until it comes up less."""
_LONGEST: Final = max(while_ for _, while_ in _OFTEN)
_LACKING: Final = frozenset({"slot.device", "foreign.mirror"})
NODE: Final = None
"""In place of a slot: what is otherwise with the node as a whole."""


def differences(steps: Iterable[Step]) -> tuple[Difference, ...]:
    """What the steps mend, each once, in their order."""
    return merged(step.mends for step in steps if step.mends is not None)


def merged(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Each once, with all that was found."""
    found: dict[Subject, list[Difference]] = {}
    for each in dict.fromkeys(differences):
        found.setdefault(_subject(each), []).append(each)
    return tuple(replace(alike[0], found="; ".join(each.found for each in alike)) for alike in found.values())


def newest(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Each once, as it was found last."""
    return tuple({_subject(each): each for each in differences}.values())


def evidence(of: Iterable[Difference]) -> tuple[Evidence, ...]:
    """In the words of the wire."""
    return tuple(
        Evidence(
            kind=each.kind,
            wanted=sentence(each.wanted),
            found=sentence(each.found),
            ingress_id=each.ingress_id,
        )
        for each in of
    )


def unreadable(why: HostUnreadable) -> Difference:
    """That a part of the host does not answer."""
    return Difference("host.unreadable", "an answer", str(why))


def occupied(found: Sequence[str]) -> Difference:
    """That something is there of a slice that is to be off."""
    return Difference("slot.occupied", "nothing that runs or can be reached", "; ".join(found))


class Drifts:
    """Of one node. Thread-safe; `changed` hears when something opened or closed, and must return at once."""

    def __init__(self, tell: Tell, now: Callable[[], datetime], changed: Callable[[], None]) -> None:
        self._tell, self._now, self._changed = tell, now, changed
        self._lock = threading.Lock()
        self._open: dict[SlotIndex | None, tuple[Sighting, ...]] = {}
        self._lacking: dict[SlotIndex | None, tuple[Sighting, ...]] = {}
        """Of slots, whatever they carry: known without an order, and ended by no order."""
        self._left: dict[SlotIndex | None, set[Subject]] = {}
        """By the last look: what is open besides only comes up too often."""
        self._of_late: dict[SlotIndex | None, list[tuple[datetime, Difference]]] = {}

    def remember(self, known: Iterable[DriftSeen]) -> None:
        """What was open when the agent ended."""
        with self._lock:
            for each in known:
                slot = NODE if each.slot is None else SlotIndex(each.slot)
                known_of = self._lacking if each.kind in _LACKING else self._open
                known_of[slot] = (*known_of.get(slot, ()), Sighting(**each.model_dump(exclude={"slot"})))

    def note(
        self,
        slot: SlotIndex | None,
        found: Iterable[Difference] = (),
        left: Iterable[Difference] = (),
        cause: Order | None = None,
    ) -> None:
        """A look at the slot, or at the node, `found` this, and after the repair this is `left`. Raises `OSError`."""
        left = tuple(left)
        with self._lock:
            before, now = self._open.get(slot, ()), self._now()
            gone = _without(found, left)
            restless = self._restless(slot, (*gone, *left), now)
            self._left[slot] = {*map(_subject, left)}
            lasting = _seen((*left, *_without(restless, left)), before, now)
            mended = _without(_seen(gone, before, now), lasting)
            if mended:
                log.info("drift_mended", slot=slot, kinds=[each.kind for each in mended])
                self._tell(DriftMended(slot=slot, drift=mended[:MOST_DRIFT]), cause)
            self._open[slot] = lasting
        self._say_moved(slot, before, lasting)

    def add(self, slot: SlotIndex | None, left: Iterable[Difference]) -> None:
        """A look that could not see everything saw this; what was open before may still be."""
        with self._lock:
            before, now = self._open.get(slot, ()), self._now()
            more = _without(left, before)
            self._restless(slot, more, now)
            self._left.setdefault(slot, set()).update(map(_subject, more))
            self._open[slot] = lasting = (*before, *_seen(more, (), now))
        self._say_moved(slot, before, lasting)

    def lack(self, lost: Mapping[SlotIndex, Iterable[Difference]]) -> None:
        """Record the complete result of a survey of the slots' objects and of foreign programs on the host."""
        with self._lock:
            before, now = self._lacking, self._now()
            seen = {slot: _seen(of, before.get(slot, ()), now) for slot, of in lost.items()}
            self._lacking = {slot: of for slot, of in seen.items() if of}
        if self._lacking != before:
            slots = sorted(slot for slot, of in seen.items() if of)
            tell = log.warning if slots else log.info
            tell("slots_blocked", slots=slots)
            self._changed()

    def _say_moved(
        self, slot: SlotIndex | None, before: tuple[Sighting, ...], lasting: tuple[Sighting, ...]
    ) -> None:
        if lasting != before:
            log.warning("drift_open", slot=slot, kinds=[each.kind for each in lasting])
            self._changed()

    def _restless(
        self, slot: SlotIndex | None, seen: Iterable[Difference], now: datetime
    ) -> tuple[Difference, ...]:
        """What came up too often of late to be called over, what is new in this look included."""
        known = self._left.get(slot, set())
        came_up = [each for each in seen if _subject(each) not in known]
        before = [(at, each) for at, each in self._of_late.get(slot, ()) if at > now - _LONGEST]
        self._of_late[slot] = of_late = [*before, *((now, each) for each in came_up)]
        newest = {_subject(each): each for _, each in of_late}
        too_often = set[Subject]()
        for most, while_ in _OFTEN:
            times = Counter(_subject(each) for at, each in of_late if at > now - while_)
            too_often |= {subject for subject, count in times.items() if count > most}
        return tuple(
            replace(each, found=f"{each.found}; it comes up again and again")
            for subject, each in newest.items()
            if subject in too_often
        )

    def knows(self, slot: SlotIndex | None, lasting: Iterable[Difference]) -> bool:
        """Whether just that is open there."""
        with self._lock:
            return {*map(_subject, self._open.get(slot, ()))} == {*map(_subject, lasting)}

    def open_in(self, slot: SlotIndex, kind: DriftKind) -> tuple[Difference, ...]:
        """Return the open drift of this kind in a slot."""
        with self._lock:
            found = [each for each in self._open.get(slot, ()) if each.kind == kind]
        return tuple(Difference(kind, each.wanted, each.found, each.ingress_id) for each in found)

    def open(self) -> tuple[DriftSeen, ...]:
        """All that is open, the node's first, then slot by slot.

        Where that is more than a report holds, less of each place, but something of every one: a place of which nothing
        is told counts as recovered.
        """
        with self._lock:
            of = {slot: (*self._lacking.get(slot, ()), *self._open.get(slot, ())) for slot in self._places()}
            places = sorted(of.items(), key=lambda each: -1 if each[0] is NODE else each[0])
        drifting = [(slot, drift) for slot, drift in places if drift]
        share = MOST_DRIFT // max(1, len(drifting))
        room = share if sum(len(drift) for _, drift in drifting) > MOST_DRIFT else MOST_DRIFT
        return tuple(DriftSeen(slot=slot, **dict(each)) for slot, drift in drifting for each in drift[:room])

    def _places(self) -> frozenset[SlotIndex | None]:
        return frozenset((*self._lacking, *self._open))


def _without(those: Iterable[Told], others: Iterable[Difference | Sighting]) -> tuple[Told, ...]:
    """Those that are not among the others."""
    subjects = {*map(_subject, others)}
    return tuple(each for each in those if _subject(each) not in subjects)


def _seen(
    differences: Iterable[Difference], before: Iterable[Sighting], now: datetime
) -> tuple[Sighting, ...]:
    """What was open `before` is that same drift, as it was first seen."""
    known = {_subject(each): each for each in before}
    fresh = (Sighting(since=now, **dict(each)) for each in evidence(differences))
    return tuple(known.get(_subject(each), each) for each in fresh)


def _subject(of: Difference | Sighting) -> Subject:
    return of.kind, sentence(of.wanted), of.ingress_id
