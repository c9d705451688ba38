"""Tests of a verification of the read models: it replays the ledger from position 0 and names the first different row
of each table.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import psycopg
import pytest

from deploy.embedded.postgres import PostgresServer
from tests.projections.plane_requests import caught_up, change, create_history, verify
from tests.servers.plane import RunningPlane, running
from tests.waiting import until

ByHand = tuple[str, str, str]
"""A table, a statement that changes a row of it, and a column that then differs."""
BY_HAND: Final[list[ByHand]] = [
    ("read.slot", "update read.slot set state = 'free' where slot_id = 'node-a/1'", "state"),
    ("read.slot", "delete from read.slot where slot_id = 'node-a/1'", "slot_id"),
    ("read.node", "update read.node set hostname = 'other'", "hostname"),
    ("read.api_key", "update read.api_key set name = 'other'", "name"),
    ("read.service_account", "update read.service_account set disabled = 'x'", "disabled"),
    ("read.session", "update read.session set ended = 'x'", "ended"),
    ("read.story", "delete from read.story where position = 4", "position"),
    ("read.allocation", "update read.allocation set project = 'other'", "project"),
    ("read.holding", "insert into read.holding values ('ip', 'x/1', 100000, 'slot-x/1')", "position"),
    ("read.capacity", "update read.capacity set free = 7", "free"),
    ("read.usage_price", "update read.usage_price set price_per_hour = 2", "price_per_hour"),
    ("read.checkpoint", "update read.checkpoint set position = 100000 where name = 'holdings'", "position"),
    ("read.holding", "update read.holding set stream_id = 'slot-x/1' where kind = 'ip'", "stream_id"),
    ("ledger.event", "update ledger.event set actor = 'key:other' where position = 4", "leaf"),
    (
        "ledger.head",
        "update ledger.head set version = version + 1 where stream_id = 'node-node-a'",
        "version",
    ),
    ("ledger.head", "insert into ledger.head values ('slot-node-z/1', 1)", "stream_id"),
    ("ledger.claim", "update ledger.claim set stream_id = 'slot-node-a/0' where kind = 'mac'", "stream_id"),
    ("ledger.claim", "delete from ledger.claim where kind = 'slot'", "kind"),
    (
        "ledger.command_key",
        "insert into ledger.command_key values ('a', 'b', 'c', '', '', 1000000, 1000001, now())",
        "first_position",
    ),
]


def test_verification_of_unchanged_read_model_tables_reports_them_as_equal_to_a_replay(
    running_plane: RunningPlane,
) -> None:
    create_history(running_plane)
    found = verify(running_plane)

    assert found["state"] == "equal", found["differences"]
    [[last]] = running_plane.rows("select max(position) from ledger.event")
    assert 0 < found["position"] <= last


def test_ledger_verification_does_not_report_the_position_of_an_open_append_as_missing(
    running_plane: RunningPlane,
) -> None:
    with psycopg.connect(running_plane.database.admin_dsn) as appender:
        appender.execute("select pg_advisory_xact_lock_shared(21328, 1)")  # the lock that append takes
        [drawn] = appender.execute("select nextval('ledger.position_seq')").fetchone() or ()
        create_history(running_plane)
        found = verify(running_plane)
        assert found["position"] > drawn
        assert (found["state"], found["differences"], found["advice"]) == ("equal", [], None)


@pytest.fixture(scope="module")
def used_plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """Control plane with a history of events, for tests that restore the read model rows that they change."""
    with running(postgres_server) as made:
        made.rows("select nextval('ledger.position_seq')")  # an append that drew a position and was lost
        create_history(made)
        caught_up(made)
        until(
            lambda: bool(made.rows("select 1 from ledger.dead_position")),
            "the lost position is recorded as dead",
        )
        yield made


def rounds(changes: Sequence[ByHand]) -> list[list[ByHand]]:
    """Divide the changes into rounds: the changes of a round are in different tables, and either all in the ledger or
    all in read models, because a verification names one row of each table and gives one advice.
    """
    made = defaultdict[tuple[str, int], list[ByHand]](list)
    seen = Counter[str]()
    for each in changes:
        made[each[0].partition(".")[0], seen[each[0]]].append(each)
        seen[each[0]] += 1
    return list(made.values())


@pytest.mark.parametrize(
    "changes",
    rounds(BY_HAND),
    ids=lambda changes: f"{changes[0][0].partition('.')[0]}-{changes[0][2]}-and-{len(changes) - 1}-more",
)
def test_verification_of_read_models_names_each_row_that_was_edited_by_hand(
    used_plane: RunningPlane, changes: list[ByHand]
) -> None:
    kept = {
        table: [row for [row] in used_plane.rows(f"select to_jsonb(kept)::text from {table} kept")]
        for table, _, _ in changes
    }
    for _, statement, _ in changes:
        change(used_plane, statement)

    found = verify(used_plane)

    assert found["state"] == "different"
    for table, statement, column in changes:
        [difference] = [each for each in found["differences"] if each["table"] == table]
        assert column in difference["columns"], statement
        assert difference["key"], statement
        assert difference["live"] != difference["replayed"], statement
        assert difference["kind"] == ("ledger" if table.startswith("ledger.") else "read_model"), statement
        restore(used_plane, table, kept[table])
    ledger_changed = changes[0][0].startswith("ledger.")
    assert found["advice"]["code"] == ("keep_evidence" if ledger_changed else "rebuild")


MIDDLE_EVENT = "stream_id = 'slot-node-a/1' and version = 2"
NEWEST = "position = (select max(position) from ledger.event)"
NEWEST_WITH_ITS_HEAD = f"""
with gone as (delete from ledger.event where {NEWEST} returning stream_id)
update ledger.head set version = version - 1 where stream_id in (select stream_id from gone)
"""
STREAM_WITH_ITS_HEAD = """
with gone as (delete from ledger.event where stream_id = 'slot-node-a/2')
delete from ledger.head where stream_id = 'slot-node-a/2'
"""
EVENT_AT_A_DEAD_POSITION = """
insert into ledger.dead_position
select position, recorded_at, 'x', epoch, leaf from ledger.event order by position limit 1
"""
CHANGED_LEDGERS = {
    "event-of-a-stream-deleted": (f"delete from ledger.event where {MIDDLE_EVENT}", {"stream_id", "version"}),
    "first-event-deleted": ("delete from ledger.event where position = 1", {"position"}),
    "newest-event-deleted": (f"delete from ledger.event where {NEWEST}", {"position"}),
    "newest-event-deleted-with-its-head": (NEWEST_WITH_ITS_HEAD, {"position"}),
    "stream-deleted-with-its-head": (STREAM_WITH_ITS_HEAD, {"position"}),
    "event-unreadable": (f"update ledger.event set type = 'slot.painted' where {MIDDLE_EVENT}", {"position"}),
    "event-inserted-at-a-dead-position": (EVENT_AT_A_DEAD_POSITION, {"position"}),
    "dead-position-deleted": ("delete from ledger.dead_position", {"position"}),
    "dead-position-changed": ("update ledger.dead_position set seen_by = 'other'", {"position"}),
}


@pytest.mark.parametrize("change_", CHANGED_LEDGERS)
def test_verification_of_a_manipulated_ledger_names_the_change_and_advises_to_keep_a_copy(
    used_plane: RunningPlane, change_: str
) -> None:
    statement, key = CHANGED_LEDGERS[change_]
    tables = ("ledger.event", "ledger.head", "ledger.dead_position")
    kept = {
        table: [row for [row] in used_plane.rows(f"select to_jsonb(kept)::text from {table} kept")]
        for table in tables
    }
    change(used_plane, statement)
    try:
        found = verify(used_plane)
    finally:
        for table, rows in kept.items():
            restore(used_plane, table, rows)

    assert found["state"] == "different"
    assert found["stopped"] is None
    assert found["advice"]["code"] == "keep_evidence"
    named = [set(each["key"]) for each in found["differences"] if each["kind"] == "ledger"]
    assert key in named, found["differences"]
    assert verify(used_plane)["state"] == "equal"


def restore(plane: RunningPlane, table: str, kept: list[str]) -> None:
    with psycopg.connect(plane.database.admin_dsn) as conn:
        conn.execute(f"delete from {table}")
        query = "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and attgenerated = ''"
        names = ", ".join(name for (name,) in conn.execute(query, [table]))
        for row in kept:
            conn.execute(
                f"insert into {table} ({names}) select {names} from jsonb_populate_record(null::{table}, %s::jsonb)",
                [row],
            )


def test_api_request_for_an_unknown_verification_of_read_models_returns_404(
    running_plane: RunningPlane,
) -> None:
    for name in ("7", "00000000-0000-0000-0000-000000000000"):
        answer = running_plane.client().get(f"/verifications/{name}")
        assert answer.status_code == 404
        assert answer.json()["reasons"][0]["code"] == "unknown_verification"
