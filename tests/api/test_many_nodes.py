"""Hosts that are admitted by the dozen: each gets a subnet of its own, and each slot a MAC of its own."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from pydantic import ValidationError

from control_plane.decisions.slots import derived_macs
from control_plane.settings import Settings
from deploy.embedded.postgres import PostgresServer
from events.values import MacAddress, NodeId, SlotId, SlotIndex, slot_of
from tests.api.node import admit
from tests.api.test_heartbeats import SETTINGS
from tests.servers.plane import RunningPlane, running

TOGETHER = 24


def test_hosts_that_are_admitted_at_the_same_moment_all_are(running_plane: RunningPlane) -> None:
    with running_plane.client() as client, ThreadPoolExecutor(TOGETHER) as at_once:
        names = [f"n{number}" for number in range(2 * TOGETHER)]
        answers = list(at_once.map(lambda name: client.post("/nodes", json={"id": name}), names))
    assert [answer.text for answer in answers if answer.status_code != 201] == []
    assert len({answer.json()["subnet"] for answer in answers}) == len(names)


def test_a_host_alone_gets_the_first_subnet_that_is_free(running_plane: RunningPlane) -> None:
    found = [running_plane.client().post("/nodes", json={"id": name}).json()["subnet"] for name in ("b", "a")]
    assert found == ["10.100.1.0/24", "10.100.2.0/24"]


def test_a_fleet_may_have_more_subnets_and_is_told_when_all_are_taken(
    postgres_server: PostgresServer,
) -> None:
    networks = Settings.model_validate({**SETTINGS, "slice_networks": "10.64.0.0/22"}).slice_networks
    with running(postgres_server, slice_networks=networks) as plane, plane.client() as client:
        answers = [client.post("/nodes", json={"id": f"n{number}"}) for number in range(4)]
    assert [answer.json().get("subnet") for answer in answers[:3]] == [
        f"10.64.{third}.0/24" for third in (1, 2, 3)
    ]
    assert answers[3].json()["reasons"][0]["code"] == "no_subnet"


@pytest.mark.parametrize("networks", ["10.100.0.0/24", "8.0.0.0/8", "10.100.1.0/16", "somewhere"])
def test_networks_that_cannot_be_those_of_slices_are_refused(networks: str) -> None:
    with pytest.raises(ValidationError, match="slice_networks"):
        Settings.model_validate({**SETTINGS, "slice_networks": networks})


def test_slots_that_derive_the_same_mac_get_different_ones(running_plane: RunningPlane) -> None:
    first, second = two_of_one_mac()
    for name in (first, second):
        admit(running_plane, name)
    found = [running_plane.client().get(f"/slots?node={name}").json()["items"][0] for name in (first, second)]
    macs = [derived_macs(slot_of(name, SlotIndex(0))) for name in (first, second)]
    assert [slot["mac_address"] for slot in found] == [macs[0][0], macs[1][1]]


def two_of_one_mac() -> tuple[NodeId, NodeId]:
    """Nodes whose first slots derive the same MAC."""
    seen: dict[MacAddress, NodeId] = {}
    for number in count():
        name = NodeId(f"n{number}")
        mac = derived_macs(SlotId(f"{name}/0"))[0]
        if mac in seen:
            return seen[mac], name
        seen[mac] = name
    raise AssertionError("unreachable")
