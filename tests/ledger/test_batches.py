"""A batch is the same commands one after the other, refusals included."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from deploy.embedded.postgres import PostgresServer
from events.append import Change, Command, CommandKey, StoredAnswer, append, take_key
from events.append_many import LIMIT, Outcome, append_many
from events.claims import Claim
from events.errors import (
    ClaimHeld,
    ClaimNotHeld,
    KeyBusy,
    KeyReused,
    KeyTaken,
    LedgerRefusal,
    VersionConflict,
)
from events.facts import Fact
from events.merkle import EventRow, leaf_of
from events.store import read_positions, read_stream
from events.values import Epoch, StreamId
from tests.ledger.given import because, committed, frees, on, plain, takes
from tests.ledger.test_append import last_drawn
from tests.servers.postgres import Connect, Database, cloned

KEY = CommandKey("caller:alice", "POST /v1/allocations", "k-1", b"body one")


@pytest.fixture(scope="module")
def shared(postgres_server: PostgresServer) -> Iterator[Database]:
    """One for all examples: each has streams, claims and keys of its own."""
    with cloned(postgres_server) as database:
        yield database


def command(*changes: Change, key: CommandKey | None = None, answer: str | None = None) -> Command:
    return Command(changes, because(), key, answer)


async def batch(conn: psycopg.AsyncConnection, *commands: Command) -> tuple[Outcome, ...]:
    async with conn.transaction():
        return await append_many(conn, commands)


def refused(outcomes: Sequence[Outcome]) -> list[type[LedgerRefusal] | None]:
    return [type(each) if isinstance(each, LedgerRefusal) else None for each in outcomes]


async def test_each_command_is_recorded_as_it_would_be_alone(conn: psycopg.AsyncConnection) -> None:
    outcomes = await batch(
        conn, command(on("slot-z", 0, plain(), plain()), on("allocation-a", 0)), command(on("node-m", 0))
    )

    recorded = [event for outcome in outcomes if isinstance(outcome, tuple) for event in outcome]
    assert [(event.stream, event.version) for event in recorded] == [
        ("slot-z", 1), ("slot-z", 2), ("allocation-a", 1), ("node-m", 1),
    ]  # fmt: skip
    assert await read_positions(conn, [event.position for event in recorded]) == tuple(recorded)
    assert {event.recorded_at for event in recorded} == {recorded[0].recorded_at}


async def test_the_leaf_is_that_of_any_event(conn: psycopg.AsyncConnection) -> None:
    await batch(conn, command(on("slot-a", 0)), command(on("slot-a", 1, takes("lab-a/0"))))

    rows = await (await conn.execute("select * from ledger.event order by position")).fetchall()
    assert [row[-1] for row in rows] == [leaf_of(EventRow(*row[:-1])) for row in rows]
    assert len(rows) == 2


async def test_a_refusal_harms_no_other_and_burns_no_position(conn: psycopg.AsyncConnection) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/0")))

    first, late, taken, second = await batch(
        conn,
        command(on("slot-b", 0)),
        command(on("slot-a", 0)),
        command(on("slot-c", 0, takes("lab-a/0"))),
        command(on("slot-d", 0)),
    )

    assert isinstance(late, VersionConflict)
    assert (late.stream, late.expected, late.actual) == ("slot-a", 0, 1)
    assert isinstance(taken, ClaimHeld)
    assert (taken.claim, taken.holder) == (Claim("slot", "lab-a/0"), "slot-a")
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert [first[0].position, second[0].position] == [2, 3]
    assert await last_drawn(conn) == 3
    assert await read_stream(conn, StreamId("slot-c")) == ()


async def test_a_refused_command_leaves_nothing_of_what_it_had_already_taken(
    conn: psycopg.AsyncConnection,
) -> None:
    await committed(conn, on("slot-a", 0, takes("lab-a/9")))

    await batch(
        conn, command(on("slot-b", 0, takes("lab-a/0"), takes("lab-a/9")), key=KEY, answer="never said")
    )

    assert await read_stream(conn, StreamId("slot-b")) == ()
    assert await take_key(conn, KEY) is None
    await conn.rollback()
    await committed(conn, on("slot-b", 0, takes("lab-a/0")))


async def test_nothing_to_record_takes_no_position(conn: psycopg.AsyncConnection) -> None:
    assert await batch(conn) == ()
    assert refused(await batch(conn, command(on("slot-a", 3)))) == [VersionConflict]
    assert await last_drawn(conn) == 0


async def test_a_later_command_sees_what_an_earlier_one_did(conn: psycopg.AsyncConnection) -> None:
    outcomes = await batch(
        conn,
        command(on("slot-a", 0, takes("lab-a/0"))),
        command(on("slot-b", 0, takes("lab-a/0"))),
        command(on("slot-a", 1, frees("lab-a/0"))),
        command(on("slot-b", 0, takes("lab-a/0"))),
        command(on("slot-a", 1)),
    )

    assert refused(outcomes) == [None, ClaimHeld, None, None, VersionConflict]


async def test_a_twin_in_the_same_batch_gets_the_first_answer(conn: psycopg.AsyncConnection) -> None:
    outcomes = await batch(
        conn,
        command(on("slot-a", 0), key=KEY, answer="first"),
        command(on("slot-b", 0), key=KEY, answer="second"),
        command(on("slot-c", 0), key=KEY._replace(body_hash=b"other"), answer="third"),
    )

    assert refused(outcomes) == [None, KeyTaken, KeyReused]
    assert isinstance(outcomes[1], KeyTaken)
    assert outcomes[1].answer == "first"
    assert await take_key(conn, KEY) == StoredAnswer("first")


async def test_a_twin_that_keeps_the_key_for_too_long_ends_a_batch_as_it_ends_an_append(
    connect: Connect,
) -> None:
    first, second = [await connect() for _ in range(2)]
    await take_key(first, KEY)
    await second.execute("set lock_timeout = '50ms'")
    await second.commit()

    with pytest.raises(KeyBusy):
        await batch(second, command(on("slot-a", 0)), command(on("slot-b", 0), key=KEY, answer="second"))
    with pytest.raises(KeyBusy):
        async with second.transaction():
            await append(second, [on("slot-b", 0)], because(), key=KEY, answer="second")


async def test_a_stream_that_is_kept_for_too_long_is_no_key_that_is_busy(connect: Connect) -> None:
    first, second = [await connect() for _ in range(2)]
    await append(first, [on("slot-a", 0)], because())
    await second.execute("set lock_timeout = '50ms'")
    await second.commit()

    with pytest.raises(psycopg.errors.LockNotAvailable):
        await batch(second, command(on("slot-a", 0), key=KEY, answer="second"))


async def test_a_key_knows_the_positions_of_its_own_command(conn: psycopg.AsyncConnection) -> None:
    await batch(
        conn,
        command(on("slot-a", 0)),
        command(on("slot-b", 0, plain(), plain()), key=KEY, answer="{}"),
        command(key=KEY._replace(key="k-2"), answer="nothing to do"),
        command(on("slot-c", 0)),
    )

    cursor = await conn.execute("select first_position, last_position from ledger.command_key order by key")
    assert await cursor.fetchall() == [(2, 3), (None, None)]


async def test_a_command_that_contradicts_itself_is_refused_alone(conn: psycopg.AsyncConnection) -> None:
    outcomes = await batch(
        conn,
        command(on("slot-a", 0, takes("lab-a/0")), on("slot-b", 0, takes("lab-a/0"))),
        command(on("slot-c", 0)),
    )

    assert refused(outcomes) == [ClaimHeld, None]


async def test_a_batch_after_a_new_epoch_is_of_it(conn: psycopg.AsyncConnection, database: Database) -> None:
    for version in range(8):  # often enough for a cached plan
        await batch(conn, command(on("slot-a", version)))
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute("select ledger.begin_epoch('restored from a backup')")

    (outcome,) = await batch(conn, command(on("slot-a", 8)))

    assert isinstance(outcome, tuple)
    assert outcome[0].epoch == Epoch(2)


async def holders(conn: psycopg.AsyncConnection) -> int:
    row = await (await conn.execute("select cardinality(holders) from ledger.fence()")).fetchone()
    await conn.rollback()
    assert row is not None
    held: int = row[0]
    return held


async def test_a_batch_holds_the_fence_to_its_commit_once_something_of_it_is_recorded(
    connect: Connect,
) -> None:
    conn, reader = await connect(), await connect()

    await append_many(conn, [command(on("slot-a", 5)), command(on("slot-b", 5))])
    assert await holders(reader) == 0
    await append_many(conn, [command(on("slot-a", 5)), command(on("slot-b", 0))])
    assert await holders(reader) == 1
    await conn.commit()
    assert await holders(reader) == 0


async def test_more_than_a_batch_takes_are_refused(conn: psycopg.AsyncConnection) -> None:
    with pytest.raises(ValueError, match=f"{LIMIT + 1} commands"):
        await append_many(conn, [command(on(f"slot-{number}", 0)) for number in range(LIMIT + 1)])


async def test_batches_in_opposite_orders_end_and_lose_nothing(connect: Connect) -> None:
    """They may wait in a ring; the server ends one of them, and its caller begins again."""
    there, back, reader = [await connect() for _ in range(3)]
    done = count()

    async def run(conn: psycopg.AsyncConnection, *streams: str) -> None:
        for _ in range(8):
            recorded = False
            while not recorded:
                heads = [len(await read_stream(conn, StreamId(stream))) for stream in streams]
                await conn.rollback()
                try:
                    outcomes = await batch(
                        conn, *(command(on(each, head)) for each, head in zip(streams, heads, strict=True))
                    )
                except psycopg.errors.DeadlockDetected:
                    continue
                recorded = refused(outcomes) == [None, None]
                for outcome in outcomes:
                    if isinstance(outcome, tuple):
                        next(done)

    await asyncio.gather(run(there, "slot-a", "slot-b"), run(back, "slot-b", "slot-a"))

    lengths = [len(await read_stream(reader, StreamId(stream))) for stream in ("slot-a", "slot-b")]
    assert sum(lengths) == next(done)


async def test_a_search_path_of_the_caller_does_not_lead_it_astray(conn: psycopg.AsyncConnection) -> None:
    await conn.execute("set search_path = work, public")
    await conn.commit()

    assert refused(await batch(conn, command(on("slot-a", 0)))) == [None]


STREAMS: Final = ("a", "b", "c")
SLOTS: Final = ("s", "t")


class Drawn:
    """A command before it has names of its own."""

    def __init__(
        self, changes: Sequence[tuple[str, int, Sequence[tuple[str, str]]]], key: str | None
    ) -> None:
        self.changes, self.key = changes, key

    def __repr__(self) -> str:
        return f"Drawn({self.changes}, {self.key})"

    def named(self, run: str) -> Command:
        key = None if self.key is None else CommandKey("alice", run, self.key[0], self.key[1].encode())
        changes = [
            on(f"{run}-{stream}", version, *(_fact(run, *fact) for fact in facts))
            for stream, version, facts in self.changes
        ]
        return Command(changes, because(), key, f"answer {self.key}")


def _fact(run: str, kind: str, slot: str) -> Fact:
    return {"plain": plain(), "takes": takes(f"{run}/{slot}"), "frees": frees(f"{run}/{slot}")}[kind]


_FACTS = st.lists(
    st.tuples(st.sampled_from(("plain", "takes", "frees")), st.sampled_from(SLOTS)), min_size=1, max_size=2
)
_CHANGES = st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(0, 3), _FACTS), min_size=1, max_size=2)
_COMMANDS = st.lists(
    st.builds(Drawn, _CHANGES, st.none() | st.sampled_from(("k1", "k2", "l1"))), min_size=1, max_size=8
)
_RUNS = count()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=_COMMANDS)
def test_a_batch_is_its_commands_one_after_the_other(shared: Database, drawn: list[Drawn]) -> None:
    together, alone = asyncio.run(_both(shared, drawn))

    assert together == alone


async def _both(database: Database, drawn: Sequence[Drawn]) -> tuple[object, object]:
    number = next(_RUNS)
    async with await psycopg.AsyncConnection.connect(database.app_dsn) as conn:
        many, one = f"m{number}", f"o{number}"
        outcomes = await batch(conn, *(each.named(many) for each in drawn))
        singly = [await _alone(conn, each.named(one)) for each in drawn]
        return (
            (_told(many, outcomes), await _left(conn, many)),
            (_told(one, singly), await _left(conn, one)),
        )


async def _alone(conn: psycopg.AsyncConnection, command: Command) -> Outcome:
    try:
        async with conn.transaction():
            return await append(conn, command.changes, command.cause, key=command.key, answer=command.answer)
    except LedgerRefusal as refusal:
        return refusal


def _told(run: str, outcomes: Sequence[Outcome]) -> object:
    """What a caller learns of each, without the names of the run; positions as places among the run's own."""
    first = min([event.position for each in outcomes if isinstance(each, tuple) for event in each], default=0)
    return [
        (type(each), str(each).replace(run, "run"))
        if isinstance(each, LedgerRefusal)
        else [(event.position - first, event.stream.removeprefix(run), event.version) for event in each]
        for each in outcomes
    ]


async def _left(conn: psycopg.AsyncConnection, run: str) -> object:
    """What the ledger holds of it."""
    left: list[object] = []
    for query in (
        "select replace(stream_id, %(run)s, ''), version, type, data from ledger.event where stream_id like %(any)s",
        "select replace(stream_id, %(run)s, ''), version from ledger.head where stream_id like %(any)s",
        "select kind, replace(value, %(run)s, ''), stream_id from ledger.claim where stream_id like %(any)s",
        "select key, body_hash, answer, last_position - first_position from ledger.command_key where route = %(run)s",
    ):
        cursor = await conn.execute(query, {"run": run, "any": f"{run}-%"})
        left.append(sorted(str(row).replace(run, "run") for row in await cursor.fetchall()))
    await conn.rollback()
    return left


async def test_a_freed_claim_that_nobody_holds_is_refused_alone(conn: psycopg.AsyncConnection) -> None:
    outcomes = await batch(conn, command(on("slot-a", 0, frees("lab-a/0"))), command(on("slot-a", 0)))

    assert refused(outcomes) == [ClaimNotHeld, None]


async def test_an_order_of_locks_that_does_not_ascend_is_refused(conn: psycopg.AsyncConnection) -> None:
    row = {
        "type": "t", "schema_version": 1, "data": "{}", "actor": "a", "why": "w", "version": 1,
        "event_id": "01890000-0000-7000-8000-000000000001", "observed_at": "2026-11-20T12:00:00Z",
        "correlation_id": "01890000-0000-7000-8000-000000000001",
    }  # fmt: skip
    call = Jsonb([{**row, "stream_id": "slot-b"}, {**row, "stream_id": "slot-a"}])

    with pytest.raises(psycopg.Error) as refusal:
        await conn.execute("select ledger.append(%s, '[0, 1]')", [call])

    assert refusal.value.sqlstate == "SP006"
