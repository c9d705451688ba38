"""Event feed of an API process (it tails the ledger for all watches): order, positions, keepalives, restores."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.api.feed.feed import GATHER_SECONDS, Feed
from control_plane.api.feed.ring import Ring, ledger_range
from control_plane.api.requests.held_credential import CredentialKind, HeldCredential
from control_plane.api.routes.ledger import watch as watching
from control_plane.api.routes.ledger.watch import ALIVE, WELCOME, watch
from control_plane.decisions.access import Principal, Role
from control_plane.decisions.refusals import NotYetKnown, Objection, Unauthorised
from control_plane.following.wake import Waiter
from control_plane.time_travel import time_limit
from events.envelope import Recorded
from events.facts import Fact
from events.ledger import search
from events.ledger.append import append
from events.ledger.cursors import Cursor, holds
from events.ledger.search import EventFilter, attributes_of
from events.ledger.tail import Tail
from events.values import Position, StreamId, correlation_of
from read_models import allocations, checkpoints
from tests.ledger.given import ALLOCATION, because, committed, on, plain, takes
from tests.servers.postgres import Connect, Database

pytestmark = pytest.mark.timeout(60)
SOON: Final = 0.05
TIMELINE: Final = EventFilter(correlations=frozenset({correlation_of(ALLOCATION)}))
_STREAMS: Final = count(1)


async def accepted() -> HeldCredential:
    return UNLIMITED


def held(verify: Callable[[], Awaitable[HeldCredential]]) -> HeldCredential:
    """Return a credential that does not expire and that events of two ledger streams (key and service account) can
    revoke.
    """
    streams = (StreamId("key-test"), StreamId("service-account-test"))
    return HeldCredential(PRINCIPAL, CredentialKind.KEY, "test", streams, None, verify)


PRINCIPAL: Final = Principal("key:test", Role.ADMIN, frozenset())
UNLIMITED: Final = held(accepted)
"""A credential that does not expire and that is never revoked."""


def filter_of_stream(stream: str) -> EventFilter:
    return EventFilter(streams=frozenset({StreamId(stream)}))


@asynccontextmanager
async def running_feed(engine: AsyncEngine, database: Database) -> AsyncIterator[Feed]:
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
    async with running_feed(engine, database) as made:
        yield made


async def fill(conn: psycopg.AsyncConnection, events: int, stream: str = "") -> tuple[Recorded[Fact], ...]:
    """Append `events` events to the ledger in one transaction."""
    return await committed(conn, on(stream or f"filling-{next(_STREAMS)}", 0, *[plain()] * events))


async def fill_until_the_feed_rests(feed: Feed, conn: psycopg.AsyncConnection) -> int:
    """Append events until the feed keeps none of them, because there is no watch. Return the last position."""
    async with asyncio.timeout(20):
        while True:
            await fill(conn, 1)
            end = await feed.up_to_date()
            if feed.ring.reach == end:
                return end
            await asyncio.sleep(3 * GATHER_SECONDS)  # a feed that is used all the time does not rest


class Reader:
    """Client of an event watch; it splits the received chunks into messages."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self._chunks = chunks
        self._messages: Iterator[bytes] = iter(())

    async def next(self) -> bytes:
        for message in self._messages:
            return message
        self._messages = iter([part + b"\n\n" for part in (await anext(self._chunks)).split(b"\n\n") if part])
        return await self.next()

    async def close(self) -> None:
        """End the watch, as a client that disconnects does."""
        await self._chunks.aclose()

    async def positions(self, events: int) -> list[int]:
        """Read `events` events, and return their ledger positions. Messages without an event are skipped."""
        found: list[int] = []
        while len(found) < events:
            message = await self.next()
            if b"\ndata: " in message:
                found.append(int(message.partition(b"\n")[0].rpartition(b".")[2]))
        return found


def position_of(message: bytes) -> int:
    """Return the ledger position in a watch message that has an id and no event."""
    found = re.fullmatch(rb"id: 1\.([0-9]+)\n\n", message)
    assert found is not None, message
    return int(found[1])


def read_watch(
    feed: Feed,
    after: int = 0,
    pick: EventFilter | None = None,
    heartbeat: float = 60.0,
    credential: HeldCredential = UNLIMITED,
) -> Reader:
    return Reader(watch(feed, Position(after), pick or EventFilter(), credential, heartbeat))


async def test_watch_from_any_position_returns_the_following_events_in_order(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    await fill(conn, 5)
    await feed.up_to_date()
    await fill(conn, 5)
    for after in range(11):
        assert await read_watch(feed, after).positions(10 - after) == list(range(after + 1, 11))


async def test_watch_with_a_credential_that_was_revoked_before_it_began_sends_no_event(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    """The credential was valid when the request arrived, and was revoked before the watch followed events about it."""

    async def refused() -> HeldCredential:
        raise Unauthorised(Objection("key_revoked", "revoked"))

    await fill(conn, 1)
    await feed.up_to_date()
    revoked = held(refused)
    reader = read_watch(feed, credential=revoked)
    assert await reader.next() == WELCOME
    with pytest.raises(StopAsyncIteration):
        await reader.next()


async def test_watch_verifies_its_credential_once_and_again_after_an_event_about_it(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    checks = 0

    async def counted() -> HeldCredential:
        nonlocal checks
        checks += 1
        return credential

    credential = held(counted)
    with feed.alert(()):
        await feed.up_to_date()
        reader = read_watch(feed, credential=credential)
        await fill(conn, 5)
        assert await reader.positions(5) == [1, 2, 3, 4, 5]
        assert checks == 1
        await fill(conn, 1, "key-test")
        assert await reader.positions(1) == [6]
        assert checks == 2
    await fill(conn, 1, "service-account-test")
    assert await reader.positions(1) == [7]
    assert checks == 3


async def test_event_feed_that_is_asked_for_its_end_returns_the_position_of_the_last_committed_event(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    """The feed is not woken after the commits: event lists of the API must be complete even if a wake-up is lost."""
    for _ in range(5):
        [recorded] = await fill(conn, 1)
        assert await feed.up_to_date() == recorded.position


async def test_event_with_a_late_commit_is_delivered_in_position_order(feed: Feed, connect: Connect) -> None:
    late, early = await connect(), await connect()
    reader = read_watch(feed)
    async with late.transaction():
        await append(late, [on("late", 0)], because())
        await fill(early, 3)
        assert await feed.up_to_date() == 0
    assert await reader.positions(4) == [1, 2, 3, 4]


async def test_rolled_back_append_leaves_a_gap_that_watches_skip(feed: Feed, connect: Connect) -> None:
    rolled_back, other = await connect(), await connect()
    reader = read_watch(feed)
    async with rolled_back.transaction(force_rollback=True):
        await append(rolled_back, [on("never", 0)], because())
        await fill(other, 2)
    assert await reader.positions(2) == [2, 3]


async def test_watch_without_events_sends_keepalives(feed: Feed) -> None:
    reader = read_watch(feed, heartbeat=SOON)
    assert [await reader.next() for _ in range(4)] == [WELCOME, ALIVE, ALIVE, ALIVE]


async def test_watch_without_matching_events_sends_increasing_positions_on_a_busy_ledger(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    reader, over = read_watch(feed, pick=filter_of_stream("nothing"), heartbeat=SOON), asyncio.Event()

    async def busy() -> None:
        while not over.is_set():
            await fill(conn, 1)

    appending = asyncio.create_task(busy())
    assert await reader.next() == WELCOME
    places: list[int] = []
    while len(places) < 3:
        message = await reader.next()
        if message != ALIVE:
            places.append(position_of(message))
    over.set()
    await appending
    assert places == sorted(set(places))


async def test_watch_with_a_filter_sends_its_position_after_many_events_that_do_not_match(
    feed: Feed, conn: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "POSITION_EVERY", 50)
    reader = read_watch(feed, pick=filter_of_stream("wanted"))
    assert await reader.next() == WELCOME
    for _ in range(3):
        *_, last = await fill(conn, 50)
        reached = 0
        while reached < last.position:
            reached = position_of(await reader.next())
        assert reached == last.position
    [matching] = await fill(conn, 1, "wanted")
    assert await reader.positions(1) == [matching.position]


async def test_event_watch_and_event_page_find_the_few_matching_past_events_among_many(
    engine: AsyncEngine, database: Database, conn: psycopg.AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "WINDOW", 40)
    [first] = await fill(conn, 1, "wanted-a")
    for _ in range(3):
        await fill(conn, 90)
    [second] = await fill(conn, 1, "wanted-b")
    picks = (
        EventFilter(streams=frozenset({StreamId("wanted-a"), StreamId("wanted-b")})),
        EventFilter(correlations=frozenset({first.cause.correlation_id, second.cause.correlation_id})),
    )
    async with running_feed(engine, database) as feed:
        for pick in picks:
            assert await read_watch(feed, pick=pick).positions(2) == [first.position, second.position]
            page = await feed.past.full_page(pick, Position(0), feed.final, 10)
            assert [event.position for event in page.events] == [first.position, second.position]
            assert page.reached == feed.final


async def test_timeline_is_complete_at_any_checkpoint_of_its_projector(
    engine: AsyncEngine, database: Database, connect: Connect
) -> None:
    positions = await committed_timeline(await connect())
    async with running_feed(engine, database) as feed:
        for upto in range(len(positions) * 2 + 1):
            async with engine.begin() as conn:
                await write_timelines(conn, upto, positions)
            assert await read_watch(feed, pick=TIMELINE).positions(len(positions)) == positions


async def committed_timeline(conn: psycopg.AsyncConnection) -> list[int]:
    """Append events of one allocation between other events, and return their positions."""
    positions: list[int] = []
    for number in range(3):
        async with conn.transaction():
            [recorded] = await append(conn, [on(f"slot-{number}", 0)], because(correlation_of(ALLOCATION)))
        positions.append(recorded.position)
        await fill(conn, 1)
    return positions


async def write_timelines(conn: AsyncConnection, upto: int, positions: list[int]) -> None:
    """Write the timeline rows of allocations up to a ledger position, as the projector does."""
    await conn.execute(allocations.story.delete())
    rows = [
        {"correlation_id": correlation_of(ALLOCATION), "position": each} for each in positions if each <= upto
    ]
    if rows:
        await conn.execute(allocations.story.insert(), rows)
    await checkpoints.begin(conn, "allocations", Position(upto))


async def test_watch_that_starts_before_the_buffered_events_reads_older_events_from_the_database(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    with feed.alert(()):
        await feed.up_to_date()
        feed.ring = Ring(feed.final, events=20)
        for _ in range(10):
            await fill(conn, 7)
            await feed.up_to_date()
        assert 40 < feed.ring.reach < feed.ring.final
        assert await read_watch(feed).positions(70) == list(range(1, 71))


async def test_watch_that_opens_after_a_time_without_watches_reads_the_events_of_that_time_from_the_database(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    first = read_watch(feed)
    await fill(conn, 2)
    assert await first.positions(2) == [1, 2]
    await first.close()
    end = await fill_until_the_feed_rests(feed, conn)
    later = read_watch(feed, 2)
    await fill(conn, 1)
    assert await later.positions(end - 1) == list(range(3, end + 2))


async def test_credential_is_checked_again_after_events_that_the_feed_skipped(
    feed: Feed, conn: psycopg.AsyncConnection
) -> None:
    await fill_until_the_feed_rests(feed, conn)
    await fill(conn, 1)
    with feed.alert([StreamId("key-1")]) as alert:
        async with asyncio.timeout(20):
            await alert.wait()


async def test_event_of_an_unknown_type_is_delivered_as_stored(feed: Feed, database: Database) -> None:
    live = read_watch(feed)
    async with await psycopg.AsyncConnection.connect(database.admin_dsn) as newer, newer.transaction():
        [_, unknown, _] = await append(newer, [on("filling", 0, *[plain()] * 3)], because())
        await newer.execute(
            "update ledger.event set type = 'slot.enchanted' where position = %s", [unknown.position]
        )
    assert await live.positions(3) == [1, 2, 3]
    past = read_watch(feed)
    assert await past.positions(1) == [1]
    assert (await past.next()).startswith(b"id: 1.2\nevent: slot.enchanted\ndata: {")


async def test_event_ring_buffer_is_bounded_by_event_count_and_by_size(conn: psycopg.AsyncConnection) -> None:
    recorded = await fill(conn, 30)
    one = len(ledger_range(Position(0), Position(1), recorded[:1]).wire)
    for ring in (Ring(Position(0), events=10), Ring(Position(0), size=10 * one + 200)):
        for each in recorded:
            ring.add(ledger_range(Position(each.position - 1), each.position, [each]))
        assert (ring.reach, ring.final) == (20, 30)
        found = ring.behind(Position(20))
        assert found is not None
        assert found.upto == 21
        assert ring.behind(Position(30)) is None


async def test_watch_ends_when_the_ledger_is_restored_from_a_backup(
    feed: Feed, conn: psycopg.AsyncConnection, database: Database, engine: AsyncEngine
) -> None:
    await fill(conn, 3)
    [lost] = await fill(conn, 1)
    chunks = watch(feed, Position(0), EventFilter(), UNLIMITED)
    assert await Reader(chunks).positions(4) == [1, 2, 3, 4]
    await restore_up_to(database, 3)
    assert [chunk async for chunk in chunks] == []
    [new] = await fill(await psycopg.AsyncConnection.connect(database.app_dsn), 1)
    assert (new.position, new.epoch) == (4, 2)
    async with await psycopg.AsyncConnection.connect(database.app_dsn) as reader:
        assert not await holds(reader, Cursor(lost.position, lost.epoch))
        assert await holds(reader, Cursor(new.position, new.epoch))
        assert await holds(reader, Cursor(Position(3), lost.epoch))
    assert await read_watch(feed, 3).positions(1) == [4]


async def test_event_feed_starts_although_the_first_append_to_the_ledger_was_rolled_back(
    engine: AsyncEngine, database: Database, conn: psycopg.AsyncConnection
) -> None:
    async with conn.transaction(force_rollback=True):
        await append(conn, [on("never", 0)], because())
    async with asyncio.timeout(5), running_feed(engine, database) as feed:
        [first] = await fill(conn, 1)
        assert await feed.up_to_date() == first.position == 2


async def test_event_at_a_position_that_was_rolled_back_before_a_restore_is_read_after_the_restore(
    feed: Feed, conn: psycopg.AsyncConnection, database: Database
) -> None:
    await fill(conn, 3)
    async with conn.transaction(force_rollback=True):
        await append(conn, [on("never", 0)], because())
    chunks = watch(feed, Position(0), EventFilter(), UNLIMITED)
    assert await Reader(chunks).positions(3) == [1, 2, 3]
    while feed.final < 4:
        await feed.up_to_date()
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute("truncate ledger.dead_position")
    await restore_up_to(database, 3)
    await fill(await psycopg.AsyncConnection.connect(database.app_dsn), 1)
    assert [chunk async for chunk in chunks] == []
    assert await read_watch(feed, 3).positions(1) == [4]


async def test_wait_for_the_newest_events_of_an_event_feed_that_does_not_run_raises_not_yet_known(
    engine: AsyncEngine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limit, "TIME_LIMIT_SECONDS", SOON)
    with pytest.raises(NotYetKnown):
        await Feed(engine, Tail(database.app_dsn), Waiter()).up_to_date()


@pytest.mark.parametrize("streams", [("long",), ("long", "other", "none")])
@pytest.mark.parametrize("types", [(), ("allocation.activated",), ("slot.claimed",)])
async def test_pages_of_a_filtered_search_in_long_event_streams_together_contain_every_matching_event(
    engine: AsyncEngine, conn: psycopg.AsyncConnection, streams: tuple[str, ...], types: tuple[str, ...]
) -> None:
    lengths = {"long": 0, "other": 0, "unrelated": 0}
    recorded: list[Recorded[Fact]] = []
    for number in range(60):
        for stream, count_ in (("long", 5), ("unrelated", 2), ("other", number % 3 + 1)):
            facts = [plain()] * (count_ - 1) + [takes(f"{stream}/{number}")]
            recorded += await committed(conn, on(stream, lengths[stream], *facts))
            lengths[stream] += count_
    pick = EventFilter(streams=frozenset(map(StreamId, streams)), types=frozenset(types))
    upto = Position(recorded[-1].position - 7)
    matching = [each for each in recorded if each.position <= upto and pick.takes(attributes_of(each))]
    found: list[Recorded[Fact]] = []
    after = Position(0)
    async with engine.connect() as reading_:
        while after < upto:
            page = await search.find(reading_, pick, after=after, upto=upto, limit=37)
            found += page.events
            after = page.reached
    assert found == matching


async def restore_up_to(database: Database, position: int) -> None:
    """Change the ledger as a restore from a backup does: fewer events, a new epoch, and all connections closed."""
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute("delete from ledger.event where position > %s", [position])
        await admin.execute("select setval('ledger.position_seq', %s)", [position])
        await admin.execute("select ledger.begin_epoch('restored')")
    database.cut()
