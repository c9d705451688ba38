"""Acceptance and execution of orders: fence token, stored order, host changes, report (TSK-4, ALC-9, ALC-11)."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from events.values import Ipv4Address, Ipv4Subnet, SlotIndex
from node_agent.aspects.gateway import NodeNetwork
from node_agent.host.drift import Drifts
from node_agent.host.slices import HostRefused, ImageUnusable
from node_agent.runtime.clock import NodeClock
from node_agent.slots import converge, slice_removal, slice_start, slice_stop
from node_agent.slots.accept import Acceptance
from node_agent.slots.fence import FenceFiles
from node_agent.slots.outcomes import Outcomes
from node_agent.slots.slot_work import SlotWork
from node_agent.slots.slots import Slots
from node_agent.transport.reporter import Reporter
from node_agent.transport.spool import Spool
from node_agent.transport.trust import proved_by
from tasks.orders import ApplySlice, Order
from tasks.reports import (
    DriftRepaired,
    OrderRefused,
    ReportBody,
    SliceAddress,
    SliceFailed,
    SliceIngressObserved,
    SliceInterrupted,
    SliceNotRemoved,
    SliceReady,
    SliceRemoved,
    SliceStopped,
)
from tests.agent.eventually import eventually
from tests.agent.orders import NODE, apply, remove, ssh_ingress, stop
from tests.agent.task_signing import sealed, trust
from tests.agent.toy_host import REMOVAL_STEPS, STEPS, Toy

NETWORK = NodeNetwork(
    bridge="br-slice",
    subnet=Ipv4Subnet("10.100.1.0/24"),
    gateway=Ipv4Address("10.100.1.1"),
    uplink="uplink0",
    datapath_type="netdev",
)
CREATION_STEPS = [steps[0] for steps in STEPS.values()]


@dataclass
class Node:
    """Agent core of one node on a toy host; `restarted` returns it as it is after a restart of the agent process."""

    folder: Path
    toy: Toy

    def __post_init__(self) -> None:
        self.spool = Spool(self.folder / "spool")
        self.files = FenceFiles(self.folder / "fence", trust().verify_stored)
        self.survey_requested = threading.Event()
        slots = Slots(NODE, NETWORK, (SlotIndex(0), SlotIndex(1)), self.files, self.survey_requested.set)
        reporter = Reporter(self.spool, NodeClock())
        self.drifts = Drifts(reporter.report, NodeClock().now, lambda: None)
        work = SlotWork(self.toy.host(), Outcomes(reporter), self.drifts)
        self.acceptance = Acceptance(slots, work, reporter)

    def accept(self, *orders: Order) -> None:
        for order in orders:
            with proved_by(sealed(order)):
                self.acceptance.accept(order)

    def admit(self, order: Order) -> None:
        with proved_by(sealed(order)):
            self.acceptance.admit(order)

    def begin(self, order: Order) -> threading.Thread:
        thread = threading.Thread(target=self.accept, args=(order,), daemon=True)
        thread.start()
        return thread

    def survey(self) -> None:
        due, _ = self.acceptance.due()
        for slot in due:
            self.acceptance.reconcile_slot(slot)

    def restarted(self) -> "Node":
        return Node(self.folder, self.toy)

    def reports(self) -> list[ReportBody]:
        return [report.body for report in self.spool._waiting]

    def kinds(self) -> list[str]:
        return [body.kind.partition(".")[2] for body in self.reports()]


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def node(tmp_path: Path, toy: Toy) -> Node:
    return Node(tmp_path, toy)


def test_applied_slice_is_created_step_by_step_and_reported_ready(node: Node, toy: Toy) -> None:
    node.accept(apply())
    assert toy.done == CREATION_STEPS
    assert node.kinds() == ["starting", "address", "ready"]
    ready = node.reports()[-1]
    assert isinstance(ready, SliceReady)
    assert (ready.address, ready.port, ready.banner) == ("10.100.1.10", 22, "SSH-2.0-toy")
    address = node.reports()[1]
    assert isinstance(address, SliceAddress)
    assert (address.expected_ip, address.actual_ip, address.lease_state) == (
        "10.100.1.10",
        "10.100.1.10",
        "bound",
    )


def test_removed_slice_loses_its_nat_rules_first_and_the_absence_of_the_slice_is_verified(
    node: Node, toy: Toy
) -> None:
    node.accept(apply(), remove())
    assert toy.done == [*CREATION_STEPS, *REMOVAL_STEPS]
    removed = node.reports()[-1]
    assert isinstance(removed, SliceRemoved)
    assert removed.absent == tuple(STEPS)


def test_ingress_rules_added_to_a_ready_slice_are_reported_lost_until_all_of_them_are_in_place(
    node: Node, toy: Toy
) -> None:
    bad, good = ssh_ingress(20022), ssh_ingress(20023)
    toy.reverted_ingress = {bad.ingress_id}
    node.accept(apply(7), apply(8, ingress=(bad, good)))
    node.survey()
    assert [each.lost for each in node.reports() if isinstance(each, SliceIngressObserved)] == [
        (bad.ingress_id,)
    ]
    assert node.kinds().count("ready") == 1
    toy.reverted_ingress = set()
    node.survey()
    assert [each.lost for each in node.reports() if isinstance(each, SliceIngressObserved)] == [
        (bad.ingress_id,),
        (),
    ]
    assert node.kinds().count("ready") == 2


def test_report_of_a_lost_ingress_states_whether_foreign_rules_may_lead_to_the_slice(
    node: Node, toy: Toy
) -> None:
    bad, gone = ssh_ingress(20022), ssh_ingress(20023)
    toy.reverted_ingress, toy.foreign_rule = {bad.ingress_id}, "rules of the ingress that was removed"
    node.accept(apply(7, ingress=(bad, gone)), apply(8, ingress=(bad,)))
    node.survey()
    toy.foreign_rule = ""
    node.survey()
    observed = [(each.lost, each.others) for each in node.reports() if isinstance(each, SliceIngressObserved)]
    assert observed == [((bad.ingress_id,), True), ((bad.ingress_id,), False)]


def test_stopped_slice_loses_its_nat_rules_first_and_keeps_its_dhcp_reservation(node: Node, toy: Toy) -> None:
    node.accept(apply(), stop())
    assert toy.done[len(CREATION_STEPS) :] == [
        "translation.delete_rules",
        "machine.shut_down",
        "port.delete",
        "link.delete",
    ]
    assert toy.kinds() == {"lease"}
    assert node.reports()[-1] == SliceStopped(
        slot_id=stop().slot_id, allocation_id=stop().allocation_id, forced=False
    )


def test_guest_that_does_not_shut_down_within_the_grace_period_is_destroyed_and_reported_as_forced(
    node: Node, toy: Toy
) -> None:
    toy.ignores_shutdown = True
    node.accept(apply(), stop(grace=0))
    assert toy.done[-3:] == ["machine.destroy", "port.delete", "link.delete"]
    stopped = node.reports()[-1]
    assert isinstance(stopped, SliceStopped)
    assert stopped.forced


def test_stop_of_a_slice_that_leaves_its_ovs_port_reports_the_leftover_and_is_retried_by_the_survey(
    node: Node, toy: Toy
) -> None:
    toy.undeletable = {"port"}
    node.accept(apply(), stop())
    incomplete = node.reports()[-1]
    assert isinstance(incomplete, SliceNotRemoved)
    assert incomplete.leftovers == ("port of slice0",)
    toy.undeletable = set()
    node.survey()
    assert node.kinds()[-1] == "stopped"


def test_machine_and_ovs_port_that_another_program_creates_for_a_stopped_slice_are_removed_as_drift(
    node: Node, toy: Toy
) -> None:
    node.accept(apply(), stop())
    kinds = node.kinds()
    for kind in ("machine", "port"):
        toy.objects[kind, 0] = "foreign"
    node.survey()
    assert toy.kinds() == {"lease"}
    assert node.kinds() == [*kinds, "repaired"]


def test_paused_guest_is_destroyed_at_once_on_stop_and_reported_as_forced(node: Node, toy: Toy) -> None:
    toy.paused = True
    node.accept(apply(), stop(grace=300))
    assert "machine.shut_down" not in toy.done
    stopped = node.reports()[-1]
    assert isinstance(stopped, SliceStopped)
    assert stopped.forced


def test_shutdown_grace_period_of_a_guest_is_not_extended_while_the_host_is_unreadable(
    node: Node, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converge, "_COMPARE_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(slice_stop, "_POLL_SECONDS", 0.01)
    node.accept(apply())
    toy.ignores_shutdown, toy.unreadable = True, {"port"}
    stopping = node.begin(stop(grace=1))
    eventually(lambda: toy.counts()["machine.shut_down"] >= 5, within=3.0)
    toy.unreadable = set()
    stopping.join(10)
    stopped = node.reports()[-1]
    assert isinstance(stopped, SliceStopped)
    assert stopped.forced


def test_forced_stop_is_still_reported_as_forced_after_an_agent_restart(node: Node, toy: Toy) -> None:
    toy.ignores_shutdown, toy.undeletable = True, {"port"}
    node.accept(apply(), stop(grace=0))
    assert node.kinds()[-1] == "removal_incomplete"
    toy.undeletable = set()
    again = node.restarted()
    again.survey()
    stopped = again.reports()[-1]
    assert isinstance(stopped, SliceStopped)
    assert stopped.forced


def test_repeated_stop_order_inspects_the_host_again_and_reports_an_object_created_since_the_first_stop(
    node: Node, toy: Toy
) -> None:
    node.accept(apply(), stop())
    toy.objects["port", 0], toy.undeletable = "foreign", {"port"}
    node.accept(stop())
    assert node.kinds()[-1] == "removal_incomplete"


def test_stopped_slice_gets_back_only_its_dhcp_reservation_after_a_reboot(node: Node, toy: Toy) -> None:
    node.accept(apply(), stop())
    toy.objects.clear()
    toy.done.clear()
    again = node.restarted()
    kinds = again.kinds()
    again.survey()
    assert toy.done == ["lease.reserve"]
    assert again.kinds() == kinds


def test_stopped_slice_starts_when_a_newer_apply_order_arrives(node: Node, toy: Toy) -> None:
    node.accept(apply(7), stop(8), apply(9))
    assert toy.kinds() == {*STEPS}
    assert node.kinds()[-3:] == ["starting", "address", "ready"]


def test_slice_removal_does_not_wait_for_a_guest_that_is_shutting_down(node: Node, toy: Toy) -> None:
    toy.ignores_shutdown = True
    node.accept(apply())
    stopping = node.begin(stop(8, grace=300))
    eventually(lambda: "machine.shut_down" in toy.done)
    node.accept(remove(9))
    stopping.join(10)
    assert not stopping.is_alive()
    assert toy.kinds() == set()
    assert node.kinds()[-1] == "removed"
    assert "stopped" not in node.kinds()


@pytest.mark.parametrize("orders", [[apply()], [remove()], [apply(), stop()], [apply(), remove()]])
def test_order_executed_twice_changes_nothing_and_repeats_its_last_report(
    node: Node, toy: Toy, orders: list[Order]
) -> None:
    node.accept(*orders)
    done, last = list(toy.done), node.reports()[-1]
    node.accept(orders[-1])
    assert toy.done == done
    assert node.reports()[-1] == last
    assert node.kinds().count("starting") <= 1


def test_order_with_an_older_fence_token_is_refused_and_has_no_effect(node: Node, toy: Toy) -> None:
    node.accept(remove(9))
    node.accept(apply(7))
    refused = node.reports()[-1]
    assert isinstance(refused, OrderRefused)
    assert (refused.reason.code, refused.order_id) == ("stale_token", apply(7).order_id)
    assert toy.done == []


def test_order_with_a_newer_epoch_supersedes_an_order_with_a_later_position(node: Node) -> None:
    node.accept(remove(900, epoch=1), apply(7, epoch=2))
    assert node.kinds()[-1] == "ready"


def test_order_with_a_used_fence_token_and_different_content_is_refused(node: Node, toy: Toy) -> None:
    node.accept(apply(7, memory=96))
    done = list(toy.done)
    node.accept(apply(7, memory=128))
    refused = node.reports()[-1]
    assert isinstance(refused, OrderRefused)
    assert refused.reason.code == "conflicting_content"
    assert toy.done == done


def test_order_older_than_the_stored_order_of_its_slot_is_refused_after_an_agent_restart(
    node: Node, toy: Toy
) -> None:
    node.accept(apply(7), remove(9))
    done = list(toy.done)
    again = node.restarted()
    again.accept(apply(7))
    assert again.kinds()[-1] == "refused"
    assert toy.done == done


@pytest.mark.parametrize(
    "foreign_order",
    [
        apply().model_copy(update={"node_id": "lab-b"}),
        apply().model_copy(update={"slot_id": "lab-b/0"}),
        apply(index=5),
    ],
)
def test_order_for_another_node_or_an_unconfigured_slot_is_refused(
    node: Node, toy: Toy, foreign_order: Order
) -> None:
    node.accept(foreign_order)
    refused = node.reports()[-1]
    assert isinstance(refused, OrderRefused)
    assert refused.reason.code == "wrong_node"
    assert toy.done == []


@pytest.mark.parametrize(
    "changed_network",
    [
        {"bridge": "br-uplink"},
        {"subnet": "10.0.0.0/8"},
        {"gateway": "10.100.1.254"},
        {"private_ip": "10.100.2.10"},
        {"private_ip": "10.100.1.1"},
    ],
)
def test_order_with_a_network_different_from_the_nodes_network_is_refused(
    node: Node, toy: Toy, changed_network: dict[str, str]
) -> None:
    order = apply()
    assert isinstance(order.body, ApplySlice)
    moved = order.body.network.model_copy(update=changed_network)
    node.accept(order.model_copy(update={"body": order.body.model_copy(update={"network": moved})}))
    refused = node.reports()[-1]
    assert isinstance(refused, OrderRefused)
    assert refused.reason.code == "wrong_network"
    assert toy.done == []


@pytest.mark.parametrize(
    ("refusal", "code"), [(HostRefused, "step_refused"), (ImageUnusable, "image_unusable")]
)
def test_change_that_the_host_refuses_fails_the_slice_and_is_named_in_the_failure_reason(
    node: Node, toy: Toy, refusal: type[HostRefused], code: str
) -> None:
    toy.refused["port.add"] = refusal
    node.accept(apply())
    failed = node.reports()[-1]
    assert isinstance(failed, SliceFailed)
    assert failed.reason.code == code
    assert failed.reason.message.startswith("port.add: ")
    assert "port.add is refused by the test" in failed.reason.message
    assert toy.done == CREATION_STEPS[:2]


def test_failed_slice_is_not_retried_until_a_newer_order_arrives(node: Node, toy: Toy) -> None:
    toy.refused["port.add"] = HostRefused
    node.accept(apply())
    toy.refused.clear()
    node.survey()
    node.accept(apply())
    assert toy.done == CREATION_STEPS[:2]
    assert node.kinds() == ["starting", "failed", "failed"]
    node.accept(remove())
    assert node.kinds()[-1] == "removed"


def test_apply_order_changes_nothing_on_the_host_while_its_virtual_machines_cannot_be_read(
    node: Node, toy: Toy
) -> None:
    toy.unreadable.add("machine")
    node.accept(apply(deadline=1))
    failed = node.reports()[-1]
    assert isinstance(failed, SliceFailed)
    assert failed.reason.code == "host_unreadable"
    assert toy.done == []


def test_apply_order_waits_until_the_host_becomes_readable(node: Node, toy: Toy) -> None:
    toy.unreadable.add("port")
    work = node.begin(apply())
    eventually(lambda: node.kinds() == ["starting"])
    toy.unreadable.clear()
    work.join(10)
    assert node.kinds()[-1] == "ready"


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda toy: setattr(toy, "silent", True), "not_reachable"),
        (lambda toy: setattr(toy, "lease", "none"), "no_lease"),
        (lambda toy: setattr(toy, "lease", "expired"), "no_lease"),
        (lambda toy: setattr(toy, "lease", "foreign"), "lease_mismatch"),
        (lambda toy: setattr(toy, "address", "10.100.1.77"), "lease_mismatch"),
    ],
)
def test_slice_that_misses_its_deadline_fails_with_the_code_of_the_missing_condition(
    node: Node, toy: Toy, prepare: Callable[[Toy], None], code: str
) -> None:
    prepare(toy)
    node.accept(apply(deadline=1))
    failed = node.reports()[-1]
    assert isinstance(failed, SliceFailed)
    assert failed.reason.code == code


@pytest.mark.parametrize(
    "prepare",
    [
        lambda toy: setattr(toy, "lease", "foreign"),
        lambda toy: setattr(toy, "address", Ipv4Address("10.100.1.77")),
    ],
    ids=["lease-of-another-mac", "lease-of-another-address"],
)
def test_dhcp_lease_different_from_the_reserved_lease_is_open_drift_until_the_slice_is_removed(
    node: Node, toy: Toy, prepare: Callable[[Toy], None]
) -> None:
    prepare(toy)
    node.accept(apply(deadline=1))
    node.survey()
    [open_] = node.drifts.open()
    assert (open_.slot, open_.kind) == (0, "lease.foreign")
    assert open_.desired == "a DHCP lease of 10.100.1.10 to 52:54:00:01:00:00"
    node.accept(remove())
    assert node.kinds()[-1] == "removed"
    assert node.drifts.open() == ()


def test_virtual_machine_that_ends_while_booting_is_started_again(
    node: Node, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_start, "_COMPARE_AGAIN_SECONDS", 0.1)
    toy.silent = True
    work = node.begin(apply())
    eventually(lambda: "machine" in toy.kinds())
    del toy.objects["machine", 0]
    eventually(lambda: toy.counts()["machine.start"] == 2)
    toy.silent = False
    work.join(10)
    assert node.kinds().count("ready") == 1


def test_newer_order_interrupts_the_readiness_wait_of_an_older_order(node: Node, toy: Toy) -> None:
    toy.silent = True
    applying = node.begin(apply(deadline=3600))
    eventually(lambda: toy.kinds() == set(STEPS))
    node.accept(remove())
    applying.join(5)
    assert not applying.is_alive()
    assert toy.objects == {}
    assert "failed" not in node.kinds()
    assert node.kinds()[-1] == "removed"


def test_running_step_of_an_older_order_is_finished_before_a_newer_order_starts(node: Node, toy: Toy) -> None:
    toy.slow["port.add"] = threading.Event()
    applying = node.begin(apply())
    eventually(lambda: "lease.reserve" in toy.done)
    removing = node.begin(remove())
    [slot, _] = node.acceptance.slots
    eventually(lambda: slot._working is not None and slot._working.is_requested)
    toy.slow["port.add"].set()
    applying.join(10)
    removing.join(10)
    assert toy.done == [*CREATION_STEPS[:3], *REMOVAL_STEPS[2:]]
    assert toy.objects == {}


def test_order_delivered_while_it_is_executed_is_not_executed_again(node: Node, toy: Toy) -> None:
    toy.slow["machine.start"] = threading.Event()
    work = node.begin(apply())
    eventually(lambda: "translation.set_rules" in toy.done)
    node.accept(apply())
    toy.slow["machine.start"].set()
    work.join(10)
    assert toy.done == CREATION_STEPS
    assert node.kinds().count("ready") == 1


def test_slice_removal_continues_after_a_step_that_the_host_refuses_and_reports_the_leftovers(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    toy.refused["machine.destroy"] = HostRefused
    node.accept(remove())
    incomplete = node.reports()[-1]
    assert isinstance(incomplete, SliceNotRemoved)
    assert incomplete.leftovers[0] == "machine of slice0"
    assert "machine.destroy is refused by the test" in incomplete.leftovers[1]
    assert toy.kinds() == {"machine"}


def test_object_that_still_exists_after_its_removal_from_the_host_is_reported_as_a_leftover(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    toy.undeletable.add("lease")
    node.accept(remove())
    incomplete = node.reports()[-1]
    assert isinstance(incomplete, SliceNotRemoved)
    assert incomplete.leftovers == ("lease of slice0",)


def test_incomplete_slice_removal_is_retried_by_each_survey_and_reported_once(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.undeletable.add("lease")
    node.accept(remove())
    node.survey()
    assert node.kinds().count("removal_incomplete") == 1, "an unchanged leftover was reported again"
    toy.undeletable.clear()
    node.survey()
    assert node.kinds()[-1] == "removed"


def test_slice_removal_on_an_unreadable_host_is_reported_as_incomplete(
    node: Node, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_removal, "UNREADABLE_TIMEOUT_SECONDS", 0.0)
    toy.unreadable.add("machine")
    node.accept(remove())
    incomplete = node.reports()[-1]
    assert isinstance(incomplete, SliceNotRemoved)
    assert "machine does not answer" in incomplete.leftovers[0]


@pytest.mark.parametrize("order", [remove(), stop(grace=0)], ids=["removed", "stopped"])
def test_nat_rules_of_a_slice_are_removed_although_its_virtual_machine_is_unreadable(
    node: Node, toy: Toy, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_removal, "UNREADABLE_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(slice_stop, "UNREADABLE_TIMEOUT_SECONDS", 0.0)
    node.accept(apply())
    toy.unreadable.add("machine")
    node.accept(order)
    assert toy.done[len(CREATION_STEPS)] == "translation.delete_rules"
    assert toy.kinds() == {*STEPS} - {"translation", *(["machine"] if order == stop(grace=0) else [])}
    assert node.kinds()[-1] == "removal_incomplete"


def test_survey_of_a_slot_in_its_desired_state_changes_nothing_and_sends_no_report(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    done, reports = list(toy.done), node.reports()
    node.survey()
    assert (toy.done, node.reports()) == (done, reports)


def test_survey_of_a_slice_without_its_ovs_port_adds_the_port_and_changes_nothing_else(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    kinds = node.kinds()
    del toy.objects["port", 0]
    node.survey()
    assert toy.done == [*CREATION_STEPS, "port.add"]
    assert node.kinds() == [*kinds, "repaired"]


def test_repair_that_the_host_refuses_does_not_prevent_other_repairs(node: Node, toy: Toy) -> None:
    node.accept(apply())
    for kind in ("lease", "port"):
        del toy.objects[kind, 0]
    toy.refused = {"lease.reserve": HostRefused}
    node.survey()
    assert toy.done == [*CREATION_STEPS, "port.add"]
    toy.refused = {}
    node.survey()
    assert toy.done == [*CREATION_STEPS, "port.add", "lease.reserve"]


@pytest.mark.parametrize("then", [apply(7), apply(8, ingress=(ssh_ingress(),))], ids=["again", "changed"])
def test_guest_that_ends_during_a_repair_is_reported_interrupted_before_it_is_ready_again(
    node: Node, toy: Toy, then: Order
) -> None:
    node.accept(apply(7))
    before = len(node.kinds())
    del toy.objects["lease", 0]
    toy.before_second_read = lambda: toy.objects.pop(("machine", 0), None)
    node.accept(then)
    reported = [each for each in node.kinds()[before:] if each != "address"]
    assert reported == ["interrupted", "starting", "ready"]


def test_ovs_port_that_vanishes_while_a_dhcp_reservation_is_repaired_is_repaired_and_reported(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    del toy.objects["lease", 0]
    toy.before_second_read = lambda: toy.objects.pop(("port", 0), None)
    node.survey()
    assert toy.done == [*CREATION_STEPS, "lease.reserve", "port.add"]
    repaired = [
        each.kind for body in node.reports() if isinstance(body, DriftRepaired) for each in body.drift
    ]
    assert repaired == ["port.absent"]


def test_survey_that_skips_a_busy_slot_is_requested_again_when_the_slot_becomes_free(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    del toy.objects["port", 0]
    toy.slow["port.add"] = threading.Event()
    toy.begun.clear()
    repairing = threading.Thread(target=node.survey, daemon=True)
    repairing.start()
    toy.begun.wait(10)
    del toy.objects["lease", 0]
    node.survey()
    assert not node.survey_requested.is_set()
    toy.slow["port.add"].set()
    repairing.join(10)
    assert node.survey_requested.is_set()
    node.survey_requested.clear()
    node.survey()
    assert ("lease", 0) in toy.objects
    assert not node.survey_requested.is_set()


def test_slice_with_an_exited_virtual_machine_is_reported_interrupted_and_started_again(
    node: Node, toy: Toy
) -> None:
    node.accept(apply())
    del toy.objects["machine", 0]
    node.survey()
    assert node.kinds()[3:] == ["interrupted", "starting", "ready"]
    interrupted = node.reports()[3]
    assert isinstance(interrupted, SliceInterrupted)
    assert interrupted.reason.code == "machine_not_running"
    assert "it or its host stopped" in interrupted.reason.message


def test_slice_is_restored_after_a_reboot_without_the_control_plane(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.objects.clear()
    again = node.restarted()
    again.survey()
    assert again.kinds()[3:] == ["interrupted", "starting", "ready", "repaired"]
    assert toy.done == CREATION_STEPS * 2


def test_agent_restart_changes_nothing_of_a_running_slice(node: Node, toy: Toy) -> None:
    node.accept(apply())
    again = node.restarted()
    again.survey()
    assert toy.done == CREATION_STEPS
    assert again.kinds() == ["starting", "address", "ready"]


def test_order_that_the_agent_stored_and_did_not_begin_before_its_restart_is_executed_after_the_restart(
    node: Node, toy: Toy
) -> None:
    node.admit(apply())
    again = node.restarted()
    again.survey()
    assert toy.done == CREATION_STEPS
    assert again.kinds() == ["starting", "address", "ready"]


def test_agent_that_shuts_down_leaves_its_slice_and_sends_no_report(node: Node, toy: Toy) -> None:
    toy.silent = True
    work = node.begin(apply(deadline=3600))
    eventually(lambda: toy.kinds() == set(STEPS))
    node.acceptance.close()
    work.join(5)
    assert node.kinds() == ["starting", "address"]
    node.accept(remove())
    assert toy.kinds() == set(STEPS), "an order that arrives during shutdown must wait for the next start"
    again = node.restarted()
    again.survey()
    assert toy.objects == {}


def test_order_for_one_slot_does_not_wait_for_the_work_of_another_slot(node: Node, toy: Toy) -> None:
    toy.silent = True
    work = node.begin(apply(index=0, deadline=3600))
    eventually(lambda: toy.kinds(0) == set(STEPS))
    node.accept(remove(index=1))
    assert node.kinds()[-1] == "removed"
    node.accept(remove(index=0))
    work.join(5)


def test_order_has_no_effect_if_the_agent_cannot_store_it_on_disk_first(
    node: Node, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, *, durable: bool = True) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.files, "write", full)
    with pytest.raises(OSError, match="No space left"):
        node.accept(apply())
    assert toy.done == []


def test_order_that_waits_for_its_busy_slot_stops_waiting_when_a_newer_order_for_this_slot_arrives(
    node: Node, toy: Toy
) -> None:
    slot = next(iter(node.acceptance.slots))
    with slot.working():
        waiting = [node.begin(apply(position, memory=position)) for position in range(96, 101)]
        eventually(lambda: sum(thread.is_alive() for thread in waiting) == 1)
        held = slot.held
        assert held is not None
        assert held.order.token.position == max(range(96, 101))
    for thread in waiting:
        thread.join(10)
    assert toy.done == CREATION_STEPS
