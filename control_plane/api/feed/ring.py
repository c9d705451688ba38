"""The newest part of the ledger in memory, as the bytes sent to watchers: each event is encoded once for all of them.

The ledger is added in consecutive ranges without a gap, and the oldest ranges are dropped when a limit is exceeded. A
range also stores the joined bytes of its events, which are sent as a whole to a watcher that has no filter and has read
everything before the range. One asyncio task adds ranges, and all readers run in the same thread.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from control_plane.api.views.views import event_view
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.cursors import Cursor
from events.ledger.search import EventAttributes, EventFilter, attributes_of
from events.values import Position

EVENTS: Final = 10_000
BYTES: Final = 16 * 2**20
_ERASURE: Final = "project.personal_data_destroyed"


class Message(NamedTuple):
    """An encoded event, and the traits by which a watcher can filter it."""

    cursor: Cursor
    traits: EventAttributes
    wire: bytes


def message(recorded: Recorded[Fact]) -> Message:
    """Encode an event as a server-sent event (WHATWG HTML, section 9.2): `id` is the cursor, `event` the event type."""
    cursor, traits = Cursor(recorded.position, recorded.epoch), attributes_of(recorded)
    view = event_view(recorded).model_dump_json()
    return Message(cursor, traits, f"id: {cursor}\nevent: {traits.type}\ndata: {view}\n\n".encode())


class LedgerRange(NamedTuple):
    """A range of the ledger: all events after position `after` up to position `upto`. `wire` is the encoded messages of
    these events, joined.
    """

    after: Position
    upto: Position
    messages: tuple[Message, ...]
    wire: bytes

    def picked(self, pick: EventFilter, after: Position) -> bytes:
        """Return the encoded events of this range that are after a position and match a filter, as joined bytes."""
        if pick.everything and after <= self.after:
            return self.wire
        return b"".join(
            [each.wire for each in self.messages if each.cursor.position > after and pick.takes(each.traits)]
        )


def ledger_range(after: Position, upto: Position, events: Iterable[Recorded[Fact]]) -> LedgerRange:
    messages = tuple(map(message, events))
    return LedgerRange(after, upto, messages, b"".join([each.wire for each in messages]))


class Ring:
    """Ranges of the ledger in memory, from position `reach` to `final`; earlier events are read from the database."""

    def __init__(self, final: Position, *, events: int = EVENTS, size: int = BYTES) -> None:
        self.reach = self.final = final
        self._ranges: deque[LedgerRange] = deque()
        self._events, self._size = events, size

    def add(self, added: LedgerRange) -> None:
        """Append the range of the ledger after position `final`; drop the oldest ranges if a limit is exceeded."""
        assert added.after == self.final, "a range that is added to the ring must begin where the ring ends"
        if any(each.traits.type == _ERASURE for each in added.messages):
            self._clear()
        self._ranges.append(added)
        self.final = added.upto
        self._events -= len(added.messages)
        self._size -= len(added.wire)
        while self._ranges and (self._events < 0 or self._size < 0):
            dropped = self._ranges.popleft()
            self._events += len(dropped.messages)
            self._size += len(dropped.wire)
            self.reach = dropped.upto

    def _clear(self) -> None:
        """Drop all ranges: their messages may contain personal data that was erased since they were encoded."""
        self._events += sum(len(each.messages) for each in self._ranges)
        self._size += sum(len(each.wire) for each in self._ranges)
        self._ranges.clear()
        self.reach = self.final

    def behind(self, position: Position) -> LedgerRange | None:
        """Return the range with the next events after `position`; None at the end of the ledger. `position` must be at
        least `reach`, after which the ring has every event.
        """
        index = bisect_right(self._ranges, position, key=lambda each: each.upto)
        return self._ranges[index] if index < len(self._ranges) else None
