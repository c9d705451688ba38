"""Read models are rebuilt beside the live ones and swapped in, and equal what they were (LED-1, LED-9)."""

from tests.api.node import allocate
from tests.projections.keeping import NAMES, caught_up, change, rebuild, show, some_life, verify
from tests.servers.plane import RunningPlane

TABLES = ("node", "slot", "api_key", "allocation", "story", "holding")


def rows(plane: RunningPlane) -> dict[str, list[tuple[object, ...]]]:
    return {table: plane.rows(f"select t::text from read.{table} t order by 1") for table in TABLES}


def test_rebuilt_tables_equal_the_live_ones(running_plane: RunningPlane) -> None:
    some_life(running_plane)
    caught_up(running_plane)
    before = rows(running_plane)
    assert all(before.values()), "a comparison of empty tables would prove nothing"

    rebuild(running_plane, "nodes", "slots", "keys")

    after = rows(running_plane)
    assert {table: after[table] for table in ("node", "slot", "api_key")} == {
        table: before[table] for table in ("node", "slot", "api_key")
    }
    rebuild(running_plane, "allocations", "holdings")
    after = rows(running_plane)
    assert all(set(before[table]) <= set(after[table]) for table in TABLES)
    assert verify(running_plane)["state"] == "equal"


def test_a_rebuild_brings_back_what_was_lost(running_plane: RunningPlane) -> None:
    made = some_life(running_plane)
    caught_up(running_plane)
    change(running_plane, "update read.slot set state = 'free', allocation_id = null")
    change(running_plane, "delete from read.story")

    rebuild(running_plane, "slots", "allocations")

    assert verify(running_plane)["state"] == "equal"
    story = running_plane.client().get(f"/allocations/{made[1]}/events").json()["items"]
    assert [event["type"] for event in story][:2] == ["allocation.requested", "allocation.placed"]


def test_commands_go_on_with_the_rebuilt_rows(running_plane: RunningPlane) -> None:
    some_life(running_plane, slots=2)
    rebuild(running_plane, "slots", "nodes")

    assert allocate(running_plane).status_code == 202
    rebuild(running_plane, "slots", "allocations")
    assert allocate(running_plane).status_code == 202
    rebuild(running_plane, "slots")
    assert allocate(running_plane).status_code == 409
    assert verify(running_plane)["state"] == "equal"


def test_a_rebuild_is_an_event_with_its_actor_and_ordered_twice_is_done_once(
    running_plane: RunningPlane,
) -> None:
    for _ in range(2):
        running_plane.client().post("/projections/holdings/rebuild")
    rebuild(running_plane, "holdings")

    told = running_plane.rows(
        "select type, actor from ledger.event where stream_id = 'projection-holdings' order by version"
    )
    assert [type_ for type_, _ in told].count("projection.rebuilt") in {1, 2}
    assert told[0][0] == "projection.rebuild_ordered"
    assert str(told[0][1]).startswith("key:")
    assert told[1] == ("projection.rebuilt", "process:projector")


def test_every_projection_is_shown_with_its_position(running_plane: RunningPlane) -> None:
    caught_up(running_plane)
    shown = running_plane.client().get("/projections").json()["items"]

    assert [each["name"] for each in shown] == list(NAMES)
    assert all(each["state"] == "live" and each["stopped"] is None for each in shown)
    assert show(running_plane, "slots")["position"] is None


def test_a_name_that_is_no_projection_is_unknown(running_plane: RunningPlane) -> None:
    client = running_plane.client()
    keyed = client.post("/projections/sl%20ot/rebuild", headers={"Idempotency-Key": "k"})
    for answer in (client.get("/projections/slot"), client.post("/projections/slot/rebuild"), keyed):
        assert answer.status_code == 404
        assert answer.json()["reasons"][0]["code"] == "unknown_projection"
