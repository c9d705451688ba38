"""Where everything of one embedded Sliceplane lies: one state folder that is kept, one run folder that is not.

A run id made of the state folder's path names whatever must live outside of it (links, sockets), so that several
can run on one machine and each finds its own leftovers.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSTEM_STATE: Final = Path("/var/lib/sliceplane")
LOCK: Final = "up.lock"
_MARKER: Final = "sliceplane-state"
_MAY_BE_THERE: Final = frozenset({LOCK, "images"})
"""Names that a folder may hold before `up` takes it: the guest's image may be shared by several."""


class AlreadyRunning(Exception):
    """Another `up` holds the state folder."""

    def __init__(self, folder: Path, pid: str) -> None:
        super().__init__(
            f"{folder} is in use by process {pid or 'unknown'}; stop it with ./dev down --state {folder}"
        )


def default_state(*, simulated: bool = False) -> Path:
    """`/var/lib/sliceplane` as root, below `$XDG_STATE_HOME` otherwise; where simulated nodes are asked for, the folder
    beside it, because a state is of one kind of nodes.
    """
    found = SYSTEM_STATE
    if os.geteuid() != 0:
        found = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sliceplane"
    return found.with_name(f"{found.name}-simulated") if simulated else found


class OtherNodes(Exception):
    """The state folder belongs to nodes of another kind, whose slices would be taken for interrupted."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(f"{folder} holds {kind} nodes; give another folder with --state DIR")


class OtherFolder(Exception):
    """The folder holds files of others, which `./dev reset` would delete."""

    def __init__(self, folder: Path, found: Sequence[str]) -> None:
        names = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")  # noqa: PLR2004 (a line's worth)
        super().__init__(
            f"{folder} is not a state folder and not empty: it holds {names}; give another one with --state"
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """The folders of one state folder."""

    state: Path

    @property
    def run_id(self) -> str:
        return hashlib.sha256(str(self.state.resolve()).encode()).hexdigest()[:6]

    @property
    def run(self) -> Path:
        """Short, because a socket's path has at most 107 bytes."""
        base = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())
        return Path(base) / f"sliceplane-{self.run_id}"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def client_file(self) -> Path:
        """What the command line reads: the API's address, its CA and a key."""
        return self.state / "client.json"

    @property
    def certificates(self) -> Path:
        """The CA, and the certificate that API and Redis show."""
        return self.state / "tls"

    @property
    def ca_file(self) -> Path:
        """What everybody believes API and Redis by."""
        return self.certificates / "ca.pem"

    @property
    def ssh_key(self) -> Path:
        """The private key of the allocation that `up` makes."""
        return self.state / "ssh" / "id_ed25519"

    @property
    def signing_key(self) -> Path:
        """The private key that orders are signed with."""
        return self.state / "signing-key.pem"

    @property
    def redis_url_file(self) -> Path:
        """For the leak checker: a URL on its command line would show its password to everybody."""
        return self.run / "redis-url"

    def node(self, name: str) -> Path:
        return self.state / "nodes" / name

    def remember_nodes(self, kind: str) -> None:
        """Note what kind of nodes this state is of. Raises `OtherNodes` when it is of another."""
        path = self.state / "nodes-kind"
        known = path.read_text() if path.exists() else kind
        if known != kind:
            raise OtherNodes(self.state, known)
        path.write_text(kind)

    def ensure(self) -> None:
        for folder in (self.state, self.logs, self.ssh_key.parent, self.run):
            folder.mkdir(parents=True, exist_ok=True)
        # The servers run as users of their own and must reach their folders below; secrets are files of 0600.
        for folder in (self.state, self.run):
            folder.chmod(0o711)
        for folder in (self.logs, self.ssh_key.parent):
            folder.chmod(0o700)

    def claim(self) -> None:
        """Mark a folder that is new or empty as a state folder of `up`. Raises `OtherFolder` for any other one."""
        self.state.mkdir(parents=True, exist_ok=True)
        if self.is_ours():
            return
        if found := sorted(each.name for each in self.state.iterdir() if each.name not in _MAY_BE_THERE):
            raise OtherFolder(self.state, found)
        (self.state / _MARKER).write_text(
            "This folder belongs to ./dev up; ./dev reset deletes what it holds.\n"
        )

    def is_ours(self) -> bool:
        """Whether `up` made this state folder, or took an empty one."""
        return (self.state / _MARKER).exists()

    def empty(self) -> None:
        """Delete everything in the state folder; the marker last, so that an interrupted call can be repeated."""
        for entry in sorted(self.state.iterdir(), key=lambda each: each.name == _MARKER):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove_run(self) -> list[str]:
        """Once nothing runs. Returns what was there to remove."""
        if not self.run.exists():
            return []
        shutil.rmtree(self.run, ignore_errors=True)
        return [str(self.run)]


class Hold:
    """The right to run on a state folder, or to remove what a run left; the kernel gives it back with the process,
    however that ends.
    """

    def __init__(self, layout: Layout) -> None:
        self._path = layout.state / LOCK

    def __enter__(self) -> "Hold":
        self._file = self._path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            raise AlreadyRunning(self._path.parent, self._file.read().strip()) from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.truncate(0)
        self._file.close()


def holder(layout: Layout) -> int | None:
    """The process that runs on this state folder, if there is one."""
    path = layout.state / LOCK
    if not path.exists():
        return None
    with path.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read().strip() or 0) or None
    return None


def write_private(path: Path, content: dict[str, object]) -> None:
    """Replace a JSON file of secrets whole, readable by its owner alone."""
    write_private_text(path, json.dumps(content, indent=2))


def write_private_text(path: Path, content: str) -> None:
    draft = path.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(content)
    draft.replace(path)
