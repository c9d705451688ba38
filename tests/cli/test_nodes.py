"""`sliceplane nodes list` with filters."""

from collections.abc import Callable

import pytest

from tests.cli.control_plane import ScriptedPlane, page
from tests.cli.examples import NODE
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]

FILTERS = {
    ("--state", "unreachable", "--state", "revoked"): "state=unreachable&state=revoked",
    ("--name", "rack-"): "name=rack-",
    ("--cordoned", "--excluded", "--drift"): "cordoned=true&excluded=true&drift=true",
    ("--not-cordoned", "--not-excluded", "--no-drift"): "cordoned=false&excluded=false&drift=false",
    ("--drift", "--at", "position:7"): "drift=true&at=position%3A7",
}


@pytest.mark.parametrize("options", FILTERS)
def test_filters_of_nodes_are_sent_as_query_parameters(
    plane: ScriptedPlane, sliceplane: Run, options: tuple[str, ...]
) -> None:
    plane.script("GET /v1/nodes", page(NODE))
    assert "lab-a" in sliceplane("nodes", "list", *options).out
    assert plane.received[0].path == f"/v1/nodes?{FILTERS[options]}"


def test_list_without_filters_sends_none(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/nodes", page())
    assert "no nodes  > register a node" in sliceplane("nodes", "list").out
    assert plane.received[0].path == "/v1/nodes"


def test_list_in_which_no_node_matches_names_the_command_without_filters(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/nodes", page())
    out = sliceplane("nodes", "list", "--no-drift").out
    assert out.strip() == "no nodes match the filters  > list all nodes: sliceplane nodes list"
