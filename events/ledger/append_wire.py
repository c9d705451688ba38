"""Arguments and results of the SQL function `ledger.append`; `alembic/sql/0001_baseline/append.sql` documents them.

A command's events are encoded as rows of `ledger.event` without the columns that the ledger fills itself, and next to
them the claims that they take and free.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from events import catalog
from events.claims import NOTHING, Claim, claims_of
from events.envelope import Cause, Recorded
from events.facts import Fact
from events.ledger.errors import ClaimHeld, ClaimNotHeld
from events.values import Epoch, Position, ProjectId, StreamId, new_uuid


class Change(NamedTuple):
    """Facts for one stream, which must be at version `expected_version` (0 for a stream without facts)."""

    stream: StreamId
    expected_version: int
    facts: Sequence[Fact]


class CommandKey(NamedTuple):
    """An idempotency key, scoped by principal and route. `body_hash` is the hash of the request's canonical bytes."""

    principal: str
    route: str
    key: str
    body_hash: bytes


class LedgerCommand(NamedTuple):
    """The arguments of one append."""

    changes: Sequence[Change]
    cause: Cause
    key: CommandKey | None = None
    answer: str | None = None


class _Event(msgspec.Struct, omit_defaults=True):
    """The columns of `ledger.event` that the ledger does not fill itself."""

    event_id: UUID
    stream_id: StreamId
    version: int
    type: str
    schema_version: int
    data: str
    actor: str
    reason: str
    correlation_id: UUID
    observed_at: datetime
    project: ProjectId | None = None
    causation_id: UUID | None = None
    trace_context: str | None = None


class _Claim(msgspec.Struct, omit_defaults=True):
    kind: str
    value: str
    frees: StreamId | None = None
    takes: StreamId | None = None


class WireKey(msgspec.Struct):
    """An idempotency key in the form that is sent to the server."""

    principal: str
    route: str
    key: str
    body_hash: str
    answer: str | None


class WireCommand(msgspec.Struct, omit_defaults=True):
    """The arguments of the SQL function `ledger.append`."""

    events: list[_Event]
    lock_order: list[int] | None = None
    claims: list[_Claim] | None = None
    key: WireKey | None = None


class Stamp(NamedTuple):
    """Values that the ledger assigned to the events of a command; `positions` is None if it had no facts."""

    positions: Sequence[Position] | None
    recorded_at: datetime
    epoch: Epoch


_ENCODER: Final = msgspec.json.Encoder()


def encoded(wire: object) -> str:
    """Return the JSON of a wire object, such as `WireCommand`."""
    return _ENCODER.encode(wire).decode()


def wire_key(key: CommandKey, answer: str | None) -> WireKey:
    """Return an idempotency key in the form that is sent to the server; `answer` is the response to store with it."""
    return WireKey(key.principal, key.route, key.key, key.body_hash.hex(), answer)


def wire_command(command: LedgerCommand) -> WireCommand:
    """Return the arguments of an append in the form that is sent to the server.

    Raises `ClaimHeld` or `ClaimNotHeld` if the command's facts contradict each other, and `ValueError` for a change
    without facts or a time without a zone.
    """
    changes, cause, key, answer = command
    if cause.observed_at.tzinfo is None:
        raise ValueError(
            f"observed_at {cause.observed_at} has no time zone; pass a datetime with a time zone"
        )
    events = [event for change in changes for event in _events(change, cause)]
    return WireCommand(
        events,
        _lock_order(events) if len(events) > 1 else None,
        _net_claims(changes) or None,
        None if key is None else wire_key(key, answer),
    )


def recorded(command: LedgerCommand, wire: WireCommand, stamp: Stamp) -> tuple[Recorded[Fact], ...]:
    """Return the command's facts as the ledger has recorded them."""
    facts = [fact for change in command.changes for fact in change.facts]
    return tuple(
        [
            Recorded(
                position, row.event_id, row.stream_id, row.version, fact, command.cause,
                stamp.recorded_at, stamp.epoch,
            )
            for position, row, fact in zip(stamp.positions or (), wire.events, facts, strict=True)
        ]
    )  # fmt: skip


def _events(change: Change, cause: Cause) -> list[_Event]:
    if not change.facts:
        raise ValueError(
            f"a change without facts would leave stream {change.stream} empty; pass at least one fact"
        )
    return [
        _Event(
            new_uuid(), change.stream, version, *catalog.encode(fact),
            cause.actor, cause.reason, cause.correlation_id, cause.observed_at,
            cause.project, cause.causation_id, cause.trace_context,
        )
        for version, fact in enumerate(change.facts, change.expected_version + 1)
    ]  # fmt: skip


def _lock_order(events: Sequence[_Event]) -> list[int]:
    return sorted(
        range(len(events)), key=lambda index: (events[index].stream_id.encode(), events[index].version)
    )


def _net_claims(changes: Sequence[Change]) -> list[_Claim]:
    """Return the claims that all facts of an append together take and free, in the order in which the append locks
    claims.

    A claim that one stream frees and another stream then takes changes its holder. Raises `ClaimNotHeld` if a fact
    frees a claim that an earlier fact of the append took or freed, and `ClaimHeld` if two facts take the same claim.
    """
    net: dict[Claim, _Claim] = {}
    for stream, fact in [(change.stream, fact) for change in changes for fact in change.facts]:
        claims = claims_of(fact)
        if claims is NOTHING:
            continue
        takes, frees = claims
        for claim in frees:
            if claim in net:
                raise ClaimNotHeld(claim, stream)
            net[claim] = _Claim(*claim, frees=stream)
        for claim in takes:
            entry = net.setdefault(claim, _Claim(*claim))
            if entry.takes is not None:
                raise ClaimHeld(claim, entry.takes)
            entry.takes = stream
    if not net:
        return []
    return [
        net[claim] for claim in sorted(net, key=lambda claim: (claim.kind.encode(), claim.value.encode()))
    ]
