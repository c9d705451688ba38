"""Simulated nodes have no guests: slices are placed there if the deployment allows it or the request names the node."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from control_plane.settings import read_settings
from deploy.embedded.postgres import PostgresServer
from tests.api.node import SLOT, admit, allocate, batch, blocked_by, survey
from tests.servers.plane import RunningPlane, running


@pytest.fixture
def strict_plane(postgres_server: PostgresServer) -> Iterator[RunningPlane]:
    """A deployment that does not place slices on simulated nodes."""
    with running(postgres_server, place_on_simulated_nodes=False) as plane:
        yield plane


def report_slots(node: httpx.Client, number: int, *, simulated: bool) -> None:
    slots = [{**SLOT, "index": index, "network_device": f"slice{index}"} for index in range(number)]
    described = batch(str(uuid4()), (1, survey(slots=slots, simulated=simulated)))
    assert node.post("/reports", json=described).is_success


def refusal(answer: httpx.Response) -> tuple[int, str, str | None]:
    [reason] = answer.json()["reasons"]
    return answer.status_code, reason["code"], reason["field"]


def node_of(made: httpx.Response) -> str:
    assert made.status_code == 202, made.text
    [slot] = made.json()["slots"]
    return str(slot["node_id"])


def test_placement_on_simulated_nodes_is_off_by_default_and_can_be_enabled_by_its_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLICEPLANE_DATABASE_URL", "postgresql+psycopg:///none")
    monkeypatch.setenv("SLICEPLANE_REDIS_URL", "unix:///none")
    assert read_settings().place_on_simulated_nodes is False
    monkeypatch.setenv("SLICEPLANE_PLACE_ON_SIMULATED_NODES", "true")
    assert read_settings().place_on_simulated_nodes is True


def test_request_that_does_not_name_a_node_is_placed_on_real_nodes_only(
    strict_plane: RunningPlane,
) -> None:
    admit(strict_plane, "n1")
    report_slots(admit(strict_plane, "n2"), 1, simulated=False)
    assert blocked_by(strict_plane) == {"n1": "simulated", "n1/0": "simulated", "n2": None, "n2/0": None}

    assert node_of(allocate(strict_plane)) == "n2"

    refused = allocate(strict_plane)
    assert refusal(refused) == (409, "only_simulated_nodes", "/node")
    assert "SLICEPLANE_PLACE_ON_SIMULATED_NODES" in refused.text


def test_request_that_names_a_simulated_node_is_placed_there_and_records_the_name(
    strict_plane: RunningPlane,
) -> None:
    admit(strict_plane, "n1", slots=2)

    assert node_of(allocate(strict_plane, node="n1")) == "n1"

    [(named,)] = strict_plane.rows(
        "select data::json->>'node' from ledger.event where type = 'allocation.requested'"
    )
    assert named == "n1"
    assert refusal(allocate(strict_plane, node="n1", slot_count=2)) == (409, "no_capacity", "/slot_count")


def test_request_that_names_a_node_is_placed_on_this_node_and_not_on_a_fuller_node(
    emptied_plane: RunningPlane,
) -> None:
    admit(emptied_plane, "n1", slots=1)
    admit(emptied_plane, "n2", slots=2)

    assert node_of(allocate(emptied_plane, node="n2")) == "n2"
    assert "node" not in requested_event_data(emptied_plane, allocate(emptied_plane).json()["id"])


def requested_event_data(plane: RunningPlane, allocation: str) -> dict[str, Any]:
    [(fact,)] = plane.rows(
        "select data::json from ledger.event where stream_id = %(stream)s and version = 1",
        stream=f"allocation-{allocation}",
    )
    return dict(fact)


def test_allocation_request_for_a_named_node_that_is_blocked_or_unknown_is_refused_with_the_reason(
    emptied_plane: RunningPlane,
) -> None:
    node = admit(emptied_plane, "n1")
    described = batch(str(uuid4()), (1, survey(missing=["kvm"])))
    assert node.post("/reports", json=described).is_success

    refused = allocate(emptied_plane, node="n1")
    assert refusal(refused) == (409, "node_blocked", "/node")
    assert "the host lacks a prerequisite" in refused.json()["detail"]
    assert refusal(allocate(emptied_plane, node="n9")) == (404, "unknown_node", "/node")
    assert allocate(emptied_plane, node="N 9").status_code == 422


def test_placement_on_a_simulated_node_is_explained_after_the_deployment_has_excluded_such_nodes(
    emptied_plane: RunningPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(emptied_plane, "n1")
    made = allocate(emptied_plane)
    assert node_of(made) == "n1"
    monkeypatch.setattr(emptied_plane.settings, "place_on_simulated_nodes", False)
    assert refusal(allocate(emptied_plane))[0] == 409

    explained = emptied_plane.client().get(f"/allocations/{made.json()['id']}/placement").json()

    assert [(each["code"], each["nodes"]) for each in explained["groups"]] == [("suitable", 1)]
