"""From facts to orders on their way: the dispatcher's effects, each in the transaction of its checkpoint.

For every stream that a batch of the log concerns, its process (`control_plane.derive`) is asked what is due: orders
become task rows, and moments become timers. The rows say what is to be sent, so a crash between commit and queue loses
nothing; sending is the sweeper's, the first time as every other.

What time alone decides waits for its timer, even when its moment is long past: the log tells what happened while
nobody listened, and more of it may be under way. A timer that rings is looked at with all that was heard by then,
and its command is carried out through the one road with no transaction open here, so that it waits for nobody who
waits for us.

Everything is read and written for a whole batch at once. Neither waits for the disk: what a crash of the server takes
back, checkpoint and rows together, is derived again, with the same ids.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane import outbox
from control_plane.database import reading
from control_plane.derive import Looked, beside, concerned, look, parked
from control_plane.handle import Handle
from control_plane.histories import History, histories
from control_plane.outage import DATABASE_AWAY
from events.connection import ledger_connection
from events.envelope import Recorded
from events.facts import Fact
from events.values import StreamId

log = structlog.get_logger()
TIMERS: Final = 100
# What was planned for any batch is good for each: to plan for a lone order takes four times as long as to write it.
_SETTINGS: Final = """
select set_config('synchronous_commit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)
"""
ASK_AGAIN: Final = timedelta(seconds=5)
"""After which a timer rings again where nothing came of what time alone decides."""


Read = Callable[[Sequence[StreamId]], Awaitable[dict[StreamId, History]]]
"""The whole history of each stream, in the log's order."""


class Looks(NamedTuple):
    """What streams were found to have due, at one moment."""

    now: datetime
    found: list[Looked]


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """A node unheard of for `silent_after` is silent."""

    handle: Handle
    silent_after: timedelta

    async def look(self, batch: Sequence[Recorded[Fact]], now: datetime) -> Looks | None:
        """What is due for the streams that a batch of the log concerns; None if it concerns none."""
        if not (told := concerned(batch)):
            return None
        # A stream that begins in what was told is read from there: what comes later comes in a later batch.
        older = await self._apart([stream for stream, facts in told.items() if facts[0].version > 1])
        whole = {stream: older.get(stream) or tuple(facts) for stream, facts in told.items()}
        return Looks(now, await self._look(whole, now, self._apart))

    async def write(self, conn: AsyncConnection, looks: Looks | None) -> None:
        """Have the rows say what was found."""
        ledger = await ledger_connection(conn)
        async with ledger.pipeline():
            await ledger.execute(_SETTINGS)
            if looks is not None:
                await outbox.write(ledger, looks.found, looks.now)

    async def ring_all(self, engine: AsyncEngine) -> None:
        """Ring every stream whose moment has come, the oldest first; others may do so at the same time."""
        async with engine.connect() as conn:
            now = await self.handle.clock(conn)
        full = True
        while full:
            async with engine.connect() as conn:
                overdue = await outbox.overdue(await ledger_connection(conn), now, TIMERS)
            for stream in overdue:
                await self.ring(engine, stream)
            # What rang stands at a later moment than this, or nowhere.
            full = len(overdue) == TIMERS

    async def ring(self, engine: AsyncEngine, stream: StreamId) -> None:
        """A stream's moment has come: do what is due, with all that was heard of it by now.

        Nothing, if another dispatcher is at it, or the follower, who sets the timer anew.
        """
        async with engine.begin() as conn:
            ledger = await ledger_connection(conn)
            # Before the history is read: the follower, with a newer one, would otherwise set the timer first and we
            # would put back the older moment.
            if not await outbox.hold_timer(ledger, stream):
                return
            history = (await histories(conn, [stream])).get(stream, ())
            now = await self.handle.clock(conn)
            [looked] = await self._look({stream: history}, now, partial(histories, conn))
            if looked.command is not None:
                looked = replace(looked, moment=now + ASK_AGAIN)
            await self.write(conn, Looks(now, [looked]))
        if looked.command is None:
            return
        try:
            await self.handle(looked.command)
        except DATABASE_AWAY:
            raise
        except Exception as error:  # whatever is wrong with one stream must not stop the others
            log.exception("stream_parked", stream=stream)
            async with engine.begin() as conn:
                now = await self.handle.clock(conn)
                await outbox.write(await ledger_connection(conn), [parked(stream, now, error)], now)

    async def _look(self, found: Mapping[StreamId, History], now: datetime, read: Read) -> list[Looked]:
        """What is due for streams, given the history of each."""
        asides = {stream: beside(stream, history) for stream, history in found.items()}
        others = await read([other for other in asides.values() if other is not None])
        nothing: History = ()
        return [
            look(
                stream,
                history,
                others.get(aside, nothing) if (aside := asides[stream]) else nothing,
                now,
                silent_after=self.silent_after,
            )
            for stream, history in found.items()
        ]

    async def _apart(self, streams: Sequence[StreamId]) -> dict[StreamId, History]:
        """Their histories, in a reading of its own."""
        if not streams:
            return {}
        async with reading(self.handle.engine) as conn:
            return await histories(conn, streams)
