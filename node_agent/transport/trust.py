"""Verification of signed tasks with the public keys that the control plane sent last.

A received copy of a task is valid if a current key signed it and if it has not expired by the control plane's clock. A
task on the node's own disk was verified when it arrived, so it is verified with any key that the node ever received: a
retired key still proves that the disk was not altered.

Code that processes a task runs in a `with proved_by(...)` block, which gives access to the task's signed text. The
slot's fence file, in which the slot's newest order is stored, contains this text.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Final

from joserfc.jwk import OKPKey

from tasks.sealed import BadCopy, Unsealed, unseal
from tasks.signing import BadSignature, public_key

_proof: Final[ContextVar[str]] = ContextVar("proof")


class MissingSignedText(RuntimeError):
    """A task was about to be stored without its signed text, which is a programming error."""


@contextmanager
def proved_by(signed: str) -> Iterator[None]:
    """Make `signed` the signed text of the task that this thread processes in the `with` block."""
    token = _proof.set(signed)
    try:
        yield
    finally:
        _proof.reset(token)


def proof() -> str:
    """Return the signed text of the task that the current thread processes. Raises `MissingSignedText`."""
    try:
        return _proof.get()
    except LookupError:
        raise MissingSignedText(
            "the current task has no signed text; wrap its processing in proved_by()"
        ) from None


class Trust:
    """The node's keys for verifying tasks. Thread-safe. `now` returns the control plane's time."""

    def __init__(self, keys: Iterable[str], former: Iterable[str], now: Callable[[], datetime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._keys = keys_by_id(keys)
        self._all_keys = {**keys_by_id(former), **self._keys}

    def replace_keys(self, keys: Iterable[str]) -> None:
        """Verify tasks that arrive from now on only with these keys, and stored tasks also with all earlier keys."""
        current = keys_by_id(keys)
        with self._lock:
            self._keys, self._all_keys = current, {**self._all_keys, **current}

    def verify(self, text: str) -> Unsealed:
        """Verify the signed copy of a task that just arrived, and return its task. Raises `BadCopy`."""
        with self._lock:
            keys = self._keys
        unsealed = unseal(text, keys)
        if (now := self._now()) > unsealed.expires_at:
            raise BadCopy(
                "expired", f"the signed task expired at {unsealed.expires_at}, and the time is {now}"
            )
        return unsealed

    def verify_stored(self, text: str) -> bytes:
        """Verify the signed copy of a task on the node's disk, and return its task. Raises `BadCopy`."""
        with self._lock:
            keys = self._all_keys
        return unseal(text, keys).task


def keys_by_id(keys: Iterable[str]) -> dict[str, OKPKey]:
    """Return public keys (PEM) by their ids; a text that is not a valid public key is ignored."""
    found: dict[str, OKPKey] = {}
    for pem in keys:
        try:
            key = public_key(pem)
        except BadSignature:
            continue
        found[key.thumbprint()] = key
    return found
