"""Search for secrets in everything that a running system has written or shows: files, logs, databases, Redis, the API,
processes and the output of programs.
"""

import base64
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import psycopg
import redis
from psycopg.conninfo import conninfo_to_dict

from deploy.embedded.postgres_cluster import find_programs
from tests.faults.system import System

_PROC: Final = Path("/proc")
_RAW_DATABASE: Final = ("postgres/data/base/", "postgres/data/pg_wal/", "postgres/data/global/")
"""Folders that are not searched: they contain pages of the database, which Postgres compresses or has not written yet.
The SQL dump has their content.
"""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that was given to the system. `kept` are the places that must have it: paths of files below the state
    folder, and processes of which the environment has it.
    """

    name: str
    value: str
    kept: frozenset[str] = frozenset()

    @property
    def needles(self) -> tuple[bytes, ...]:
        """The encodings of the secret: as it is, in a URL, and inside a text in base64 (at three offsets)."""
        raw = self.value.encode()
        encoded = [
            base64.b64encode(b"\0" * offset + raw)[4 * bool(offset) :].rstrip(b"=")[:-4]
            for offset in range(3)
        ]
        return (raw, quote(self.value, safe="").encode(), *encoded)


@dataclass(slots=True)
class Places:
    """Content in which secrets are searched for, by the name of the place where it was found."""

    found: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, content: bytes | str | Any) -> None:
        if not isinstance(content, bytes | str):
            content = json.dumps(content, ensure_ascii=False, default=str)
        self.found[name] = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content

    def of(self, secret: Secret) -> set[str]:
        """Return the names of the places that contain the secret."""
        needles = secret.needles
        return {name for name, content in self.found.items() if any(each in content for each in needles)}


def places_of(system: System, shown: Mapping[str, str | bytes]) -> Places:
    """Return everything that the system has written and shows. `shown` has responses and outputs, by their names."""
    places = Places()
    for name, content in shown.items():
        places.add(f"shown/{name}", content)
    for name, content in _files(system.layout.state):
        places.add(name, content)
    for name, content in _files(system.layout.run):
        places.add(f"run/{name}", content)
    for name, rows in _dumps(system):
        places.add(name, rows)
    for name, content in _redis(system.redis()):
        places.add(f"redis/{name}", content)
    for path, text in _lists(system):
        places.add(f"api{path}", text)
    for name, content in _processes(system):
        places.add(name, content)
    return places


def _files(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not path.is_symlink() and not name.startswith(_RAW_DATABASE):
            yield name, path.read_bytes()


def _dumps(system: System) -> Iterator[tuple[str, bytes]]:
    """Return all databases and roles as SQL, and the last statement of each session in `pg_stat_activity`."""
    options = {name: str(value) for name, value in conninfo_to_dict(system.stack.admin_dsn).items()}
    dump = subprocess.run(
        [find_programs() / "pg_dumpall", "-h", options["host"], "-p", options["port"], "-U", options["user"]],
        env={**os.environ, "PGPASSWORD": options["password"]},
        capture_output=True,
        check=True,
    )
    yield "database", dump.stdout
    with psycopg.connect(system.stack.admin_dsn) as conn:
        statements = conn.execute("select query from pg_stat_activity").fetchall()
    yield "database/statements", "\n".join(str(row[0]) for row in statements).encode()


def _redis(client: "redis.Redis") -> Iterator[tuple[str, str]]:
    readers: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    for key in client.scan_iter(count=1000):
        kind = client.type(key)
        if kind in readers:
            yield f"keys/{key!r}", f"{key!r} {readers[kind](key)!r}"
    for command in ("ACL LIST", "ACL LOG", "CONFIG GET *", "CLIENT LIST", "SLOWLOG GET 128"):
        yield command, repr(client.execute_command(*command.split()))


def _lists(system: System) -> Iterator[tuple[str, str]]:
    """Return all pages of every list of the API that needs no parameter, and of the events of the ledger."""
    with httpx.Client(
        base_url=system.stack.api_url,
        headers={"Authorization": f"Bearer {system.key}"},
        timeout=30,
        verify=system.stack.trusted,
    ) as client:
        document = client.get("/openapi.json").json()
        for path, operations in document["paths"].items():
            if "{" in path or "get" not in operations or path.endswith("/watch"):
                continue
            text = ""
            cursor: str | None = ""
            while cursor is not None:
                answer = client.get(path, params={"cursor": cursor} if cursor else {})
                text += answer.text
                listed = answer.headers.get("content-type", "").startswith("application/json")
                page = answer.json() if listed else None
                cursor = page.get("next_cursor") if isinstance(page, dict) else None
            yield path, text


def _processes(system: System) -> Iterator[tuple[str, bytes]]:
    """Return command lines of all processes of this machine, and environments of the system's processes."""
    own = {child.pid: name for name, child in system.stack.programs.items() if child.pid}
    own |= {node.agent.pid: "agent" for node in system.nodes.values() if node.agent.pid}
    own |= {pid: name for name, pid in system.stack.servers.items()}
    # The kernel shows the environment with which a program was executed. That of a copy of a process is added to it.
    given = {name: child.environment for name, child in system.stack.programs.items()}
    given["agent"] = system.node.agent.environment
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            yield f"process/{folder.name}/command line", (folder / "cmdline").read_bytes()
            if (name := own.get(int(folder.name))) is not None:
                copied = repr(given.get(name, {})).encode()
                yield f"process/{name}/environment", (folder / "environ").read_bytes() + copied
        except OSError:
            continue  # the process has ended


def secret_line(pem: str) -> str:
    """Return a line of a PEM file that differs for each private key. The first line of some formats does not."""
    lines = pem.partition("PRIVATE KEY-----")[2].partition("-----END")[0].split()
    return lines[-2] if len(lines) > 1 else lines[0]


def open_modes(folder: Path, names: Iterable[str]) -> Sequence[str]:
    """Return the files that other users may read: by their own mode and by the modes of their folders."""

    def is_open(path: Path) -> bool:
        above = [each for each in path.parents if folder in each.parents or each == folder]
        return bool(path.stat().st_mode & 0o077) and all(each.stat().st_mode & 0o005 for each in above)

    return [name for name in names if is_open(folder / name)]
