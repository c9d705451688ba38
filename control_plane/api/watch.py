"""Watching the log as it grows, whole or picked, by server-sent events (WHATWG HTML, section 9.2).

A watcher goes from place to place: through the past page by page, then through the ring stretch by stretch, and at its
end it waits. It sends nothing twice, and goes on only when its client took what it sent: a client that does not
read keeps one piece in memory, and nobody waits for it. Whoever picks few events of many is now and then told how far
the watch has come, by a message with an id and no data: it moves the `Last-Event-ID` of the next connection, and no
event is dispatched for it. When nothing was sent for a while, a comment shows that the watch is alive.
"""

from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, Final

import structlog
from fastapi.responses import StreamingResponse

from control_plane.api.feed import Feed
from control_plane.api.ring import message
from control_plane.outage import DATABASE_AWAY
from events.cursors import Cursor
from events.search import Pick
from events.values import Position

log = structlog.get_logger()
HEARTBEAT_SECONDS: Final = 15.0
PIECE: Final = 2**18
"""Bytes at a time: what a client that does not read holds of our memory."""
TELL_EVERY: Final = 1_000
"""Events passed over before a watcher is told how far it is."""
WELCOME: Final = b": welcome\n\n"
ALIVE: Final = b": alive\n\n"
EVENT_STREAM: Final = "text/event-stream"
STREAMED: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {EVENT_STREAM: {}}}}


def event_stream(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(chunks, media_type=EVENT_STREAM, headers=headers)


async def watch(
    feed: Feed, after: Position, pick: Pick, heartbeat: float = HEARTBEAT_SECONDS
) -> AsyncIterator[bytes]:
    """What a watcher is sent, until the feed ends all watches or the past cannot be read."""
    watcher, incarnation = _Watcher(feed, pick, after), feed.incarnation
    yield WELCOME
    spoke = monotonic()
    while feed.incarnation == incarnation:
        try:
            news = await watcher.step(spoke + heartbeat - monotonic())
        except DATABASE_AWAY as error:
            log.warning("watch_ends", after=watcher.place, error=str(error))
            return
        if not news and monotonic() >= spoke + heartbeat:
            news = watcher.whereabouts() or ALIVE
        for start in range(0, len(news), PIECE):
            yield news[start : start + PIECE]
            spoke = monotonic()


class _Watcher:
    """One reader of the log: everything up to `place` was sent or passed over."""

    def __init__(self, feed: Feed, pick: Pick, after: Position) -> None:
        self._feed, self._pick, self.place = feed, pick, after
        self._passed = 0
        self._untold: Cursor | None = None

    async def step(self, patience: float) -> bytes:
        """Go on by one page or stretch, or wait for one; returns what is to be sent of it, if anything."""
        ring = self._feed.ring
        if self.place < ring.reach:
            return await self._read()
        if (stretch := ring.behind(self.place)) is None:
            await self._feed.grows_past(self.place, patience)
            return b""
        news = stretch.picked(self._pick, self.place)
        self.place = stretch.upto
        if stretch.messages:
            self._pass(len(stretch.messages), stretch.messages[-1].cursor)
        return self._said(news)

    async def _read(self) -> bytes:
        found = await self._feed.past.page(self._pick, self.place, self._feed.final)
        self._pass(found.reached - self.place, found.cursor)
        self.place = found.reached
        return self._said(b"".join([message(each).wire for each in found.events]))

    def _pass(self, count: int, cursor: Cursor | None) -> None:
        self._passed += count
        self._untold = cursor or self._untold

    def _said(self, news: bytes) -> bytes:
        """The news, whose last id tells the place as well; without any, the place alone when it is due."""
        if news:
            self._passed, self._untold = 0, None
            return news
        return self.whereabouts() if self._passed >= TELL_EVERY else b""

    def whereabouts(self) -> bytes:
        """How far this watcher is, if it is further than it was told."""
        cursor, self._untold, self._passed = self._untold, None, 0
        return b"" if cursor is None else f"id: {cursor}\n\n".encode()
