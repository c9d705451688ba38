"""The writer of the access log in one API process.

A request that is recorded waits before its handler until its row is committed, so that nothing changes without a row.
A request that is refused earlier gets a complete row before its response is sent. Rows are written in batches on a
connection of their own: one statement inserts the rows of arriving requests and completes those of ended ones.

After a crash of this process, the rows of its requests in progress stay open. Every API process looks for such rows and
closes them as `interrupted`; it recognises a living process by a lock that the connection of its writer holds. The row
of a request that ended shortly before the crash may also become `interrupted`. While the database is unavailable,
requests wait for their rows and are refused after `OPENING_TIMEOUT_SECONDS`. The rows of refused requests are written
later; once `MOST` rows wait, further requests are only counted.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Iterable
from typing import Final, cast
from uuid import UUID

import psycopg
import structlog
from fastapi import Request

from control_plane.api.audit.entries import Entry
from control_plane.api.audit.sources import Sources, is_limited
from control_plane.outage import DATABASE_UNAVAILABLE, rest
from control_plane.work.access_rows import (
    BATCH,
    Batch,
    ChangedRow,
    NewRow,
    Retention,
    Writer,
    connect,
    interrupt,
    missing_processes,
    prune,
    show_alive,
    store,
)
from events.values import new_uuid

log = structlog.get_logger()
MOMENT_SECONDS: Final = 0.02
"""Time for which rows are collected and then written together, while many requests arrive at once."""
FEW: Final = 6
"""Number of arriving requests up to which rows are written immediately, and not collected for `MOMENT_SECONDS`."""
COMPLETION_SECONDS: Final = 0.2
"""Time after which the rows of ended requests are completed, if no other request arrives before."""
SURVEY_SECONDS: Final = 2.0
"""Interval between searches for rows that ended API processes left open, and for rows past their retention."""
OPENING_TIMEOUT_SECONDS: Final = 5.0
"""Time that a request waits for its row."""
REFUSAL_TIMEOUT_SECONDS: Final = 1.0
"""Time that the response of a refused request waits for the request's row in the access log. It is then sent before the
row is written, because a refused request changes nothing.
"""
STATEMENT_TIMEOUT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.5
LAST_SECONDS: Final = 2.0
MOST: Final = 10_000
"""Maximum number of rows that wait for the database; further requests are only counted."""


class AccessLog:
    """The access log of one API process. `run` must run beside the application.

    `reads` is the share of reading requests that are recorded, from 0 to 1; `nodes` is whether every request of a node
    is recorded. Not thread-safe: used by one event loop.
    """

    def __init__(self, dsn: str, kept: Retention, *, reads: float, nodes: bool) -> None:
        self.process: UUID = new_uuid()
        self._dsn, self._kept, self._reads, self._nodes = dsn, kept, reads, nodes
        self._sources = Sources()
        self._new: list[Entry] = []
        self._changed: dict[str, Entry] = {}
        self._dropped: set[str] = set()
        self._openings: list[asyncio.Future[None]] = []
        self._answers: list[asyncio.Future[None]] = []
        self._wanted = asyncio.Event()
        self._approaching = 0
        self._connected = self._stopping = False
        self._missing: set[UUID] = set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether many requests arrive at present."""
        return self._approaching > FEW

    def arrived(self, _entry: Entry) -> None:
        """Note that a request has arrived, which may need a row soon: `is_busy` counts it."""
        self._approaching += 1

    def wants(self, entry: Entry, policy: str | None) -> bool:
        """Return whether a request is recorded even if it succeeds. `policy` is declared by its route."""
        if policy == "refusals" and not self._nodes:
            return False
        return not entry.is_read or self._reads >= 1 or random.random() < self._reads  # noqa: S311 (no secret)

    async def open(self, entry: Entry) -> None:
        """Write the row of a request that is about to run. Raises a database error if that is not possible in time."""
        if len(self._new) >= MOST:
            raise psycopg.OperationalError(
                "the access log cannot be written, and too many requests wait for it"
            )
        entry.queued = True
        self._new.append(entry)
        try:
            await self._flushed(self._openings, OPENING_TIMEOUT_SECONDS)
        except TimeoutError:
            raise psycopg.OperationalError("the access log cannot be written") from None
        finally:
            self._passed(entry)

    def end(self, entry: Entry) -> None:
        """Record the end of a request: complete its row, create one, or count the request in another row."""
        self._passed(entry)
        row = entry
        if not entry.queued and len(self._new) >= MOST:
            row = self._sources.count(entry)
        elif is_limited(entry):
            row = self._sources.row_of(entry)
        if row is not entry and entry.queued:
            self._drop(entry)
        self._change(row)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COMPLETION_SECONDS, self._complete)

    async def answerable(self) -> None:
        """Wait until the rows of all requests that have ended are committed.

        Return also if the database is unavailable, or after `REFUSAL_TIMEOUT_SECONDS`.
        """
        if self._connected:
            try:
                await self._flushed(self._answers, REFUSAL_TIMEOUT_SECONDS)
            except TimeoutError:
                log.warning("access_log_commit_timed_out", waiting=len(self._new))

    def passed_by(self, entry: Entry) -> None:
        """Note that a request needs no row any more: `is_busy` no longer counts it."""
        self._passed(entry)

    async def run(self) -> None:
        """Write queued rows of the access log until cancelled, and then the rows that are left."""
        writing = asyncio.create_task(self._write())
        try:
            await asyncio.shield(writing)
        finally:
            self._stopping = True
            self._wanted.set()
            await asyncio.wait([writing], timeout=LAST_SECONDS)
            writing.cancel()

    async def _write(self) -> None:
        while True:
            try:
                async with await connect(self._dsn) as conn:
                    await self._write_on(conn)
                    return
            except DATABASE_UNAVAILABLE as error:
                log.warning("access_log_unwritable", error=str(error), waiting=len(self._new))
            finally:
                self._connected = False
                _resolve(self._answers)
                self._answers = []
            if self._stopping:
                return
            await rest(RETRY_SECONDS)

    async def _write_on(self, conn: Writer) -> None:
        survey_at = 0.0
        while True:
            if time.monotonic() >= survey_at and not self._stopping:
                async with asyncio.timeout(STATEMENT_TIMEOUT_SECONDS):
                    more = await self._survey(conn)
                survey_at = time.monotonic() + (MOMENT_SECONDS if more else SURVEY_SECONDS)
            self._connected = True
            try:
                async with asyncio.timeout(survey_at - time.monotonic()):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            if self.is_busy and not self._stopping:
                await asyncio.sleep(MOMENT_SECONDS)
            self._wanted.clear()
            if self._stopping:
                self._close_counts(all_windows=True)
            async with asyncio.timeout(STATEMENT_TIMEOUT_SECONDS):
                await self._flush(conn)
            if self._stopping:
                return

    async def _flush(self, conn: Writer) -> None:
        """Write all queued rows. After an error, they are queued again."""
        changed, dropped = self._changed, self._dropped
        new = [entry for entry in self._new if entry.request_id not in dropped] if dropped else self._new
        openings, answers = self._openings, self._answers
        self._new, self._changed, self._dropped = [], {}, set()
        self._openings, self._answers = [], []
        for entry in new:
            entry.submitted = True
        try:
            if new or changed or dropped:
                await store(conn, self.process, _batch(new, changed.values(), dropped))
        except BaseException:
            self._new, self._changed = new + self._new, {**changed, **self._changed}
            self._dropped, self._openings = dropped | self._dropped, openings + self._openings
            _resolve(answers)
            self._wanted.set()
            raise
        _resolve(openings)
        _resolve(answers)

    async def _survey(self, conn: Writer) -> bool:
        """Close at most `BATCH` rows of ended processes and delete at most `BATCH` old rows.

        Return whether one of these batches was full, so that more such rows may be left.
        """
        await show_alive(conn, self.process)
        self._close_counts()
        before = self._missing
        self._missing = await missing_processes(conn, self.process)
        # A living process that has lost its connection connects again at once: it is not missing twice.
        ended, closed = [*(before & self._missing)], 0
        if ended:
            closed = await interrupt(conn, ended)
            log.warning("access_rows_of_ended_processes_closed", count=closed)
        pruned = await prune(conn, self._kept)
        return BATCH in (closed, pruned)

    def _close_counts(self, *, all_windows: bool = False) -> None:
        for row in self._sources.ended(all_windows=all_windows):
            self._change(row)
            self._wanted.set()

    def _complete(self) -> None:
        self._timer = None
        self._wanted.set()

    def _change(self, row: Entry) -> None:
        if row.submitted:
            self._changed[row.request_id] = row
        elif not row.queued:
            row.queued = True
            self._new.append(row)

    def _drop(self, entry: Entry) -> None:
        """Remove the row of a request that is counted in another row."""
        self._changed.pop(entry.request_id, None)
        self._dropped.add(entry.request_id)

    def _passed(self, entry: Entry) -> None:
        if entry.approaching:
            entry.approaching = False
            self._approaching -= 1

    async def _flushed(self, waiting: list[asyncio.Future[None]], seconds: float) -> None:
        """Have the queued rows written, and wait until the writer reports it to the future that is added to `waiting`.

        Raises `TimeoutError` after `seconds`.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(written)
        self._wanted.set()
        async with asyncio.timeout(seconds):
            await written


def access_log_of(request: Request) -> AccessLog:
    """Return the access log of the API process that handles a request."""
    return cast(AccessLog, request.app.state.access_log)


def _resolve(waiting: Iterable[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)


def _batch(new: Iterable[Entry], changed: Iterable[Entry], dropped: set[str]) -> Batch:
    places, now, last = itertools.count(1), time.monotonic(), 0

    def place(entry: Entry) -> int | None:
        nonlocal last
        if entry.outcome is None or not entry.closed:
            return None
        last = next(places)
        return last

    inserted = [_new_row(entry, now, place(entry)) for entry in new]
    return Batch(inserted, [_changed_row(entry, place(entry)) for entry in changed], [*dropped], last)


def _new_row(entry: Entry, now: float, place: int | None) -> NewRow:
    return NewRow(
        entry.request_id,
        now - entry.began,
        entry.method,
        entry.route,
        entry.path,
        entry.principal,
        entry.credential,
        entry.source,
        entry.status,
        entry.outcome,
        entry.reasons,
        entry.duration_ms,
        entry.count,
        place,
    )


def _changed_row(entry: Entry, place: int | None) -> ChangedRow:
    return ChangedRow(
        entry.request_id,
        entry.principal,
        entry.credential,
        entry.status,
        entry.outcome,
        entry.reasons,
        entry.duration_ms,
        entry.count,
        place,
    )
