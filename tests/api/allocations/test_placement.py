"""The explanation of a placement that was made equals the preview just before it, whatever happened since (ALC-6)."""

from random import Random
from typing import Any, Final

import pytest

from control_plane.commands import past_placements
from tests.api.broken_nodes import Node, accepted_allocation, codes, keep_nodes_reachable
from tests.api.node import KEY, admit
from tests.servers.plane import RunningPlane
from tests.torture import count, seed
from tests.waiting import until

DB: Final = {"role": "db"}
MOST_NODES: Final = 6
MOST_SLOTS: Final = 3


@pytest.fixture
def plane(emptied_plane: RunningPlane) -> RunningPlane:
    return emptied_plane


def previewed(plane: RunningPlane, **fields: object) -> list[dict[str, Any]]:
    keep_nodes_reachable(plane)
    body = {"sku": "lab.small", "ssh_authorized_keys": [KEY], **fields}
    with plane.client() as client:
        answer = client.post("/placements/preview", json=body)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["groups"])


def explained(plane: RunningPlane, allocation: dict[str, Any]) -> dict[str, Any]:
    with plane.client() as client:
        answer = client.get(f"/allocations/{allocation['id']}/placement")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def post(plane: RunningPlane, path: str, **body: object) -> bool:
    with plane.client() as client:
        return client.post(path, json=body or None).is_success


def test_explanation_of_a_placement_has_its_slots_and_counts_each_node_in_its_state_before_the_placement(
    plane: RunningPlane,
) -> None:
    for name, slots in (("n1", 1), ("n2", 2), ("n3", 1)):
        admit(plane, name, slots)
    assert post(plane, "/nodes/n3/cordon", reason="test")
    before = previewed(plane)
    made = accepted_allocation(plane)

    assert post(plane, "/nodes/n3/uncordon", reason="test")
    assert post(plane, "/nodes/n2/cordon", reason="test")
    accepted_allocation(plane)
    admit(plane, "n4", 2)

    found = explained(plane, made)
    assert (found["slots"], found["sku"], found["attempt"], found["order"]) == (
        ["n1/0"],
        "lab.small",
        1,
        "pack",
    )
    assert found["groups"] == before
    assert {(each["code"], each["nodes"]) for each in before} == {("suitable", 2), ("cordoned", 1)}


def test_explanation_of_a_replacement_after_a_failed_start_does_not_count_the_failed_node(
    plane: RunningPlane,
) -> None:
    first = Node(plane, "n1", slots=1)
    admit(plane, "n2", 2)
    made = accepted_allocation(plane)
    first.report_failed(made)
    until(lambda: explained(plane, made)["attempt"] == 2, "the allocation is placed again")

    found = explained(plane, made)

    assert found["slots"] == ["n2/0"]
    assert [(each["code"], each["nodes"], each["example"]) for each in found["groups"]] == [
        ("suitable", 1, "n2")
    ]


def test_explanation_of_a_placement_apart_from_a_label_has_the_nodes_that_had_the_label_at_that_time(
    plane: RunningPlane,
) -> None:
    node = Node(plane, "n1", slots=3)
    admit(plane, "n2", 3)
    first = accepted_allocation(plane, labels=DB)
    apart = {"labels": DB, "apart_from": DB}
    before = previewed(plane, **apart)
    second = accepted_allocation(plane, **apart)
    with plane.client() as client:
        assert client.delete(f"/allocations/{first['id']}").is_success
    node.report_removed(first)

    assert explained(plane, second)["groups"] == before
    assert {each["code"] for each in before} == {"suitable", "not_apart"}


def test_explanation_of_a_placement_is_refused_if_too_many_slots_have_changed_since_the_placement(
    plane: RunningPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(plane, "n1", 4)
    first, *_ = [accepted_allocation(plane) for _ in range(4)]
    assert explained(plane, first)["slots"] == ["n1/0"]
    # At least the three slots that were claimed later have changed.
    monkeypatch.setattr(past_placements, "MOST_CHANGED", 2)
    with plane.client() as client:
        assert codes(client.get(f"/allocations/{first['id']}/placement")) == ["placement_too_old"]


class RandomHistory:
    """Random changes of nodes, slots and allocations. `expected` has each created allocation with the preview just
    before it.
    """

    def __init__(self, plane: RunningPlane) -> None:
        self.plane, self.random = plane, Random(seed())
        self.expected: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        self._nodes: list[Node] = []
        self._live: list[dict[str, Any]] = []
        self._add_node()

    def change(self) -> None:
        creates, changes = [self._create] * 3, [self._release, self._change_node, self._change_slot]
        self.random.choice([*creates, *changes, self._add_node])()

    def _add_node(self) -> None:
        if len(self._nodes) < MOST_NODES:
            slots = self.random.randint(1, MOST_SLOTS)
            self._nodes.append(Node(self.plane, f"n{len(self._nodes)}", slots))

    def _create(self) -> None:
        labels = self.random.choice(({}, DB))
        apart = self.random.choice(({}, {}, DB))
        wanted = {"slot_count": self.random.randint(1, 2), "labels": labels, "apart_from": apart}
        before = previewed(self.plane, **wanted)
        if any(each["code"] == "suitable" for each in before):
            self._live.append(accepted_allocation(self.plane, **wanted))
            self.expected.append((self._live[-1], before))

    def _release(self) -> None:
        if self._live:
            released = self._live.pop(self.random.randrange(len(self._live)))
            with self.plane.client() as client:
                assert client.delete(f"/allocations/{released['id']}").is_success
            if self.random.random() < 0.7:
                [node] = [each for each in self._nodes if each.name == released["slots"][0]["node_id"]]
                node.report_removed(released)

    def _change_node(self) -> None:
        action = self.random.choice(("cordon", "uncordon"))
        post(self.plane, f"/nodes/{self.random.choice(self._nodes).name}/{action}", reason="test")

    def _change_slot(self) -> None:
        name, index = self.random.choice(self._nodes).name, self.random.randrange(MOST_SLOTS)
        if not post(self.plane, f"/nodes/{name}/slots/{index}/retire", reason="test"):
            post(self.plane, f"/nodes/{name}/slots/{index}/approve")


def test_explanations_of_placements_in_a_random_history_equal_the_previews_before_them(
    plane: RunningPlane,
) -> None:
    history = RandomHistory(plane)
    for _ in range(count(400, 10)):
        history.change()
    assert history.expected != []
    for made, before in history.expected:
        found = explained(plane, made)
        assert found["groups"] == before, f"the placement of {found['slots']} after {found['position']}"
        assert found["slots"] == [each["slot_id"] for each in made["slots"]]
