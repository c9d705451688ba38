"""Causes of an event: the events that led to it, and the events that followed from it.

An event names the event that caused it (`causation_id`), and both have the same correlation id. So its causes and
effects are among the events with its correlation id.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from events.envelope import Recorded

Event = Recorded[Any]


class Causes(NamedTuple):
    """Events that are related to one event. `causes` begins with its direct cause, `effects` and `others` are in ledger
    order.
    """

    causes: tuple[Event, ...]
    effects: tuple[Event, ...]
    others: tuple[Event, ...]
    """Events with the same correlation id that are neither causes nor effects."""


def causes_of(event: Event, before: Sequence[Event], after: Sequence[Event]) -> Causes:
    """Return the causes and effects of an event among the events with its correlation id, which are given in ledger
    order. A cause is always recorded before its effect.
    """
    by_id: dict[UUID, Event] = {each.event_id: each for each in before}
    causes: list[Event] = []
    cause = by_id.get(event.cause.causation_id) if event.cause.causation_id else None
    while cause is not None:
        causes.append(cause)
        following = cause.cause.causation_id
        cause = by_id.pop(following, None) if following else None
    caused, effects = {event.event_id}, list[Event]()
    for each in after:
        if each.cause.causation_id in caused:
            caused.add(each.event_id)
            effects.append(each)
    found = {*caused, *(each.event_id for each in causes)}
    others = tuple(each for each in (*before, *after) if each.event_id not in found)
    return Causes(tuple(causes), tuple(effects), others)
