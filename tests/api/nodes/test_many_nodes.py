"""Registration of many nodes: each receives its own subnet, and each slot its own MAC."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from pydantic import ValidationError

from control_plane.commands.searching import HOSTS
from control_plane.decisions.fleet.macs import derived_macs
from control_plane.settings import Settings
from deploy.embedded.postgres import PostgresServer
from events.values import MAX_SLOTS, MacAddress, NodeId, SlotId, SlotIndex, slot_of
from read_models import slots
from tests.api.node import BEAT, admit, allocate
from tests.api.nodes.test_heartbeats import SETTINGS
from tests.servers.plane import RunningPlane, running
from tests.waiting import until

CONCURRENT = 24
ALLOCATIONS = 30
READ = "select n_tup_upd, seq_tup_read, idx_tup_fetch from pg_stat_user_tables where relname = 'slot' and schemaname = 'read'"
COLUMNS = ", ".join(column.name for column in slots.slot.columns if column.computed is None)
FLEET = f"""
with made as (
  insert into read.node select (n).* from read.node old
  cross join generate_series(1, 250) as i cross join lateral
    jsonb_populate_record(old, jsonb_build_object('node_id', 'z' || i, 'subnet', 'z' || i)) as n
  returning node_id
), seen as (
  insert into work.node_seen select made.node_id, clock_timestamp(), '1', 0, true from made returning node_id
)
insert into read.slot ({COLUMNS}) select {", ".join(f"s.{each}" for each in COLUMNS.split(", "))} from read.slot old cross join made cross join lateral jsonb_populate_record(
  old,
  jsonb_build_object('node_id', made.node_id, 'slot_id', made.node_id || '/' || old.slot_index)
) as s returning slot_id
"""
"""Adds 250 copies of the existing node and its free slots to the read models. The ledger has no events of them."""
COUNTS = f"""
insert into work.slot_counts
select node_id, class, {", ".join(["count(*)"] * 5)} from read.slot where node_id like 'z%%' group by node_id, class
returning 1
"""
"""Adds the numbers of slots of these nodes."""


def test_nodes_registered_concurrently_all_receive_different_subnets(emptied_plane: RunningPlane) -> None:
    with emptied_plane.client() as client, ThreadPoolExecutor(CONCURRENT) as pool:
        names = [f"n{number}" for number in range(2 * CONCURRENT)]
        answers = list(pool.map(lambda name: client.post("/nodes", json={"id": name}), names))
    assert [answer.text for answer in answers if answer.status_code != 201] == []
    assert len({answer.json()["subnet"] for answer in answers}) == len(names)


def test_registered_node_receives_the_first_free_subnet(emptied_plane: RunningPlane) -> None:
    found = [emptied_plane.client().post("/nodes", json={"id": name}).json()["subnet"] for name in ("b", "a")]
    assert found == ["10.100.1.0/24", "10.100.2.0/24"]


def test_registration_without_a_free_subnet_is_refused(
    postgres_server: PostgresServer,
) -> None:
    networks = Settings.model_validate({**SETTINGS, "slice_networks": "10.64.0.0/22"}).slice_networks
    with running(postgres_server, slice_networks=networks) as plane, plane.client() as client:
        answers = [client.post("/nodes", json={"id": f"n{number}"}) for number in range(4)]
    assert [answer.json().get("subnet") for answer in answers[:3]] == [
        f"10.64.{third}.0/24" for third in (1, 2, 3)
    ]
    assert answers[3].json()["reasons"][0]["code"] == "no_subnet"


def test_concurrent_registrations_use_every_remaining_subnet(
    postgres_server: PostgresServer,
) -> None:
    networks = Settings.model_validate({**SETTINGS, "slice_networks": "10.64.0.0/19"}).slice_networks
    with (
        running(postgres_server, slice_networks=networks) as plane,
        plane.client() as client,
        ThreadPoolExecutor(CONCURRENT) as pool,
    ):
        names = [f"n{number}" for number in range(2 * CONCURRENT)]
        answers = list(pool.map(lambda name: client.post("/nodes", json={"id": name}), names))
    refused = [answer.json()["reasons"][0]["code"] for answer in answers if answer.status_code != 201]
    assert refused == ["no_subnet"] * (len(names) - 31)


@pytest.mark.parametrize("networks", ["10.100.0.0/24", "8.0.0.0/8", "10.100.1.0/16", "somewhere"])
def test_invalid_slice_networks_setting_is_refused(networks: str) -> None:
    with pytest.raises(ValidationError, match="slice_networks"):
        Settings.model_validate({**SETTINGS, "slice_networks": networks})


def test_slots_for_which_the_same_mac_would_be_derived_receive_different_macs(
    emptied_plane: RunningPlane,
) -> None:
    first, second = nodes_with_equal_mac()
    for name in (first, second):
        admit(emptied_plane, name)
    found = [emptied_plane.client().get(f"/slots?node={name}").json()["items"][0] for name in (first, second)]
    macs = [derived_macs(slot_of(name, SlotIndex(0))) for name in (first, second)]
    assert [slot["mac_address"] for slot in found] == [macs[0][0], macs[1][1]]


def test_placement_in_a_large_fleet_reads_a_bounded_number_of_slots(emptied_plane: RunningPlane) -> None:
    node = admit(emptied_plane, "a", slots=ALLOCATIONS)
    assert len(emptied_plane.rows(FLEET)) == 250 * ALLOCATIONS
    assert len(emptied_plane.rows(COUNTS)) == 250
    # Otherwise the server keeps plans with a scan of the whole table, which suit the table before it was filled.
    emptied_plane.rows("analyze read.slot")
    updated, *before = emptied_plane.rows(READ)[0]
    for _ in range(ALLOCATIONS):
        assert node.post("/heartbeat", json=BEAT).is_success
        assert allocate(emptied_plane).is_success
    until(
        lambda: emptied_plane.rows(READ)[0][0] >= updated + ALLOCATIONS,
        "the database server updated its statistics",
        60,
    )
    _, *after = emptied_plane.rows(READ)[0]
    # The slots of the nodes that come first, each once to read it and once to lock it.
    assert sum(after) - sum(before) < ALLOCATIONS * 2 * HOSTS * MAX_SLOTS


def test_placement_between_nodes_with_many_free_slots_picks_the_first_by_name(
    emptied_plane: RunningPlane,
) -> None:
    for node in [admit(emptied_plane, name, slots=40) for name in ("a", "b")]:
        assert node.post("/heartbeat", json=BEAT).is_success
    count = "select sum(free) from work.slot_counts"
    until(lambda: emptied_plane.rows(count) == [(80,)], "the free slots are counted")
    [slot] = allocate(emptied_plane).json()["slots"]
    assert slot["node_id"] == "a"


def test_request_for_every_slot_of_a_free_node_is_placed(emptied_plane: RunningPlane) -> None:
    node = admit(emptied_plane, "a", slots=MAX_SLOTS)
    assert node.post("/heartbeat", json=BEAT).is_success
    made = allocate(emptied_plane, slot_count=MAX_SLOTS)
    assert made.is_success, made.text


def nodes_with_equal_mac() -> tuple[NodeId, NodeId]:
    """Find two node names for which the same MAC is derived for the first slot of each node."""
    seen: dict[MacAddress, NodeId] = {}
    for number in count():
        name = NodeId(f"n{number}")
        mac = derived_macs(SlotId(f"{name}/0"))[0]
        if mac in seen:
            return seen[mac], name
        seen[mac] = name
    raise AssertionError("unreachable")
