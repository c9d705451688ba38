"""Many commands in one transaction, for those who have them at hand at once.

The result is that of the same commands appended one after the other, each in a transaction of its own: a refused one
leaves nothing (its key neither), burns no position and harms no other, and a later one sees what an earlier one did.
Only the moment differs: all of them become final together, at the caller's commit, with one `recorded_at`. A key can
be waited for as in `append`, by the whole batch; a twin in another transaction that keeps it for too long ends all.

Two batches may take the same rows in opposite orders. The server then ends one of them with a deadlock, nothing
of which is stored, and its caller begins again (`psycopg.errors.DeadlockDetected`), as after any deadlock.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import psycopg

from events.append_wire import Command, Stamp, WireCommand, encoded, recorded, wire_command
from events.envelope import Recorded
from events.errors import LedgerRefusal, refusal, refusal_of
from events.facts import Fact
from events.values import Epoch, Position

LIMIT: Final = 50
"""Commands in a batch. Each may be a subtransaction, and the server forgets how to know those of others fast at 64."""

Outcome = tuple[Recorded[Fact], ...] | LedgerRefusal
"""What became of a command: its facts as recorded, or why there are none."""

_APPEND_MANY: Final = "select positions, recorded_at, epoch, refused::text from ledger.append_many(%s::jsonb)"


class _Refused(msgspec.Struct):
    state: str
    message: str
    detail: str


class _Answer(NamedTuple):
    positions: Sequence[Position] | None
    recorded_at: datetime
    epoch: Epoch
    refused: str


_REFUSALS: Final = msgspec.json.Decoder(dict[int, _Refused])


async def append_many(conn: psycopg.AsyncConnection, commands: Sequence[Command]) -> tuple[Outcome, ...]:
    """Records each command or refuses it, and says which, in their order.

    Raises `KeyBusy`, `ValueError` for more than `LIMIT` of them and for a command that makes no sense; then nothing was
    recorded.
    """
    if len(commands) > LIMIT:
        raise ValueError(f"{len(commands)} commands are more than a batch takes: {LIMIT}")
    wires = [_wire(command) for command in commands]
    sent = [wire for wire in wires if isinstance(wire, WireCommand)]
    try:
        cursor = await conn.execute(_APPEND_MANY, [encoded(sent)], prepare=True)
    except psycopg.Error as error:
        raise (refusal(error) or error) from error
    row = await cursor.fetchone()
    assert row is not None
    return _outcomes(commands, wires, _Answer(*row))


def _wire(command: Command) -> WireCommand | LedgerRefusal:
    try:
        return wire_command(command)
    except LedgerRefusal as contradicts_itself:
        return contradicts_itself


def _outcomes(
    commands: Sequence[Command], wires: Sequence[WireCommand | LedgerRefusal], answer: _Answer
) -> tuple[Outcome, ...]:
    refused: Mapping[int, _Refused] = _REFUSALS.decode(answer.refused)
    positions = iter(answer.positions or ())
    outcomes: list[Outcome] = []
    number = 0  # among those that were sent
    for command, wire in zip(commands, wires, strict=True):
        if isinstance(wire, LedgerRefusal):
            outcomes.append(wire)
            continue
        if (why := refused.get(number)) is not None:
            outcomes.append(refusal_of(why.state, why.message, why.detail))
        else:
            own = list(islice(positions, len(wire.events)))
            outcomes.append(recorded(command, wire, Stamp(own, answer.recorded_at, answer.epoch)))
        number += 1
    return tuple(outcomes)
