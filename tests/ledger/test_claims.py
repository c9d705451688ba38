import asyncio

import psycopg
import pytest

from events.append import append
from events.claims import Claim
from events.errors import ClaimHeld, ClaimNotHeld
from events.store import read_stream
from events.values import StreamId
from tests.ledger.given import because, committed, frees, on, takes
from tests.servers.postgres import Connect

SLOT = Claim("slot", "lab-a/0")


async def holders(conn: psycopg.AsyncConnection) -> dict[str, str]:
    cursor = await conn.execute("select value, stream_id from ledger.claim order by value")
    return dict(await cursor.fetchall())


async def test_a_taken_claim_names_its_holder_to_the_next(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))

    with pytest.raises(ClaimHeld) as refused:
        await committed(conn, on("slot-b", 0, takes("lab-a/0")))

    assert (refused.value.claim, refused.value.holder) == (SLOT, "slot-a")
    assert await read_stream(conn, StreamId("slot-b")) == ()


async def test_the_holder_itself_cannot_take_twice(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))

    with pytest.raises(ClaimHeld):
        await committed(conn, on("slot-a", 1, takes("lab-a/0")))


async def test_a_freed_claim_can_be_taken_by_another(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))
    await committed(conn, on("slot-a", 1, frees("lab-a/0")))
    await committed(conn, on("slot-b", 0, takes("lab-a/0")))

    assert await holders(conn) == {"lab-a/0": "slot-b"}


async def test_only_the_holder_frees(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))

    with pytest.raises(ClaimNotHeld) as refused:
        await committed(conn, on("slot-b", 0, frees("lab-a/0")))

    assert (refused.value.claim, refused.value.stream) == (SLOT, "slot-b")
    assert await holders(conn) == {"lab-a/0": "slot-a"}


async def test_a_claim_moves_within_one_append(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))

    await committed(conn, on("slot-a", 1, frees("lab-a/0")), on("slot-b", 0, takes("lab-a/0")))

    assert await holders(conn) == {"lab-a/0": "slot-b"}


async def test_a_move_from_who_does_not_hold_is_refused(conn: psycopg.AsyncConnection) -> None:
    with pytest.raises(ClaimNotHeld):
        await committed(conn, on("slot-a", 0, frees("lab-a/0")), on("slot-b", 0, takes("lab-a/0")))


async def test_two_facts_of_one_append_cannot_both_take(conn: psycopg.AsyncConnection) -> None:
    with pytest.raises(ClaimHeld):
        await committed(conn, on("slot-a", 0, takes("lab-a/0")), on("slot-b", 0, takes("lab-a/0")))


async def test_of_many_takers_at_once_one_holds(connect: Connect) -> None:
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


async def test_a_taker_waits_for_a_holder_that_may_roll_back(connect: Connect) -> None:
    first, second = await connect(), await connect()
    await append(first, [on("slot-a", 0, takes("lab-a/0"))], because())
    waiting = asyncio.create_task(committed(second, on("slot-b", 0, takes("lab-a/0"))))

    await first.rollback()
    await waiting

    assert await holders(second) == {"lab-a/0": "slot-b"}


async def test_crossing_moves_never_deadlock(connect: Connect) -> None:
    """Each frees what the other takes: with releases first, they would wait for each other."""
    setup, left, right = [await connect() for _ in range(3)]
    await committed(setup, on("left", 0, takes("lab-a/0")), on("right", 0, takes("lab-a/1")))
    await setup.commit()

    async def swap(conn: psycopg.AsyncConnection, stream: str, mine: str, wanted: str) -> None:
        version = 1
        for _ in range(60):
            try:
                await committed(conn, on(stream, version, frees(mine), takes(wanted)))
            except ClaimHeld:
                continue
            version, mine, wanted = version + 2, wanted, mine

    await asyncio.gather(swap(left, "left", "lab-a/0", "lab-a/1"), swap(right, "right", "lab-a/1", "lab-a/0"))
    assert len(await holders(setup)) == 2
