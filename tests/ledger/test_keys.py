import asyncio

import psycopg
import pytest

from events.ledger.append import (
    CommandKey,
    StoredAnswer,
    append,
    free_keys,
    take_key,
    take_new_keys,
)
from events.ledger.append_wire import LedgerCommand
from events.ledger.errors import KeyBusy, KeyReused, KeyTaken, VersionConflict
from events.ledger.store import read_stream
from events.values import StreamId
from tests.ledger.given import append_together, because, on
from tests.servers.postgres import Connect

KEY = CommandKey("caller:alice", "POST /v1/allocations", "k-1", b"body one")
OTHER_BODY = KEY._replace(body_hash=b"body two")


async def test_idempotency_key_of_a_committed_command_returns_its_stored_answer(
    conn: psycopg.AsyncConnection,
) -> None:
    assert await take_key(conn, KEY) is None
    recorded = await append(conn, [on("slot-a", 0), on("slot-b", 0)], because(), key=KEY, answer='{"id": 1}')
    await conn.commit()

    assert await take_key(conn, KEY) == StoredAnswer('{"id": 1}')
    row = await (
        await conn.execute("select first_position, last_position from ledger.command_key")
    ).fetchone()
    assert row == (recorded[0].position, recorded[1].position)


async def test_idempotency_key_reused_with_a_different_body_is_rejected(
    conn: psycopg.AsyncConnection,
) -> None:
    await append(conn, [on("slot-a", 0)], because(), key=KEY, answer="{}")
    await conn.commit()

    with pytest.raises(KeyReused):
        await take_key(conn, OTHER_BODY)


@pytest.mark.parametrize(
    "other",
    [KEY._replace(principal="caller:bob"), KEY._replace(route="DELETE /v1/nodes")],
    ids=["other-principal", "other-route"],
)
async def test_idempotency_key_used_by_one_principal_on_one_route_is_unused_for_another_principal_or_route(
    conn: psycopg.AsyncConnection, other: CommandKey
) -> None:
    await append(conn, [on("slot-a", 0)], because(), key=KEY, answer="{}")
    await conn.commit()

    assert await take_key(conn, other) is None


async def test_append_with_an_answered_idempotency_key_is_rejected(
    conn: psycopg.AsyncConnection,
) -> None:
    await append(conn, [on("slot-a", 0)], because(), key=KEY, answer="first")
    await conn.commit()

    with pytest.raises(KeyTaken):
        await append(conn, [on("slot-a", 1)], because(), key=KEY, answer="second")

    await conn.rollback()
    assert len(await read_stream(conn, StreamId("slot-a"))) == 1


async def test_append_without_changes_stores_the_answer_of_its_idempotency_key(
    conn: psycopg.AsyncConnection,
) -> None:
    await take_key(conn, KEY)
    assert await append(conn, [], because(), key=KEY, answer="nothing to do") == ()
    await conn.commit()

    assert await take_key(conn, KEY) == StoredAnswer("nothing to do")


async def test_idempotency_key_of_a_rejected_command_is_unused_after_the_rollback(
    conn: psycopg.AsyncConnection,
) -> None:
    await take_key(conn, KEY)
    with pytest.raises(VersionConflict):
        await append(conn, [on("slot-a", 7)], because(), key=KEY, answer="{}")
    await conn.rollback()

    assert await take_key(conn, OTHER_BODY) is None


async def test_concurrent_request_with_the_same_idempotency_key_waits_and_returns_the_first_answer(
    connect: Connect,
) -> None:
    first, second, watcher = [await connect() for _ in range(3)]
    await take_key(first, KEY)
    second_request = asyncio.create_task(take_key(second, KEY))
    await until_a_request_waits(watcher)
    await append(first, [on("slot-a", 0)], because(), key=KEY, answer="first")
    await first.commit()

    assert await second_request == StoredAnswer("first")


async def test_concurrent_request_with_the_same_idempotency_key_proceeds_after_the_first_is_rolled_back(
    connect: Connect,
) -> None:
    first, second, watcher = [await connect() for _ in range(3)]
    await take_key(first, KEY)
    second_request = asyncio.create_task(take_key(second, KEY))
    await until_a_request_waits(watcher)
    await first.rollback()

    assert await second_request is None


async def test_concurrent_request_with_the_same_idempotency_key_raises_key_busy_after_five_seconds(
    connect: Connect,
) -> None:
    first, second = [await connect() for _ in range(2)]
    await first.execute("set idle_in_transaction_session_timeout = 0")
    await take_key(first, KEY)

    began = asyncio.get_running_loop().time()
    with pytest.raises(KeyBusy):
        await take_key(second, KEY)

    assert 4.5 < asyncio.get_running_loop().time() - began < 7


async def until_a_request_waits(conn: psycopg.AsyncConnection) -> None:
    await conn.set_autocommit(True)
    while await (await conn.execute("select 1 from pg_locks where not granted")).fetchone() is None:
        await asyncio.sleep(0.005)


OTHER = KEY._replace(key="k-2")


async def test_of_several_idempotency_keys_only_unused_ones_are_taken_and_a_repeated_one_once(
    conn: psycopg.AsyncConnection,
) -> None:
    await append(conn, [on("slot-a", 0)], because(), key=KEY, answer="{}")
    await conn.commit()

    taken = await take_new_keys(conn, [KEY, OTHER, OTHER_BODY, OTHER._replace(body_hash=b"two")])
    assert await taken.new() == [1]
    assert not await (await take_new_keys(conn, [])).new()


async def test_freed_idempotency_key_is_unused_for_another_body(conn: psycopg.AsyncConnection) -> None:
    await append(conn, [on("slot-a", 0)], because(), key=OTHER, answer="{}")
    await take_new_keys(conn, [KEY])
    await free_keys(conn, [KEY, OTHER])
    await conn.commit()

    assert await take_key(conn, OTHER_BODY) is None
    assert await take_key(conn, OTHER) == StoredAnswer("{}"), "a key with a response must stay"


async def test_taking_several_idempotency_keys_waits_only_briefly_for_a_concurrent_request(
    connect: Connect,
) -> None:
    first, second = await connect(), await connect()
    await take_key(first, KEY)
    with pytest.raises(psycopg.errors.LockNotAvailable):
        await take_new_keys(second, [OTHER, KEY])


async def test_commands_that_are_appended_together_store_a_response_for_each_of_their_keys(
    conn: psycopg.AsyncConnection,
) -> None:
    commands = [
        LedgerCommand([on("slot-a", 0)], because(), KEY, "first"),
        LedgerCommand([on("slot-b", 0)], because(), OTHER, "second"),
    ]
    await take_new_keys(conn, [KEY, OTHER])
    await append_together(conn, commands)
    await conn.commit()

    assert await take_key(conn, KEY) == StoredAnswer("first")
    assert await take_key(conn, OTHER) == StoredAnswer("second")
    query = "select key, position from ledger.command_key join ledger.event on position = first_position and position = last_position order by key"
    stored = await (await conn.execute(query)).fetchall()
    assert [key for key, _ in stored] == ["k-1", "k-2"]
    assert stored[0][1] < stored[1][1]


async def test_refusal_of_one_command_records_none_of_those_that_are_appended_together(
    conn: psycopg.AsyncConnection,
) -> None:
    commands = [
        LedgerCommand([on("slot-a", 0)], because()),
        LedgerCommand([on("slot-b", 7)], because()),
    ]
    with pytest.raises(VersionConflict):
        await append_together(conn, commands)
    await conn.rollback()
    assert await read_stream(conn, StreamId("slot-a")) == ()
