"""The folder with the serial logs of removed slices: at most one log per slot.

The logs belong to the node and not to the slots: a slot is proved empty although the log of its last slice is kept. The
name of a file contains the slot and the UUID of the guest, which is derived from its allocation, so a log is found only
for this allocation. It contains the size of the complete log too, of which the file has the end.

The folder is on the file system of the slots' folders, which does not survive a reboot of the host. Only root reads it.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.runtime.durable import private_folder, replace_file
from tasks.streams import KEPT_LOG_SECONDS


class KeptLogsFolder:
    """Implementation of `node_agent.aspects.hypervisors.KeptLogs`. `now` returns the time in seconds since 1970."""

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        self._root, self._now = root, now

    def keep(self, slot: str, guest: UUID, content: bytes, size: int) -> None:
        path = self._root / f"{slot}.{guest}.{size}.log"
        try:
            private_folder(self._root)
            # The earlier log is deleted last, so that a crash never leaves the slot without a log.
            replace_file(path, content, durable=False)
            for earlier in self._root.glob(f"{slot}.*"):
                if earlier != path:
                    earlier.unlink(missing_ok=True)
        except OSError as error:
            raise HostRefused(f"cannot store the log of an ended guest as {path}: {error}") from error

    def find(self, slot: str, guest: UUID, most: int) -> tuple[bytes, int] | None:
        try:
            for path in self._found(f"{slot}.{guest}.*.log"):
                if not self._is_expired(path):
                    return path.read_bytes()[-most:], int(path.name.split(".")[2])
        except FileNotFoundError:
            # The log was deleted, or replaced by that of a later slice, since the folder was read.
            return None
        except OSError as error:
            raise HostUnreadable(f"cannot read the kept logs of {slot}: {error}") from error
        return None

    def delete_expired(self) -> None:
        try:
            for path in self._found("*"):
                if self._is_expired(path):
                    path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise HostRefused(f"cannot delete expired logs in {self._root}: {error}") from error

    def _found(self, names: str) -> Iterator[Path]:
        return iter(sorted(self._root.glob(names), key=lambda path: path.stat().st_mtime, reverse=True))

    def _is_expired(self, path: Path) -> bool:
        return self._now() - path.stat().st_mtime >= KEPT_LOG_SECONDS
