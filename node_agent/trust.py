"""Which signatures the node believes: the public keys of the control plane, as the node was last told.

A copy of a task is believed if a key that holds now signed it, and if it has not expired by the control plane's
clock. What the node wrote to its own disk was believed when it came, so it is read back by any key that it was ever
told of: a key that was retired since still proves that the disk was not altered.

Whatever is done with a task is done `proved_by` its signed text, which the fence keeps beside the order.
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


class Unproved(RuntimeError):
    """A task was about to be kept, and nobody showed who signed it: a mistake of ours."""


@contextmanager
def proved_by(signed: str) -> Iterator[None]:
    """Meanwhile, the task at hand is what this signed text says."""
    token = _proof.set(signed)
    try:
        yield
    finally:
        _proof.reset(token)


def proof() -> str:
    """The signed text of the task at hand. Raises `Unproved`."""
    try:
        return _proof.get()
    except LookupError:
        raise Unproved("no signed text stands behind the task at hand") from None


class Trust:
    """Thread-safe. `now` is the control plane's time."""

    def __init__(self, keys: Iterable[str], former: Iterable[str], now: Callable[[], datetime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._keys = _by_id(keys)
        self._known = {**_by_id(former), **self._keys}

    def learn(self, keys: Iterable[str]) -> None:
        """Believe these from now on, and of the others only what was written down."""
        told = _by_id(keys)
        with self._lock:
            self._keys, self._known = told, {**self._known, **told}

    def believe(self, text: str) -> Unsealed:
        """The task in a copy that just came. Raises `BadCopy`."""
        with self._lock:
            keys = self._keys
        unsealed = unseal(text, keys)
        if (now := self._now()) > unsealed.expires_at:
            raise BadCopy("expired", f"it was to be begun until {unsealed.expires_at}, and it is {now}")
        return unsealed

    def recall(self, text: str) -> bytes:
        """The task in a copy that was believed once, and kept. Raises `BadCopy`."""
        with self._lock:
            keys = self._known
        return unseal(text, keys).task


def _by_id(keys: Iterable[str]) -> dict[str, OKPKey]:
    """Keys by their ids; what is no key of ours vouches for nothing."""
    found: dict[str, OKPKey] = {}
    for pem in keys:
        try:
            key = public_key(pem)
        except BadSignature:
            continue
        found[key.thumbprint()] = key
    return found
