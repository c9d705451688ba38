"""Tests of the sealer: its tree, its heads, its sinks, its database role, a lost connection, and a second sealer."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, UniqueViolation

from control_plane.audit.heads import BadHead, Part, trusted_keys, verify_head
from control_plane.audit.stored_tree import TreeDamaged, load_frontier, range_hashes, sealed_leaf
from control_plane.sealer import sealing
from control_plane.sealer.program import LedgerRestored, first_to_send, refuse_restored_ledger
from control_plane.sealer.sealing import LedgerIncomplete
from control_plane.sealer.sinks import FileSink, HttpSink, SinkUnavailable
from events.ledger.append import append
from events.ledger.tree import (
    consistency_ranges,
    inclusion_ranges,
    verifies_consistency,
    verifies_inclusion,
)
from tasks.signing import Signer, new_private_key
from tests.audit.sealed import SESSION, SIGNER, drawn_and_rolled_back, position, seal, sealer, small_ledger
from tests.ledger.given import because, committed, on
from tests.servers.postgres import Connect, Database

KEYS = trusted_keys([SIGNER.public])


def tree_hash(leaves: list[bytes]) -> bytes:
    """Return the Merkle tree hash of a list of leaf hashes, computed by the definition in RFC 6962 section 2.1."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha256(b"").digest()
    k = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\x01" + tree_hash(leaves[:k]) + tree_hash(leaves[k:])).digest()


async def leaves_of(conn: psycopg.AsyncConnection) -> list[bytes]:
    cursor = await conn.execute(
        "select leaf from (select position, leaf from ledger.event union all"
        " select position, leaf from ledger.dead_position) each order by position"
    )
    return [leaf for (leaf,) in await cursor.fetchall()]


async def test_head_of_a_sealed_ledger_has_the_root_of_all_leaves_with_dead_positions(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await small_ledger(conn)

    found = verify_head((await seal(database)).text, KEYS).head

    assert (found.number, found.size, found.epoch, found.previous) == (1, 11, 1, None)
    assert found.root == tree_hash(await leaves_of(conn)).hex()
    assert found.state.keys() == set(Part)


async def test_dead_position_at_the_end_of_the_ledger_is_sealed_without_another_reader(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await committed(conn, on("a", 0))
    await drawn_and_rolled_back(conn, 3)

    assert (await seal(database)).head.size == 4
    cursor = await conn.execute("select position, seen_by from ledger.dead_position order by position")
    assert await cursor.fetchall() == [(2, "sealer"), (3, "sealer"), (4, "sealer")]


async def test_sealer_seals_no_position_that_an_open_transaction_may_still_write(
    connect: Connect, conn: psycopg.AsyncConnection, database: Database
) -> None:
    await committed(conn, on("a", 0))
    slow = await connect()
    async with slow.transaction():
        await append(slow, [on("slow", 0)], because())
        await committed(conn, on("b", 0))
        assert (await seal(database)).head.size == 1

    assert (await seal(database)).head.size == 3


async def test_each_head_has_the_hash_of_the_head_before_and_an_unchanged_ledger_gets_no_new_head(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await small_ledger(conn)
    first = await seal(database)
    assert await seal(database) == first

    await committed(conn, on("more", 0))
    second = await seal(database)

    assert (second.head.number, second.head.size) == (2, 12)
    assert second.head.previous == sha256(first.text.encode()).hexdigest()


async def test_change_of_a_database_function_gives_a_new_head_of_the_same_size_with_other_digests(
    conn: psycopg.AsyncConnection, database: Database, admin: psycopg.AsyncConnection
) -> None:
    await small_ledger(conn)
    first = (await seal(database)).head
    await admin.execute("create function ledger.more() returns int language sql return 1")

    second = (await seal(database)).head

    assert (second.number, second.size, second.root) == (2, first.size, first.root)
    changed = {part for part in Part if first.state[part] != second.state[part]}
    assert changed == {Part.FUNCTIONS, Part.ROLES, Part.KEYS}


async def test_proofs_from_the_stored_tree_verify_for_every_position_and_pair_of_heads(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    sizes = {}
    for number in range(9):
        await committed(conn, *(on(f"{number}-{each}", 0) for each in range(97)))
        head = (await seal(database)).head
        sizes[head.size] = bytes.fromhex(head.root)
    last = max(sizes)
    leaves = await leaves_of(conn)
    assert last == 873

    for index in (0, 1, 254, 255, 256, 511, 512, 600, 767, 768, 872):
        for size, root in sizes.items():
            if index < size:
                proof = await range_hashes(conn, inclusion_ranges(index, size))
                assert verifies_inclusion(leaves[index], index, size, proof, root)
                assert await sealed_leaf(conn, index + 1) == leaves[index]
    for size, root in sizes.items():
        proof = await range_hashes(conn, consistency_ranges(size, last))
        assert verifies_consistency(size, root, last, sizes[last], proof)


@pytest.mark.parametrize(
    "maximum",
    [(limit, each) for limit in ("STATE_SECONDS", "OLDEST_STATE_SECONDS") for each in (0.0, 3600.0)],
)
async def test_head_reuses_digests_of_the_database_state_only_up_to_a_maximum_age(
    conn: psycopg.AsyncConnection,
    database: Database,
    admin: psycopg.AsyncConnection,
    monkeypatch: pytest.MonkeyPatch,
    maximum: tuple[str, float],
) -> None:
    limit, seconds = maximum
    monkeypatch.setattr(sealing, limit, seconds)
    await committed(conn, on("a", 0))
    async with sealer(database) as one:
        first = await one.seal(position(1))
        await admin.execute(SESSION)
        await committed(conn, on("b", 0))
        if limit == "STATE_SECONDS":
            await one.refresh_state()
        second = await one.seal(position(2))
        # Without new positions, the state is always read.
        third = await one.seal(position(2))
    assert first is not None
    assert second is not None
    is_seen = seconds == 0
    assert (second.head.state[Part.SESSIONS] != first.head.state[Part.SESSIONS]) == is_seen
    assert (third is None) == is_seen


async def test_second_sealer_that_seals_the_same_positions_fails_and_stores_nothing(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await committed(conn, *(on(f"s-{each}", 0) for each in range(300)))
    async with sealer(database) as one, sealer(database) as other:
        assert (await one.seal(position(300))) is not None
        with pytest.raises(UniqueViolation):
            await other.seal(position(260))

    await committed(conn, on("more", 0))
    assert (await seal(database)).head.number == 2


async def test_sealer_that_loses_its_connection_while_sealing_continues_with_a_consistent_head(
    conn: psycopg.AsyncConnection, database: Database, admin: psycopg.AsyncConnection
) -> None:
    await small_ledger(conn)
    first = await seal(database)
    await committed(conn, *(on(f"s-{each}", 0) for each in range(600)))
    async with sealer(database) as cut:
        blocker = await psycopg.AsyncConnection.connect(database.admin_dsn)
        await blocker.execute("lock table ledger.tree_head in share mode")
        running = asyncio.ensure_future(cut.seal(position(611)))
        async with asyncio.timeout(20):
            while not running.done():
                found = await admin.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where usename = 'sliceplane_sealer' and wait_event_type = 'Lock' and datname = %s",
                    [database.name],
                )
                if await found.fetchall():
                    break
                await asyncio.sleep(0.01)
        with pytest.raises(psycopg.OperationalError):
            await running
        await blocker.close()

    last = await seal(database)

    assert (last.head.number, last.head.size) == (2, 611)
    assert last.head.root == tree_hash(await leaves_of(conn)).hex()
    proof = await range_hashes(conn, consistency_ranges(11, 611))
    roots = bytes.fromhex(first.head.root), bytes.fromhex(last.head.root)
    assert verifies_consistency(11, roots[0], 611, roots[1], proof)


async def test_sealer_continues_with_another_key_and_each_head_verifies_with_the_key_that_it_names(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    other = Signer.of_pem(new_private_key())
    await committed(conn, on("a", 0))
    first = await seal(database)
    await committed(conn, on("b", 0))
    second = await seal(database, other)

    assert verify_head(second.text, trusted_keys([other.public])) == second
    assert verify_head(first.text, KEYS) == first
    with pytest.raises(BadHead, match="not one of the trusted keys"):
        verify_head(second.text, KEYS)


async def test_sealer_refuses_to_seal_a_ledger_from_which_a_row_was_deleted(
    conn: psycopg.AsyncConnection, database: Database, admin: psycopg.AsyncConnection
) -> None:
    await small_ledger(conn)
    async with sealer(database) as sealing:
        await admin.execute("delete from ledger.event where position = 4")
        with pytest.raises(LedgerIncomplete, match="position 3 must have one event"):
            await sealing.seal(position(11))


async def test_sealer_refuses_to_seal_a_position_with_two_rows_even_if_the_number_of_rows_is_right(
    conn: psycopg.AsyncConnection, database: Database, admin: psycopg.AsyncConnection
) -> None:
    await committed(conn, *(on(stream, 0) for stream in ("a", "b", "c")))
    await admin.execute("delete from ledger.event where position = 2")
    await admin.execute(
        "insert into ledger.dead_position values (3, clock_timestamp(), 'sealer', 1, sha256(''))"
    )
    async with sealer(database) as sealing:
        with pytest.raises(LedgerIncomplete, match="position 2 must have one event"):
            await sealing.seal(position(3))


async def test_sealer_refuses_to_continue_a_tree_that_does_not_have_the_root_of_its_head(
    conn: psycopg.AsyncConnection, database: Database, admin: psycopg.AsyncConnection
) -> None:
    await committed(conn, *(on(f"s-{each}", 0) for each in range(300)))
    head = await seal(database)
    await admin.execute("update ledger.tree_node set hash = sha256(hash)")

    with pytest.raises(TreeDamaged, match="but head 1 has"):
        await load_frontier(conn, head)


WRITES = (
    "insert into {0} select * from {0}",
    "update {0} set {1} = {1}",
    "delete from {0}",
    "truncate {0}",
    "lock table {0} in share mode",
)


async def test_database_role_of_the_sealer_may_only_insert_tree_nodes_and_heads(
    database: Database, admin: psycopg.AsyncConnection
) -> None:
    cursor = await admin.execute(
        "select c.oid::regclass::text, attname from pg_class c join pg_attribute a on attrelid = c.oid and attnum = 1"
        " where relkind = 'r' and relnamespace in (select oid from pg_namespace where nspname in"
        " ('ledger', 'read', 'idle', 'work'))"
    )
    tables = await cursor.fetchall()
    allowed = []
    async with await psycopg.AsyncConnection.connect(database.sealer_dsn, autocommit=True) as conn:
        for statement in [write.format(*table) for table in tables for write in WRITES]:
            try:
                async with conn.transaction(force_rollback=True):
                    await conn.execute(statement.encode())
            except InsufficientPrivilege:
                continue
            allowed.append(statement)

    assert len(tables) > 20
    of_heads = [
        f"insert into ledger.{name} select * from ledger.{name}" for name in ("tree_head", "tree_node")
    ]
    # Of the table of its sinks, it may do everything except `truncate`.
    of_sinks = [each.format("work.head_sink", "name") for each in WRITES if not each.startswith("truncate")]
    assert sorted(allowed) == sorted([*of_heads, *of_sinks])


async def test_file_sink_holds_every_head_in_order_and_repairs_an_interrupted_line(
    conn: psycopg.AsyncConnection, database: Database, tmp_path: Path
) -> None:
    sink, path = FileSink(tmp_path / "heads"), tmp_path / "heads"
    assert await sink.last() is None
    await committed(conn, on("a", 0))
    first = await seal(database)
    await sink.send(first)
    with path.open("a") as file:
        file.write(first.text[:40])

    await committed(conn, on("b", 0))
    second = await seal(database)
    assert await sink.last() == first
    await sink.send(second)

    assert path.read_text().splitlines() == [first.text, first.text[:40], second.text]
    assert await sink.last() == second
    with pytest.raises(SinkUnavailable, match="nowhere"):
        await FileSink(tmp_path / "nowhere" / "heads").send(first)


async def test_http_sink_sends_the_text_of_a_head_and_reports_a_refusal(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await committed(conn, on("a", 0))
    head = await seal(database)
    received: list[tuple[str, bytes]] = []
    async with httpx.AsyncClient() as client:
        with heads_service(received) as address:
            sink = HttpSink(f"http://auditor:secret@{address}/heads?token=secret", client)
            with pytest.raises(SinkUnavailable, match=f"^http://{address}/heads answered 503$"):
                await sink.send(head)
            await sink.send(head)
        with pytest.raises(SinkUnavailable, match=f"^http://{address}/heads did not answer: "):
            await sink.send(head)

    assert received == [("application/jose", head.text.encode())] * 2


@contextmanager
def heads_service(received: list[tuple[str, bytes]]) -> Iterator[str]:
    """Run an HTTP server that refuses the first request and accepts all others, and yield the address of the server.
    The media type and the content of each request are added to `received`.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.headers["Content-Type"], content))
            self.send_response(503 if len(received) == 1 else 204)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Write no access log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


async def test_ledger_without_a_head_that_a_sink_holds_is_sealed_only_in_a_later_epoch(
    conn: psycopg.AsyncConnection, database: Database, admin: psycopg.AsyncConnection, tmp_path: Path
) -> None:
    sink = FileSink(tmp_path / "heads")
    await committed(conn, on("a", 0))
    await sink.send(await seal(database))
    await refuse_restored_ledger(admin, [sink])
    assert await first_to_send(admin, sink) == 1
    await committed(conn, on("b", 0))
    newer = await seal(database)
    await sink.send(newer)
    # What a restore from the state after the first head leaves.
    await admin.execute("delete from ledger.tree_head where number = 2")
    await admin.execute("delete from ledger.event where position = 2")

    with pytest.raises(LedgerRestored, match="holds head 2 of 2 positions in epoch 1"):
        await refuse_restored_ledger(admin, [sink])
    await admin.execute("select ledger.begin_epoch('restored from a backup')")

    await refuse_restored_ledger(admin, [sink])
    assert await first_to_send(admin, sink) == 0
