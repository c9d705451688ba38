"""An API process as in a deployment, and the key of an admin, for the parts of the benchmark `access`."""

import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx

from bench.harness.servers import signing_key, sqlalchemy_url
from bench.watch.watch import check_runs
from control_plane.commands.access import issue_first_key
from control_plane.programs import SERVER, Program
from control_plane.wiring import Plane
from deploy.embedded.children import Child, installed_program
from deploy.embedded.postgres import PostgresServer
from deploy.embedded.redis import RedisServer
from deploy.embedded.stack import await_api

API: Final = installed_program(SERVER, Program.API)


async def admin_key(plane: Plane) -> str:
    """Create an API key of an admin, as the command `issue-key` does, and return it."""
    key = secrets.token_urlsafe(32)
    await plane.handle(issue_first_key("bench", sha256(key.encode()).hexdigest()))
    return key


@contextmanager
def api(
    server: PostgresServer,
    redis: RedisServer,
    folder: Path,
    settings: Mapping[str, str],
    program: Sequence[str] = API,
) -> Iterator[int]:
    """Run an API process that uses these servers, and yield its TCP port. Its files are in `folder`; `settings` are
    further environment variables.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environment = {
        "SLICEPLANE_DATABASE_URL": sqlalchemy_url(server),
        "SLICEPLANE_REDIS_URL": redis.url,
        "SLICEPLANE_LISTEN": f"127.0.0.1:{port}",
        "SLICEPLANE_SIGNING_KEY_FILE": str(signing_key(folder)[0]),
        **settings,
    }
    child = Child(folder.name, tuple(program), folder / "api.log", environment)
    child.start()
    try:
        await_api(f"http://127.0.0.1:{port}", httpx.create_ssl_context(), folder, partial(check_runs, child))
        yield port
    finally:
        child.stop()
