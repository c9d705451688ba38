"""Lock that allows one agent per state folder: two agents would change the same slots, and each might execute an order
older than one that the other executed.

The lock belongs to the process and ends with it, even after `kill -9` (flock(2)); child processes do not inherit it.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from node_agent.runtime.durable import private_folder

_LOCK_TIMEOUT_SECONDS: Final = 5.0
_TRY_AGAIN_SECONDS: Final = 0.05


class StateFolderInUse(Exception):
    """Another agent uses the state folder, and did not release it within the timeout."""


@contextmanager
def single_agent_lock(state_folder: Path) -> Iterator[None]:
    """Hold the lock of the agent's state folder. Raises `StateFolderInUse` after a timeout.

    The timeout gives a killed predecessor the time to end.
    """
    path = private_folder(state_folder) / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, state_folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, state_folder: Path) -> None:
    until = time.monotonic() + _LOCK_TIMEOUT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise StateFolderInUse(
                    f"another agent uses the state folder {state_folder}; stop it or configure another folder"
                ) from None
            time.sleep(_TRY_AGAIN_SECONDS)
