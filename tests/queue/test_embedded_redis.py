"""Tests of the Redis server that Sliceplane starts itself."""

import contextlib
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from deploy.embedded import redis as embedded
from tests.queue.node import eventually
from tests.servers.redis import server_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with server_folder() as folder:
        yield folder


def test_killed_redis_starts_again_with_its_data_and_password(program: Path, folder: Path) -> None:
    first = embedded.start(folder, server=program)
    with redis.Redis.from_url(first.url) as client:
        client.set("kept", 1)
    first.process.kill()
    first.process.wait()
    with embedded.running_redis(folder, server=program, port=first.port) as second:
        assert second.password == first.password
        with redis.Redis.from_url(second.url) as client:
            assert client.get("kept") == b"1"


def test_redis_password_is_not_in_the_process_list_or_in_a_world_readable_file(
    program: Path, folder: Path
) -> None:
    with embedded.running_redis(folder, server=program) as server:
        assert server.password not in Path(f"/proc/{server.process.pid}/cmdline").read_text()
        assert server.password not in repr(server)
        assert server.password not in (folder / "redis.conf").read_text()
        for name in ("redis.conf", "password"):
            assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_redis_listens_only_on_the_given_addresses(program: Path, folder: Path) -> None:
    server = embedded.start(folder, server=program, bind=("127.0.0.2", "127.0.0.3"))
    try:
        for address in ("127.0.0.2", "127.0.0.3"):
            socket.create_connection((address, server.port), 1).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), 1)
    finally:
        server.stop()


def test_redis_at_its_memory_limit_rejects_writes_and_evicts_no_key(program: Path, folder: Path) -> None:
    server = embedded.start(folder, server=program, maxmemory="3mb")
    try:
        with redis.Redis.from_url(server.url) as client:
            client.set("first", "x")
            with pytest.raises(redis.exceptions.OutOfMemoryError):
                _fill(client)
            assert client.get("first") == b"x"
    finally:
        server.stop()


def test_redis_ends_when_the_program_that_started_it_is_killed(program: Path, folder: Path) -> None:
    source = (
        "import sys; from pathlib import Path; from deploy.embedded import redis;"
        f"print(redis.start(Path({str(folder)!r}), server=Path({str(program)!r})).port, flush=True);"
        "sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    port = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    eventually(lambda: not _listens(port))


def test_redis_with_unusable_data_fails_to_start_with_its_log_in_the_error(
    program: Path, folder: Path
) -> None:
    folder.mkdir()
    for name in ("appendonlydir", "appendonly.aof"):
        (folder / name).write_bytes(b"no such format\n")
    with pytest.raises(embedded.RedisDidNotStart) as failed:
        embedded.start(folder, server=program)
    assert failed.value.log


def _fill(client: redis.Redis) -> None:
    for number in range(100):
        client.set(f"more-{number}", "x" * 100_000)


def _listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False
