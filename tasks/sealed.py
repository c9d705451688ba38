"""Sealed tasks: a task as it is sent, signed together with the time until which a node may begin it.

The signed payload contains the task's text exactly as the control plane stores it, and the newest signed head of the
ledger, so that nodes hold heads outside the database (`tasks.heads`). Each time a task is sent it is
signed again with a new expiry, so a copy taken from a queue is worthless later. The rest of the queue message (its id,
its actor) is unsigned and not trustworthy.

A copy that is `forged`, signed with an `unknown_key` or `expired` is refused without effect. This refusal concerns the
copy, not the task: another copy is sent.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, get_args

import msgspec
from joserfc.jwk import OKPKey

from tasks.reasons import CopyCode
from tasks.signing import BadSignature, Signer, payload_of, verify

BAD_COPY: Final = frozenset(get_args(CopyCode))
"""Codes of refusals of one copy of a task, after which the task is sent again."""


class BadCopy(ValueError):
    """A received copy of a task that must not be executed, whatever its content: its signature is not valid, its key is
    unknown, or it has expired.
    """

    def __init__(self, code: CopyCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Unsealed(NamedTuple):
    """The JSON of a task with a verified signature, the time until which it may begin, the signed text itself, and the
    head of the ledger that came with it, None if there was none. The head has a signature of its own, which is not
    verified yet.
    """

    task: bytes
    expires_at: datetime
    signed: str
    head: str | None


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    expires_at: datetime
    order: msgspec.Raw
    head: str | None = None


def seal(signer: Signer, task: str, expires_at: datetime, head: str | None = None) -> str:
    """Return a task's JSON as a signed text; a node may begin the task until `expires_at`. `head` is the newest signed
    head of the ledger, a compact JWS.
    """
    moment = expires_at.astimezone(UTC).isoformat()
    carried = "" if head is None else f',"head":{msgspec.json.encode(head).decode()}'
    return signer.sign("order+jws", f'{{"expires_at":"{moment}"{carried},"order":{task}}}'.encode())


def unseal(text: str, keys: Mapping[str, OKPKey]) -> Unsealed:
    """Verify a signed text and return the task in it. The caller checks the expiry. Raises `BadCopy`."""
    try:
        payload = verify(text, "order+jws", keys)
        sealed = msgspec.json.decode(payload, type=_Sealed)
    except BadSignature as bad:
        # A text that is not a signed text was altered on its way as well, so both count as forged.
        raise BadCopy("unknown_key" if bad.code == "unknown_key" else "forged", bad.reason) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCopy("forged", f"the signed text does not contain a task with its expiry: {error}") from None
    return Unsealed(bytes(sealed.order), sealed.expires_at, text, sealed.head)


def task_in(verified: str) -> bytes:
    """Return the JSON of the task in a signed text, which the caller has already verified."""
    return bytes(msgspec.json.decode(payload_of(verified), type=_Sealed).order)
