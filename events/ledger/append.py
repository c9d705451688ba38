"""Append the facts of one command to the ledger, or those of several commands that share a transaction.

Order within one transaction: `take_key` first, then all reads and locks of the command, `append` last. The caller
owns the connection and the transaction and commits it. A refusal (`events.ledger.errors`) leaves the transaction
aborted and stores nothing. A crash leaves at most a gap in the positions, which readers mark as dead.

All checks and locks are in the SQL functions of `alembic/sql/0001_baseline/append.sql`. This module encodes the
arguments, derives the claims that the facts take and free, and types the result.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final, LiteralString, NamedTuple

import psycopg
from psycopg.rows import args_row, scalar_row

from events.envelope import Cause, Recorded
from events.facts import Fact
from events.ledger.append_wire import (
    Change,
    CommandKey,
    LedgerCommand,
    Stamp,
    WireCommand,
    encoded,
    event_parameters,
    place_of_answer,
    projects_of,
    recorded,
    wire_command,
    wire_commands,
    wire_key,
)
from events.ledger.connection import fetch_row, fetch_value
from events.ledger.errors import AnswerErased, KeyDestroyed, refusal
from events.ledger.personal import ProjectKey, key_of, opened_answer
from events.ledger.project_keys import cipher_by_id, database_of, keys_for, ring
from events.values import Epoch, Position, ProjectId

__all__ = [
    "Change",
    "CommandKey",
    "EncodedAppend",
    "LedgerCommand",
    "StoredAnswer",
    "append",
    "encode_together",
    "free_keys",
    "take_key",
    "take_new_keys",
]

# The call is in a subquery and not in FROM, where PostgreSQL would put its one row through a tuple store.
_APPEND: Final = (
    "select (called.stamp).positions, (called.stamp).recorded_at, (called.stamp).epoch"
    " from (select ledger.append(%s::jsonb, %s::jsonb, %s::jsonb, %s::jsonb) as stamp offset 0) called"
)
# A filter without a column is evaluated once, and before the call.
_APPEND_ENCRYPTED: Final = (
    "select (called.stamp).positions, (called.stamp).recorded_at, (called.stamp).epoch"
    " from (select ledger.append(%s::jsonb, %s::jsonb, %s::jsonb, %s::jsonb) as stamp"
    " where keys.refuse_destroyed(%s::text[]) offset 0) called"
)
_APPEND_ONE: Final = (
    "select position, recorded_at, epoch from ledger.append_one("
    "%s, %s, %s::bigint, %s, %s::smallint, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_APPEND_COMMAND: Final = (
    "select ledger.append(command -> 'events', command -> 'lock_order', command -> 'claims', command -> 'key')"
    " from (select %s::jsonb as command) given"
)
_APPEND_MANY: Final = "select ledger.append_many(%s::jsonb, %s::jsonb, %s::jsonb, %s::jsonb)"
_KEYS_EXIST: Final = " where keys.refuse_destroyed(%s::text[])"
_TAKE_KEY: Final = "select ledger.take_key(%s::jsonb)"
_TAKE_NEW_KEYS: Final = "select ledger.take_new_keys(%s::jsonb)"
_FREE_KEYS: Final = "select ledger.free_keys(%s::jsonb)"


class StoredAnswer(NamedTuple):
    """The stored response of the first request with an idempotency key."""

    answer: str


async def take_key(conn: psycopg.AsyncConnection, key: CommandKey) -> StoredAnswer | None:
    """Take an idempotency key as the first statement of a transaction, or return the response stored for an earlier
    request.

    Waits for a concurrent request with the same key. Raises `KeyReused` if the key was used with another body,
    `KeyBusy` after five seconds of waiting, and `AnswerErased` if the response was erased.
    """
    try:
        answer: str | None = await fetch_value(conn, _TAKE_KEY, [encoded(wire_key(key, None))])
    except psycopg.Error as error:
        raise (refusal(error) or error) from error
    return None if answer is None else StoredAnswer(await _opened(conn, key, answer))


async def _opened(conn: psycopg.AsyncConnection, key: CommandKey, answer: str) -> str:
    if (key_id := key_of(answer)) is None:
        return answer
    cipher = await cipher_by_id(conn, key_id)
    if cipher is None:
        raise AnswerErased("the response was erased with the personal data of its project")
    return opened_answer(place_of_answer(key), answer, cipher)


class TakenKeys(NamedTuple):
    """The result of `take_new_keys`, which may still be on its way from the server."""

    cursor: psycopg.AsyncCursor[list[int]]

    async def new(self) -> Collection[int]:
        """Return the indexes of the keys that no earlier request has used. Of a key that is listed twice, only its
        first index is returned.
        """
        return await self.cursor.fetchone() or ()


async def take_new_keys(conn: psycopg.AsyncConnection, keys: Sequence[CommandKey]) -> TakenKeys:
    """Take those of these idempotency keys that no request has used yet, for several commands of one transaction.

    Raises `psycopg.errors.LockNotAvailable` if a concurrent request with one of the keys does not end soon. In a
    pipeline, the error is that of a later statement of the pipeline or of its end.
    """
    wanted = encoded([wire_key(key, None) for key in keys])
    cursor = conn.cursor(row_factory=scalar_row)
    return TakenKeys(await cursor.execute(_TAKE_NEW_KEYS, [wanted], prepare=True))


async def free_keys(conn: psycopg.AsyncConnection, keys: Sequence[CommandKey]) -> None:
    """Free idempotency keys that this transaction has taken and for which it does not store a response."""
    await conn.execute(_FREE_KEYS, [encoded([wire_key(key, None) for key in keys])])


async def append(
    conn: psycopg.AsyncConnection,
    changes: Sequence[Change],
    cause: Cause,
    *,
    key: CommandKey | None = None,
    answer: str | None = None,
) -> tuple[Recorded[Fact], ...]:
    """Record the facts of all changes or none of them, in the given order, and return them as recorded.

    With a `key`, `answer` is the response stored for later requests with this key; `changes` may then be empty.
    Raises `VersionConflict`, `ClaimHeld`, `ClaimNotHeld`, `KeyReused`, `KeyTaken`, `KeyBusy`, and `ValueError` for
    invalid arguments; `KeyDestroyed` if a cached key of a project was destroyed.

    The first append of personal data for a project creates the project's key. Other transactions that need this key
    wait until this transaction ends. Concurrent transactions with several appends can deadlock if they create keys in
    different orders; `keys_for` creates the keys beforehand.
    """
    command = LedgerCommand(changes, cause, key, answer)
    keys = await _keys(conn, [command])
    wire = wire_command(command, keys)
    try:
        stamp = await _stamp(conn, wire, [each.key_id for each in keys.values()])
    except psycopg.Error as error:
        raise _failure(conn, error, keys) from error
    return recorded(command, wire, stamp)


async def _stamp(conn: psycopg.AsyncConnection, wire: WireCommand, key_ids: Sequence[str]) -> Stamp:
    """Call the SQL function for one command. It is refused if one of the keys of projects was destroyed."""
    if wire.is_single_event and not key_ids:
        cursor = conn.cursor(row_factory=args_row(_stamp_of_one))
        await cursor.execute(_APPEND_ONE, event_parameters(wire.events[0]), prepare=True)
        stamp = await cursor.fetchone()
        assert stamp is not None
        return stamp
    arguments: list[object] = [
        None if each is None else encoded(each)
        for each in (wire.events, wire.lock_order, wire.claims, wire.key)
    ]
    statement = _APPEND_ENCRYPTED if key_ids else _APPEND
    stamp = await fetch_row(
        conn, Stamp, statement, [*arguments, key_ids] if key_ids else arguments, prepare=True
    )
    assert stamp is not None
    return stamp


def _stamp_of_one(position: Position, recorded_at: datetime, epoch: Epoch) -> Stamp:
    return Stamp([position], recorded_at, epoch)


class EncodedAppend(NamedTuple):
    """The append of several commands as one statement, with its parameters and the personal keys of the projects."""

    statement: LiteralString
    parameters: Sequence[object]
    keys: Mapping[ProjectId, ProjectKey]

    async def send(self, conn: psycopg.AsyncConnection) -> None:
        """Record the facts of all commands, in their order. Raises the same errors as `append`; then none of the facts
        is recorded.
        """
        try:
            await conn.execute(self.statement, self.parameters, prepare=True)
        except psycopg.Error as error:
            raise _failure(conn, error, self.keys) from error


async def encode_together(conn: psycopg.AsyncConnection, commands: Sequence[LedgerCommand]) -> EncodedAppend:
    """Encode the append of several commands as one statement. The transaction must have taken the idempotency keys of
    the commands.
    """
    keys = await _keys(conn, commands)
    each_wire = [wire_command(each, keys) for each in commands]
    arguments: list[object]
    if (wire := wire_commands(each_wire)) is None:
        statement, arguments = _APPEND_COMMAND, [encoded(each_wire[0])]
    else:
        parts = (wire.events, wire.takes, wire.frees, wire.keys)
        statement, arguments = _APPEND_MANY, [None if each is None else encoded(each) for each in parts]
    if keys:
        statement, arguments = statement + _KEYS_EXIST, [*arguments, [each.key_id for each in keys.values()]]
    return EncodedAppend(statement, arguments, keys)


async def _keys(
    conn: psycopg.AsyncConnection, commands: Sequence[LedgerCommand]
) -> Mapping[ProjectId, ProjectKey]:
    projects = projects_of(commands)
    return await keys_for(conn, projects) if projects else {}


def _failure(
    conn: psycopg.AsyncConnection, error: psycopg.Error, keys: Mapping[ProjectId, ProjectKey]
) -> Exception:
    """Return the typed refusal for an error of an append. If a cached key was destroyed, drop the cached keys."""
    if isinstance(refused := refusal(error) or error, KeyDestroyed):
        ring().forget(database_of(conn), keys)
    return refused
