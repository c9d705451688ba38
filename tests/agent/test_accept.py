"""The one road of an order: fence, disk, host, report (TSK-4, ALC-9, ALC-11)."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from events.values import Ipv4Address, Ipv4Subnet, SlotIndex
from node_agent import bringing_up, converge, switching_off, taking_down
from node_agent.accept import Acceptance
from node_agent.clock import NodeClock
from node_agent.drift import Drifts
from node_agent.fence import FenceFiles
from node_agent.gateway import NodeNetwork
from node_agent.outcomes import Outcomes
from node_agent.reporter import Reporter
from node_agent.slots import Slots
from node_agent.spool import Spool
from node_agent.trust import proved_by
from node_agent.work import SlotWork
from tasks.orders import ApplySlice, Order
from tasks.reports import (
    DriftMended,
    OrderRefused,
    ReportBody,
    SliceAddress,
    SliceExposed,
    SliceFailed,
    SliceInterrupted,
    SliceReady,
    SliceRemains,
    SliceRemoved,
    SliceStopped,
)
from tests.agent.eventually import eventually
from tests.agent.orders import NODE, apply, remove, ssh_from_outside, stop
from tests.agent.sealing import sealed, trust
from tests.agent.toy_host import STEPS, TAKING, Toy

NETWORK = NodeNetwork(
    bridge="br-slice",
    subnet=Ipv4Subnet("10.100.1.0/24"),
    gateway=Ipv4Address("10.100.1.1"),
    uplink="uplink0",
    datapath_type="netdev",
)
MAKING = [steps[0] for steps in STEPS.values()]


@dataclass
class Node:
    """A node's core over a toy host; `restarted` is the same node after its process died."""

    folder: Path
    toy: Toy

    def __post_init__(self) -> None:
        self.spool = Spool(self.folder / "spool")
        self.files = FenceFiles(self.folder / "fence", trust().recall)
        self.missed = threading.Event()
        slots = Slots(NODE, NETWORK, (SlotIndex(0), SlotIndex(1)), self.files, self.missed.set)
        reporter = Reporter(self.spool, NodeClock())
        self.drifts = Drifts(reporter.tell, NodeClock().now, lambda: None)
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
            self.acceptance.look_after(slot)

    def restarted(self) -> "Node":
        return Node(self.folder, self.toy)

    def told(self) -> list[ReportBody]:
        return [report.body for report in self.spool._waiting]

    def kinds(self) -> list[str]:
        return [body.kind.partition(".")[2] for body in self.told()]


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def node(tmp_path: Path, toy: Toy) -> Node:
    return Node(tmp_path, toy)


def test_a_slice_is_made_in_order_and_reported_ready(node: Node, toy: Toy) -> None:
    node.accept(apply())
    assert toy.done == MAKING
    assert node.kinds() == ["starting", "address", "ready"]
    ready = node.told()[-1]
    assert isinstance(ready, SliceReady)
    assert (ready.address, ready.port, ready.banner) == ("10.100.1.10", 22, "SSH-2.0-toy")
    address = node.told()[1]
    assert isinstance(address, SliceAddress)
    assert (address.expected_ip, address.actual_ip, address.lease_state) == (
        "10.100.1.10",
        "10.100.1.10",
        "bound",
    )


def test_a_slice_is_closed_first_then_taken_away_backwards_and_its_absence_is_proved(
    node: Node, toy: Toy
) -> None:
    node.accept(apply(), remove())
    assert toy.done == [*MAKING, *TAKING]
    removed = node.told()[-1]
    assert isinstance(removed, SliceRemoved)
    assert removed.absent == tuple(STEPS)


def test_of_ways_in_that_came_later_the_lost_are_said_until_all_lead_to_the_slice(
    node: Node, toy: Toy
) -> None:
    bad, good = ssh_from_outside(20022), ssh_from_outside(20023)
    toy.undone = {bad.ingress_id}
    node.accept(apply(7), apply(8, ways=(bad, good)))
    node.survey()
    assert [each.lost for each in node.told() if isinstance(each, SliceExposed)] == [(bad.ingress_id,)]
    assert node.kinds().count("ready") == 1
    toy.undone = set()
    node.survey()
    assert [each.lost for each in node.told() if isinstance(each, SliceExposed)] == [(bad.ingress_id,), ()]
    assert node.kinds().count("ready") == 2


def test_it_is_said_of_a_lost_way_in_whether_others_than_the_orders_may_lead_there(
    node: Node, toy: Toy
) -> None:
    bad, gone = ssh_from_outside(20022), ssh_from_outside(20023)
    toy.undone, toy.strange = {bad.ingress_id}, "rules of the one that was closed"
    node.accept(apply(7, ways=(bad, gone)), apply(8, ways=(bad,)))
    node.survey()
    toy.strange = ""
    node.survey()
    told = [(each.lost, each.others) for each in node.told() if isinstance(each, SliceExposed)]
    assert told == [((bad.ingress_id,), True), ((bad.ingress_id,), False)]


def test_a_slice_is_switched_off_exposure_first_and_keeps_its_reservation(node: Node, toy: Toy) -> None:
    node.accept(apply(), stop())
    assert toy.done[len(MAKING) :] == [
        "translation.delete_rules",
        "machine.shut_down",
        "port.delete",
        "link.delete",
    ]
    assert toy.kinds() == {"lease"}
    assert node.told()[-1] == SliceStopped(
        slot_id=stop().slot_id, allocation_id=stop().allocation_id, forced=False
    )


def test_a_guest_that_does_not_shut_down_in_time_is_cut_off_and_that_is_said(node: Node, toy: Toy) -> None:
    toy.deaf = True
    node.accept(apply(), stop(grace=0))
    assert toy.done[-3:] == ["machine.destroy", "port.delete", "link.delete"]
    stopped = node.told()[-1]
    assert isinstance(stopped, SliceStopped)
    assert stopped.forced


def test_a_stop_that_leaves_something_on_says_what_and_goes_on_trying(node: Node, toy: Toy) -> None:
    toy.sticky = {"port"}
    node.accept(apply(), stop())
    remains = node.told()[-1]
    assert isinstance(remains, SliceRemains)
    assert remains.leftovers == ("port of slice0",)
    toy.sticky = set()
    node.survey()
    assert node.kinds()[-1] == "stopped"


def test_what_is_switched_on_behind_the_agents_back_goes_off_again_as_drift(node: Node, toy: Toy) -> None:
    node.accept(apply(), stop())
    said = node.kinds()
    for kind in ("machine", "port"):
        toy.there[kind, 0] = "somebody's"
    node.survey()
    assert toy.kinds() == {"lease"}
    assert node.kinds() == [*said, "mended"]


def test_a_guest_that_cannot_be_asked_is_cut_off_at_once_and_that_is_said(node: Node, toy: Toy) -> None:
    toy.paused = True
    node.accept(apply(), stop(grace=300))
    assert "machine.shut_down" not in toy.done
    stopped = node.told()[-1]
    assert isinstance(stopped, SliceStopped)
    assert stopped.forced


def test_a_guest_has_its_time_once_however_often_the_host_cannot_be_read(
    node: Node, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converge, "_LOOK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(switching_off, "_LOOK_SECONDS", 0.01)
    node.accept(apply())
    toy.deaf, toy.unreadable = True, {"port"}
    stopping = node.begin(stop(grace=1))
    eventually(lambda: toy.counts()["machine.shut_down"] >= 5, within=3.0)
    toy.unreadable = set()
    stopping.join(10)
    stopped = node.told()[-1]
    assert isinstance(stopped, SliceStopped)
    assert stopped.forced


def test_that_a_guest_was_cut_off_is_known_after_a_restart(node: Node, toy: Toy) -> None:
    toy.deaf, toy.sticky = True, {"port"}
    node.accept(apply(), stop(grace=0))
    assert node.kinds()[-1] == "remains"
    toy.sticky = set()
    again = node.restarted()
    again.survey()
    stopped = again.told()[-1]
    assert isinstance(stopped, SliceStopped)
    assert stopped.forced


def test_a_stop_that_is_asked_about_again_is_proved_again(node: Node, toy: Toy) -> None:
    node.accept(apply(), stop())
    toy.there["port", 0], toy.sticky = "somebody's", {"port"}
    node.accept(stop())
    assert node.kinds()[-1] == "remains"


def test_of_a_stopped_slice_only_its_reservation_comes_back_after_a_reboot(node: Node, toy: Toy) -> None:
    node.accept(apply(), stop())
    toy.there.clear()
    toy.done.clear()
    again = node.restarted()
    said = again.kinds()
    again.survey()
    assert toy.done == ["lease.reserve"]
    assert again.kinds() == said


def test_a_stopped_slice_comes_back_by_a_new_order(node: Node, toy: Toy) -> None:
    node.accept(apply(7), stop(8), apply(9))
    assert toy.kinds() == {*STEPS}
    assert node.kinds()[-3:] == ["starting", "address", "ready"]


def test_a_release_does_not_wait_for_a_guest_that_is_shutting_down(node: Node, toy: Toy) -> None:
    toy.deaf = True
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
def test_an_order_carried_out_twice_changes_nothing_and_says_the_same(
    node: Node, toy: Toy, orders: list[Order]
) -> None:
    node.accept(*orders)
    done, last = list(toy.done), node.told()[-1]
    node.accept(orders[-1])
    assert toy.done == done
    assert node.told()[-1] == last
    assert node.kinds().count("starting") <= 1


def test_an_older_order_is_refused_and_has_no_effect(node: Node, toy: Toy) -> None:
    node.accept(remove(9))
    node.accept(apply(7))
    refused = node.told()[-1]
    assert isinstance(refused, OrderRefused)
    assert (refused.reason.code, refused.order_id) == ("stale_token", apply(7).order_id)
    assert toy.done == []


def test_a_newer_epoch_beats_a_later_position(node: Node) -> None:
    node.accept(remove(900, epoch=1), apply(7, epoch=2))
    assert node.kinds()[-1] == "ready"


def test_the_same_token_with_other_content_is_refused(node: Node, toy: Toy) -> None:
    node.accept(apply(7, memory=96))
    done = list(toy.done)
    node.accept(apply(7, memory=128))
    refused = node.told()[-1]
    assert isinstance(refused, OrderRefused)
    assert refused.reason.code == "conflicting_content"
    assert toy.done == done


def test_the_fence_holds_after_a_restart(node: Node, toy: Toy) -> None:
    node.accept(apply(7), remove(9))
    done = list(toy.done)
    again = node.restarted()
    again.accept(apply(7))
    assert again.kinds()[-1] == "refused"
    assert toy.done == done


@pytest.mark.parametrize(
    "stray",
    [
        apply().model_copy(update={"node_id": "lab-b"}),
        apply().model_copy(update={"slot_id": "lab-b/0"}),
        apply(index=5),
    ],
)
def test_an_order_for_another_node_or_slot_is_refused(node: Node, toy: Toy, stray: Order) -> None:
    node.accept(stray)
    refused = node.told()[-1]
    assert isinstance(refused, OrderRefused)
    assert refused.reason.code == "wrong_node"
    assert toy.done == []


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"bridge": "br-uplink"},
        {"subnet": "10.0.0.0/8"},
        {"gateway": "10.100.1.254"},
        {"private_ip": "10.100.2.10"},
        {"private_ip": "10.100.1.1"},
    ],
)
def test_an_order_for_a_network_that_this_node_does_not_guard_is_refused(
    node: Node, toy: Toy, elsewhere: dict[str, str]
) -> None:
    order = apply()
    assert isinstance(order.body, ApplySlice)
    moved = order.body.network.model_copy(update=elsewhere)
    node.accept(order.model_copy(update={"body": order.body.model_copy(update={"network": moved})}))
    refused = node.told()[-1]
    assert isinstance(refused, OrderRefused)
    assert refused.reason.code == "wrong_network"
    assert toy.done == []


def test_a_refused_step_fails_the_slice_and_names_the_step(node: Node, toy: Toy) -> None:
    toy.refused.add("port.add")
    node.accept(apply())
    failed = node.told()[-1]
    assert isinstance(failed, SliceFailed)
    assert failed.reason.code == "step_refused"
    assert failed.reason.message.startswith("port.add: ")
    assert "no port.add today" in failed.reason.message
    assert toy.done == MAKING[:2]


def test_a_failed_slice_is_left_alone_until_a_new_order(node: Node, toy: Toy) -> None:
    toy.refused.add("port.add")
    node.accept(apply())
    toy.refused.clear()
    node.survey()
    node.accept(apply())
    assert toy.done == MAKING[:2]
    assert node.kinds() == ["starting", "failed", "failed"]
    node.accept(remove())
    assert node.kinds()[-1] == "removed"


def test_nothing_is_touched_unless_everything_can_be_read(node: Node, toy: Toy) -> None:
    toy.unreadable.add("machine")
    node.accept(apply(deadline=1))
    failed = node.told()[-1]
    assert isinstance(failed, SliceFailed)
    assert failed.reason.code == "host_unreadable"
    assert toy.done == []


def test_an_unreadable_host_is_waited_for(node: Node, toy: Toy) -> None:
    toy.unreadable.add("port")
    work = node.begin(apply())
    eventually(lambda: node.kinds() == ["starting"])
    toy.unreadable.clear()
    work.join(10)
    assert node.kinds()[-1] == "ready"


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        (lambda toy: setattr(toy, "silent", True), "not_reachable"),
        (lambda toy: setattr(toy, "lease", "none"), "no_lease"),
        (lambda toy: setattr(toy, "lease", "expired"), "no_lease"),
        (lambda toy: setattr(toy, "lease", "foreign"), "lease_mismatch"),
        (lambda toy: setattr(toy, "address", "10.100.1.77"), "lease_mismatch"),
    ],
)
def test_a_missed_deadline_says_what_was_missing(
    node: Node, toy: Toy, plant: Callable[[Toy], None], code: str
) -> None:
    plant(toy)
    node.accept(apply(deadline=1))
    failed = node.told()[-1]
    assert isinstance(failed, SliceFailed)
    assert failed.reason.code == code


@pytest.mark.parametrize(
    "plant",
    [
        lambda toy: setattr(toy, "lease", "foreign"),
        lambda toy: setattr(toy, "address", Ipv4Address("10.100.1.77")),
    ],
    ids=["another card's lease", "a lease of another address"],
)
def test_another_lease_than_the_reserved_is_open_as_drift_until_the_slice_is_taken_down(
    node: Node, toy: Toy, plant: Callable[[Toy], None]
) -> None:
    plant(toy)
    node.accept(apply(deadline=1))
    node.survey()
    [open_] = node.drifts.open()
    assert (open_.slot, open_.kind) == (0, "lease.foreign")
    assert open_.wanted == "a lease of 10.100.1.10 to 52:54:00:01:00:00"
    node.accept(remove())
    assert node.kinds()[-1] == "removed"
    assert node.drifts.open() == ()


def test_a_machine_that_dies_while_booting_is_started_again(
    node: Node, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bringing_up, "_LOOK_AGAIN_SECONDS", 0.1)
    toy.silent = True
    work = node.begin(apply())
    eventually(lambda: "machine" in toy.kinds())
    del toy.there["machine", 0]
    eventually(lambda: toy.counts()["machine.start"] == 2)
    toy.silent = False
    work.join(10)
    assert node.kinds().count("ready") == 1


def test_a_newer_order_does_not_wait_for_an_older_ones_readiness(node: Node, toy: Toy) -> None:
    toy.silent = True
    applying = node.begin(apply(deadline=3600))
    eventually(lambda: toy.kinds() == set(STEPS))
    node.accept(remove())
    applying.join(5)
    assert not applying.is_alive()
    assert toy.there == {}
    assert "failed" not in node.kinds()
    assert node.kinds()[-1] == "removed"


def test_a_step_that_has_begun_is_finished_before_a_newer_order_acts(node: Node, toy: Toy) -> None:
    toy.slow["port.add"] = threading.Event()
    applying = node.begin(apply())
    eventually(lambda: "lease.reserve" in toy.done)
    removing = node.begin(remove())
    [slot, _] = node.acceptance.slots
    eventually(lambda: slot._working is not None and slot._working.asked)
    toy.slow["port.add"].set()
    applying.join(10)
    removing.join(10)
    assert toy.done == [*MAKING[:3], *TAKING[2:]]
    assert toy.there == {}


def test_an_order_that_is_being_carried_out_is_not_begun_again(node: Node, toy: Toy) -> None:
    toy.slow["machine.start"] = threading.Event()
    work = node.begin(apply())
    eventually(lambda: "translation.set_rules" in toy.done)
    node.accept(apply())
    toy.slow["machine.start"].set()
    work.join(10)
    assert toy.done == MAKING
    assert node.kinds().count("ready") == 1


def test_removal_goes_on_past_a_refusal_and_says_what_remains(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.refused.add("machine.destroy")
    node.accept(remove())
    remains = node.told()[-1]
    assert isinstance(remains, SliceRemains)
    assert remains.leftovers[0] == "machine of slice0"
    assert "no machine.destroy today" in remains.leftovers[1]
    assert toy.kinds() == {"machine"}


def test_what_a_step_claims_to_have_removed_is_looked_for(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.sticky.add("lease")
    node.accept(remove())
    remains = node.told()[-1]
    assert isinstance(remains, SliceRemains)
    assert remains.leftovers == ("lease of slice0",)


def test_a_removal_that_was_not_proved_is_tried_again_by_the_survey(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.sticky.add("lease")
    node.accept(remove())
    node.survey()
    assert node.kinds().count("remains") == 1, "what did not change is not said again"
    toy.sticky.clear()
    node.survey()
    assert node.kinds()[-1] == "removed"


def test_a_removal_on_a_host_that_cannot_be_read_is_not_proved(
    node: Node, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_down, "PATIENCE_SECONDS", 0.0)
    toy.unreadable.add("machine")
    node.accept(remove())
    remains = node.told()[-1]
    assert isinstance(remains, SliceRemains)
    assert "machine does not answer" in remains.leftovers[0]


@pytest.mark.parametrize("order", [remove(), stop(grace=0)], ids=["removed", "stopped"])
def test_a_slice_is_closed_although_nobody_knows_what_becomes_of_its_machine(
    node: Node, toy: Toy, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking_down, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(switching_off, "PATIENCE_SECONDS", 0.0)
    node.accept(apply())
    toy.unreadable.add("machine")
    node.accept(order)
    assert toy.done[len(MAKING)] == "translation.delete_rules"
    assert toy.kinds() == {*STEPS} - {"translation", *(["machine"] if order == stop(grace=0) else [])}
    assert node.kinds()[-1] == "remains"


def test_a_survey_of_an_unchanged_slot_does_and_says_nothing(node: Node, toy: Toy) -> None:
    node.accept(apply())
    done, told = list(toy.done), node.told()
    node.survey()
    assert (toy.done, node.told()) == (done, told)


def test_a_survey_repairs_only_what_differs(node: Node, toy: Toy) -> None:
    node.accept(apply())
    told = node.kinds()
    del toy.there["port", 0]
    node.survey()
    assert toy.done == [*MAKING, "port.add"]
    assert node.kinds() == [*told, "mended"]


def test_what_cannot_be_mended_keeps_nothing_else_from_being_so(node: Node, toy: Toy) -> None:
    node.accept(apply())
    for kind in ("lease", "port"):
        del toy.there[kind, 0]
    toy.refused = {"lease.reserve"}
    node.survey()
    assert toy.done == [*MAKING, "port.add"]
    toy.refused = set()
    node.survey()
    assert toy.done == [*MAKING, "port.add", "lease.reserve"]


@pytest.mark.parametrize("then", [apply(7), apply(8, ways=(ssh_from_outside(),))], ids=["again", "changed"])
def test_a_guest_that_ends_while_something_is_mended_is_said_to_be_interrupted_and_not_ready(
    node: Node, toy: Toy, then: Order
) -> None:
    node.accept(apply(7))
    told = len(node.kinds())
    del toy.there["lease", 0]
    toy.then = lambda: toy.there.pop(("machine", 0), None)
    node.accept(then)
    said = [each for each in node.kinds()[told:] if each != "address"]
    assert said == ["interrupted", "starting", "ready"]


def test_what_vanishes_while_something_else_is_about_to_be_mended_is_told_too(node: Node, toy: Toy) -> None:
    node.accept(apply())
    del toy.there["lease", 0]
    toy.then = lambda: toy.there.pop(("port", 0), None)
    node.survey()
    assert toy.done == [*MAKING, "lease.reserve", "port.add"]
    mended = [each.kind for body in node.told() if isinstance(body, DriftMended) for each in body.drift]
    assert mended == ["port.absent"]


def test_a_survey_that_finds_a_slot_worked_on_is_asked_for_when_that_ends(node: Node, toy: Toy) -> None:
    node.accept(apply())
    del toy.there["port", 0]
    toy.slow["port.add"] = threading.Event()
    toy.begun.clear()
    repairing = threading.Thread(target=node.survey, daemon=True)
    repairing.start()
    toy.begun.wait(10)
    del toy.there["lease", 0]
    node.survey()
    assert not node.missed.is_set()
    toy.slow["port.add"].set()
    repairing.join(10)
    assert node.missed.is_set()
    node.missed.clear()
    node.survey()
    assert ("lease", 0) in toy.there
    assert not node.missed.is_set()


def test_a_slice_found_dead_is_reported_and_brought_up_again(node: Node, toy: Toy) -> None:
    node.accept(apply())
    del toy.there["machine", 0]
    node.survey()
    assert node.kinds()[3:] == ["interrupted", "starting", "ready"]
    interrupted = node.told()[3]
    assert isinstance(interrupted, SliceInterrupted)
    assert interrupted.reason.code == "machine_not_running"
    assert "it or its host went down" in interrupted.reason.message


def test_slices_come_back_after_a_reboot_without_the_control_plane(node: Node, toy: Toy) -> None:
    node.accept(apply())
    toy.there.clear()
    again = node.restarted()
    again.survey()
    assert again.kinds()[3:] == ["interrupted", "starting", "ready", "mended"]
    assert toy.done == MAKING * 2


def test_a_restart_touches_nothing_of_a_slice_that_runs(node: Node, toy: Toy) -> None:
    node.accept(apply())
    again = node.restarted()
    again.survey()
    assert toy.done == MAKING
    assert again.kinds() == ["starting", "address", "ready"]


def test_a_restart_takes_up_what_was_not_finished(node: Node, toy: Toy) -> None:
    node.admit(apply())
    again = node.restarted()
    again.survey()
    assert toy.done == MAKING
    assert again.kinds() == ["starting", "address", "ready"]


def test_an_ending_agent_leaves_the_slice_and_says_nothing(node: Node, toy: Toy) -> None:
    toy.silent = True
    work = node.begin(apply(deadline=3600))
    eventually(lambda: toy.kinds() == set(STEPS))
    node.acceptance.close()
    work.join(5)
    assert node.kinds() == ["starting", "address"]
    node.accept(remove())
    assert toy.kinds() == set(STEPS), "an order taken at the end waits for the next start"
    again = node.restarted()
    again.survey()
    assert toy.there == {}


def test_slots_do_not_wait_for_one_another(node: Node, toy: Toy) -> None:
    toy.silent = True
    work = node.begin(apply(index=0, deadline=3600))
    eventually(lambda: toy.kinds(0) == set(STEPS))
    node.accept(remove(index=1))
    assert node.kinds()[-1] == "removed"
    node.accept(remove(index=0))
    work.join(5)


def test_a_disk_that_refuses_the_fence_stops_the_order_before_its_first_effect(
    node: Node, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, *, durable: bool = True) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.files, "write", full)
    with pytest.raises(OSError, match="No space left"):
        node.accept(apply())
    assert toy.done == []


def test_of_all_orders_that_wait_for_a_slot_only_the_newest_keeps_waiting(node: Node, toy: Toy) -> None:
    slot = next(iter(node.acceptance.slots))
    with slot.working():
        waiting = [node.begin(apply(position, memory=position)) for position in range(96, 101)]
        eventually(lambda: sum(thread.is_alive() for thread in waiting) == 1)
        held = slot.held
        assert held is not None
        assert held.order.token.position == max(range(96, 101))
    for thread in waiting:
        thread.join(10)
    assert toy.done == MAKING
