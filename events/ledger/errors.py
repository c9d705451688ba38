"""Refusals of the ledger as exception types. The ledger's SQL functions report a refusal as an SQLSTATE of class SP;
only this module maps these SQLSTATEs to exceptions.

Every refusal aborts its transaction: nothing of the transaction is stored, not even its idempotency key.
"""

import json

import psycopg

from events.claims import Claim
from events.values import Position, StreamId


class LedgerRefusal(Exception):
    """The ledger refused to record the facts of a command."""


class VersionConflict(LedgerRefusal):
    """Another command changed the stream first; decide again on its newer state."""

    def __init__(self, stream: StreamId, expected: int, actual: int) -> None:
        super().__init__(f"stream {stream} is at version {actual}, not {expected}")
        self.stream, self.expected, self.actual = stream, expected, actual


class ClaimHeld(LedgerRefusal):
    """A claim that a fact takes already has a holder; `holder` is None if the holder freed the claim in the
    meantime.
    """

    def __init__(self, claim: Claim, holder: StreamId | None) -> None:
        super().__init__(f"the claim on {claim.kind} {claim.value} is held by {holder or 'another command'}")
        self.claim, self.holder = claim, holder


class ClaimNotHeld(LedgerRefusal):
    """A fact frees a claim that its stream does not hold."""

    def __init__(self, claim: Claim, stream: StreamId) -> None:
        super().__init__(f"the claim on {claim.kind} {claim.value} is not held by stream {stream}")
        self.claim, self.stream = claim, stream


class KeyReused(LedgerRefusal):
    """The idempotency key was used before with another request body."""


class KeyTaken(LedgerRefusal):
    """The idempotency key was taken by another transaction, which has stored a response; `take_key` returns it."""


class KeyBusy(LedgerRefusal):
    """A command with the same idempotency key is still running after five seconds; retry later."""


class KeyDestroyed(LedgerRefusal):
    """A cached key of a project, with which personal data was encrypted, was destroyed; run the command again."""


class AnswerErased(Exception):
    """The stored response of an idempotency key was erased with the personal data of its project."""


class MalformedAppend(LedgerRefusal):
    """The arguments of an append are invalid: an error of the program, not of its user."""


class NotYetFinal(LedgerRefusal):
    """An event may still be written at a position, so the position cannot be marked as dead."""


class UnreadableEvent(Exception):
    """This release cannot read an event: a newer release wrote it, or its row is damaged."""

    def __init__(self, position: Position, reason: str) -> None:
        super().__init__(f"the event at position {position} cannot be read: {reason}")
        self.position = position


def refusal(error: psycopg.Error) -> LedgerRefusal | None:
    """Return the typed refusal for a database error, or None if the error is not a refusal of the ledger."""
    # A lock timeout on a stream's head or on a claim has the same SQLSTATE but is not the key's fault; only the
    # context of the error distinguishes the two.
    if isinstance(error, psycopg.errors.LockNotAvailable) and "ledger.hold_key(" in (
        error.diag.context or ""
    ):
        return KeyBusy("a command with the same idempotency key is still running; retry later")
    if error.sqlstate is None or not error.sqlstate.startswith("SP"):
        return None
    return _refusal_of(error.sqlstate, error.diag.message_primary, error.diag.message_detail)


def _refusal_of(state: str, message: str | None, detail: str | None) -> LedgerRefusal:
    """Return the typed refusal for an SQLSTATE of class SP, its message and its detail (a JSON object)."""
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
            return KeyTaken(message)
        case "SP007":
            return NotYetFinal(message)
        case "SP008":
            return KeyDestroyed(message)
        case _:
            return MalformedAppend(message)
