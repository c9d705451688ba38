"""The road into the ledger, as the control plane calls it.

Order in one transaction: `take_key` first, then whatever the command reads and locks, `append` last. The caller
owns the connection and the transaction; both calls leave it to him to commit. A refusal (`events.errors`)
leaves the transaction aborted, and nothing stored. What a crash leaves is at most a gap in the positions,
which readers find dead.

All checks and locks are in `ledger.append` (see its migration); this side encodes, names what facts take and
free, and types the answer.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import psycopg

from events.append_wire import (
    Change,
    Command,
    CommandKey,
    Stamp,
    encoded,
    recorded,
    wire_command,
    wire_key,
)
from events.envelope import Cause, Recorded
from events.errors import refusal
from events.facts import Fact

__all__ = ["Change", "Command", "CommandKey", "StoredAnswer", "append", "take_key"]

# The call stands in a subquery and not in FROM, where its one row would go through a store made for many.
_APPEND: Final = (
    "select (called.stamp).positions, (called.stamp).recorded_at, (called.stamp).epoch"
    " from (select ledger.append(%s::jsonb, %s::jsonb, %s::jsonb, %s::jsonb) as stamp offset 0) called"
)
_TAKE_KEY: Final = "select ledger.take_key(%s::jsonb)"


class StoredAnswer(NamedTuple):
    """What the first user of a key was told, as he was told it."""

    answer: str


async def take_key(conn: psycopg.AsyncConnection, key: CommandKey) -> StoredAnswer | None:
    """Takes the key for this transaction, as its first statement; or returns the answer given before.

    A twin in flight is waited for. Raises `KeyReused` for another body, `KeyBusy` after five seconds.
    """
    try:
        cursor = await conn.execute(_TAKE_KEY, [encoded(wire_key(key, None))])
    except psycopg.Error as error:
        raise (refusal(error) or error) from error
    row = await cursor.fetchone()
    return StoredAnswer(row[0]) if row and row[0] is not None else None


async def append(
    conn: psycopg.AsyncConnection,
    changes: Sequence[Change],
    cause: Cause,
    *,
    key: CommandKey | None = None,
    answer: str | None = None,
) -> tuple[Recorded[Fact], ...]:
    """Records the facts of all changes or none of them, in the order given, and returns them as recorded.

    With a `key`, `answer` is what its next user is told; `changes` may then be empty. Raises `VersionConflict`,
    `ClaimHeld`, `ClaimNotHeld`, `KeyReused`, `KeyTaken`, `KeyBusy`, and `ValueError` for a call that makes no sense.
    """
    command = Command(changes, cause, key, answer)
    wire = wire_command(command)
    beside = [None if each is None else encoded(each) for each in (wire.lock_order, wire.claims, wire.key)]
    try:
        cursor = await conn.execute(_APPEND, [encoded(wire.events), *beside], prepare=True)
    except psycopg.Error as error:
        raise (refusal(error) or error) from error
    row = await cursor.fetchone()
    assert row is not None
    return recorded(command, wire, Stamp(*row))
