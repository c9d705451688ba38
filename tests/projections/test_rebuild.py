"""Tests that read models are rebuilt beside the live tables, equal the previous tables, and are swapped in (LED-1,
LED-9).
"""

from contextlib import closing
from uuid import uuid4

from tests.api.node import allocate, as_node, batch
from tests.projections.plane_requests import NAMES, caught_up, change, create_history, rebuild, show, verify
from tests.servers.plane import RunningPlane

INLINE = ("node", "slot", "api_key", "project", "catalogue_entry", "service_account", "session")
USAGE = ("usage_request", "usage_price", "usage_lease", "usage_slot")
LISTS = ("allocation", "allocation_label", "story", "project_event", "holding")
TABLES = (*INLINE, *LISTS, "slot_status", "capacity", *USAGE)


def rows(plane: RunningPlane) -> dict[str, list[tuple[object, ...]]]:
    return {table: plane.rows(f"select t::text from read.{table} t order by 1") for table in TABLES}


def report_ready(plane: RunningPlane, allocation: str) -> None:
    """Report the slice of an allocation ready, so that its lease begins."""
    [slot] = plane.client().get(f"/allocations/{allocation}").json()["slots"]
    address = {"address": slot["private_ip"], "port": 22, "banner": "SSH-2.0-x"}
    body = {"kind": "slice.ready", "allocation_id": allocation, "slot_id": slot["slot_id"], **address}
    with closing(as_node(plane, "node-a")) as node:
        assert node.post("/reports", json=batch(str(uuid4()), (1, body))).is_success


def test_rebuilt_read_model_tables_equal_the_previous_live_tables(running_plane: RunningPlane) -> None:
    _, allocation = create_history(running_plane)
    report_ready(running_plane, allocation)
    caught_up(running_plane)
    before = rows(running_plane)
    assert all(before.values()), "the comparison needs non-empty tables"

    rebuild(running_plane, "nodes", "slots", "keys", "projects", "quota_use", "service_accounts", "sessions")

    after = rows(running_plane)
    assert {table: after[table] for table in INLINE} == {table: before[table] for table in INLINE}
    rebuild(running_plane, "allocations", "project_events", "holdings", "capacity", "usage")
    after = rows(running_plane)
    assert all(set(before[table]) <= set(after[table]) for table in TABLES)
    assert verify(running_plane)["state"] == "equal"


def test_rebuild_of_a_read_model_restores_changed_and_deleted_rows(running_plane: RunningPlane) -> None:
    made = create_history(running_plane)
    caught_up(running_plane)
    change(running_plane, "update read.slot set state = 'free', allocation_id = null")
    change(running_plane, "delete from read.story")

    rebuild(running_plane, "slots", "allocations")

    assert verify(running_plane)["state"] == "equal"
    timeline = running_plane.client().get(f"/allocations/{made[1]}/events").json()["items"]
    names = [event["type"] for event in timeline][:3]
    assert names == ["allocation.requested", "allocation.specified", "allocation.placed"]


def test_commands_after_a_rebuild_of_a_read_model_use_the_rebuilt_rows(running_plane: RunningPlane) -> None:
    create_history(running_plane, slots=2)
    rebuild(running_plane, "slots", "nodes")

    assert allocate(running_plane).status_code == 202
    rebuild(running_plane, "slots", "allocations")
    assert allocate(running_plane).status_code == 202
    rebuild(running_plane, "slots")
    assert allocate(running_plane).status_code == 409
    assert verify(running_plane)["state"] == "equal"


def test_read_model_rebuild_requested_twice_finishes_and_the_ledger_names_the_actors_of_request_and_end(
    running_plane: RunningPlane,
) -> None:
    for _ in range(2):
        running_plane.client().post("/projections/holdings/rebuild")
    rebuild(running_plane, "holdings")

    recorded = running_plane.rows(
        "select type, actor from ledger.event where stream_id = 'projection-holdings' order by version"
    )
    assert [type_ for type_, _ in recorded].count("projection.rebuilt") in {1, 2}
    assert recorded[0][0] == "projection.rebuild_requested"
    assert str(recorded[0][1]).startswith("key:")
    assert recorded[1] == ("projection.rebuilt", "process:projector")


def test_read_model_list_of_the_api_shows_every_read_model_with_its_state_and_position(
    running_plane: RunningPlane,
) -> None:
    caught_up(running_plane)
    shown = running_plane.client().get("/projections").json()["items"]

    assert [each["name"] for each in shown] == list(NAMES)
    assert all(each["state"] == "live" and each["stopped"] is None for each in shown)
    assert show(running_plane, "slots")["position"] is None


def test_api_request_for_an_unknown_read_model_returns_404(running_plane: RunningPlane) -> None:
    client = running_plane.client()
    keyed = client.post("/projections/sl%20ot/rebuild", headers={"Idempotency-Key": "k"})
    for answer in (client.get("/projections/slot"), client.post("/projections/slot/rebuild"), keyed):
        assert answer.status_code == 404
        assert answer.json()["reasons"][0]["code"] == "unknown_projection"
