"""Tests of the refusal of a request for which no node is suitable: the code and the message of the refusal follow from
the reasons why the nodes are not suitable.
"""

import pytest

from control_plane.decisions.placing.explanation import Group, not_admitted, ordered, unplaced
from control_plane.decisions.placing.suitability import Demand
from control_plane.decisions.quotas import NotAdmitted
from control_plane.decisions.refusals import Objection
from deploy.embedded.lab_catalogue import SMALL
from events.values import NodeId, SkuName

SKU = SkuName("h200.one")
DEMAND = Demand(SKU, SMALL, ("none",))
NODE = NodeId("rack-1")


def group(code: str, nodes: int = 1) -> Group:
    return Group(SKU, code, nodes, NODE)


def refusal(*groups: Group, node: NodeId | None = None, cordoned: str | None = None) -> Objection:
    [objection] = unplaced(ordered(groups), DEMAND, 1, node, cordoned).objections
    return objection


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("no_slots", "no_suitable_slot"),
        ("too_few_slots", "no_suitable_slot"),
        ("other_fabric", "no_suitable_slot"),
        ("fabric_down", "no_healthy_slot"),
        ("image_missing", "no_healthy_slot"),
        ("registered", "no_healthy_slot"),
        ("slots_blocked", "no_healthy_slot"),
        ("bridge.absent", "no_healthy_slot"),
        ("no_free_slot", "no_capacity"),
        ("kept_for_waiting", "no_capacity"),
        ("suitable", "no_capacity"),
        ("simulated", "only_simulated_nodes"),
        ("no_public_address", "no_public_address"),
    ],
)
def test_code_of_a_placement_refusal_states_what_the_nodes_closest_to_suitable_lack(
    code: str, expected: str
) -> None:
    assert refusal(group("no_slots", 3), group(code)).code == expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("unreachable", "node_blocked"),
        ("cordoned", "node_blocked"),
        ("image_missing", "no_healthy_slot"),
        ("fabric_down", "no_healthy_slot"),
        ("no_free_slot", "no_capacity"),
    ],
)
def test_code_of_a_refusal_for_a_named_node_is_node_blocked_only_if_the_node_itself_is_blocked(
    code: str, expected: str
) -> None:
    assert refusal(group(code), node=NODE).code == expected


def test_message_of_a_placement_refusal_describes_the_reason_of_each_group_of_nodes() -> None:
    message = refusal(group("no_slots"), group("fabric_down", 2), group("bridge.absent")).message
    assert message == (
        "no schedulable node has a free slot of SKU h200.one; 2 nodes: the fabric ports of suitable slots carry no"
        " traffic; node rack-1: blocked by the drift bridge.absent; node rack-1: no slots"
    )


def test_message_of_a_placement_refusal_does_not_call_a_node_suitable() -> None:
    message = refusal(group("suitable")).message
    assert message.endswith("node rack-1: slots became free during the search; send the request again")


def test_message_of_a_placement_refusal_counts_the_nodes_of_groups_that_it_does_not_describe() -> None:
    drift = [group(f"drift.{number}") for number in range(9)]
    assert refusal(*drift).message.endswith("; 1 node: other reasons")
    assert refusal(*drift, group("missing")).message.endswith("; 2 nodes: other reasons")


def test_refusal_of_a_blocked_node_names_the_reason_in_words() -> None:
    assert refusal(group("bring_ups_failed"), node=NODE).message.startswith(
        "nothing is placed on node rack-1 now (excluded after failed bring-ups); "
    )
    assert "(cordoned: new fans)" in refusal(group("cordoned"), node=NODE, cordoned="new fans").message


def test_suitable_nodes_of_a_sku_that_is_not_permitted_have_the_code_of_the_refusal() -> None:
    refused = NotAdmitted([Objection("price_too_high", "too expensive", "/sku")])
    groups = not_admitted([group("suitable", 2), group("no_slots")], refused)
    assert [(each.code, each.nodes) for each in groups] == [("price_too_high", 2), ("no_slots", 1)]
