"""The one tailer of a process and its watchers, on a real ledger: order, places, heartbeats, the past and the end."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from control_plane import patience
from control_plane.api import watch as watching
from control_plane.api.feed import Feed
from control_plane.api.ring import Ring, stretch
from control_plane.api.watch import ALIVE, WELCOME, watch
from control_plane.decisions.refusals import NotYetKnown
from control_plane.wake import Waiter
from events import search
from events.append import append
from events.cursors import Cursor, holds
from events.envelope import Recorded
from events.facts import Fact
from events.search import Pick, traits_of
from events.tail import Tail
from events.values import Position, StreamId, correlation_of
from read_models import allocations, checkpoints
from tests.ledger.given import ALLOCATION, because, committed, on, plain, takes
from tests.servers.plane import settings_for
from tests.servers.postgres import Connect, Database

pytestmark = pytest.mark.timeout(60)
SOON: Final = 0.05
STORY: Final = Pick(correlations=frozenset({correlation_of(ALLOCATION)}))
_STREAMS: Final = count(1)


def only(stream: str) -> Pick:
    return Pick(streams=frozenset({StreamId(stream)}))


@pytest.fixture
async def engine(database: Database) -> AsyncIterator[AsyncEngine]:
    settings = settings_for(database, "redis://nowhere", 0, 0)
    made = create_async_engine(settings.database_url.get_secret_value())
    yield made
    await made.dispose()


@asynccontextmanager
async def feeding(engine: AsyncEngine, database: Database) -> AsyncIterator[Feed]:
    tail = Tail(database.app_dsn)
    feed = Feed(engine, tail, Waiter())
    running = asyncio.create_task(feed.run())
    try:
        await feed.up_to_date()
        yield feed
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await tail.close()


@pytest.fixture
async def feed(engine: AsyncEngine, database: Database) -> AsyncIterator[Feed]:
    async with feeding(engine, database) as made:
        yield made


async def fill(conn: psycopg.AsyncConnection, events: int, stream: str = "") -> tuple[Recorded[Fact], ...]:
    """So many events in one commit."""
    return await committed(conn, on(stream or f"filling-{next(_STREAMS)}", 0, *[plain()] * events))


class Reader:
    """Takes a watch's chunks apart."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._messages: Iterator[bytes] = iter(())

    async def next(self) -> bytes:
        for message in self._messages:
            return message
        self._messages = iter([part + b"\n\n" for part in (await anext(self._chunks)).split(b"\n\n") if part])
        return await self.next()

    async def positions(self, events: int) -> list[int]:
        """Of the next events; what is between them is passed over."""
        found: list[int] = []
        while len(found) < events:
            message = await self.next()
            if b"\ndata: " in message:
                found.append(int(message.partition(b"\n")[0].rpartition(b".")[2]))
        return found


def bare_id(message: bytes) -> int:
    """The position in a message that has an id and no event."""
    found = re.fullmatch(rb"id: 1\.([0-9]+)\n\n", message)
    assert found is not None, message
    return int(found[1])


def reading(feed: Feed, after: int = 0, pick: Pick | None = None, heartbeat: float = 60.0) -> Reader:
    return Reader(watch(feed, Position(after), pick or Pick(), heartbeat))


async def test_every_place_goes_on_to_the_same_order(feed: Feed, conn: psycopg.AsyncConnection) -> None:
    await fill(conn, 5)
    await feed.up_to_date()
    await fill(conn, 5)
    for after in range(11):
        assert await reading(feed, after).positions(10 - after) == list(range(after + 1, 11))


async def test_a_look_that_is_asked_for_sees_what_was_there_before(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    """Nobody wakes the feed here: what a list shows must not hang on it."""
    for _ in range(5):
        [recorded] = await fill(conn, 1)
        assert await feed.up_to_date() == recorded.position


async def test_an_event_whose_commit_is_late_is_told_in_its_place(feed: Feed, connect: Connect) -> None:
    late, early = await connect(), await connect()
    reader = reading(feed)
    async with late.transaction():
        await append(late, [on("late", 0)], because())
        await fill(early, 3)
        assert await feed.up_to_date() == 0
    assert await reader.positions(4) == [1, 2, 3, 4]


async def test_an_appender_that_gives_up_leaves_a_gap_that_nobody_waits_for(
    feed: Feed, connect: Connect
) -> None:
    gives_up, other = await connect(), await connect()
    reader = reading(feed)
    async with gives_up.transaction(force_rollback=True):
        await append(gives_up, [on("never", 0)], because())
        await fill(other, 2)
    assert await reader.positions(2) == [2, 3]


async def test_a_quiet_watch_shows_that_it_is_alive(feed: Feed) -> None:
    reader = reading(feed, heartbeat=SOON)
    assert [await reader.next() for _ in range(4)] == [WELCOME, ALIVE, ALIVE, ALIVE]


async def test_a_busy_log_keeps_a_watch_of_nothing_alive(feed: Feed, conn: psycopg.AsyncConnection) -> None:
    reader, over = reading(feed, pick=only("nothing"), heartbeat=SOON), asyncio.Event()

    async def busy() -> None:
        while not over.is_set():
            await fill(conn, 1)

    appending = asyncio.create_task(busy())
    assert await reader.next() == WELCOME
    places: list[int] = []
    while len(places) < 3:
        message = await reader.next()
        if message != ALIVE:
            places.append(bare_id(message))
    over.set()
    await appending
    assert places == sorted(set(places))


async def test_a_watch_of_few_events_tells_how_far_it_is(
    feed: Feed, conn: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "TELL_EVERY", 50)
    reader = reading(feed, pick=only("wanted"))
    assert await reader.next() == WELCOME
    for _ in range(3):
        *_, last = await fill(conn, 50)
        told = 0
        while told < last.position:
            told = bare_id(await reader.next())
        assert told == last.position
    [wanted] = await fill(conn, 1, "wanted")
    assert await reader.positions(1) == [wanted.position]


async def test_few_events_of_many_are_found_in_the_past(
    engine: AsyncEngine, database: Database, conn: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "WINDOW", 40)
    [first] = await fill(conn, 1, "wanted-a")
    for _ in range(3):
        await fill(conn, 90)
    [second] = await fill(conn, 1, "wanted-b")
    picks = (
        Pick(streams=frozenset({StreamId("wanted-a"), StreamId("wanted-b")})),
        Pick(correlations=frozenset({first.cause.correlation_id, second.cause.correlation_id})),
    )
    async with feeding(engine, database) as feed:
        for pick in picks:
            assert await reading(feed, pick=pick).positions(2) == [first.position, second.position]
            page = await feed.past.full_page(pick, Position(0), feed.final, 10)
            assert [event.position for event in page.events] == [first.position, second.position]
            assert page.reached == feed.final


async def test_a_story_is_whole_wherever_its_projector_is(
    engine: AsyncEngine, database: Database, connect: Connect
) -> None:
    told = await committed_story(await connect())
    async with feeding(engine, database) as feed:
        for upto in range(len(told) * 2 + 1):
            async with engine.begin() as conn:
                await project(conn, upto, told)
            assert await reading(feed, pick=STORY).positions(len(told)) == told


async def committed_story(conn: psycopg.AsyncConnection) -> list[int]:
    """Events of one allocation between others; their positions."""
    told: list[int] = []
    for number in range(3):
        async with conn.transaction():
            [mine] = await append(conn, [on(f"slot-{number}", 0)], because(correlation_of(ALLOCATION)))
        told.append(mine.position)
        await fill(conn, 1)
    return told


async def project(conn: AsyncConnection, upto: int, told: list[int]) -> None:
    """Have the stories as the projector would, up to a position."""
    await conn.execute(allocations.story.delete())
    rows = [{"correlation_id": correlation_of(ALLOCATION), "position": each} for each in told if each <= upto]
    if rows:
        await conn.execute(allocations.story.insert(), rows)
    await checkpoints.begin(conn, "allocations", Position(upto))


async def test_who_is_further_back_than_the_ring_reads_the_past(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    feed.ring = Ring(feed.final, events=20)
    for _ in range(10):
        await fill(conn, 7)
        await feed.up_to_date()
    assert feed.ring.reach > 40
    assert await reading(feed).positions(70) == list(range(1, 71))


async def test_an_event_that_a_newer_release_wrote_is_told_as_it_is_stored(
    feed: Feed, database: Database
) -> None:
    live = reading(feed)
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as newer, newer.transaction():
        [_, unknown, _] = await append(newer, [on("filling", 0, *[plain()] * 3)], because())
        await newer.execute(
            "update ledger.event set type = 'slot.enchanted' where position = %s", [unknown.position]
        )
    assert await live.positions(3) == [1, 2, 3]
    past = reading(feed)
    assert await past.positions(1) == [1]
    assert (await past.next()).startswith(b"id: 1.2\nevent: slot.enchanted\ndata: {")


async def test_a_ring_keeps_so_many_events_or_so_many_bytes(conn: psycopg.AsyncConnection) -> None:
    recorded = await fill(conn, 30)
    one = len(stretch(Position(0), Position(1), recorded[:1]).wire)
    for ring in (Ring(Position(0), events=10), Ring(Position(0), size=10 * one + 200)):
        for each in recorded:
            ring.add(stretch(Position(each.position - 1), each.position, [each]))
        assert (ring.reach, ring.final) == (20, 30)
        found = ring.behind(Position(20))
        assert found is not None
        assert found.upto == 21
        assert ring.behind(Position(30)) is None


async def test_a_watch_ends_when_the_log_behind_it_was_restored(
    feed: Feed, conn: psycopg.AsyncConnection, database: Database, engine: AsyncEngine
) -> None:
    await fill(conn, 3)
    [lost] = await fill(conn, 1)
    chunks = watch(feed, Position(0), Pick())
    assert await Reader(chunks).positions(4) == [1, 2, 3, 4]
    await restored_up_to(database, 3)
    assert [chunk async for chunk in chunks] == []
    [new] = await fill(await psycopg.AsyncConnection.connect(database.app_dsn), 1)
    assert (new.position, new.epoch) == (4, 2)
    async with await psycopg.AsyncConnection.connect(database.app_dsn) as asking:
        assert not await holds(asking, Cursor(lost.position, lost.epoch))
        assert await holds(asking, Cursor(new.position, new.epoch))
        assert await holds(asking, Cursor(Position(3), lost.epoch))
    assert await reading(feed, 3).positions(1) == [4]


async def test_a_feed_begins_though_the_first_append_of_all_was_given_up(
    engine: AsyncEngine, database: Database, conn: psycopg.AsyncConnection
) -> None:
    async with conn.transaction(force_rollback=True):
        await append(conn, [on("never", 0)], because())
    async with asyncio.timeout(5), feeding(engine, database) as feed:
        [first] = await fill(conn, 1)
        assert await feed.up_to_date() == first.position == 2


async def test_positions_that_were_dead_before_a_restore_are_read_after_it(
    feed: Feed, conn: psycopg.AsyncConnection, database: Database
) -> None:
    await fill(conn, 3)
    async with conn.transaction(force_rollback=True):
        await append(conn, [on("never", 0)], because())
    chunks = watch(feed, Position(0), Pick())
    assert await Reader(chunks).positions(3) == [1, 2, 3]
    while feed.final < 4:
        await feed.up_to_date()
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute("truncate ledger.dead_position")
    await restored_up_to(database, 3)
    await fill(await psycopg.AsyncConnection.connect(database.app_dsn), 1)
    assert [chunk async for chunk in chunks] == []
    assert await reading(feed, 3).positions(1) == [4]


async def test_who_asks_for_the_end_of_a_log_that_nobody_looks_at_is_told_to_come_again(
    engine: AsyncEngine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", SOON)
    with pytest.raises(NotYetKnown):
        await Feed(engine, Tail(database.app_dsn), Waiter()).up_to_date()


@pytest.mark.parametrize("streams", [("long",), ("long", "other", "none")])
@pytest.mark.parametrize("types", [(), ("allocation.activated",), ("slot.claimed",)])
async def test_pages_of_long_streams_make_the_streams(
    engine: AsyncEngine, conn: psycopg.AsyncConnection, streams: tuple[str, ...], types: tuple[str, ...]
) -> None:
    lengths = {"long": 0, "other": 0, "unasked": 0}
    told: list[Recorded[Fact]] = []
    for number in range(60):
        for stream, count_ in (("long", 5), ("unasked", 2), ("other", number % 3 + 1)):
            facts = [plain()] * (count_ - 1) + [takes(f"{stream}/{number}")]
            told += await committed(conn, on(stream, lengths[stream], *facts))
            lengths[stream] += count_
    pick = Pick(streams=frozenset(map(StreamId, streams)), types=frozenset(types))
    upto = Position(told[-1].position - 7)
    wanted = [each for each in told if each.position <= upto and pick.takes(traits_of(each))]
    found: list[Recorded[Fact]] = []
    after = Position(0)
    async with engine.connect() as reading_:
        while after < upto:
            page = await search.find(reading_, pick, after=after, upto=upto, limit=37)
            found += page.events
            after = page.reached
    assert found == wanted


async def restored_up_to(database: Database, position: int) -> None:
    """What a backup brings back: a shorter log in a new epoch, and no connection survives it."""
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute("delete from ledger.event where position > %s", [position])
        await admin.execute("select setval('ledger.position_seq', %s)", [position])
        await admin.execute("select ledger.begin_epoch('restored')")
    database.cut()
