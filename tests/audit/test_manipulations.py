"""Promise P13: a superuser changes a sealed ledger in each way that the table below lists, which is found and named.

All cases share one database. Each runs in a transaction of the superuser that is rolled back, and the export reads the
same transaction.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from control_plane.audit.export import compressed_export
from control_plane.audit.heads import SignedHead, trusted_keys
from control_plane.audit.verify import Kind, Verdict, verify_export
from deploy.embedded.postgres import PostgresServer
from tests.audit.sealed import SESSION, SIGNER, drawn_and_rolled_back, seal, with_key
from tests.ledger.given import committed, frees, on, takes
from tests.servers.postgres import Database, cloned

KEYS = trusted_keys([SIGNER.public])
K = Kind
COLUMNS = {
    "event_id": "'01890000-0000-7000-8000-000000000001'",
    "stream_id": "'allocation-9'",
    "version": "7",
    "type": "'allocation.failed'",
    "schema_version": "2",
    "project": "'other'",
    "actor": "'caller:mallory'",
    "reason": "reason || ' '",
    "correlation_id": "'01890000-0000-7000-8000-000000000001'",
    "causation_id": "event_id",
    "trace_context": "null",
    "observed_at": "observed_at + interval '1 microsecond'",
    "recorded_at": "recorded_at - interval '1 day'",
    "epoch": "2",
    "data": "'{}'",
}
FIELDS = "position, event_id, stream_id, version, type, schema_version, project, actor, reason, correlation_id, causation_id, trace_context, observed_at, recorded_at, epoch, data"  # fmt: skip
NEW_LEAF = (
    "update ledger.event e set leaf = sha256('\\x000101'::bytea || record_send((select h from (select "
    + ", ".join(f"e.{name.strip()}" for name in FIELDS.split(","))
    + ", null::bytea as leaf) h))) where position in ({0})"
)
DEAD_LEAF = (
    "update ledger.dead_position d set leaf = sha256('\\x000102'::bytea || record_send((select h from (select"
    " d.position, d.noted_at, d.seen_by, d.epoch, null::bytea as leaf) h))) where position = {0}"
)
NOTE_DEAD = "insert into ledger.dead_position values ({0}, clock_timestamp(), 'sealer', 1, '\\x00')"
COPY = "insert into ledger.event select {0}, gen_random_uuid(), 'stray-{0}', 1, type, 1, project, actor, reason, correlation_id, causation_id, trace_context, observed_at, recorded_at, 1, data, '\\x00' from ledger.event where position = 5"  # fmt: skip
SWAP = (
    "update ledger.event set position = 100 where position = 5",
    "update ledger.event set position = 5 where position = 6",
    "update ledger.event set position = 6 where position = 100",
)
HEAD = "update ledger.tree_head set {0} where number = 1"


@dataclass(frozen=True)
class Case:
    """What the superuser does, and the differences that a verification names, as kind and position."""

    name: str
    found: frozenset[tuple[Kind, int | None]]
    does: tuple[str, ...]


def case(name: str, found: set[tuple[Kind, int | None]], *does: str) -> Case:
    return Case(name, frozenset(found), does)


SIDE_EFFECTS: dict[str, set[tuple[Kind, int | None]]] = {
    # Position 5 has the first of three events of its stream.
    "stream_id": {(K.STREAM_VERSION, 9), (K.STREAM_HEAD, None)},
    "version": {(K.STREAM_VERSION, 5), (K.STREAM_VERSION, 9), (K.STREAM_VERSION, 10), (K.STREAM_HEAD, None)},
    "epoch": {(K.EPOCH_ORDER, each) for each in (6, 7, 8, 9, 10, 11, 12, 13)},
}


def of_columns() -> Iterator[Case]:
    for column, value in COLUMNS.items():
        found: set[tuple[Kind, int | None]] = {(K.ROW_CHANGED, 5), *SIDE_EFFECTS.get(column, set())}
        edit = f"update ledger.event set {column} = {value} where position = 5"
        yield case(f"{column} of an event, with its old leaf", found, edit)
        yield case(f"{column} of an event, with a new leaf", found, edit, NEW_LEAF.format(5))


CASES = (
    *of_columns(),
    case("leaf of an event", {(K.LEAF_CHANGED, 5)}, "update ledger.event set leaf = sha256('') where position = 5"),
    case("column and leaf of an event, each to something else", {(K.ROW_CHANGED, 5)}, "update ledger.event set actor = 'x', leaf = '\\x' where position = 5"),
    case("position of an event, with a new leaf", {(K.ROW_REMOVED, 8), (K.KEYS, None), (K.SEQUENCE, None)}, "update ledger.event set position = 1000 where position = 8", NEW_LEAF.format(1000)),
    case("two positions exchanged", {(K.ROW_CHANGED, 5), (K.ROW_CHANGED, 6), (K.KEYS, None)}, *SWAP),
    case("two positions exchanged, with new leaves", {(K.ROW_CHANGED, 5), (K.ROW_CHANGED, 6), (K.KEYS, None)}, *SWAP, NEW_LEAF.format("5, 6")),
    case("data of two events exchanged, with new leaves", {(K.ROW_CHANGED, 5), (K.ROW_CHANGED, 11), (K.CLAIM, 11), (K.CLAIM, None)}, "update ledger.event e set data = o.data from ledger.event o where e.position in (5, 11) and o.position = 16 - e.position", NEW_LEAF.format("5, 11")),
    case("time of all events moved, with new leaves", {*((K.ROW_CHANGED, each) for each in (1, 2, 4, 5, 6, 8, 9, 10, 11)), (K.KEYS, None)}, "update ledger.event set recorded_at = recorded_at - interval '1 day'", NEW_LEAF.format("select position from ledger.event")),
    case("event removed with its key", {(K.ROW_REMOVED, 8), (K.STREAM_HEAD, None), (K.KEYS, None)}, "delete from ledger.event where position = 8", "delete from ledger.command_key where key = 'two'"),
    case("event removed", {(K.ROW_REMOVED, 8), (K.STREAM_HEAD, None), (K.KEYS, None)}, "delete from ledger.event where position = 8"),
    case("event removed with its stream", {(K.ROW_REMOVED, 6), (K.KEYS, None)}, "delete from ledger.event where position = 6", "delete from ledger.head where stream_id = 'allocation-2'"),
    case("first event removed", {(K.ROW_REMOVED, 1), (K.STREAM_VERSION, 4)}, "delete from ledger.event where position = 1"),
    case("event removed and noted as dead", {(K.NOTED_DEAD, 8), (K.STREAM_HEAD, None), (K.KEYS, None)}, "delete from ledger.event where position = 8", NOTE_DEAD.format(8), DEAD_LEAF.format(8)),
    case("event noted as dead beside the event", {(K.NOTED_DEAD, 8), (K.ROW_ADDED, 8)}, NOTE_DEAD.format(8), DEAD_LEAF.format(8)),
    case("dead position removed", {(K.ROW_REMOVED, 3)}, "delete from ledger.dead_position where position = 3"),
    case("dead position changed", {(K.NOTED_DEAD, 3)}, "update ledger.dead_position set seen_by = 'x' where position = 3"),
    case("dead position changed, with a new leaf", {(K.NOTED_DEAD, 3)}, "update ledger.dead_position set noted_at = noted_at - interval '1 s' where position = 3", DEAD_LEAF.format(3)),
    case("leaf of a dead position", {(K.LEAF_CHANGED, 3)}, "update ledger.dead_position set leaf = sha256('') where position = 3"),
    case("dead position filled later", {(K.ROW_CHANGED, 3), (K.STREAM_HEAD, None)}, "delete from ledger.dead_position where position = 3", COPY.format(3), NEW_LEAF.format(3)),
    case("dead position filled later beside its record", {(K.ROW_ADDED, 3), (K.STREAM_HEAD, None)}, COPY.format(3), NEW_LEAF.format(3)),
    case("dead position filled later, with its stream", {(K.ROW_CHANGED, 7)}, "delete from ledger.dead_position where position = 7", COPY.format(7), NEW_LEAF.format(7), "insert into ledger.head values ('stray-7', 1)"),
    case("event added before the first", {(K.ROW_ADDED, 0), (K.STREAM_HEAD, None)}, COPY.format(0), NEW_LEAF.format(0)),
    case("event added at a negative position", {(K.ROW_ADDED, -5), (K.STREAM_HEAD, None)}, COPY.format(-5), NEW_LEAF.format(-5)),
    case("all events removed", {(K.ROW_REMOVED, each) for each in (1, 4, 8)} | {(K.STREAM_HEAD, None), (K.CLAIM, None), (K.KEYS, None)}, "delete from ledger.event"),
    case("tail of a head cut", {(K.ROW_REMOVED, 9), (K.STREAM_HEAD, None), (K.CLAIM, None)}, "delete from ledger.event where position > 8"),
    case("tail cut with its head, its streams and its claims", {(K.HEAD_MISSING, None), (K.KEYS, None)}, "delete from ledger.event where position > 6", "delete from ledger.dead_position where position > 6", "delete from ledger.tree_head where number = 2", "delete from ledger.head where stream_id not in (select stream_id from ledger.event)", "update ledger.head h set version = (select max(version) from ledger.event e where e.stream_id = h.stream_id)", "delete from ledger.claim where value = 'a/0'"),
    case("restored from before the second head", {(K.HEAD_MISSING, None)}, "delete from ledger.event where position > 6", "delete from ledger.dead_position where position > 6", "delete from ledger.tree_head where number = 2", "delete from ledger.head where stream_id not in (select stream_id from ledger.event)", "update ledger.head h set version = (select max(version) from ledger.event e where e.stream_id = h.stream_id)", "delete from ledger.claim where value = 'a/0'", "delete from ledger.command_key where key = 'two'"),
    case("all heads removed", {(K.HEAD_MISSING, None)}, "delete from ledger.tree_head"),
    case("first head removed", {(K.HEAD_CHAIN, None), (K.KEYS, None)}, "delete from ledger.tree_head where number = 1"),
    case("signature of a head changed", {(K.HEAD_SIGNATURE, None), (K.HEAD_CHAIN, None)}, HEAD.format("signed = overlay(signed placing 'AAAA' from length(signed) - 20)")),
    case("head replaced by no head", {(K.HEAD_SIGNATURE, None), (K.HEAD_CHAIN, None)}, HEAD.format("signed = 'nothing'")),
    case("size of a head changed to that of the next one, and an event of the next one with a new leaf", {(K.EXPORT, 7), (K.ROW_CHANGED, 8), (K.KEYS, None)}, HEAD.format("size = 11"), "update ledger.event set actor = 'x' where position = 8", NEW_LEAF.format(8)),
    case("size of a head changed", {(K.ROW_REMOVED, 4), (K.ROW_ADDED, 4), (K.ROW_ADDED, 5), (K.ROW_ADDED, 6), (K.KEYS, None)}, HEAD.format("size = 3")),
    case("leaves of a head changed", {(K.HEAD_LEAVES, None)}, HEAD.format("leaves = sha256('') || substr(leaves, 33)")),
    case("leaves of a head removed", {(K.HEAD_LEAVES, None)}, HEAD.format("leaves = ''")),
    case("event and leaves of its head changed together", {(K.HEAD_LEAVES, None), (K.TREE, None)}, "update ledger.event set actor = 'x' where position = 1", NEW_LEAF.format(1), HEAD.format("leaves = (select leaf from ledger.event where position = 1) || substr(leaves, 33)")),
    case("numbers of heads exchanged", {(K.HEAD_CHAIN, None), (K.FORK, None), (K.KEYS, None)}, "update ledger.tree_head set number = 3 - number + 10", "update ledger.tree_head set number = number - 10"),
    case("version of a stream head", {(K.STREAM_HEAD, None)}, "update ledger.head set version = version + 1 where stream_id = 'allocation-1'"),
    case("stream head removed", {(K.STREAM_HEAD, None)}, "delete from ledger.head where stream_id = 'allocation-1'"),
    case("stream head added", {(K.STREAM_HEAD, None)}, "insert into ledger.head values ('nothing', 1)"),
    case("claim given to another stream", {(K.CLAIM, None)}, "update ledger.claim set stream_id = 'slot-x' where value = 'b/0'"),
    case("claim removed", {(K.CLAIM, None)}, "delete from ledger.claim where value = 'b/0'"),
    case("claim added", {(K.CLAIM, None)}, "insert into ledger.claim values ('slot', 'c/0', 'slot-c/0')"),
    case("stored response of a key changed", {(K.KEYS, None)}, "update ledger.command_key set answer = '{\"id\": \"alc-2\"}' where key = 'one'"),
    case("body hash of a key changed", {(K.KEYS, None)}, "update ledger.command_key set body_hash = '\\x02' where key = 'two'"),
    case("name of a key changed", {(K.KEYS, None)}, "update ledger.command_key set key = 'three' where key = 'two'"),
    case("key removed", {(K.KEYS, None)}, "delete from ledger.command_key where key = 'one'"),
    case("key added", {(K.KEYS, None)}, "insert into ledger.command_key select principal, route, 'more', body_hash, answer, 6, 6, taken_at from ledger.command_key where key = 'one'"),
    case("key added with another time", {(K.KEYS, None)}, "insert into ledger.command_key select principal, route, 'more', body_hash, answer, 6, 6, clock_timestamp() from ledger.command_key where key = 'one'"),
    case("key moved to a position without an event", {(K.KEYS, None)}, "update ledger.command_key set last_position = 99 where key = 'one'"),
    case("session replaced", {(K.SESSIONS, None)}, "update work.node_session set credential_sha256 = 'other'"),
    case("session extended", {(K.SESSIONS, None)}, "update work.node_session set expires_at = expires_at + interval '1 hour'"),
    case("session removed", {(K.SESSIONS, None)}, "delete from work.node_session"),
    case("session added", {(K.SESSIONS, None)}, "insert into work.node_session select 'n2', number, key_thumbprint, credential_sha256, queue_password_sha256, null, expires_at from work.node_session"),
    case("epoch added", {(K.EPOCHS, None)}, "insert into ledger.epoch values (2, clock_timestamp(), 'x')"),
    case("reason of an epoch changed", {(K.EPOCHS, None)}, "update ledger.epoch set reason = 'x'"),
    case("epoch begun", {(K.EPOCHS, None), (K.FUNCTIONS, None)}, "select ledger.begin_epoch('x')"),
    case("current epoch changed", {(K.FUNCTIONS, None)}, "create or replace function ledger.current_epoch() returns integer language sql immutable parallel safe return 2"),
    case("function replaced", {(K.FUNCTIONS, None)}, "create or replace function ledger.lead(name text) returns boolean language sql volatile security definer set search_path = pg_catalog, pg_temp as 'select true'"),
    case("function added", {(K.FUNCTIONS, None), (K.ROLES, None)}, "create function ledger.more() returns integer language sql return 1"),
    case("trigger on events", {(K.FUNCTIONS, None)}, "create trigger t before insert on ledger.event execute function suppress_redundant_updates_trigger()"),
    case("rule on events", {(K.FUNCTIONS, None)}, "create rule r as on delete to ledger.event do instead nothing"),
    case("application may write events", {(K.ROLES, None)}, "grant insert on ledger.event to sliceplane_app"),
    case("every role may append", {(K.ROLES, None)}, "grant execute on function ledger.append to public"),
    case("table given to the application", {(K.ROLES, None)}, "grant create on schema ledger to sliceplane_app", "alter table ledger.event owner to sliceplane_app"),
    case("application becomes superuser", {(K.ROLES, None)}, "alter role sliceplane_app superuser"),
    case("owner may log in", {(K.ROLES, None)}, "alter role sliceplane_owner login"),
    case("application becomes a member of the owner", {(K.ROLES, None)}, "grant sliceplane_owner to sliceplane_app"),
    case("row level security on events", {(K.ROLES, None)}, "alter table ledger.event enable row level security"),
    case("sequence set back", {(K.SEQUENCE, None)}, "alter sequence ledger.position_seq restart with 4"),
    case("checkpoint after the last position", {(K.CHECKPOINT, None)}, "insert into read.checkpoint (name, position) values ('dispatcher', 5000)"),
    case("unsealed event changed, with its old leaf", {(K.ROW_CHANGED, 12)}, "update ledger.event set actor = 'x' where position = 12"),
)  # fmt: skip
assert len({each.name for each in CASES}) == len(CASES) >= 60


@dataclass(frozen=True)
class Sealed:
    """A database with two heads, of positions 1 to 6 and 7 to 11, and two events that are not sealed."""

    database: Database
    heads: tuple[SignedHead, ...]
    folder: Path

    def verify(self, *does: str, kept: tuple[str, ...] | None = None) -> Verdict:
        """Change the database, export it, undo the change, and verify the export with the newest kept head."""
        path = self.folder / "export.zst"
        path.write_bytes(asyncio.run(self._export(does)))
        return verify_export(path, KEYS, [self.heads[-1].text] if kept is None else kept, unsealed_seconds=0)

    async def _export(self, does: tuple[str, ...]) -> bytes:
        async with await psycopg.AsyncConnection.connect(self.database.admin_dsn) as conn:
            await conn.execute("set transaction isolation level repeatable read")
            for statement in does:
                await conn.execute(statement.encode())
            pieces = [piece async for piece in compressed_export(conn)]
            await conn.rollback()
        return b"".join(pieces)


@pytest.fixture(scope="module")
def sealed(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sealed]:
    with cloned(postgres_server) as database:
        heads = asyncio.run(_make(database))
        yield Sealed(database, heads, tmp_path_factory.mktemp("audit"))


async def _make(database: Database) -> tuple[SignedHead, ...]:
    async with await psycopg.AsyncConnection.connect(database.admin_dsn, autocommit=True) as admin:
        await admin.execute(SESSION)
    async with await psycopg.AsyncConnection.connect(database.app_dsn) as conn:
        await committed(conn, on("slot-a/0", 0, takes("a/0")), on("slot-b/0", 0, takes("b/0")))
        await drawn_and_rolled_back(conn)
        await committed(conn, on("slot-a/0", 1, frees("a/0")), on("allocation-1", 0))
        await with_key(conn, "allocation-2", "one")
        first = await seal(database)
        await drawn_and_rolled_back(conn)
        await with_key(conn, "allocation-3", "two")
        await committed(conn, on("allocation-1", 1), on("allocation-1", 2), on("slot-a/0", 2, takes("a/0")))
        second = await seal(database)
        await committed(conn, on("later", 0), on("later", 1))
    assert (first.head.size, second.head.size) == (6, 11)
    return first, second


def found_in(verdict: Verdict) -> set[tuple[Kind, int | None]]:
    return {(each.kind, each.position) for each in verdict.differences}


def test_unchanged_ledger_passes_the_verification_and_its_unsealed_events_are_reported_as_such(
    sealed: Sealed,
) -> None:
    verdict = sealed.verify()

    assert verdict.differences == []
    assert (verdict.rows, verdict.sealed, verdict.head) == (13, 11, sealed.heads[1])
    assert verdict.notes == ["2 rows after position 11 are not sealed and not proved"]


@pytest.mark.parametrize("manipulation", CASES, ids=lambda each: each.name)
def test_manipulation_of_a_sealed_ledger_is_found_and_named(sealed: Sealed, manipulation: Case) -> None:
    verdict = sealed.verify(*manipulation.does)

    assert found_in(verdict) == manipulation.found, verdict.differences


def test_position_far_after_the_last_one_does_not_delay_the_verdict(sealed: Sealed) -> None:
    verdict = sealed.verify(
        "update ledger.event set position = 9000000000000000000 where position = 13",
        NEW_LEAF.format(9 * 10**18),
    )

    assert found_in(verdict) == {(K.SEQUENCE, None)}
    assert "2 rows after position 11 are not sealed and not proved" in verdict.notes


def test_deletion_of_the_last_events_before_they_are_sealed_is_not_detected(sealed: Sealed) -> None:
    """docs/audit.md states this limit: nothing outside the database has a trace of these events yet."""
    verdict = sealed.verify(
        "delete from ledger.event where position > 11", "delete from ledger.head where stream_id = 'later'"
    )

    assert verdict.differences == []


def test_unsealed_event_that_was_changed_together_with_its_leaf_is_only_reported_as_not_proved(
    sealed: Sealed,
) -> None:
    verdict = sealed.verify("update ledger.event set actor = 'x' where position = 12", NEW_LEAF.format(12))

    assert verdict.differences == []
    assert verdict.notes == ["2 rows after position 11 are not sealed and not proved"]


def test_restore_of_an_older_ledger_is_not_detected_without_a_kept_head_and_the_verdict_states_this_limit(
    sealed: Sealed,
) -> None:
    restored = next(each for each in CASES if each.name == "restored from before the second head")

    verdict = sealed.verify(*restored.does, kept=())

    assert verdict.differences == []
    assert any("no kept head was given" in note for note in verdict.notes)
    assert found_in(sealed.verify(*restored.does, kept=(sealed.heads[0].text,))) == set()


def test_kept_head_proves_every_head_before_it(sealed: Sealed) -> None:
    for kept in ((), (sealed.heads[0].text,), tuple(each.text for each in sealed.heads)):
        assert sealed.verify(kept=kept).differences == []


def test_node_session_that_was_renewed_after_the_newest_head_is_reported_as_not_sealed(
    sealed: Sealed,
) -> None:
    path = sealed.folder / "later.zst"
    path.write_bytes(asyncio.run(sealed._export(("update work.node_session set number = 4",))))

    verdict = verify_export(path, KEYS, [sealed.heads[1].text], unsealed_seconds=3600)

    assert verdict.differences == []
    assert any("sessions changed after the newest head" in note for note in verdict.notes)
