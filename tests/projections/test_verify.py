"""A verification replays the log from zero and names the first row of each table that differs."""

from collections.abc import Iterator

import psycopg
import pytest

from deploy.embedded.postgres import PostgresServer
from tests.projections.keeping import caught_up, change, some_life, verify
from tests.servers.plane import RunningPlane, running

BY_HAND = [
    ("read.slot", "update read.slot set state = 'free' where slot_id = 'node-a/1'", "state"),
    ("read.slot", "delete from read.slot where slot_id = 'node-a/1'", "slot_id"),
    ("read.node", "update read.node set hostname = 'other'", "hostname"),
    ("read.api_key", "update read.api_key set name = 'other'", "name"),
    ("read.story", "delete from read.story where position = 3", "position"),
    ("read.allocation", "update read.allocation set project = 'other'", "project"),
    ("read.holding", "insert into read.holding values ('ip', 'x/1', 100000, 'slot-x/1')", "position"),
    ("read.checkpoint", "update read.checkpoint set position = 100000 where name = 'holdings'", "position"),
    ("read.holding", "update read.holding set stream_id = 'slot-x/1' where kind = 'ip'", "stream_id"),
    ("ledger.event", "update ledger.event set actor = 'key:other' where position = 3", "leaf"),
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


def test_untouched_tables_are_equal(running_plane: RunningPlane) -> None:
    some_life(running_plane)
    found = verify(running_plane)

    assert found["state"] == "equal", found["differences"]
    [[last]] = running_plane.rows("select max(position) from ledger.event")
    assert 0 < found["position"] <= last


@pytest.fixture(scope="module")
def lived(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """A control plane with a history, for tests that put back what they change."""
    with running(postgres_server) as made:
        some_life(made)
        caught_up(made)
        yield made


@pytest.mark.parametrize(("table", "statement", "column"), BY_HAND)
def test_a_row_edited_by_hand_is_named(lived: RunningPlane, table: str, statement: str, column: str) -> None:
    kept = [row for [row] in lived.rows(f"select to_jsonb(kept)::text from {table} kept")]
    change(lived, statement)

    found = verify(lived)

    assert found["state"] == "different"
    [difference] = [each for each in found["differences"] if each["table"] == table]
    assert column in difference["columns"]
    assert difference["key"]
    assert difference["live"] != difference["replayed"]
    put_back(lived, table, kept)


def put_back(plane: RunningPlane, table: str, kept: list[str]) -> None:
    with psycopg.connect(plane.database.admin_dsn) as conn:
        conn.execute(f"delete from {table}")
        for row in kept:
            conn.execute(
                f"insert into {table} select * from jsonb_populate_record(null::{table}, %s::jsonb)", [row]
            )


def test_a_verification_that_nobody_asked_for_is_unknown(running_plane: RunningPlane) -> None:
    for name in ("7", "00000000-0000-0000-0000-000000000000"):
        answer = running_plane.client().get(f"/verifications/{name}")
        assert answer.status_code == 404
        assert answer.json()["reasons"][0]["code"] == "unknown_verification"
