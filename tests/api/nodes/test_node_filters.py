"""Filters of the list of nodes, now and at a past position, compared with an independent computation."""

from collections.abc import Iterator, Sequence
from itertools import combinations as combinations_of
from itertools import product
from typing import Any, Final, NamedTuple
from uuid import uuid4

import httpx
import pytest

from control_plane.api.filters import nodes as node_filters
from tests.api.broken_nodes import Node
from tests.api.node import BEAT, SLOT, admit, batch, register_node, survey
from tests.api.nodes.test_drift import drift
from tests.api.nodes.test_exclusions import fail_bring_ups
from tests.api.requests.test_lists import walk
from tests.servers.plane import RunningPlane

Filters = dict[str, Any]


class Facts(NamedTuple):
    """Properties of a node by which the list of nodes can be filtered."""

    name: str
    state: str = "enrolled"
    cordoned: bool = False
    excluded: bool = False
    drift: bool = False


THEN: Final = (
    Facts("lab-1", "registered"),
    Facts("lab-2", drift=True),
    Facts("lab-3"),
    Facts("lab-4", "registered"),
    Facts("old-rack-1", "registered"),
    Facts("rack-1", excluded=True),
    Facts("rack-10", cordoned=True, drift=True),
    Facts("rack-2", drift=True),
)
"""Properties of the nodes at the ledger position of the fixture `fleet`, in the order of their names."""
NOW: Final = (
    Facts("lab-1", "registered"),
    Facts("lab-2", "revoked"),
    Facts("lab-3", "resyncing"),
    Facts("old-rack-1", "registered"),
    Facts("rack-1", cordoned=True, excluded=True),
    Facts("rack-10"),
    Facts("rack-2", "unreachable", drift=True),
    Facts("rack-3", "unreachable", cordoned=True, drift=True),
    Facts("rack-4", "registered"),
)


class Fleet(NamedTuple):
    """A control plane with nodes that have the properties `NOW`, and had the properties `THEN` at `position`."""

    plane: RunningPlane
    position: int


class Described:
    """Node with two slots that describes its open drift."""

    def __init__(self, plane: RunningPlane, name: str) -> None:
        self._client, self._spool, self._sequence = admit(plane, name, slots=2), str(uuid4()), 0

    def describe(self, *open_: dict[str, Any]) -> None:
        self._sequence += 1
        slots = [{**SLOT, "index": index, "network_device": f"slice{index}"} for index in range(2)]
        report = batch(self._spool, (self._sequence, survey(slots=slots, drift=list(open_))))
        assert self._client.post("/reports", json=report).is_success


@pytest.fixture(scope="module")
def fleet(shared_plane: RunningPlane) -> Fleet:
    plane, reason = shared_plane, {"reason": "a test"}
    # First, because the failed slices are placed on the only node with free slots.
    fail_bring_ups(plane, Node(plane, "rack-1"), 3)
    for name in ("lab-1", "lab-4", "old-rack-1", "gone"):
        register_node(plane, name)
    of_all, of_slot = drift("uplink.lost"), drift("port.absent", 1)
    lab_2, rack_2, rack_10 = (Described(plane, name) for name in ("lab-2", "rack-2", "rack-10"))
    for node, open_ in ((lab_2, of_all), (rack_2, of_slot), (rack_10, of_all)):
        node.describe(open_)
    lab_3 = admit(plane, "lab-3")
    with plane.client() as client:

        def change(path: str, method: str = "POST") -> None:
            body = None if method == "DELETE" else reason
            assert client.request(method, path, json=body).is_success, path

        change("/nodes/gone", "DELETE")
        change("/nodes/rack-10/cordon")
        position = plane.last_position()
        change("/nodes/rack-10/uncordon")
        change("/nodes/rack-1/cordon")
        change("/nodes/lab-2/revoke")
        change("/nodes/lab-4", "DELETE")
        rack_10.describe()
        Described(plane, "rack-3").describe(of_all)
        register_node(plane, "rack-4")
        change("/nodes/rack-3/cordon")
    assert lab_3.post("/heartbeat", json={**BEAT, "resynced": False}).is_success
    plane.rows(
        "update work.node_seen set seen_at = now() + case when node_id in ('rack-2', 'rack-3')"
        " then interval '-1 day' else interval '1 day' end returning 1"
    )
    return Fleet(plane, position)


@pytest.fixture
def client(fleet: Fleet) -> Iterator[httpx.Client]:
    with fleet.plane.client() as made:
        yield made


def matching(nodes: Sequence[Facts], filters: Filters) -> list[str]:
    """Return the names of the nodes that match every filter."""

    def holds(node: Facts, key: str, value: Any) -> bool:
        match key:
            case "state":
                return node.state in value
            case "name":
                return node.name.startswith(value)
            case _:
                return getattr(node, key) is (value == "true")

    return [node.name for node in nodes if all(holds(node, *each) for each in filters.items())]


def combinations(*states: list[str]) -> list[Filters]:
    """Return combinations of filters: none, each filter and each pair of filters with all their values, and all filters
    together.
    """
    truths = ["true", "false"]
    values: dict[str, list[Any]] = {
        "state": [*states],
        "name": ["rack-1"],
        "cordoned": truths,
        "excluded": truths,
        "drift": truths,
    }
    chosen = [keys for count in (0, 1, 2) for keys in combinations_of(values, count)]
    found = [
        dict(zip(keys, each, strict=True))
        for keys in chosen
        for each in product(*(values[key] for key in keys))
    ]
    return [
        *found,
        {"state": states[0], "name": "rack-", "cordoned": "true", "excluded": "false", "drift": "true"},
    ]


def names(client: httpx.Client, parameters: Filters) -> list[str]:
    """Return the names of the nodes in a list of nodes, which must have a single page."""
    answer = client.get("/nodes", params=parameters)
    assert answer.status_code == 200, (parameters, answer.text)
    assert answer.json()["next_cursor"] is None, parameters
    return [each["id"] for each in answer.json()["items"]]


def test_node_list_has_the_nodes_that_match_every_filter(client: httpx.Client) -> None:
    for filters in combinations(["unreachable", "resyncing", "revoked"], ["enrolled"]):
        assert names(client, filters) == matching(NOW, filters), filters


@pytest.mark.parametrize("state", ["registered", "enrolled", "resyncing", "unreachable", "revoked"])
def test_node_list_filtered_by_a_state_has_as_many_nodes_as_the_status_counts_in_this_state(
    client: httpx.Client, state: str
) -> None:
    found = names(client, {"state": state})
    assert found == [each.name for each in NOW if each.state == state]
    assert client.get("/status").json()["nodes"][state] == len(found)


def test_node_list_filtered_by_drift_has_exactly_the_nodes_in_the_list_of_drift(client: httpx.Client) -> None:
    listed = {each["node_id"] for each in client.get("/drift").json()["items"]}
    assert {*names(client, {"drift": "true"})} == listed == {"rack-2", "rack-3"}


def test_node_list_of_a_past_position_has_the_nodes_that_matched_the_filters_at_that_position(
    client: httpx.Client, fleet: Fleet
) -> None:
    for filters in combinations(["enrolled"], ["registered", "revoked"]):
        found = names(client, {**filters, "at": f"position:{fleet.position}"})
        assert found == matching(THEN, filters), filters


@pytest.mark.parametrize("filters", [{"name": "rack-"}, {"drift": "true"}, {"excluded": "false"}])
@pytest.mark.parametrize("limit", [1, 2])
def test_pages_of_a_filtered_node_list_contain_each_node_once_in_both_orders(
    client: httpx.Client, fleet: Fleet, filters: Filters, limit: int
) -> None:
    for at, nodes in (({}, NOW), ({"at": f"position:{fleet.position}"}, THEN)):
        expected = matching(nodes, filters)
        for order, wanted in (("asc", expected), ("desc", expected[::-1])):
            found = walk(client, "/nodes", limit=limit, order=order, **filters, **at)
            assert [each["id"] for each in found] == wanted, (at, order)


def test_page_of_a_filtered_past_node_list_ends_after_the_maximum_of_nodes_read_and_its_cursor_continues(
    client: httpx.Client, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_filters, "MAX_ROWS_READ_WITH_SLOTS", 2)
    parameters: Filters = {"at": f"position:{fleet.position}", "drift": "true", "limit": 2}
    first = client.get("/nodes", params=parameters).json()
    assert ([each["id"] for each in first["items"]], first["next_cursor"]) == ([], "lab-1")
    second = client.get("/nodes", params={**parameters, "cursor": "lab-1"}).json()
    assert ([each["id"] for each in second["items"]], second["next_cursor"]) == (["lab-2"], "lab-3")
    found = [each["id"] for each in walk(client, "/nodes", **parameters)]
    assert found == [each.name for each in THEN if each.drift]


def test_every_invalid_filter_of_the_node_list_is_refused_with_its_reason(client: httpx.Client) -> None:
    wrong = {"state": "gone", "name": "Rack_1", "cordoned": "perhaps", "excluded": "", "drift": "2"}
    refused = client.get("/nodes", params=wrong)
    assert refused.status_code == 422
    reasons = {each["parameter"]: each for each in refused.json()["reasons"]}
    assert reasons.keys() == wrong.keys()
    assert "choose one of 'registered', 'enrolled', 'revoked', 'resyncing'" in reasons["state"]["message"]
    assert "'Rack_1' is not a valid beginning of a node id: use 1 to 31" in reasons["name"]["message"]
    assert "the value must be true or false, not 'perhaps'" in reasons["cordoned"]["message"]


def test_node_list_of_the_past_refuses_filters_by_states_that_depend_on_heartbeats(
    client: httpx.Client, fleet: Fleet
) -> None:
    states = ["unreachable", "enrolled", "resyncing"]
    refused = client.get("/nodes", params={"state": states, "at": f"position:{fleet.position}"})
    assert refused.status_code == 422
    reasons = refused.json()["reasons"]
    assert [(each["code"], each["parameter"]) for each in reasons] == [("invalid_value", "state")] * 2
    assert "state 'resyncing'" in reasons[0]["message"]
    assert "state 'unreachable'" in reasons[1]["message"]


def test_slots_of_several_nodes_are_listed_in_one_request(client: httpx.Client) -> None:
    listed = client.get("/slots", params={"node": ["rack-2", "lab-3"]}).json()["items"]
    assert [each["id"] for each in listed] == ["lab-3/0", "rack-2/0", "rack-2/1"]
    refused = client.get("/slots", params={"node": ["rack-2"] * 51})
    assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (422, "too_long")
