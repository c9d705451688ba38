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

Commands of one kind can share a transaction (`run_together`), which then follows the same order. No command is refused
in such a transaction: a command that it cannot carry out runs again in a transaction of its own.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import psycopg
import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.decisions.refusals import Conflict, Objection, PreconditionFailed, Refused
from events.derived.quotas import QuotaUse
from events.envelope import Cause
from events.facts import Fact
from events.ledger.append import (
    Change,
    CommandKey,
    LedgerCommand,
    StoredAnswer,
    encode_together,
    free_keys,
    take_key,
    take_new_keys,
)
from events.ledger.connection import fetch_value, ledger_connection
from events.ledger.errors import AnswerErased, ClaimHeld, KeyDestroyed, LedgerRefusal, VersionConflict
from events.values import StreamId
from read_models import inline, quota_use
from read_models.compiled import Query, Rows, SentQueries, send
from read_models.rows import Statement, send_statements, write_together
from tasks.failpoints import failpoint

log = structlog.get_logger()
ATTEMPTS: Final = 8
AGAIN: Final = "again"
"""Answer of a due command that took one of several steps: the dispatcher runs it again at once."""
_VERSION: Final = "select version from ledger.head where stream_id = %s"


UseByHolder = Mapping[StreamId, QuotaUse]


class LastCheck(NamedTuple):
    """Check of a decision with its changes in the inline read models. It locks the use of quotas by `holders` until the
    transaction ends; then `judge` gets their use, and raises the refusal of the command.
    """

    holders: frozenset[StreamId]
    judge: Callable[[AsyncConnection, UseByHolder], Awaitable[None]]

    async def __call__(self, conn: AsyncConnection) -> None:
        """Lock the use of quotas by the holders, and make the check. Raises the refusal of the command."""
        await self.judge(conn, await self.used(await self.send(await ledger_connection(conn))))

    async def send(self, driver: psycopg.AsyncConnection) -> SentQueries:
        """Send the query that locks the use of the holders. The caller may have begun a pipeline."""
        return await send(driver, [(quota_use.HELD, {"holders": sorted(self.holders)})])

    async def used(self, sent: SentQueries) -> UseByHolder:
        """Return the use of each holder, from the query that was sent."""
        [rows] = await sent.rows()
        return quota_use.by_holder(rows, self.holders)


def combined(*checks: LastCheck | None) -> LastCheck | None:
    """Return one check that takes all locks of these checks, and then makes the checks in this order; None if all of
    them are None.
    """
    given = [each for each in checks if each is not None]
    if not given:
        return None

    async def judge(conn: AsyncConnection, used: UseByHolder) -> None:
        for each in given:
            await each.judge(conn, used)

    return LastCheck(frozenset().union(*(each.holders for each in given)), judge)


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


class Decisions(NamedTuple):
    """The outcomes of several commands that share a transaction. None: the command has to run by itself. `last_check`
    is that of all commands together.
    """

    decisions: Sequence[Decision | None]
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
T = TypeVar("T")
Clock = Callable[[AsyncConnection], Awaitable[datetime]]


@dataclass(frozen=True, slots=True)
class DecideTogether(Generic[T]):
    """How several commands are decided in one transaction.

    `reads` returns the queries that the decision about given commands always needs, which take one round trip with the
    idempotency keys. `decide` gets those commands that have to run, which may be fewer, and the rows of these queries.
    It must not wait for rows of slots, for which other transactions may wait long.
    """

    reads: Callable[[Sequence[T]], Sequence[Query]]
    decide: Callable[[Transaction, Sequence[T], Sequence[Rows]], Awaitable[Decisions]]


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
    if not conn.in_transaction():
        await (
            conn.begin()
        )  # psycopg begins one with the statement, and SQLAlchemy must know that it has to be ended
    now: datetime = await fetch_value(await ledger_connection(conn), "select clock_timestamp()", prepare=True)
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
            except (
                RetryWithoutLocks,
                VersionConflict,
                KeyDestroyed,
                psycopg.Error,
                sa.exc.DBAPIError,
            ) as error:
                if attempt == ATTEMPTS or not _may_run_again(error):
                    raise
                wait_for_locked |= isinstance(error, RetryWithoutLocks)
        raise AssertionError("the last attempt of a command must return an outcome or raise an error")

    async def run_together(
        self, commands: Sequence[tuple[T, CommandKey | None]], decide: DecideTogether[T]
    ) -> list[Outcome | None]:
        """Run several commands in one transaction. Return the outcome of each; None for a command that was not run, and
        that the caller must run by itself.

        Raises an error after which it is not known whether the commands were recorded, such as a lost connection.
        """
        try:
            return await self._together(commands, decide)
        except (Refused, LedgerRefusal, psycopg.Error, sa.exc.DBAPIError) as error:
            if not _is_rolled_back(error):
                raise
            log.info(
                "commands_run_separately_after_failed_transaction", commands=len(commands), error=str(error)
            )
            return [None] * len(commands)

    async def _together(
        self, commands: Sequence[tuple[T, CommandKey | None]], decide: DecideTogether[T]
    ) -> list[Outcome | None]:
        keyed = [(index, key) for index, (_, key) in enumerate(commands) if key is not None]
        async with self.engine.connect() as conn:
            await conn.begin()
            ledger = await ledger_connection(conn)
            async with ledger.pipeline():  # one round trip
                taking = await take_new_keys(ledger, [key for _, key in keyed]) if keyed else None
                read = await send(ledger, decide.reads([command for command, _ in commands]))
                now = await self.clock(conn)
            new = () if taking is None else await taking.new()
            used = {index for each, (index, _) in enumerate(keyed) if each not in new}
            run = [index for index in range(len(commands)) if index not in used]
            rows = await read.rows()
            made = await decide.decide(Transaction(conn, now), [commands[each][0] for each in run], rows)
            decided = {
                index: each for index, each in zip(run, made.decisions, strict=True) if each is not None
            }
            if unused := [key for index, key in keyed if index in run and index not in decided]:
                await free_keys(ledger, unused)
            recorded = [(each, commands[index][1]) for index, each in decided.items()]
            await self._record(conn, recorded, made.last_check)
        if decided:
            await self.wake()
        return [
            Outcome(decided[index].answer) if index in decided else None for index in range(len(commands))
        ]

    async def _once(
        self, command: Command, key: CommandKey | None, condition: Condition | None, *, wait_for_locked: bool
    ) -> Outcome:
        async with self.engine.connect() as conn:
            ledger = await ledger_connection(conn)
            if key is not None and (stored := await _stored(ledger, key)) is not None:
                await conn.commit()
                return Outcome(stored.answer, replayed=True)
            decision = await self._decide(conn, command, condition, wait_for_locked=wait_for_locked)
            recorded = [(decision, key)] if decision.changes or key is not None else []
            await self._record(conn, recorded, decision.last_check)
        if decision.changes:
            await self.wake()
        return Outcome(decision.answer)

    async def _record(
        self,
        conn: AsyncConnection,
        decisions: Sequence[tuple[Decision, CommandKey | None]],
        last_check: LastCheck | None,
    ) -> None:
        """Append the facts of decisions to the ledger, store the answer of each under its idempotency key, and commit
        the transaction.

        The append is encoded first: from the write of the read models to the commit, other requests of the same
        projects wait.
        """
        if decisions:
            ledger = await ledger_connection(conn)
            changes = [change for decision, _ in decisions for change in decision.changes]
            appending = await encode_together(
                ledger, [LedgerCommand(each.changes, each.cause, key, each.answer) for each, key in decisions]
            )
            await _write(conn, inline.statements(conn, _numbered(changes)), last_check)
            failpoint("handle.before_append")
            # Not in a pipeline with the COMMIT: if this process stopped between them, the server would not end the
            # transaction, because it regards only a session that waits for a new command as idle.
            await appending.send(ledger)
        failpoint("handle.before_commit")
        await conn.commit()
        failpoint("handle.committed")

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


async def _write(
    conn: AsyncConnection, statements: Sequence[Statement], last_check: LastCheck | None
) -> None:
    """Write rows of the inline read models, and make the last check. Raises `RowMissing`, and the refusal of the
    check.
    """
    if last_check is None:
        await write_together(conn, statements)
        return
    ledger = await ledger_connection(conn)
    async with ledger.pipeline():
        written = await send_statements(ledger, statements)
        held = await last_check.send(ledger)
    written.check()
    await last_check.judge(conn, await last_check.used(held))


async def _stored(ledger: psycopg.AsyncConnection, key: CommandKey) -> StoredAnswer | None:
    """Take an idempotency key, or return its stored response. Raises `Conflict` if the response was erased."""
    try:
        return await take_key(ledger, key)
    except AnswerErased as erased:
        reason = f"the request was carried out, but {erased}; send new requests with a new idempotency key"
        raise Conflict(Objection("response_erased", reason, parameter="Idempotency-Key")) from erased


def _require(condition: Condition, version: int) -> None:
    if version not in condition.versions:
        wanted = " or ".join(map(str, sorted(condition.versions))) or "that of an ETag in If-Match"
        reason = f"{condition.stream} is at version {version}, not {wanted}; read it again"
        raise PreconditionFailed(Objection("version_changed", reason, parameter="If-Match"))


def _may_run_again(
    error: RetryWithoutLocks | VersionConflict | KeyDestroyed | psycopg.Error | sa.exc.DBAPIError,
) -> bool:
    # The ledger's own calls raise these errors directly; SQLAlchemy wraps them.
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    # A server that ended an idle transaction rolled it back: nothing was recorded, whatever the last statement was.
    return isinstance(
        cause,
        RetryWithoutLocks
        | VersionConflict
        | KeyDestroyed
        | psycopg.errors.DeadlockDetected
        | psycopg.errors.UniqueViolation
        | psycopg.errors.IdleInTransactionSessionTimeout,
    )


def _is_rolled_back(error: Exception) -> bool:
    """Return whether it is certain that the transaction with this error has recorded nothing."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return isinstance(cause, Refused | LedgerRefusal | psycopg.errors.LockNotAvailable) or (
        isinstance(cause, VersionConflict | psycopg.Error) and _may_run_again(cause)
    )


def _numbered(changes: Iterable[Change]) -> list[tuple[int, Fact]]:
    return [
        (version, fact)
        for change in changes
        for version, fact in enumerate(change.facts, change.expected_version + 1)
    ]
