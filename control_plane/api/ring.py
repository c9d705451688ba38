"""The end of the log, kept in memory as the bytes that watchers get: each event encoded once, for all of them.

The log comes here in stretches, in order and without a hole between them, and the oldest are dropped when there is
too much. A stretch also stands joined: watchers of everything who are where it begins, which is nearly all of them
nearly always, are sent those same bytes. One loop writes here, and all that read do so in that loop's thread.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from control_plane.api.views import event_view
from events.cursors import Cursor
from events.envelope import Recorded
from events.facts import Fact
from events.search import Pick, Traits, traits_of
from events.values import Position

EVENTS: Final = 10_000
BYTES: Final = 16 * 2**20


class Message(NamedTuple):
    """An event as it goes out, and what it can be picked by."""

    cursor: Cursor
    traits: Traits
    wire: bytes


def message(recorded: Recorded[Fact]) -> Message:
    """Server-sent event (WHATWG HTML, section 9.2): `id` is the cursor, `event` the fact's stored name."""
    cursor, traits = Cursor(recorded.position, recorded.epoch), traits_of(recorded)
    view = event_view(recorded).model_dump_json()
    return Message(cursor, traits, f"id: {cursor}\nevent: {traits.type}\ndata: {view}\n\n".encode())


class Stretch(NamedTuple):
    """All events behind `after` up to `upto`; `wire` is all of their bytes."""

    after: Position
    upto: Position
    messages: tuple[Message, ...]
    wire: bytes

    def picked(self, pick: Pick, after: Position) -> bytes:
        """The bytes of the events behind a position that a pick takes."""
        if pick.everything and after <= self.after:
            return self.wire
        return b"".join(
            [each.wire for each in self.messages if each.cursor.position > after and pick.takes(each.traits)]
        )


def stretch(after: Position, upto: Position, events: Iterable[Recorded[Fact]]) -> Stretch:
    messages = tuple(map(message, events))
    return Stretch(after, upto, messages, b"".join([each.wire for each in messages]))


class Ring:
    """The stretches from `reach` to `final`; who is further back than `reach` finds nothing here."""

    def __init__(self, final: Position, *, events: int = EVENTS, size: int = BYTES) -> None:
        self.reach = self.final = final
        self._stretches: deque[Stretch] = deque()
        self._events, self._size = events, size

    def add(self, added: Stretch) -> None:
        """Go on by a stretch that begins where the last one ended."""
        assert added.after == self.final, "a hole in the log"
        self._stretches.append(added)
        self.final = added.upto
        self._events -= len(added.messages)
        self._size -= len(added.wire)
        while self._stretches and (self._events < 0 or self._size < 0):
            dropped = self._stretches.popleft()
            self._events += len(dropped.messages)
            self._size += len(dropped.wire)
            self.reach = dropped.upto

    def behind(self, place: Position) -> Stretch | None:
        """The stretch that goes on from a place, which must be within reach; None at the end."""
        index = bisect_right(self._stretches, place, key=lambda each: each.upto)
        return self._stretches[index] if index < len(self._stretches) else None
