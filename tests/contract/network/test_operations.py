"""Tests of the agent's operations on every kind of host: they are executed, do nothing when they are executed again,
and repair foreign changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from node_agent.aspects.flows import cookie_of
from node_agent.aspects.leases import LeaseAspect
from node_agent.host.host import Host as AgentsHost
from node_agent.host.host import NotYet, Prerequisite
from node_agent.host.pci import PciDevices
from node_agent.packets.rules import Change
from tasks.operations import (
    AddressReport,
    AddressReported,
    DriftReport,
    DriftReported,
    IngressApply,
    IngressApplyResult,
    IngressRemove,
    IngressRemoveResult,
    LeaseApplied,
    LeaseApply,
    NodeVerified,
    Operation,
    OperationResult,
    PortReconcile,
    PortReconciled,
    VnicAttach,
    VnicAttached,
)
from tasks.reports import OperationDone
from tests.agent.entrance import Entrance
from tests.agent.operations import on_slot, verify
from tests.agent.orders import apply, remove
from tests.agent.toy_host import Toy, ToyReachability, no_console
from tests.contract.network.hosts import Host, aspects_of, gateway_of
from tests.contract.network.slices import NETWORK, network

MADE: list[tuple[type, OperationResult]] = [
    (VnicAttach, VnicAttached(steps=("link.add_tap",))),
    (LeaseApply, LeaseApplied(steps=("lease.reserve",))),
    (PortReconcile, PortReconciled(steps=("port.add", "port.set_flows"))),
    (IngressApply, IngressApplyResult(steps=("translation.set_rules",))),
]


@dataclass
class Node:
    """Core of a node agent over a host of the network tests, which runs no virtual machines."""

    entrance: Entrance
    host: Host
    attempts: int = 0

    def result_of(self, kind: type, *, wanted: bool = True) -> OperationResult:
        self.attempts += 1
        return self.done(on_slot(kind, apply() if wanted else remove(), self.attempts))

    def done(self, operation: Operation) -> OperationResult:
        self.entrance.do(operation)
        end = self.entrance.end_of(operation)
        assert isinstance(end, OperationDone), end
        return end.result

    def make(self) -> None:
        for kind, _ in MADE:
            self.result_of(kind)

    def drift(self) -> dict[str, tuple[str, ...]]:
        found = self.result_of(DriftReport)
        assert isinstance(found, DriftReported)
        return {each.aspect: each.steps for each in found.drift}


@pytest.fixture
def node(host: Host, tmp_path: Path) -> Node:
    agents = AgentsHost(
        aspects=aspects_of(host),
        gateway=gateway_of(host),
        observe_address=LeaseAspect(host.leases).observe_address,
        probe=lambda *_: NotYet("there is no guest"),
        reachability=ToyReachability(Toy()),
        images=lambda: ("lab-guest",),
        devices=lambda: (Prerequisite("vf", ok=True, detail="not configured"),),
        absent_devices=lambda: (),
        pci_devices=lambda: PciDevices(()),
        read_device_health=lambda _: (),
        describe_devices=lambda _: {},
        check_machines=lambda: None,
        inspect_machine=lambda _: None,
        serial_log=lambda _slot, _allocation, _most: None,
        delete_expired_logs=lambda: None,
        open_console=no_console,
        open_display=no_console,
        open_ssh=no_console,
        runs=lambda _network: False,
        to_shut_down=lambda _: (),
        start_reading=lambda: None,
        listen=lambda: None,
        close=lambda: None,
    )
    return Node(Entrance(tmp_path, host=agents), host)


def test_four_operations_make_the_network_of_a_slice_and_repeating_them_takes_no_step(node: Node) -> None:
    assert [node.result_of(kind) for kind, _ in MADE] == [result for _, result in MADE]
    assert node.drift() == {}
    again = [node.result_of(kind) for kind, _ in MADE]
    assert again == [result.model_copy(update={"steps": ()}) for _, result in MADE]


def delete_tap(host: Host) -> None:
    host.links.delete_link("slice0")


def delete_port(host: Host) -> None:
    host.switch.delete_port("slice0")


def delete_flows(host: Host) -> None:
    host.switch.set_flows(NETWORK.bridge, cookie_of(network(0).index), frozenset())


def withdraw_reservation(host: Host) -> None:
    for each in host.leases.reservations():
        host.leases.withdraw(each)


def delete_rules(host: Host) -> None:
    removed = tuple(found for found in host.filter.ruleset().rules if found.rule.owner == "slice0")
    host.filter.change(Change(delete=removed))


@pytest.mark.parametrize(
    ("fault", "aspect", "kind"),
    [
        (delete_tap, "link", VnicAttach),
        (delete_port, "port", PortReconcile),
        (delete_flows, "port", PortReconcile),
        (withdraw_reservation, "lease", LeaseApply),
        (delete_rules, "translation", IngressApply),
    ],
)
def test_network_object_deleted_by_another_program_is_reported_as_drift_and_repaired_by_its_operation(
    node: Node, fault: Callable[[Host], None], aspect: str, kind: type
) -> None:
    node.make()
    fault(node.host)
    assert aspect in node.drift()
    node.result_of(kind)
    assert aspect not in node.drift()


def test_ingress_remove_operation_removes_nat_rules_tracked_connections_and_dhcp_reservation_once(
    node: Node,
) -> None:
    node.make()
    node.host.connect(network(0).ip)
    removed = node.result_of(IngressRemove, wanted=False)
    assert isinstance(removed, IngressRemoveResult)
    assert removed.steps == ("translation.delete_rules", "translation.flush_connections", "lease.withdraw")
    assert node.result_of(IngressRemove, wanted=False) == removed.model_copy(update={"steps": ()})


def test_address_report_operation_shows_the_dhcp_lease_state_before_and_after_the_guest_gets_its_address(
    node: Node,
) -> None:
    node.make()
    before = node.result_of(AddressReport)
    assert node.host.lease("slice0", network(0).mac) == network(0).ip
    after = node.result_of(AddressReport)
    assert isinstance(before, AddressReported)
    assert (before.lease_state, before.actual_ip) == ("none", None)
    assert after == before.model_copy(update={"lease_state": "bound", "actual_ip": network(0).ip})


def test_node_with_a_prepared_network_passes_every_check_of_node_verify(node: Node) -> None:
    found = node.done(verify())
    assert isinstance(found, NodeVerified)
    assert [check.name for check in found.checks if not check.ok] == []
    assert {check.name for check in found.checks} >= {"switch", "forwarding", "uplink", "translation", "dhcp"}
