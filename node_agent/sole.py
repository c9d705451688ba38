"""One agent a state folder: two would answer for the same slots, each with a fence of its own in memory.

The lock belongs to the process and ends with it, `kill -9` included (flock(2)); it is not passed on to children.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from node_agent.durable import private_folder

_PATIENCE_SECONDS: Final = 5.0
_TRY_AGAIN_SECONDS: Final = 0.05


class AnotherAgent(Exception):
    """The state folder is in use, and stayed so."""


@contextmanager
def sole_agent(state_folder: Path) -> Iterator[None]:
    """Hold the folder. Raises `AnotherAgent` after some seconds: a predecessor that was killed may linger a moment."""
    path = private_folder(state_folder) / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, state_folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, state_folder: Path) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise AnotherAgent(f"another agent holds {state_folder}") from None
            time.sleep(_TRY_AGAIN_SECONDS)
