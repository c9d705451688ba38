"""Watches of the ledger: new events, all or filtered, as server-sent events (WHATWG HTML, section 9.2).

A watcher reads older events from the database page by page, then newer ones from the ring range by range, and waits at
the end of the ledger. It sends each event once, and continues only after its client has read what was sent: a client
that does not read keeps one chunk in memory and delays no other client. A watch with a filter that matches few events
sends its position from time to time, as a message with an id and no data: it sets the `Last-Event-ID` of the next
connection without dispatching an event. If nothing was sent for a while, a comment shows that the watch is alive.

A watch ends when its credential expires or is revoked; its client then reconnects and is refused with the reason. The
credential is verified when the watch begins, when it expires by the clock of this process, and when the feed reads an
event about it: no other event costs a query. A session is also verified in an interval, so that a watch counts as its
use.
"""

from asyncio import Event
from collections.abc import AsyncGenerator, AsyncIterator
from math import inf
from time import monotonic, time
from typing import Any, Final

import structlog
from fastapi.responses import StreamingResponse

from control_plane.api.feed.feed import Feed
from control_plane.api.feed.ring import message
from control_plane.api.requests.held_credential import HeldCredential
from control_plane.decisions.refusals import Unauthorised
from control_plane.outage import DATABASE_UNAVAILABLE
from events.ledger.cursors import Cursor
from events.ledger.search import EventFilter
from events.values import Position

log = structlog.get_logger()
HEARTBEAT_SECONDS: Final = 15.0
REVERIFY_SECONDS: Final = 0.5
"""Interval in which a credential is verified again after it has expired by the clock of this process: the clock of the
database decides whether an API key has expired.
"""
PIECE: Final = 2**18
"""Maximum size of a chunk, in bytes. A client that does not read keeps one chunk in memory."""
POSITION_EVERY: Final = 1_000
"""Number of events that a watch skips before it sends its position to the client."""
WELCOME: Final = b": welcome\n\n"
ALIVE: Final = b": alive\n\n"
EVENT_STREAM: Final = "text/event-stream"
STREAMED: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {EVENT_STREAM: {}}}}


def event_stream(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(chunks, media_type=EVENT_STREAM, headers=headers)


async def watch(
    feed: Feed,
    after: Position,
    pick: EventFilter,
    credential: HeldCredential,
    heartbeat: float = HEARTBEAT_SECONDS,
) -> AsyncGenerator[bytes, None]:
    """Yield the chunks of a watch until the feed ends all watches, older events cannot be read, or the credential is no
    longer valid.
    """
    watcher, incarnation = _Watcher(feed, pick, after), feed.incarnation
    yield WELCOME
    last_sent = monotonic()
    with feed.alert(credential.streams) as alert:
        # The credential may have been revoked between its verification and the line above.
        alert.set()
        check = _Check(credential, alert)
        while feed.incarnation == incarnation:
            try:
                await check.make_if_due()
                if feed.incarnation != incarnation:
                    return  # the feed ended all watches during the check
                news = await watcher.step(min(last_sent + heartbeat - monotonic(), check.due_in()))
            except DATABASE_UNAVAILABLE as error:
                log.warning(
                    "event_watch_ended_by_database_error", last_position=watcher.position, error=str(error)
                )
                return
            except Unauthorised as refused:
                log.info("event_watch_ended_with_its_credential", reason=refused.objections[0].code)
                return
            if not news and monotonic() >= last_sent + heartbeat:
                news = watcher.whereabouts() or ALIVE
            for start in range(0, len(news), PIECE):
                yield news[start : start + PIECE]
                last_sent = monotonic()


class _Check:
    """The check of a watch's credential, which is due when `alert` is set and when the credential expires."""

    def __init__(self, credential: HeldCredential, alert: Event) -> None:
        self._credential, self._alert = credential, alert
        self._made = -inf

    async def make_if_due(self) -> None:
        """Verify the credential if that is due. Raises `Unauthorised`, and a database error."""
        if self._alert.is_set() or self.due_in() <= 0:
            # Cleared first: an event that arrives during the check makes another one due.
            self._alert.clear()
            self._credential = await self._credential.verify()
            self._made = monotonic()

    def due_in(self) -> float:
        """Return the seconds until the next check is due: when the credential has expired and the last check is
        `REVERIFY_SECONDS` old, or when the last check is `reverify_seconds` of the credential old.
        """
        credential, due = self._credential, inf
        if credential.expires_at is not None:
            due = max(credential.expires_at - time(), self._made + REVERIFY_SECONDS - monotonic())
        if credential.reverify_seconds is not None:
            due = min(due, self._made + credential.reverify_seconds - monotonic())
        return due


class _Watcher:
    """The reading side of one watch: every event up to `position` was sent or skipped."""

    def __init__(self, feed: Feed, pick: EventFilter, after: Position) -> None:
        self._feed, self._pick, self.position = feed, pick, after
        self._skipped = 0
        self._unsent: Cursor | None = None

    async def step(self, wait_seconds: float) -> bytes:
        """Read the next part of the ledger, or wait up to `wait_seconds` for it; return the bytes to send, if any."""
        ring = self._feed.ring
        if self.position < ring.reach:
            return await self._read()
        if (next_range := ring.behind(self.position)) is None:
            await self._feed.grows_past(self.position, wait_seconds)
            return b""
        news = next_range.picked(self._pick, self.position)
        self.position = next_range.upto
        if next_range.messages:
            self._skip(len(next_range.messages), next_range.messages[-1].cursor)
        return self._with_position(news)

    async def _read(self) -> bytes:
        found = await self._feed.past.page(self._pick, self.position, self._feed.final)
        self._skip(found.reached - self.position, found.cursor)
        self.position = found.reached
        return self._with_position(b"".join([message(each).wire for each in found.events]))

    def _skip(self, count: int, cursor: Cursor | None) -> None:
        self._skipped += count
        self._unsent = cursor or self._unsent

    def _with_position(self, news: bytes) -> bytes:
        """Return the encoded events `news`. Without events, return a position message if one is due, else nothing."""
        if news:
            self._skipped, self._unsent = 0, None
            return news
        return self.whereabouts() if self._skipped >= POSITION_EVERY else b""

    def whereabouts(self) -> bytes:
        """Return a message with the position of this watch, or nothing if the client already has it."""
        cursor, self._unsent, self._skipped = self._unsent, None, 0
        return b"" if cursor is None else f"id: {cursor}\n\n".encode()
