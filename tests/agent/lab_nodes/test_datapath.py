"""Start of an agent on a host that does not support the configured Open vSwitch datapath type, and after a change of
the type.
"""

import json

import pytest

from node_agent.lab.lab import Lab
from tasks.reports import NodeSurveyed
from tests.agent.control_plane import FakeControlPlane
from tests.agent.eventually import eventually
from tests.agent.real_node import RealNode, guest_images, node_queue, real_node

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(120)]
BOOT = 60.0
MODULE = "kernel module openvswitch, for datapath type system"
# State after a start without the kernel module: OVS stores a bridge that it cannot create.
INCOMPLETE_BRIDGE = (
    "ovs-vsctl --no-wait add-br br-slice -- set bridge br-slice datapath_type=system fail_mode=secure"
)


def newest_survey_report(plane: FakeControlPlane) -> NodeSurveyed | None:
    last = [report.body for report in plane.reports if isinstance(report.body, NodeSurveyed)]
    return last[-1] if last else None


def test_agent_on_a_host_without_the_ovs_kernel_module_reports_it_missing_until_the_datapath_type_is_netdev(
    lab: Lab, plane: FakeControlPlane
) -> None:
    # Imported here: the packages of the host drivers are optional, and these tests are collected without them.
    from node_agent.drivers.network.ovs import has_kernel_datapath

    with (
        node_queue(lab, plane),
        real_node(
            lab,
            plane,
            guest_images(),
            lambda settings: settings.model_copy(update={"datapath_type": "system"}),
        ) as node,
    ):
        node.do("ovs-vsctl --if-exists del-br br-slice")
        node.start()
        missing = () if has_kernel_datapath() else (MODULE,)
        eventually(lambda: _is_missing(plane, missing), BOOT, node.log)
        node.lab.stop_daemon("agent")

        node.do(f"ovs-vsctl --if-exists del-br br-slice; {INCOMPLETE_BRIDGE}")
        _set_datapath_type(node, "netdev")
        node.start()
        eventually(lambda: _is_missing(plane, ()) and _bridge_exists(node), BOOT, node.log)
        eventually(
            lambda: (now := newest_survey_report(plane)) is not None and now.drift == (), BOOT, node.log
        )
        assert node.log().count('"event": "host_unreadable"') <= 1


def _is_missing(plane: FakeControlPlane, missing: tuple[str, ...]) -> bool:
    now = newest_survey_report(plane)
    return now is not None and now.missing == missing


def _bridge_exists(node: RealNode) -> bool:
    return node.do("ovs-vsctl --if-exists get bridge br-slice datapath_type").strip() == "netdev"


def _set_datapath_type(node: RealNode, datapath_type: str) -> None:
    settings = json.loads(node.config.read_text())
    node.config.write_text(json.dumps({**settings, "datapath_type": datapath_type}))
