"""Paths of one embedded Sliceplane: a state folder that is kept, and a run folder that is deleted after each run.

The run id, a hash of the state folder's path, names everything outside these folders (links, sockets). Several
installations can therefore run on one machine, and each finds its own leftovers.
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
"""Entries that a folder may contain before `up` takes it. Several state folders may share the guest image."""


class AlreadyRunning(Exception):
    """Another process holds the lock of the state folder."""

    def __init__(self, folder: Path, pid: str) -> None:
        super().__init__(
            f"{folder} is in use by process {pid or 'unknown'}; stop it with ./dev down --state {folder}"
        )


def default_state(*, simulated: bool = False) -> Path:
    """Return the default state folder: `/var/lib/sliceplane` for root, otherwise one in `$XDG_STATE_HOME`.

    Simulated nodes have a separate folder beside it, because a state folder holds either real or simulated nodes.
    """
    found = SYSTEM_STATE
    if os.geteuid() != 0:
        found = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sliceplane"
    return found.with_name(f"{found.name}-simulated") if simulated else found


class NodeKindMismatch(Exception):
    """The state folder holds simulated nodes and real ones are requested, or vice versa.

    If `up` continued, the slices of the existing nodes would count as interrupted.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(f"{folder} holds {kind} nodes; choose another state folder with --state DIR")


class NotAStateFolder(Exception):
    """The folder contains unrelated files, which `./dev reset` would delete."""

    def __init__(self, folder: Path, found: Sequence[str]) -> None:
        names = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")  # noqa: PLR2004 (a line's worth)
        super().__init__(
            f"{folder} is not a state folder and not empty: it contains {names}; choose another one with --state DIR"
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths inside and outside one state folder."""

    state: Path

    @property
    def run_id(self) -> str:
        return hashlib.sha256(str(self.state.resolve()).encode()).hexdigest()[:6]

    @property
    def run(self) -> Path:
        """Run folder, which holds sockets and pid files. Its path is short: a socket's path is limited to 107 bytes."""
        base = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", tempfile.gettempdir())
        return Path(base) / f"sliceplane-{self.run_id}"

    @property
    def database(self) -> Path:
        """Folder of Postgres."""
        return self.state / "postgres"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def client_file(self) -> Path:
        """Configuration file of the command line: the API's address, its CA and an API key."""
        return self.state / "client.json"

    @property
    def certificates(self) -> Path:
        """Folder with the CA and the certificate of API and Redis."""
        return self.state / "tls"

    @property
    def ca_file(self) -> Path:
        """CA certificate that clients use to verify API and Redis."""
        return self.certificates / "ca.pem"

    @property
    def ssh_key(self) -> Path:
        """Private SSH key for the allocation that `up` creates."""
        return self.state / "ssh" / "id_ed25519"

    @property
    def ssh_host_key(self) -> Path:
        """Private host key of the SSH gateway."""
        return self.state / "ssh" / "gateway_host_key"

    @property
    def signing_key(self) -> Path:
        """Private key that signs orders."""
        return self.state / "signing-key.pem"

    @property
    def sealing_key(self) -> Path:
        """Private key that signs heads of the ledger. `sealing-key.pub.pem` beside it is for auditors."""
        return self.state / "sealing-key.pem"

    @property
    def personal_key(self) -> Path:
        """Key that encrypts the keys of projects, with which personal data is encrypted."""
        return self.state / "personal-key"

    @property
    def heads_file(self) -> Path:
        """File to which the sealer appends the heads of the ledger."""
        return self.state / "heads.jws"

    @property
    def redis_url_file(self) -> Path:
        """File with the Redis URL for the leak checker: every user could read a password on its command line."""
        return self.run / "redis-url"

    def node(self, name: str) -> Path:
        return self.state / "nodes" / name

    def record_node_kind(self, kind: str) -> None:
        """Record whether this state folder holds real or simulated nodes. Raises `NodeKindMismatch`."""
        path = self.state / "nodes-kind"
        recorded = path.read_text() if path.exists() else kind
        if recorded != kind:
            raise NodeKindMismatch(self.state, recorded)
        path.write_text(kind)

    def ensure(self) -> None:
        for folder in (self.state, self.logs, self.ssh_key.parent, self.run):
            folder.mkdir(parents=True, exist_ok=True)
        # The servers run as separate users and must reach their folders below these; files with secrets have mode 0600.
        for folder in (self.state, self.run):
            folder.chmod(0o711)
        for folder in (self.logs, self.ssh_key.parent):
            folder.chmod(0o700)

    def claim(self) -> None:
        """Mark the folder, if it is new or empty, as a state folder of `up`. Raises `NotAStateFolder` for a folder
        with other files.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        if self.is_state_folder():
            return
        if found := sorted(each.name for each in self.state.iterdir() if each.name not in _MAY_BE_THERE):
            raise NotAStateFolder(self.state, found)
        (self.state / _MARKER).write_text(
            "This is the state folder of ./dev up; ./dev reset deletes its content.\n"
        )

    def is_state_folder(self) -> bool:
        """Return whether `up` has marked this folder as its state folder."""
        return (self.state / _MARKER).exists()

    def empty(self) -> None:
        """Delete the content of the state folder, the marker last, so that an interrupted call can be repeated."""
        for entry in sorted(self.state.iterdir(), key=lambda each: each.name == _MARKER):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def remove_run(self) -> list[str]:
        """Delete the run folder after everything has stopped. Return the paths that were deleted."""
        if not self.run.exists():
            return []
        shutil.rmtree(self.run, ignore_errors=True)
        return [str(self.run)]


class StateFolderLock:
    """Lock on a state folder, needed to run on it or to remove leftovers. The kernel releases it with the process."""

    def __init__(self, layout: Layout) -> None:
        self._path = layout.state / LOCK

    def __enter__(self) -> "StateFolderLock":
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


def lock_holder(layout: Layout) -> int | None:
    """Return the id of the process that holds the lock of this state folder, or None."""
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
    """Replace a JSON file of secrets atomically. Only its owner can read it."""
    write_private_text(path, json.dumps(content, indent=2))


def write_private_text(path: Path, content: str) -> None:
    draft = path.with_suffix(".new")
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        file.write(content)
    draft.replace(path)
