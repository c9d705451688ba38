"""The one road from a command to facts.

In one transaction, in this order: the idempotency key, the rows that the decision needs (locked by the command,
project before slots, slots by node and index, slots before nodes), the decision, the inline read models, and
append as the last statement. A refusal rolls all of it back, the key included, and burns no position. The command runs
again after a deadlock, after a lost race (for a stream's head, a claim or a row), when it would wait for rows while it
holds others, and when the server ended its transaction because this process stood still in it. Whoever reads the ledger
is woken after the commit, and needs no wake-up to be right. A caller who hangs up stops nothing: the command commits or
refuses all the same, and its key tells him which.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.decisions.refusals import Conflict, Objection
from events.append import Change, CommandKey, append, take_key
from events.connection import ledger_connection
from events.envelope import Cause
from events.errors import ClaimHeld, VersionConflict
from events.facts import Fact
from read_models import inline
from tasks.failpoints import failpoint

ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class Decision:
    """What a command decided: facts per stream, their cause, and the answer its caller gets (JSON)."""

    changes: tuple[Change, ...]
    cause: Cause
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a command may use while it decides. `now` is the database's time, or a test's."""

    conn: AsyncConnection
    now: datetime


Command = Callable[[Transaction], Awaitable[Decision]]
Clock = Callable[[AsyncConnection], Awaitable[datetime]]


class StartAgain(Exception):
    """Raised by a command that would decide in a transaction that holds nothing yet; it must not do so for ever."""


class Wake(Protocol):
    """Tells followers of the log that it grew. Losing a call costs them a poll, no more."""

    async def __call__(self) -> None: ...


async def database_time(conn: AsyncConnection) -> datetime:
    now: datetime = (await conn.exec_driver_sql("select clock_timestamp()")).scalar_one()
    return now


@dataclass(frozen=True, slots=True)
class Handle:
    """Runs commands; one for each process."""

    engine: AsyncEngine
    wake: Wake
    clock: Clock = database_time

    async def __call__(self, command: Command, key: CommandKey | None = None) -> str:
        """Carry a command out and return its answer. Raises what the command refuses with.

        Also raises `Conflict` for a claim that somebody else keeps (LED-3).
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._once(command, key)
            except ClaimHeld as held:
                if attempt == ATTEMPTS:
                    raise Conflict(Objection(f"{held.claim.kind}_taken", str(held))) from held
            except (StartAgain, VersionConflict, psycopg.Error, sa.exc.DBAPIError) as error:
                if attempt == ATTEMPTS or not _may_run_again(error):
                    raise
        raise AssertionError("unreachable")

    async def _once(self, command: Command, key: CommandKey | None) -> str:
        async with self.engine.connect() as conn:
            ledger = await ledger_connection(conn)
            if key is not None and (stored := await take_key(ledger, key)) is not None:
                await conn.commit()
                return stored.answer
            decision = await command(Transaction(conn, await self.clock(conn)))
            if decision.changes or key is not None:
                await inline.apply(conn, _numbered(decision.changes))
                failpoint("handle.before_append")
                await append(ledger, decision.changes, decision.cause, key=key, answer=decision.answer)
            failpoint("handle.before_commit")
            await conn.commit()
            failpoint("handle.committed")
        if decision.changes:
            await self.wake()
        return decision.answer


def _may_run_again(error: StartAgain | VersionConflict | psycopg.Error | sa.exc.DBAPIError) -> bool:
    # The same errors come bare from the ledger's calls and wrapped from SQLAlchemy's.
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    # A server that ended an idle transaction rolled it back: nothing was recorded, whatever was asked last.
    return isinstance(
        cause,
        StartAgain
        | VersionConflict
        | psycopg.errors.DeadlockDetected
        | psycopg.errors.UniqueViolation
        | psycopg.errors.IdleInTransactionSessionTimeout,
    )


def _numbered(changes: Iterable[Change]) -> list[tuple[int, Fact]]:
    return [
        (version, fact)
        for change in changes
        for version, fact in enumerate(change.facts, change.expected_version + 1)
    ]
