"""The road into the ledger, as the control plane calls it.

Order in one transaction: `take_key` first, then whatever the command reads and locks, `append` last. The caller
owns the connection and the transaction; both calls leave it to him to commit. A refusal (`events.errors`)
leaves the transaction aborted, and nothing stored. What a crash leaves is at most a gap in the positions,
which readers find dead.

All checks and locks are in `ledger.append` (see its migration); this side encodes, names what facts take and
free, and types the answer.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import psycopg

from events import catalog
from events.claims import Claim, claims_of
from events.envelope import Cause, Recorded
from events.errors import ClaimHeld, ClaimNotHeld, KeyBusy, refusal
from events.facts import Fact
from events.values import Epoch, Position, StreamId, new_uuid

_APPEND: Final = "select positions, recorded_at, epoch from ledger.append(%s::jsonb)"
_TAKE_KEY: Final = "select ledger.take_key(%s::jsonb)"


class Change(NamedTuple):
    """Facts for one stream, which must be at `expected_version` (0: it has none yet)."""

    stream: StreamId
    expected_version: int
    facts: Sequence[Fact]


class CommandKey(NamedTuple):
    """An idempotency key, scoped by who sends it where. `body_hash` is of the request's canonical bytes."""

    principal: str
    route: str
    key: str
    body_hash: bytes


class StoredAnswer(NamedTuple):
    """What the first user of a key was told, as he was told it."""

    answer: str


class _Fact(msgspec.Struct):
    event_id: UUID
    type: str
    schema_version: int
    data: str


class _Change(msgspec.Struct):
    stream_id: StreamId
    version: int
    facts: list[_Fact]


class _Claim(msgspec.Struct, omit_defaults=True):
    kind: str
    value: str
    frees: StreamId | None = None
    takes: StreamId | None = None


class _Key(msgspec.Struct):
    principal: str
    route: str
    key: str
    body_hash: str
    answer: str | None


class _Append(msgspec.Struct, omit_defaults=True):
    """The argument of `ledger.append`."""

    changes: list[_Change]
    lock_order: list[int]
    cause: Cause
    claims: list[_Claim] | None = None
    key: _Key | None = None


class _Stamp(NamedTuple):
    """The answer of `ledger.append`; no positions where there were no facts."""

    positions: list[Position] | None
    recorded_at: datetime
    epoch: Epoch


_ENCODER: Final = msgspec.json.Encoder()


async def take_key(conn: psycopg.AsyncConnection, key: CommandKey) -> StoredAnswer | None:
    """Takes the key for this transaction, as its first statement; or returns the answer given before.

    A twin in flight is waited for. Raises `KeyReused` for another body, `KeyBusy` after five seconds.
    """
    try:
        cursor = await conn.execute(_TAKE_KEY, [_ENCODER.encode(_wire_key(key, None)).decode()])
    except psycopg.errors.LockNotAvailable as error:
        raise KeyBusy("a command with the same key is still running") from error
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
    `ClaimHeld`, `ClaimNotHeld`, `KeyReused`, `KeyTaken`, and `ValueError` for a call that makes no sense.
    """
    if cause.observed_at.tzinfo is None:
        raise ValueError("observed_at needs a zone: the ledger would guess one")
    wire = [_Change(change.stream, change.expected_version, _wire_facts(change.facts)) for change in changes]
    call = _Append(
        changes=wire,
        lock_order=sorted(range(len(wire)), key=lambda index: wire[index].stream_id.encode()),
        claims=_net_claims(changes) or None,
        cause=cause,
        key=None if key is None else _wire_key(key, answer),
    )
    try:
        cursor = await conn.execute(_APPEND, [_ENCODER.encode(call).decode()], prepare=True)
    except psycopg.Error as error:
        raise (refusal(error) or error) from error
    row = await cursor.fetchone()
    assert row is not None
    return _recorded(changes, wire, cause, _Stamp(*row))


def _wire_facts(facts: Sequence[Fact]) -> list[_Fact]:
    if not facts:
        raise ValueError("a change without facts would leave a stream that nobody can find")
    return [_Fact(new_uuid(), *catalog.encode(fact)) for fact in facts]


def _wire_key(key: CommandKey, answer: str | None) -> _Key:
    return _Key(key.principal, key.route, key.key, key.body_hash.hex(), answer)


def _net_claims(changes: Sequence[Change]) -> list[_Claim]:
    """What all facts together take and free, in the one order in which append locks it.

    Freed on one stream and taken on another is a move. Within one append nobody can free what it took.
    """
    net: dict[Claim, _Claim] = {}
    for stream, fact in ((change.stream, fact) for change in changes for fact in change.facts):
        takes, frees = claims_of(fact)
        for claim in frees:
            if claim in net:
                raise ClaimNotHeld(claim, stream)
            net[claim] = _Claim(*claim, frees=stream)
        for claim in takes:
            entry = net.setdefault(claim, _Claim(*claim))
            if entry.takes is not None:
                raise ClaimHeld(claim, entry.takes)
            entry.takes = stream
    return [
        net[claim] for claim in sorted(net, key=lambda claim: (claim.kind.encode(), claim.value.encode()))
    ]


def _recorded(
    changes: Sequence[Change], wire: Sequence[_Change], cause: Cause, stamp: _Stamp
) -> tuple[Recorded[Fact], ...]:
    places = iter(stamp.positions or ())
    return tuple(
        [
            Recorded(
                next(places),
                sent.event_id,
                change.stream,
                version,
                fact,
                cause,
                stamp.recorded_at,
                stamp.epoch,
            )
            for change, row in zip(changes, wire, strict=True)
            for version, (fact, sent) in enumerate(
                zip(change.facts, row.facts, strict=True), change.expected_version + 1
            )
        ]
    )
