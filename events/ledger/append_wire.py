"""Arguments and results of the SQL functions that append; `alembic/sql/0001_baseline/append.sql` documents them.

A command's events are encoded as rows of `ledger.event` without the columns that the ledger fills itself, and next to
them the claims that they take and free.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from events import catalog
from events.allocations import AllocationRequested
from events.claims import NOTHING, Claim, claims_of
from events.envelope import Cause, Recorded
from events.facts import Fact
from events.ledger.errors import ClaimHeld, ClaimNotHeld
from events.ledger.personal import Place, ProjectKey, sealed_answer, sealed_event
from events.projects import ProjectArchived, ProjectCreated, ProjectDescribed
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
    """The columns of `ledger.event` that the ledger does not fill itself, in the order of the parameters of
    `ledger.append_one`.
    """

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

    @property
    def is_single_event(self) -> bool:
        """Whether `ledger.append_one` can append the command."""
        return len(self.events) == 1 and self.claims is None and self.key is None


class _KeyOfMany(WireKey):
    """The idempotency key of one of several commands, with the numbers of its first and its last event, from 1."""

    first: int | None
    last: int | None


class WireCommands(msgspec.Struct):
    """The arguments of the SQL function `ledger.append_many`."""

    events: list[_Event]
    takes: list[_Claim] | None
    frees: list[_Claim] | None
    keys: list[_KeyOfMany] | None


class Stamp(NamedTuple):
    """Values that the ledger assigned to the events of a command; `positions` is None if it had no facts."""

    positions: Sequence[Position] | None
    recorded_at: datetime
    epoch: Epoch


MANY: Final = 16
"""Smallest number of events for which `ledger.append_many` takes less time than `ledger.append`."""
_ENCODER: Final = msgspec.json.Encoder()
_PersonalFact: TypeAlias = AllocationRequested | ProjectCreated | ProjectDescribed | ProjectArchived
"""The facts with an entry in `PERSONAL_FIELDS`."""


def encoded(wire: object) -> str:
    """Return the JSON of a wire object, such as `WireCommand`."""
    return _ENCODER.encode(wire).decode()


def event_parameters(event: _Event) -> tuple[object, ...]:
    """Return the columns of an event as the parameters of the SQL function `ledger.append_one`."""
    return msgspec.structs.astuple(event)


def place_of_answer(key: CommandKey) -> Place:
    """Return what the ciphertext of a stored response belongs to: the parts of its idempotency key."""
    return (key.principal, key.route, key.key)


def projects_of(commands: Iterable[LedgerCommand]) -> set[ProjectId]:
    """Return the projects with keys that encrypt the personal data of these commands."""
    found = {project for each in commands if (project := _project_of_answer(each)) is not None}
    return found | {
        fact.project
        for each in commands
        for change in each.changes
        for fact in change.facts
        if isinstance(fact, _PersonalFact)
    }


def wire_key(key: CommandKey, answer: str | None) -> WireKey:
    """Return an idempotency key in the form that is sent to the server; `answer` is the response to store with it."""
    return WireKey(key.principal, key.route, key.key, key.body_hash.hex(), answer)


def wire_command(command: LedgerCommand, keys: Mapping[ProjectId, ProjectKey]) -> WireCommand:
    """Return the arguments of an append in the form that is sent to the server. `keys` has those of `projects_of`.

    Raises `ClaimHeld` or `ClaimNotHeld` if the command's facts contradict each other, and `ValueError` for a change
    without facts or a time without a zone.
    """
    changes, cause, key, _ = command
    if cause.observed_at.tzinfo is None:
        raise ValueError(
            f"observed_at {cause.observed_at} has no time zone; pass a datetime with a time zone"
        )
    events = [event for change in changes for event in _events(change, cause, keys)]
    return WireCommand(
        events,
        _lock_order(events) if len(events) > 1 else None,
        _net_claims(changes) or None,
        None if key is None else wire_key(key, _answer(command, key, keys)),
    )


def wire_commands(commands: Sequence[WireCommand]) -> WireCommands | None:
    """Return the arguments of `ledger.append_many` for these commands; None for one command with few events, for which
    `ledger.append` takes less time.
    """
    events, keys = list[_Event](), list[_KeyOfMany]()
    for command in commands:
        first, last = (len(events) + 1, len(events) + len(command.events)) if command.events else (None, None)
        events += command.events
        if (key := command.key) is not None:
            keys.append(_KeyOfMany(key.principal, key.route, key.key, key.body_hash, key.answer, first, last))
    if len(events) < MANY and len(commands) == 1:
        return None
    claims = [claim for each in commands for claim in each.claims or ()]
    takes = [each for each in claims if each.frees is None]
    frees = sorted((each for each in claims if each.frees is not None), key=_order)
    return WireCommands(events, takes or None, frees or None, keys or None)


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


def _answer(command: LedgerCommand, key: CommandKey, keys: Mapping[ProjectId, ProjectKey]) -> str | None:
    """Return the response to store. That of a command in a project is encrypted: it may contain personal data."""
    project = _project_of_answer(command)
    if project is None or command.answer is None:
        return command.answer
    return sealed_answer(place_of_answer(key), command.answer, keys[project])


def _project_of_answer(command: LedgerCommand) -> ProjectId | None:
    """Return the project with the key that encrypts the response; None if it is stored in plain text."""
    if command.key is None or not command.answer:
        return None
    personal = (
        fact.project for change in command.changes for fact in change.facts if isinstance(fact, _PersonalFact)
    )
    return next(personal, command.cause.project)


def _events(change: Change, cause: Cause, keys: Mapping[ProjectId, ProjectKey]) -> list[_Event]:
    if not change.facts:
        raise ValueError(
            f"a change without facts would leave stream {change.stream} empty; pass at least one fact"
        )
    return [
        _Event(
            new_uuid(), change.stream, version, *_encoded(fact, change.stream, version, keys),
            cause.actor, cause.reason, cause.correlation_id, cause.observed_at,
            cause.project, cause.causation_id, cause.trace_context,
        )
        for version, fact in enumerate(change.facts, change.expected_version + 1)
    ]  # fmt: skip


def _encoded(
    fact: Fact, stream: StreamId, version: int, keys: Mapping[ProjectId, ProjectKey]
) -> tuple[str, int, str]:
    name, schema_version, data = catalog.encode(fact)
    if isinstance(fact, _PersonalFact):
        data = sealed_event((name, stream, str(version)), data, keys[fact.project])
    return name, schema_version, data


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
    return [net[claim] for claim in sorted(net, key=_order)]


def _order(claim: Claim | _Claim) -> tuple[bytes, bytes]:
    """Return the sort key of the order in which an append locks claims."""
    return claim.kind.encode(), claim.value.encode()
