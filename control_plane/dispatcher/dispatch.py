"""The dispatcher: derive due tasks and timers from facts, and write them in the transaction of the checkpoint.

For every stream with new facts in a batch of the ledger, its process (`control_plane.dispatcher.derive`) returns what
is due: orders become task rows, and due times become timers. A crash between the commit and the send loses nothing,
because the task rows remain; only the task sender sends them, both for the first time and later.

A command that is due only because time has passed is never executed while a batch is evaluated, even if it is overdue:
later batches may have facts that make it unnecessary, for instance after an outage of the dispatcher. It is executed
when its timer fires. The stream is then evaluated with all facts recorded by then, and the command runs through
`Handle` while the dispatcher has no transaction open, so that neither can wait for the other.

Each batch is read and written as a whole. The writes do not wait for the disk: if a crash of the server loses rows, it
loses the checkpoint with them, and both are derived again with the same ids.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.database import reading
from control_plane.dispatcher import outbox
from control_plane.dispatcher.derive import (
    Evaluation,
    Timing,
    awaiting_emptied_slots,
    evaluate,
    facts_by_stream,
    parked,
    second_stream,
)
from control_plane.handle import AGAIN, Handle
from control_plane.histories import History, histories
from control_plane.outage import DATABASE_UNAVAILABLE
from events.envelope import Recorded
from events.facts import Fact
from events.ledger.connection import ledger_connection
from events.values import StreamId

log = structlog.get_logger()
TIMERS: Final = 100
# The generic plan suits every batch: planning for a single order takes four times as long as writing it.
_SETTINGS: Final = """
select set_config('synchronous_commit', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)
"""
RETRY_AFTER: Final = timedelta(seconds=5)
"""Time after which a timer fires again if its command changed nothing."""
LONGEST_PAUSE: Final = timedelta(seconds=30)
"""Longest time between two rounds of timers, which begin once per second, without an outage. Long enough for a round
with thousands of timers.
"""


Read = Callable[[Sequence[StreamId]], Awaitable[dict[StreamId, History]]]
"""Function that returns the whole history of each of these streams, in ledger order."""


class Evaluations(NamedTuple):
    """Due tasks and timers of several streams, all evaluated at the time `now`. The timers of the streams `hastened`
    become due at once.
    """

    now: datetime
    found: list[Evaluation]
    hastened: Sequence[StreamId] = ()


@dataclass(slots=True)
class Uptime:
    """Since when a dispatcher has been firing timers without a pause, by the time of the database. Pauses are outages
    of this process or of the database, and steps of its clock. Not thread-safe.
    """

    since: datetime | None = None
    _last: datetime | None = None

    def observe(self, now: datetime) -> None:
        """Take note that timers are fired at `now`."""
        if self._last is None or not timedelta() <= now - self._last <= LONGEST_PAUSE:
            self.since = now
        self._last = now


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Derives and writes the due tasks and timers of streams."""

    handle: Handle
    timing: Timing
    uptime: Uptime = field(default_factory=Uptime)

    async def evaluate(self, batch: Sequence[Recorded[Fact]], now: datetime) -> Evaluations | None:
        """Return the due tasks and timers of all streams with facts in a batch of the ledger; None without facts."""
        new_facts, hastened = facts_by_stream(batch), awaiting_emptied_slots(batch)
        if not new_facts and not hastened:
            return None
        # A stream that begins in this batch is complete in it: its later facts come in a later batch.
        older = await self._read_histories(
            [stream for stream, facts in new_facts.items() if facts[0].version > 1]
        )
        whole = {stream: older.get(stream) or tuple(facts) for stream, facts in new_facts.items()}
        return Evaluations(now, await self._evaluate(whole, now, self._read_histories), hastened)

    async def write(self, conn: AsyncConnection, evaluations: Evaluations | None) -> None:
        """Write due tasks and timers as rows, in the caller's transaction."""
        ledger = await ledger_connection(conn)
        async with ledger.pipeline():
            await ledger.execute(_SETTINGS)
            if evaluations is not None:
                await outbox.write(ledger, evaluations.found, evaluations.now)
                await outbox.hasten(ledger, evaluations.hastened, evaluations.now)

    async def fire_due_timers(self, engine: AsyncEngine) -> None:
        """Fire every timer that is due, the oldest first; several dispatchers may do so at the same time."""
        async with engine.connect() as conn:
            now = await self.handle.clock(conn)
        self.uptime.observe(now)
        full = True
        while full:
            async with engine.connect() as conn:
                overdue = await outbox.overdue(await ledger_connection(conn), now, TIMERS)
            for stream in overdue:
                await self.fire_timer(engine, stream)
            # A timer that fired is now set to a later time, or deleted.
            full = len(overdue) == TIMERS

    async def fire_timer(self, engine: AsyncEngine, stream: StreamId) -> bool:
        """Fire a stream's timer: evaluate the stream with all facts recorded so far, and execute its due command.

        Do nothing and return False if the timer was deleted or its row is locked: another dispatcher is firing it, or
        the dispatcher that follows the ledger is setting it again.
        """
        async with engine.begin() as conn:
            ledger = await ledger_connection(conn)
            # Lock the timer before reading the history. Otherwise the follower, with a newer history, could set the
            # timer first, and this transaction would restore the older due time.
            if not await outbox.hold_timer(ledger, stream):
                return False
            history = (await histories(conn, [stream])).get(stream, ())
            now = await self.handle.clock(conn)
            [evaluation] = await self._evaluate({stream: history}, now, partial(histories, conn))
            if evaluation.command is not None:
                evaluation = replace(evaluation, due_at=now + RETRY_AFTER)
            await self.write(conn, Evaluations(now, [evaluation]))
        if evaluation.command is None:
            return True
        try:
            while await self.handle(evaluation.command) == AGAIN:
                pass
        except DATABASE_UNAVAILABLE:
            raise
        except Exception as error:  # a defect of one stream must not stop the others
            log.exception("event_stream_parked_after_error", stream=stream)
            async with engine.begin() as conn:
                now = await self.handle.clock(conn)
                await outbox.write(await ledger_connection(conn), [parked(stream, now, error)], now)
        return True

    async def _evaluate(
        self, found: Mapping[StreamId, History], now: datetime, read: Read
    ) -> list[Evaluation]:
        """Return the due tasks, timers and commands of streams, given the history of each stream."""
        second_streams = {stream: second_stream(stream, history) for stream, history in found.items()}
        others = await read([other for other in second_streams.values() if other is not None])
        nothing: History = ()
        timing = replace(self.timing, up_since=self.uptime.since)
        return [
            evaluate(
                stream,
                history,
                others.get(second, nothing) if (second := second_streams[stream]) else nothing,
                now,
                timing,
            )
            for stream, history in found.items()
        ]

    async def _read_histories(self, streams: Sequence[StreamId]) -> dict[StreamId, History]:
        """Return the histories of streams, read on a separate connection."""
        if not streams:
            return {}
        async with reading(self.handle.engine) as conn:
            return await histories(conn, streams)
