"""Personal fields of events are one ciphertext in the ledger, bound to its event and erased with the project's key."""

import json
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from events.allocations import AllocationRequested
from events.envelope import Cause
from events.facts import Unreadable
from events.ledger.append import Change, CommandKey, StoredAnswer, append, take_key
from events.ledger.errors import AnswerErased, KeyDestroyed
from events.ledger.personal import MasterKey, NoPersonalKey, ProjectKey, opened_event, sealed_event
from events.ledger.project_keys import (
    KeyRing,
    database_of,
    destroy,
    refuse_other_master_key,
    ring,
    use_master_key,
)
from events.ledger.replay import replay
from events.ledger.store import read_stream
from events.projects import ProjectDescribed
from events.values import (
    AllocationId,
    ImageName,
    Position,
    ProjectId,
    SkuName,
    SshPublicKey,
    StreamId,
    new_uuid,
)
from tests.servers.postgres import Connect, Database

MARKER = "a-person-7f3a"
PROJECT = ProjectId("private")
STREAM = StreamId("allocation-a1")
REQUEST = AllocationRequested(
    AllocationId("a1"), PROJECT, SkuName("s"), "private-nat", ImageName("i"),
    (SshPublicKey(f"ssh-ed25519 AAAA {MARKER}"),), 60, 1, {"owner": MARKER}, apart_from={"team": MARKER},
    user_data=f"#cloud-config {MARKER}",
)  # fmt: skip
CAUSE = Cause("caller:a", "request", new_uuid(), datetime(2026, 1, 1, tzinfo=UTC), project=PROJECT)
KEY = CommandKey("caller:a", "POST /v1/allocations", "k1", bytes(32))


async def request(conn: psycopg.AsyncConnection, answer: str | None = None) -> None:
    await append(
        conn, [Change(STREAM, 0, [REQUEST])], CAUSE, key=None if answer is None else KEY, answer=answer
    )
    await conn.commit()


GOLDEN_KEY = ProjectKey("0198c7d0-0000-7000-8000-000000000001", AESGCM(bytes(range(32))))
GOLDEN_NONCE = bytes(range(12))
GOLDEN_PLACE = ("project.described", "project-private", "2")
GOLDEN_PLAIN = '{"description":"a person","project":"private"}'
GOLDEN = '{"personal":{"key":"0198c7d0-0000-7000-8000-000000000001","sealed":"AAECAwQFBgcICQoLPCCyfraGsHL9Nf7k38tCT+L291GCCDASGhpokKdVt7XlrEu4zjSPsiPd"},"project":"private"}'
"""The stored JSON with this key and nonce. Ledgers contain it permanently: a change of the format is a new format."""
GOLDEN_WRAPPED = "AAECAwQFBgcICQoLXFNfpE4w7eu08MPNKn5QMwNh+3d+BLAGPBTJoaec1YfY/gXB0l2DHllEvwlN6Qcy"
"""The key of the project, encrypted with a fixed master key."""


def test_ciphertext_has_the_golden_bytes_and_is_read_from_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("events.ledger.personal.os.urandom", lambda count: GOLDEN_NONCE[:count])

    assert sealed_event(GOLDEN_PLACE, GOLDEN_PLAIN, GOLDEN_KEY) == GOLDEN
    opened = json.loads(opened_event(GOLDEN_PLACE, GOLDEN, GOLDEN_KEY.cipher))
    assert opened == json.loads(GOLDEN_PLAIN)


def test_golden_wrapped_project_key_is_read_with_its_master_key() -> None:
    master = MasterKey(bytes(range(32, 64)))
    cipher = master.unwrapped(GOLDEN_KEY.key_id, b64decode(GOLDEN_WRAPPED))
    assert cipher.decrypt(GOLDEN_NONCE, GOLDEN_KEY.cipher.encrypt(GOLDEN_NONCE, b"x", None), None) == b"x"


async def test_event_is_stored_as_ciphertext_and_read_in_plain_text(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await request(conn)
    [event] = await read_stream(conn, STREAM)
    assert event.fact == REQUEST
    assert [each.fact async for batch in replay(conn, Position(0), Position(10**9)) for each in batch] == [
        REQUEST
    ]
    with psycopg.connect(database.admin_dsn) as admin:
        [(data,)] = admin.execute("select data from ledger.event").fetchall()
    assert MARKER not in data
    assert json.loads(data).keys() == {
        "allocation_id", "image", "lease_seconds", "network_mode", "personal", "project", "sku", "slot_count",
    }  # fmt: skip
    assert MARKER.encode() not in b64decode(json.loads(data)["personal"]["sealed"])


async def test_event_is_read_with_erased_personal_fields_once_the_key_of_its_project_is_destroyed(
    conn: psycopg.AsyncConnection,
) -> None:
    await request(conn)
    stream = StreamId(f"project-{PROJECT}")
    await append(conn, [Change(stream, 0, [ProjectDescribed(PROJECT, MARKER)])], CAUSE)
    assert len(await destroy(conn, PROJECT)) == 1
    await conn.commit()
    [event] = await read_stream(conn, STREAM)
    assert isinstance(event.fact, AllocationRequested)
    assert (event.fact.ssh_authorized_keys, event.fact.labels, event.fact.apart_from) == ((), {}, {})
    assert event.fact.user_data is None
    assert (event.fact.sku, event.fact.slot_count) == ("s", 1)
    [described] = await read_stream(conn, stream)
    assert described.fact == ProjectDescribed(PROJECT, "erased")
    assert await destroy(conn, PROJECT) == []


async def test_project_gets_a_new_key_after_the_erasure(conn: psycopg.AsyncConnection) -> None:
    await request(conn)
    await destroy(conn, PROJECT)
    await conn.commit()
    stream = StreamId(f"project-{PROJECT}")
    await append(conn, [Change(stream, 0, [ProjectDescribed(PROJECT, MARKER)])], CAUSE)
    await conn.commit()
    [described] = await read_stream(conn, stream)
    assert described.fact == ProjectDescribed(PROJECT, MARKER)


async def test_append_with_a_cached_project_key_that_another_process_destroyed_is_refused_once(
    conn: psycopg.AsyncConnection,
) -> None:
    await request(conn)
    await append(conn, [Change(StreamId("allocation-a2"), 0, [REQUEST])], CAUSE)
    name = database_of(conn)
    used = ring().cached(name, [PROJECT])[PROJECT]
    await destroy(conn, PROJECT)
    await conn.commit()
    ring().add(name, PROJECT, used)
    change = Change(StreamId("project-private"), 0, [ProjectDescribed(PROJECT, MARKER)])
    with pytest.raises(KeyDestroyed):
        await append(conn, [change], CAUSE)
    await conn.rollback()
    await append(conn, [change], CAUSE)


async def test_cached_project_key_is_not_used_for_a_database_with_the_same_name_on_another_server(
    conn: psycopg.AsyncConnection, database: Database, tmp_path: Path
) -> None:
    await request(conn)
    await append(conn, [Change(StreamId("allocation-a2"), 0, [REQUEST])], CAUSE)
    (tmp_path / "server").symlink_to(conn.info.host)
    other = psycopg.conninfo.make_conninfo(database.app_dsn, host=str(tmp_path / "server"))
    async with await psycopg.AsyncConnection.connect(other) as second:
        assert second.info.dbname == conn.info.dbname
        assert ring().cached(database_of(conn), [PROJECT]).keys() == {PROJECT}
        assert ring().cached(database_of(second), [PROJECT]) == {}


async def test_project_key_created_in_a_transaction_that_was_rolled_back_is_not_used_again(
    conn: psycopg.AsyncConnection,
) -> None:
    await append(conn, [Change(STREAM, 0, [REQUEST])], CAUSE)
    await conn.rollback()
    await request(conn)
    [event] = await read_stream(conn, STREAM)
    assert event.fact == REQUEST


async def request_twice(conn: psycopg.AsyncConnection) -> None:
    """Append two events with personal data in the transaction of the caller: the first one creates the key of the
    project, and the second one reads it.
    """
    for name in ("allocation-a1", "allocation-a2"):
        await append(conn, [Change(StreamId(name), 0, [REQUEST])], CAUSE)


async def test_project_key_created_in_a_rolled_back_transaction_with_two_appends_is_not_used_again(
    conn: psycopg.AsyncConnection,
) -> None:
    await request_twice(conn)
    await conn.rollback()
    await request(conn)
    [event] = await read_stream(conn, STREAM)
    assert event.fact == REQUEST


async def test_project_key_created_in_a_rolled_back_savepoint_with_two_appends_is_not_used_again(
    conn: psycopg.AsyncConnection,
) -> None:
    async with conn.transaction():
        async with conn.transaction() as savepoint:
            await request_twice(conn)
            raise psycopg.Rollback(savepoint)
        await request_twice(conn)
    [event] = await read_stream(conn, STREAM)
    assert event.fact == REQUEST


async def test_project_key_created_in_a_transaction_is_used_by_other_transactions_only_after_its_commit(
    connect: Connect,
) -> None:
    first, second = [await connect() for _ in range(2)]
    await request_twice(first)
    change = Change(StreamId("allocation-a3"), 0, [REQUEST])
    await second.execute("set local lock_timeout = '50ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        await append(second, [change], CAUSE)
    await second.rollback()
    await first.commit()
    await append(second, [change], CAUSE)
    assert ring().cached(database_of(second), [PROJECT]).keys() == {PROJECT}


async def test_ciphertext_copied_from_another_event_is_refused(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await request(conn)
    other = StreamId("allocation-a2")
    await append(conn, [Change(other, 0, [REQUEST])], CAUSE)
    await conn.commit()
    with psycopg.connect(database.admin_dsn) as admin:
        admin.execute(
            "update ledger.event e set data = o.data from ledger.event o where e.stream_id = %s and o.stream_id = %s",
            [STREAM, other],
        )
    assert await reason_of_unreadable(conn) == (
        "the personal data cannot be decrypted: the ciphertext was damaged or moved from another place"
    )


async def test_event_with_a_lost_project_key_is_reported_as_unreadable_and_not_as_erased(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    await request(conn)
    with psycopg.connect(database.admin_dsn) as admin:
        admin.execute("delete from keys.project_key")
    assert "does not exist and was not destroyed; restore keys.project_key" in await reason_of_unreadable(
        conn
    )


async def reason_of_unreadable(conn: psycopg.AsyncConnection) -> str:
    """Replay the first event of the ledger, which must be unreadable, and return the error with which it was read."""
    [batch] = [each async for each in replay(conn, Position(0), Position(1))]
    fact = batch[0].fact
    assert isinstance(fact, Unreadable)
    return fact.error


async def test_stored_response_is_encrypted_with_the_key_of_its_project_and_unreadable_after_the_erasure(
    conn: psycopg.AsyncConnection, database: Database
) -> None:
    answer = json.dumps({"labels": {"owner": MARKER}})
    await request(conn, answer)
    with psycopg.connect(database.admin_dsn) as admin:
        [(stored,)] = admin.execute("select answer from ledger.command_key").fetchall()
    assert MARKER not in stored
    assert await take_key(conn, KEY) == StoredAnswer(answer)
    await destroy(conn, PROJECT)
    with pytest.raises(AnswerErased):
        await take_key(conn, KEY)


async def test_master_key_that_is_not_that_of_the_database_is_refused(
    conn: psycopg.AsyncConnection, tmp_path: Path
) -> None:
    await refuse_other_master_key(conn)
    await request(conn)
    await refuse_other_master_key(conn)
    before: KeyRing = ring()
    other = tmp_path / "other"
    other.write_text(b64encode(bytes(32)).decode())
    use_master_key(MasterKey.of_file(other))
    try:
        with pytest.raises(NoPersonalKey, match="is not that of this database"):
            await refuse_other_master_key(conn)
    finally:
        use_master_key(before.master)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file"),
        (b"AAAA", "3 bytes"),
        (b"\xff\xfe", "not Base64"),
        (b"no", "not Base64"),
    ],
    ids=["missing", "short", "binary", "no_base64"],
)
def test_unusable_master_key_is_refused_with_the_file_and_the_reason(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "personal-key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NoPersonalKey, match=reason) as refused:
        MasterKey.of_file(path)
    assert str(path) in str(refused.value)
