"""Tests of foreign OpenFlow flows on a real OVS bridge: flows that the agent's parser does not support are found, and
removed like all flows that belong to no slot.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from node_agent.lab.lab import Lab, LabNode
from tests.contract.network.conftest import clear
from tests.contract.network.hosts import gateway_of
from tests.contract.network.slices import NETWORK, run

if TYPE_CHECKING:
    from tests.contract.network.lab_host import Real

pytestmark = pytest.mark.node


@pytest.fixture
def node(lab: Lab) -> LabNode:
    return lab.node("lab-a")


@pytest.fixture
def host(node: LabNode) -> Iterator["Real"]:
    from tests.contract.network.lab_host import real_host

    with real_host(node, NETWORK) as host:
        run(gateway_of(host).to_apply())
        yield host
        clear(host)


@pytest.mark.parametrize(("cookie", "shown"), [("cookie=0x77,", "0x77"), ("", "0x0")])
def test_openflow_flow_that_the_agents_parser_does_not_support_is_removed(
    host: "Real", node: LabNode, cookie: str, shown: str
) -> None:
    # The parser does not support `importance`, which exists since OpenFlow 1.4.
    flow = f"{cookie}importance=3,priority=9,actions=drop"
    node.run(["ovs-ofctl", "-O", "OpenFlow14", "add-flow", NETWORK.bridge, flow])
    [remove] = gateway_of(host).to_apply()
    assert remove.repairs is not None
    assert remove.repairs.observed == f"flows with cookie {shown}, no meters"
    assert run(gateway_of(host).to_apply()) == ["gateway.remove_foreign_flows"]
    assert host.switch.flows(NETWORK.bridge) == {}
