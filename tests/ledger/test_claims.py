import asyncio

import psycopg
import pytest

from events.claims import Claim
from events.ledger.append import append
from events.ledger.errors import ClaimHeld, ClaimNotHeld
from events.ledger.store import read_stream
from events.values import StreamId
from tests.ledger.given import because, committed, frees, on, takes
from tests.servers.postgres import Connect

SLOT = Claim("slot", "lab-a/0")


async def holders(conn: psycopg.AsyncConnection) -> dict[str, str]:
    cursor = await conn.execute("select value, stream_id from ledger.claim order by value")
    return dict(await cursor.fetchall())


async def test_append_taking_a_held_claim_is_rejected_with_the_holder(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))

    with pytest.raises(ClaimHeld) as refused:
        await committed(conn, on("slot-b", 0, takes("lab-a/0")))

    assert (refused.value.claim, refused.value.holder) == (SLOT, "slot-a")
    assert await read_stream(conn, StreamId("slot-b")) == ()


async def test_append_taking_a_claim_that_the_same_stream_holds_is_rejected(
    conn: psycopg.AsyncConnection,
) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))

    with pytest.raises(ClaimHeld):
        await committed(conn, on("slot-a", 1, takes("lab-a/0")))


async def test_released_claim_can_be_taken_by_another_stream(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))
    await committed(conn, on("slot-a", 1, frees("lab-a/0")))
    await committed(conn, on("slot-b", 0, takes("lab-a/0")))

    assert await holders(conn) == {"lab-a/0": "slot-b"}


async def test_append_releasing_a_claim_of_another_stream_is_rejected(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))

    with pytest.raises(ClaimNotHeld) as refused:
        await committed(conn, on("slot-b", 0, frees("lab-a/0")))

    assert (refused.value.claim, refused.value.stream) == (SLOT, "slot-b")
    assert await holders(conn) == {"lab-a/0": "slot-a"}


async def test_claim_released_by_one_stream_and_taken_by_another_in_one_append_moves_to_the_taking_stream(
    conn: psycopg.AsyncConnection,
) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))

    await committed(conn, on("slot-a", 1, frees("lab-a/0")), on("slot-b", 0, takes("lab-a/0")))

    assert await holders(conn) == {"lab-a/0": "slot-b"}


async def test_append_moving_a_claim_from_a_stream_that_does_not_hold_it_is_rejected(
    conn: psycopg.AsyncConnection,
) -> None:
    with pytest.raises(ClaimNotHeld):
        await committed(conn, on("slot-a", 0, frees("lab-a/0")), on("slot-b", 0, takes("lab-a/0")))


async def test_append_taking_one_claim_twice_is_rejected(conn: psycopg.AsyncConnection) -> None:
    with pytest.raises(ClaimHeld):
        await committed(conn, on("slot-a", 0, takes("lab-a/0")), on("slot-b", 0, takes("lab-a/0")))


async def test_concurrent_appends_taking_one_claim_succeed_exactly_once(connect: Connect) -> None:
    async def take(number: int, conn: psycopg.AsyncConnection) -> bool:
        try:
            await committed(conn, on(f"slot-{number}", 0, takes("lab-a/0"), takes(f"lab-b/{number}")))
        except ClaimHeld:
            return False
        return True

    conns = [await connect() for _ in range(8)]
    took = await asyncio.gather(*(take(number, conn) for number, conn in enumerate(conns)))

    assert took.count(True) == 1
    winner = took.index(True)
    assert await holders(conns[0]) == {"lab-a/0": f"slot-{winner}", f"lab-b/{winner}": f"slot-{winner}"}


async def test_append_taking_a_claim_of_an_open_transaction_succeeds_after_its_rollback(
    connect: Connect,
) -> None:
    first, second = await connect(), await connect()
    await append(first, [on("slot-a", 0, takes("lab-a/0"))], because())
    waiting = asyncio.create_task(committed(second, on("slot-b", 0, takes("lab-a/0"))))

    await first.rollback()
    await waiting

    assert await holders(second) == {"lab-a/0": "slot-b"}


async def test_concurrent_appends_exchanging_two_claims_do_not_deadlock(connect: Connect) -> None:
    """Each append releases the claim that the other one takes. If an append released its claim first, both would wait
    for each other.
    """
    setup, left, right = [await connect() for _ in range(3)]
    await committed(setup, on("left", 0, takes("lab-a/0")), on("right", 0, takes("lab-a/1")))
    await setup.commit()

    async def swap(conn: psycopg.AsyncConnection, stream: str, held: str, desired: str) -> None:
        version = 1
        for _ in range(60):
            try:
                await committed(conn, on(stream, version, frees(held), takes(desired)))
            except ClaimHeld:
                continue
            version, held, desired = version + 2, desired, held

    await asyncio.gather(swap(left, "left", "lab-a/0", "lab-a/1"), swap(right, "right", "lab-a/1", "lab-a/0"))
    assert len(await holders(setup)) == 2
