"""A task as it travels: signed together with the last moment at which a node may begin it.

The task's text stands in the signed payload exactly as the control plane keeps it. Each sending is signed anew, with an
expiry of its own, so a copy that somebody took from a queue is worth nothing later. What stands around it in the
queue (the message's id, its actor) is nobody's word.

A copy that is `forged`, signed by an `unknown_key` or `expired` is refused without effect, and that tells nothing of
the task itself: another copy of it is sent.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple, get_args

import msgspec
from joserfc.jwk import OKPKey

from tasks.reasons import CopyCode
from tasks.signing import BadSignature, Signer, payload_of, verify

BAD_COPY: Final = frozenset(get_args(CopyCode))
"""Codes of refusals of a copy, after which its task is still due."""


class BadCopy(ValueError):
    """A copy of a task that is not to be believed, whatever it says."""

    def __init__(self, code: CopyCode, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class Unsealed(NamedTuple):
    """The JSON of a task that we signed, the moment until which it may be begun, and the signed text that proves it."""

    task: bytes
    expires_at: datetime
    signed: str


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    expires_at: datetime
    order: msgspec.Raw


def seal(signer: Signer, task: str, expires_at: datetime) -> str:
    """Sign a task's JSON; whoever holds the result may begin it until `expires_at`."""
    moment = expires_at.astimezone(UTC).isoformat()
    return signer.sign("order+jws", f'{{"expires_at":"{moment}","order":{task}}}'.encode())


def unseal(text: str, keys: Mapping[str, OKPKey]) -> Unsealed:
    """The task in a signed text; its expiry is for the caller to judge. Raises `BadCopy`."""
    try:
        payload = verify(text, "order+jws", keys)
        sealed = msgspec.json.decode(payload, type=_Sealed)
    except BadSignature as bad:
        # What nobody signed, because it is no signed text, was altered on its way as well.
        raise BadCopy("unknown_key" if bad.code == "unknown_key" else "forged", bad.why) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadCopy("forged", f"what was signed is no task with its expiry: {error}") from None
    return Unsealed(bytes(sealed.order), sealed.expires_at, text)


def task_in(believed: str) -> bytes:
    """The task's text in a signed text that was believed before; nothing of it is verified again."""
    return bytes(msgspec.json.decode(payload_of(believed), type=_Sealed).order)
