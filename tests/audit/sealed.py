"""A sealed ledger for tests: events, positions that were drawn and never written, and signed heads."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import psycopg
from zstandard import ZstdCompressor, ZstdDecompressor

from control_plane.audit.heads import SignedHead
from control_plane.sealer.sealing import Sealer, utc_now
from events.ledger.append import CommandKey, append
from events.ledger.tail import Tail
from events.values import Position
from tasks.signing import Signer, new_private_key
from tests.ledger.given import because, committed, frees, on, takes
from tests.servers.postgres import Database

SIGNER: Final = Signer.of_pem(new_private_key())
LIMIT: Final = 5000
SESSION: Final = (
    "insert into work.node_session values ('n1', 3, 'thumb', 'c', 'q', null, clock_timestamp(), 3, null)"
)
"""SQL statement that adds a row to the table of node sessions; each signed head contains a digest of this table."""
Clock = Callable[[], datetime]


def compressed(lines: Iterable[bytes]) -> bytes:
    """Return an export of these lines."""
    return ZstdCompressor(write_checksum=True).compress(b"".join(lines))


def decompressed(export: bytes) -> list[bytes]:
    """Return the lines of an export."""
    return ZstdDecompressor().decompressobj().decompress(export).splitlines(keepends=True)


async def drawn_and_rolled_back(conn: psycopg.AsyncConnection, count: int = 1) -> None:
    """Draw positions and roll back, so that the positions never get an event."""
    for number in range(count):
        await append(conn, [on(f"rolled-back-{number}", 0)], because())
        await conn.rollback()


async def with_key(conn: psycopg.AsyncConnection, stream: str, key: str) -> None:
    """Append one event with an idempotency key and a stored response."""
    async with conn.transaction():
        await append(
            conn,
            [on(stream, 0)],
            because(),
            key=CommandKey("key:ci", "POST /v1/allocations", key, b"\x01" * 32),
            answer='{"id": "alc-1"}',
        )


@asynccontextmanager
async def sealer(
    database: Database, signer: Signer = SIGNER, clock: Clock = utc_now
) -> AsyncIterator[Sealer]:
    """Yield a sealer that continues at the newest head, connected with the database role of the sealer."""
    async with await psycopg.AsyncConnection.connect(database.sealer_dsn, autocommit=True) as conn:
        yield await Sealer.load(conn, signer, clock)


async def seal(database: Database, signer: Signer = SIGNER, clock: Clock = utc_now) -> SignedHead:
    """Seal all positions up to the final one, below which no event can still be committed. Return the newest head."""
    tail = Tail(database.sealer_dsn, "sealer")
    try:
        async with sealer(database, signer, clock) as sealing:
            await sealing.seal(await tail.next_final(sealing.position, LIMIT))
            assert sealing.last is not None
            return sealing.last
    finally:
        await tail.close()


async def small_ledger(conn: psycopg.AsyncConnection) -> None:
    """Record 9 events and 2 dead positions: streams with several versions, claims, and idempotency keys."""
    await committed(conn, on("slot-a/0", 0, takes("a/0")), on("slot-b/0", 0, takes("b/0")))
    await drawn_and_rolled_back(conn)
    await committed(conn, on("slot-a/0", 1, frees("a/0")), on("allocation-1", 0))
    await with_key(conn, "allocation-2", "one")
    await drawn_and_rolled_back(conn)
    await with_key(conn, "allocation-3", "two")
    await committed(conn, on("allocation-1", 1), on("allocation-1", 2), on("slot-a/0", 2, takes("a/0")))


def at(moment: str) -> Clock:
    """Return a clock that always shows this time (ISO 8601)."""
    return lambda: datetime.fromisoformat(moment).astimezone(UTC)


def position(number: int) -> Position:
    return Position(number)
