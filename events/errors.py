"""What the ledger refuses, as types. Its functions raise SQLSTATEs of class SP; here is the only table of them.

Every refusal aborts the transaction it happens in: nothing of it is stored, a taken key included.
"""

import json

import psycopg

from events.claims import Claim
from events.values import Position, StreamId


class LedgerRefusal(Exception):
    """The ledger would not record this."""


class VersionConflict(LedgerRefusal):
    """Another command changed the stream first; decide again on its newer state."""

    def __init__(self, stream: StreamId, expected: int, actual: int) -> None:
        super().__init__(f"{stream} is at version {actual}, not {expected}")
        self.stream, self.expected, self.actual = stream, expected, actual


class ClaimHeld(LedgerRefusal):
    """What the fact takes has a holder already; `holder` is None when it let go in the meantime."""

    def __init__(self, claim: Claim, holder: StreamId | None) -> None:
        super().__init__(f"{claim.kind} {claim.value} is held by {holder or 'another command'}")
        self.claim, self.holder = claim, holder


class ClaimNotHeld(LedgerRefusal):
    """The fact frees what its stream does not hold."""

    def __init__(self, claim: Claim, stream: StreamId) -> None:
        super().__init__(f"{claim.kind} {claim.value} is not held by {stream}")
        self.claim, self.stream = claim, stream


class KeyReused(LedgerRefusal):
    """The idempotency key was used with another body."""


class KeyTaken(LedgerRefusal):
    """The key was answered in another transaction; `answer` is what was said."""

    def __init__(self, answer: str) -> None:
        super().__init__("the key was answered before")
        self.answer = answer


class KeyBusy(LedgerRefusal):
    """A command with the same key is still running after five seconds; ask again later."""


class MalformedAppend(LedgerRefusal):
    """A call that cannot be right: an error of the program, not of its user."""


class NotYetFinal(LedgerRefusal):
    """A position may still be written, so it is not dead."""


class UnreadableEvent(Exception):
    """This release cannot read an event: a newer one wrote it, or its row is damaged."""

    def __init__(self, position: Position, why: str) -> None:
        super().__init__(f"the event at position {position} cannot be read: {why}")
        self.position = position


def refusal(error: psycopg.Error) -> LedgerRefusal | None:
    """The typed refusal behind a database error, or None when it is something else."""
    # The same state says that a stream's head or a claim was waited for too long, which is nothing that a key's
    # user did: only where it happened tells them apart.
    if isinstance(error, psycopg.errors.LockNotAvailable) and "ledger.hold_key(" in (
        error.diag.context or ""
    ):
        return KeyBusy("a command with the same key is still running")
    if error.sqlstate is None or not error.sqlstate.startswith("SP"):
        return None
    return refusal_of(error.sqlstate, error.diag.message_primary, error.diag.message_detail)


def refusal_of(state: str, message: str | None, detail: str | None) -> LedgerRefusal:
    """The typed refusal of an SQLSTATE of class SP, its message and its detail (a JSON object)."""
    about = json.loads(detail or "{}")
    match state:
        case "SP001":
            return VersionConflict(StreamId(about["stream"]), about["expected"], about["actual"])
        case "SP002":
            return ClaimHeld(Claim(about["kind"], about["value"]), about["stream"])
        case "SP003":
            return ClaimNotHeld(Claim(about["kind"], about["value"]), StreamId(about["stream"]))
        case "SP004":
            return KeyReused(message)
        case "SP005":
            return KeyTaken(about["answer"])
        case "SP007":
            return NotYetFinal(message)
        case _:
            return MalformedAppend(message)
