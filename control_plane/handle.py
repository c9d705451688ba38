"""The only path from a command to facts in the ledger.

Each command runs in one transaction, in this order: the idempotency key, the rows that the decision needs (locked by
the command: a node's report budget and report cursor, then the project, then entries of the catalogue by stream, then
slots by node and index, then nodes), the decision, the inline read models (of which the use of quotas is the last), the
last check of the command, and the append as the last statement. A refusal rolls everything back, including the key, and
consumes no position.

A command runs again after a deadlock, after a lost race (for the head of a stream, a claim or a row), when it would
have to wait for rows while it holds others, and when the server ended its transaction because this process was idle in
it. Readers of the ledger are woken after the commit; they also poll, so a lost wake-up only delays them. A disconnected
caller does not cancel the command; repeating the request with the same idempotency key returns the stored answer.

A command can require a version of a stream (`Condition`), and it can be tried without an effect (`dry_run`). Both use
the same transaction: a dry run makes every check and every choice of the command, and is rolled back.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.decisions.refusals import Conflict, Objection, PreconditionFailed
from events.envelope import Cause
from events.facts import Fact
from events.ledger.append import Change, CommandKey, append, take_key
from events.ledger.connection import fetch_value, ledger_connection
from events.ledger.errors import ClaimHeld, VersionConflict
from events.values import StreamId
from read_models import inline
from tasks.failpoints import failpoint

ATTEMPTS: Final = 8
AGAIN: Final = "again"
"""Answer of a due command that took one of several steps: the dispatcher runs it again at once."""
_VERSION: Final = "select version from ledger.head where stream_id = %s"


LastCheck = Callable[[AsyncConnection], Awaitable[None]]
"""Check of a decision with its changes in the inline read models. Raises the refusal of the command."""


def in_turn(*checks: LastCheck | None) -> LastCheck | None:
    """Return the check that makes several checks in this order; None if there are none."""
    given = [each for each in checks if each is not None]
    if not given:
        return None

    async def check(conn: AsyncConnection) -> None:
        for each in given:
            await each(conn)

    return check


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a command: the facts per stream, their cause, and the JSON answer for the caller.

    `last_check` is for a check that needs a lock that many commands share: it runs immediately before the append, so
    that the lock is held as briefly as possible. A dry run leaves it out.
    """

    changes: tuple[Change, ...]
    cause: Cause
    answer: str = ""
    last_check: LastCheck | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """The connection and time that a command decides with. `now` is the database's time, or a test's.

    `wait_for_locked` is the only state that one run of a command leaves to the next: whether an earlier run raised
    `RetryWithoutLocks`, so that this run waits for rows that other transactions have locked.
    """

    conn: AsyncConnection
    now: datetime
    wait_for_locked: bool = False


class Condition(NamedTuple):
    """A condition of a command: the stream, if it exists, has one of these versions when the command decides."""

    stream: StreamId
    versions: frozenset[int]


class Outcome(NamedTuple):
    """The result of a command. If `replayed`, an earlier request with the same idempotency key has stored the answer,
    and the command did not run.
    """

    answer: str
    replayed: bool = False


Command = Callable[[Transaction], Awaitable[Decision]]
Clock = Callable[[AsyncConnection], Awaitable[datetime]]


class RetryWithoutLocks(Exception):
    """Raised by a command that must run again without locks, to wait for rows that it skipped: the next run has
    `Transaction.wait_for_locked`. Raised to the caller after `ATTEMPTS` runs.
    """


class RunBefore(Exception):
    """Raised by a command that must run again after other commands, which `work` runs. After `ATTEMPTS` runs, and in a
    dry run, which must change nothing, `refusal` is raised to the caller.
    """

    def __init__(self, work: "Callable[[Handle], Awaitable[None]]", refusal: Conflict) -> None:
        super().__init__(str(refusal))
        self.work, self.refusal = work, refusal


class Wake(Protocol):
    """Callback that wakes followers of the ledger after an append. A lost call delays them by one poll interval."""

    async def __call__(self) -> None: ...


async def database_time(conn: AsyncConnection) -> datetime:
    """Return the current time of the database."""
    now: datetime = (await conn.exec_driver_sql("select clock_timestamp()")).scalar_one()
    return now


@dataclass(frozen=True, slots=True)
class Handle:
    """Runs commands of the control plane in transactions; each process has one instance."""

    engine: AsyncEngine
    wake: Wake
    clock: Clock = database_time

    async def __call__(self, command: Command, key: CommandKey | None = None) -> str:
        """Run a command and return its answer. Raises the refusal of the command.

        Also raises `Conflict` if another stream holds a claim that the command needs (LED-3).
        """
        return (await self.run(command, key)).answer

    async def run(
        self,
        command: Command,
        key: CommandKey | None = None,
        *,
        condition: Condition | None = None,
        dry_run: bool = False,
    ) -> Outcome:
        """Run a command and return its outcome. Raises the same errors as `__call__`, and `PreconditionFailed` if the
        stream of the condition has another version.

        A `dry_run` returns the answer that the command would have, and changes nothing. It must not have an idempotency
        key.
        """
        wait_for_locked = False
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if dry_run:
                    return await self._try(command, condition, wait_for_locked=wait_for_locked)
                return await self._once(command, key, condition, wait_for_locked=wait_for_locked)
            except RunBefore as before:
                if dry_run or attempt == ATTEMPTS:
                    raise before.refusal from None
                await before.work(self)
            except ClaimHeld as held:
                if attempt == ATTEMPTS:
                    raise Conflict(Objection(f"{held.claim.kind}_taken", str(held))) from held
            except (RetryWithoutLocks, VersionConflict, psycopg.Error, sa.exc.DBAPIError) as error:
                if attempt == ATTEMPTS or not _may_run_again(error):
                    raise
                wait_for_locked |= isinstance(error, RetryWithoutLocks)
        raise AssertionError("unreachable")

    async def _once(
        self, command: Command, key: CommandKey | None, condition: Condition | None, *, wait_for_locked: bool
    ) -> Outcome:
        async with self.engine.connect() as conn:
            ledger = await ledger_connection(conn)
            if key is not None and (stored := await take_key(ledger, key)) is not None:
                await conn.commit()
                return Outcome(stored.answer, replayed=True)
            decision = await self._decide(conn, command, condition, wait_for_locked=wait_for_locked)
            if decision.changes or key is not None:
                await inline.apply(conn, _numbered(decision.changes))
                if decision.last_check is not None:
                    await decision.last_check(conn)
                failpoint("handle.before_append")
                await append(ledger, decision.changes, decision.cause, key=key, answer=decision.answer)
            failpoint("handle.before_commit")
            await conn.commit()
            failpoint("handle.committed")
        if decision.changes:
            await self.wake()
        return Outcome(decision.answer)

    async def _try(self, command: Command, condition: Condition | None, *, wait_for_locked: bool) -> Outcome:
        async with self.engine.connect() as conn:
            decision = await self._decide(conn, command, condition, wait_for_locked=wait_for_locked)
            await conn.rollback()
        return Outcome(decision.answer)

    async def _decide(
        self, conn: AsyncConnection, command: Command, condition: Condition | None, *, wait_for_locked: bool
    ) -> Decision:
        if condition is not None:
            ledger = await ledger_connection(conn)
            version: int | None = await fetch_value(ledger, _VERSION, [condition.stream])
            if version is not None:
                _require(condition, version)
        decision = await command(Transaction(conn, await self.clock(conn), wait_for_locked))
        for change in decision.changes:
            # The stream may have grown after its version was read and before the command locked its rows. The append
            # verifies the version that the command has decided on.
            if condition is not None and change.stream == condition.stream:
                _require(condition, change.expected_version)
        return decision


def _require(condition: Condition, version: int) -> None:
    if version not in condition.versions:
        wanted = " or ".join(map(str, sorted(condition.versions))) or "that of an ETag in If-Match"
        reason = f"{condition.stream} is at version {version}, not {wanted}; read it again"
        raise PreconditionFailed(Objection("version_changed", reason, parameter="If-Match"))


def _may_run_again(error: RetryWithoutLocks | VersionConflict | psycopg.Error | sa.exc.DBAPIError) -> bool:
    # The ledger's own calls raise these errors directly; SQLAlchemy wraps them.
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    # A server that ended an idle transaction rolled it back: nothing was recorded, whatever the last statement was.
    return isinstance(
        cause,
        RetryWithoutLocks
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
