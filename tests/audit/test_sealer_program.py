"""The sealer as a process: killed, stopped, started twice. Heads stay consistent, and appends never wait."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from control_plane.audit.export import compressed_export
from control_plane.audit.heads import trusted_keys
from control_plane.audit.verify import verify_export
from control_plane.programs import SERVER
from deploy.embedded.children import Child, installed_program
from events.ledger.append import append
from tests import matrix
from tests.ledger.given import because, on
from tests.servers.plane import sealer_settings
from tests.servers.postgres import Database
from tests.waiting import until

pytestmark = pytest.mark.slow

SEALED = "select coalesce(max(size), 0), count(*) from ledger.tree_head"


@contextmanager
def sealer_process(
    database: Database, folder: Path, failpoints: str = "", name: str = "sealer", heads: Path | None = None
) -> Iterator[Child]:
    """Run a sealer process, and end it, also if it is stopped."""
    settings = sealer_settings(database, folder)
    environment = {
        "SLICEPLANE_DATABASE_URL": settings.database_url.get_secret_value(),
        "SLICEPLANE_SEALING_KEY_FILE": str(settings.sealing_key_file),
        "SLICEPLANE_HEADS_FILE": str(heads or settings.heads_file),
        "SLICEPLANE_FAILPOINTS": failpoints,
    }
    child = Child(name, installed_program(SERVER, "sealer"), folder / f"{name}.log", environment)
    child.start()
    try:
        yield child
    finally:
        child.send(signal.SIGCONT)
        child.stop()


async def grow(database: Database, first: int, count: int) -> None:
    """Append events, each in its own stream, 50 in one transaction."""
    async with await psycopg.AsyncConnection.connect(database.app_dsn) as conn:
        for begin in range(first, first + count, 50):
            async with conn.transaction():
                await append(conn, [on(f"s-{number}", 0) for number in range(begin, begin + 50)], because())


def sealed(database: Database) -> tuple[int, int]:
    """Return the number of sealed positions and of heads."""
    with psycopg.connect(database.admin_dsn) as admin:
        row = admin.execute(SEALED).fetchone()
        assert row is not None
        return row


async def export(database: Database) -> bytes:
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as conn:
        await conn.execute("set transaction isolation level repeatable read")
        return b"".join([piece async for piece in compressed_export(conn)])


def assert_consistent(database: Database, folder: Path, positions: int, seconds: float = 30.0) -> None:
    """Assert that everything is sealed, and that an export agrees with each head that the file sink holds."""
    heads = folder / "heads.jws"
    until(lambda: sealed(database)[0] == positions, "all positions are sealed", seconds)
    until(
        lambda: heads.exists() and len(heads.read_text().split()) >= sealed(database)[1],
        "all heads are in the file",
    )
    path = folder / "export.zst"
    path.write_bytes(asyncio.run(export(database)))
    public = (folder / "sealing-key.pub.pem").read_text()

    verdict = verify_export(path, trusted_keys([public]), heads.read_text().splitlines())

    assert (verdict.differences, verdict.sealed) == ([], positions)


@pytest.mark.parametrize("failpoint", ["seal.before_commit@2", "seal.committed@2"])
def test_sealer_killed_while_it_seals_continues_with_consistent_heads(
    database: Database, tmp_path: Path, failpoint: str
) -> None:
    asyncio.run(grow(database, 0, 3000))
    with sealer_process(database, tmp_path, failpoint) as killed:
        until(lambda: sealed(database)[0] == 3000, "the first head is stored")
        asyncio.run(grow(database, 3000, 100))
        until(lambda: killed.status == -signal.SIGKILL, "the sealer is killed while it seals")

    with sealer_process(database, tmp_path):
        assert_consistent(database, tmp_path, 3100)


def test_append_does_not_wait_for_a_sealer_that_is_stopped_inside_its_transaction(
    database: Database, tmp_path: Path
) -> None:
    asyncio.run(grow(database, 0, 50))
    with sealer_process(database, tmp_path, "stop:seal.before_commit") as stopped:
        until(lambda: is_stopped(stopped), "the sealer is stopped while it seals")
        asyncio.run(asyncio.wait_for(grow(database, 50, 500), timeout=3))
        assert sealed(database) == (0, 0)
        with sealer_process(database, tmp_path, name="other"):
            assert_consistent(database, tmp_path, 550)


def is_stopped(child: Child) -> bool:
    state = Path(f"/proc/{child.pid}/stat").read_text()
    return state.rpartition(")")[2].split()[0] == "T"


def test_two_sealers_seal_one_history_and_the_second_continues_after_the_first(
    database: Database, tmp_path: Path
) -> None:
    with sealer_process(database, tmp_path, name="second"):
        with sealer_process(database, tmp_path, name="first"):
            asyncio.run(grow(database, 0, 2500))
            until(lambda: sealed(database)[0] > 1000, "a sealer seals")
        asyncio.run(grow(database, 2500, 50))
        assert_consistent(database, tmp_path, 2550)


@pytest.mark.timeout(1800)
@matrix.cases("P13", [1_000_000], few=1, among=[20_000])
def test_sealer_with_a_large_backlog_of_events_catches_up_while_events_are_appended(
    database: Database, tmp_path: Path, case: int
) -> None:
    asyncio.run(grow(database, 0, case))
    with sealer_process(database, tmp_path):
        asyncio.run(asyncio.wait_for(grow(database, case, 500), timeout=10))
        assert_consistent(database, tmp_path, case + 500, seconds=600)


async def test_sealer_goes_on_while_a_sink_is_unavailable_and_sends_all_heads_when_it_is_back(
    database: Database, tmp_path: Path
) -> None:
    folder = tmp_path / "sink"
    folder.write_text("not a folder yet")
    with sealer_process(database, tmp_path, heads=folder / "heads.jws"):
        await grow(database, 0, 50)
        until(lambda: sealed(database)[0] == 50, "the ledger is sealed without a sink")
        until(lambda: "heads_not_sent" in (tmp_path / "sealer.log").read_text(), "the error is logged")
        folder.unlink()
        folder.mkdir()
        await grow(database, 50, 50)
        sent = folder / "heads.jws"
        until(lambda: sealed(database)[0] == 100, "the ledger is sealed again")
        until(
            lambda: sent.exists() and len(sent.read_text().split()) == sealed(database)[1],
            "all heads are sent",
        )


def test_sink_that_stores_no_heads_is_recorded_with_the_reason_until_it_stores_them(
    database: Database, tmp_path: Path
) -> None:
    heads = tmp_path / "later" / "heads.jws"
    asyncio.run(grow(database, 0, 10))
    with sealer_process(database, tmp_path, heads=heads):
        until(lambda: sink(database, "error") is not None, "the failure of the sink is recorded")
        assert sink(database, "error") == f"{heads} cannot be read: No such file or directory"
        since = sink(database, "failing_since")
        heads.parent.mkdir()
        until(lambda: sink(database, "number") == sealed(database)[1], "the sink has stored the heads")
        assert (since is not None, sink(database, "failing_since"), sink(database, "error")) == (
            True,
            None,
            None,
        )


def test_sink_that_is_not_configured_any_more_is_not_recorded(database: Database, tmp_path: Path) -> None:
    asyncio.run(grow(database, 0, 10))
    first, second = tmp_path / "first.jws", tmp_path / "second.jws"
    with sealer_process(database, tmp_path, heads=first):
        until(lambda: sink(database, "number") == 1, "the first sink is recorded")
    with sealer_process(database, tmp_path, heads=second):
        until(
            lambda: second.exists() and sink(database, "name") == str(second), "only the second is recorded"
        )


def test_sink_that_becomes_available_with_a_head_that_the_database_does_not_have_stops_the_sealing(
    database: Database, tmp_path: Path
) -> None:
    heads, kept = tmp_path / "later" / "heads.jws", tmp_path / "other" / "heads.jws"
    kept.parent.mkdir()
    asyncio.run(grow(database, 0, 50))
    with sealer_process(database, tmp_path, heads=kept):
        until(lambda: kept.exists() and sink(database, "number") == 1, "the first head is stored")
    with psycopg.connect(database.admin_dsn) as admin:  # as after a restore of a backup from before the head
        admin.execute("truncate ledger.tree_head, ledger.tree_node")
    with sealer_process(database, tmp_path, heads=heads):
        until(lambda: sealed(database)[0] == 50, "the ledger is sealed, because the sink is unavailable")
        kept.parent.rename(heads.parent)
        log = tmp_path / "sealer.log"
        until(lambda: "sealer_refused_to_seal" in log.read_text(), "the sealer finds the head of the sink")
        asyncio.run(grow(database, 50, 50))
        assert sealed(database)[0] == 50
        assert len(heads.read_text().split()) == 1
        until(lambda: "the ledger was restored" in str(sink(database, "error")), "the reason is recorded")


def sink(database: Database, column: str) -> object:
    """Return a column of the only sink; None if it is null, or if no sink is recorded."""
    with psycopg.connect(database.admin_dsn) as admin:
        row = admin.execute(f"select {column} from work.head_sink").fetchone()
        return row[0] if row else None
