"""Real servers for a bench, as a deployment has them: Postgres with fsync on, on a disk, and Redis.

Their folder is new for every run and removed with it; a killed run leaves it behind, and nothing else, because the
servers die with the thread that started them.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.engine import URL

from deploy.embedded.postgres import PostgresServer, running_postgres
from deploy.embedded.schema import migrate
from tasks.signing import Signer

_ON_DISK: Final = Path("/var/tmp")  # noqa: S108 (the folder that outlives a boot, so never memory; mkdtemp is private)
_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (mkdtemp is private)


@contextmanager
def bench_folder() -> Iterator[Path]:
    """A new folder on a disk, short enough for sockets, that the servers' own users may enter."""
    parent = _ON_DISK if os.access(_ON_DISK, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="sp-bench-", dir=parent))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A new folder in memory: a thousand nodes have a thousand disks, and this machine has one."""
    folder = Path(tempfile.mkdtemp(prefix="sp-bench-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def migrated_postgres(folder: Path) -> Iterator[PostgresServer]:
    """A server with the whole schema and a deployment's settings, in a folder that is made if need be."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    with running_postgres(folder / "postgres", folder / "run") as server:
        migrate(server.admin_dsn)
        yield server


def signing_key(folder: Path) -> tuple[Path, Signer]:
    """A new key that orders are signed with, in its file and ready to verify with."""
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = folder / "orders.pem"
    path.write_bytes(pem)
    path.chmod(0o600)
    return path, Signer.of_pem(pem)


def sqlalchemy_url(server: PostgresServer) -> str:
    """The server's database as the application's role, as the control plane's settings want it."""
    options = {name: str(value) for name, value in conninfo_to_dict(server.app_dsn).items()}
    url = URL.create(
        "postgresql+psycopg",
        username=options["user"],
        password=options["password"],
        database=options["dbname"],
        query={"host": options["host"], "port": options["port"]},
    )
    return url.render_as_string(hide_password=False)
