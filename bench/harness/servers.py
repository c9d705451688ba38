"""Real servers for a benchmark, as in a deployment: Postgres on a disk with fsync on, and Redis.

Every run uses a new folder, which is deleted at its end. A killed run leaves only its folder behind, because the
servers end with the thread that started them.
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

from control_plane.schema import migrate
from deploy.embedded.postgres import PostgresServer, running_postgres
from tasks.signing import Signer

_ON_DISK: Final = Path("/var/tmp")  # noqa: S108 (kept across reboots, so never in memory; mkdtemp is private)
_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (mkdtemp is private)

NO_REQUEST_LIMITS: Final = {
    "SLICEPLANE_REQUESTS_PER_MINUTE": "0",
    "SLICEPLANE_PROJECT_REQUESTS_PER_MINUTE": "0",
}
"""Settings with which the API accepts any number of requests per minute: in a benchmark, one caller sends as many
requests as many callers together.
"""


@contextmanager
def bench_folder() -> Iterator[Path]:
    """Create a folder on a disk, and delete it at the end of the `with` block.

    Its path is short enough for Unix sockets, and the users that run Postgres and Redis may enter it.
    """
    parent = _ON_DISK if os.access(_ON_DISK, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="sp-bench-", dir=parent))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Create a folder in memory, and delete it at the end of the `with` block.

    It replaces the disks of simulated nodes: a thousand real nodes have a disk each, but this machine has only one.
    """
    folder = Path(tempfile.mkdtemp(prefix="sp-bench-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def migrated_postgres(folder: Path) -> Iterator[PostgresServer]:
    """Run a Postgres server with the complete schema and a deployment's settings. Create `folder` if it is missing."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o711)
    with running_postgres(folder / "postgres", folder / "run") as server:
        migrate(server.admin_dsn)
        yield server


def signing_key(folder: Path) -> tuple[Path, Signer]:
    """Create a key that signs orders. Return its file and its signer."""
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = folder / "orders.pem"
    path.write_bytes(pem)
    path.chmod(0o600)
    return path, Signer.of_pem(pem)


def sqlalchemy_url(server: PostgresServer) -> str:
    """Return the SQLAlchemy URL of the Postgres server's database for the application's role."""
    return sqlalchemy_url_of(server.app_dsn)


def sqlalchemy_url_of(dsn: str) -> str:
    """Return the SQLAlchemy URL of a libpq connection string with role, password and Unix socket."""
    options = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    url = URL.create(
        "postgresql+psycopg",
        username=options["user"],
        password=options["password"],
        database=options["dbname"],
        query={"host": options["host"], "port": options["port"]},
    )
    return url.render_as_string(hide_password=False)
