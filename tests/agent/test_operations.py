"""Operations on a node, from the signed payload to the report that ends each (TSK-2, TSK-4, TSK-7)."""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from events.values import SlotIndex
from node_agent.flows import cookie_of
from node_agent.lab.simulated.host import State
from node_agent.links import Tap
from node_agent.slices import HostUnreadable
from tasks.broker import GivenBack
from tasks.catalogue import CREDIT, bounds_of
from tasks.operations import (
    AddressReport,
    AddressReported,
    DriftReport,
    DriftReported,
    ExposureApplied,
    ExposureApply,
    ExposureRemove,
    ExposureRemoved,
    LeaseApplied,
    LeaseApply,
    MachineInspect,
    MachineInspected,
    NodeVerified,
    Operation,
    OperationCancelled,
    PortReconcile,
    PortReconciled,
    ReadinessPoll,
    ReadinessPolled,
    SlotMend,
    VnicAttach,
    VnicAttached,
)
from tasks.orders import Order
from tasks.reports import OperationDone, SliceReady
from tests.agent.entrance import Entrance, copy_of, signed
from tests.agent.eventually import eventually
from tests.agent.operations import LOOKS, MENDS, cancel, on_slot, operation, verify
from tests.agent.orders import apply, network, remove, stop
from tests.agent.toy_host import Toy


@pytest.fixture
def node(tmp_path: Path) -> Entrance:
    """With a slice on its first slot."""
    node = Entrance(tmp_path)
    node.do(apply())
    assert isinstance(node.told()[-1], SliceReady)
    return node


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def toy_node(tmp_path: Path, toy: Toy) -> Entrance:
    """A node whose steps can be held up."""
    node = Entrance(tmp_path, host=toy.host())
    node.do(apply())
    toy.done.clear()
    return node


def result_of(node: Entrance, done: Operation) -> object:
    end = node.end_of(done)
    assert isinstance(end, OperationDone), end
    return end.result


def steps_of(node: Entrance, mended: Operation) -> list[tuple[str, ...]]:
    """What each run of a mend did."""
    done = [end for end in node.ends() if isinstance(end, OperationDone)]
    results = [end.result for end in done if end.operation_id == mended.operation_id]
    mends = (VnicAttached, PortReconciled, LeaseApplied, ExposureApplied)
    return [result.steps for result in results if isinstance(result, mends)]


def begin(node: Entrance, task: Operation) -> threading.Thread:
    thread = threading.Thread(target=node.do, args=(task,), daemon=True)
    thread.start()
    return thread


def await_wait(node: Entrance, *polls: Operation) -> None:
    waited_for = {poll.operation_id for poll in polls}
    eventually(lambda: waited_for <= {task for task, step, *_ in node.steps if step == "readiness.wait"})


def without_tap(state: State) -> None:
    state.taps.clear()


def without_port(state: State) -> None:
    state.ports.clear()


def without_flows(state: State) -> None:
    state.flows = [each for each in state.flows if each.cookie != cookie_of(SlotIndex(0))]


def without_reservation(state: State) -> None:
    state.reservations.clear()


def without_rules(state: State) -> None:
    state.nat = [each for each in state.nat if each.rule.owner != "slice0"]


DAMAGE: list[tuple[type[SlotMend], Callable[[State], None], str, tuple[str, ...]]] = [
    (VnicAttach, without_tap, "link", ("link.add_tap",)),
    (PortReconcile, without_port, "port", ("port.delete_flows", "port.add", "port.set_flows")),
    (PortReconcile, without_flows, "port", ("port.set_flows",)),
    (LeaseApply, without_reservation, "lease", ("lease.reserve",)),
    (ExposureApply, without_rules, "translation", ("translation.set_rules",)),
]


@pytest.mark.parametrize(("kind", "harm", "aspect", "steps"), DAMAGE)
def test_what_was_changed_by_hand_is_named_mended_and_then_as_before(
    node: Entrance, kind: type[SlotMend], harm: Callable[[State], None], aspect: str, steps: tuple[str, ...]
) -> None:
    sound = on_slot(DriftReport)
    node.do(sound)
    assert result_of(node, sound) == DriftReported(drift=())
    with node.simulated.change() as state:
        harm(state)
    harmed = on_slot(DriftReport, attempt=2)
    node.do(harmed)
    drift = result_of(node, harmed)
    assert isinstance(drift, DriftReported)
    assert (aspect, steps) in [(each.aspect, each.steps) for each in drift.drift]
    mended = on_slot(kind)
    node.do(mended)
    assert steps_of(node, mended) == [steps]
    again = on_slot(DriftReport, attempt=3)
    node.do(again)
    assert result_of(node, again) == DriftReported(drift=())


@pytest.mark.parametrize("kind", [*MENDS, *LOOKS])
def test_an_operation_on_a_sound_slot_changes_nothing_however_often(
    node: Entrance, kind: type[SlotMend]
) -> None:
    before = node.snapshot(), node.fences()
    for attempt in (1, 1, 2):
        node.do(on_slot(kind, attempt=attempt))
    assert [end.kind for end in node.ends()] == ["operation.done"] * 3
    assert (node.snapshot(), node.fences()) == before


@pytest.mark.parametrize(("kind", "harm", "aspect", "steps"), DAMAGE)
def test_a_mend_carried_out_twice_changes_nothing_the_second_time(
    node: Entrance, kind: type[SlotMend], harm: Callable[[State], None], aspect: str, steps: tuple[str, ...]
) -> None:
    with node.simulated.change() as state:
        harm(state)
    node.do(on_slot(kind))
    mended = node.snapshot()
    node.do(on_slot(kind))
    assert node.snapshot() == mended
    assert steps_of(node, on_slot(kind)) == [steps, ()]


def test_a_mend_touches_its_own_aspect_alone(node: Entrance) -> None:
    with node.simulated.change() as state:
        without_rules(state)
        without_reservation(state)
    node.do(on_slot(ExposureApply))
    with node.simulated.look() as state:
        assert state.reservations == []


def test_exposure_and_lease_of_a_slot_that_is_to_carry_nothing_are_taken_away_and_proved_gone(
    node: Entrance,
) -> None:
    node.do(on_slot(ExposureRemove), on_slot(ExposureRemove, attempt=2))
    first, second = (result_of(node, on_slot(ExposureRemove, attempt=each)) for each in (1, 2))
    assert isinstance(first, ExposureRemoved)
    assert first.steps == ("translation.delete_rules", "lease.withdraw", "lease.clear")
    assert second == ExposureRemoved(steps=(), absent=("translation", "lease"))
    with node.simulated.look() as state:
        assert (state.reservations, state.leases) == ([], [])
        assert len(state.domains) == 1, "the rest is the removal's own work"


def test_a_wish_that_an_operation_brought_first_is_kept_and_carried_out_by_the_slots_own_work(
    node: Entrance,
) -> None:
    node.do(on_slot(ExposureRemove))
    assert [slot.slot_id for slot in node.handed] == ["lab-a/0"]
    node.settle_slots()
    assert node.told()[-1].kind == "slice.removed"
    with node.simulated.look() as state:
        assert (state.domains, state.taps, state.ports) == ([], [], [])


def test_an_operation_of_a_wish_that_is_held_hands_nothing_to_the_slots_own_work(node: Entrance) -> None:
    node.do(*(on_slot(kind) for kind in (*MENDS, *LOOKS)))
    assert node.handed == []


@pytest.mark.parametrize("kind", [*MENDS, AddressReport, ReadinessPoll])
def test_what_a_slot_that_is_to_carry_nothing_has_not_is_not_wanted(
    node: Entrance, kind: type[SlotMend]
) -> None:
    node.do(remove())
    before = node.snapshot()
    node.do(on_slot(kind, remove()))
    assert node.code_of(on_slot(kind, remove())) == "not_wanted"
    assert node.snapshot() == before


@pytest.mark.parametrize("kind", [*MENDS, AddressReport, ReadinessPoll])
def test_what_a_slice_that_is_to_be_off_has_not_is_not_wanted(node: Entrance, kind: type[SlotMend]) -> None:
    node.do(stop())
    before = node.snapshot()
    node.do(on_slot(kind, stop()))
    assert node.code_of(on_slot(kind, stop())) == "not_wanted"
    assert node.snapshot() == before


def test_a_look_at_a_slice_that_is_off_names_what_was_switched_on(node: Entrance) -> None:
    node.do(stop())
    sound, machine = on_slot(DriftReport, stop()), on_slot(MachineInspect, stop())
    node.do(sound, machine)
    assert result_of(node, sound) == DriftReported(drift=())
    assert result_of(node, machine) == MachineInspected(state="absent")
    with node.simulated.change() as state:
        state.taps.append(Tap("slice0"))
    harmed = on_slot(DriftReport, stop(), attempt=2)
    node.do(harmed)
    drift = result_of(node, harmed)
    assert isinstance(drift, DriftReported)
    assert [(each.aspect, each.steps) for each in drift.drift] == [("link", ("link.delete",))]


@pytest.mark.parametrize("wish", [apply(), stop()])
def test_exposure_and_lease_of_a_slice_that_is_kept_are_not_taken_away(node: Entrance, wish: Order) -> None:
    node.do(wish)
    before = node.snapshot()
    node.do(on_slot(ExposureRemove, wish))
    assert node.code_of(on_slot(ExposureRemove, wish)) == "not_wanted"
    assert node.snapshot() == before


@pytest.mark.parametrize("kind", [*MENDS, *LOOKS])
def test_an_operation_on_a_slot_that_was_told_otherwise_since_is_stale_and_does_nothing(
    node: Entrance, kind: type[SlotMend]
) -> None:
    node.do(remove())
    before = node.snapshot(), node.fences()
    node.do(on_slot(kind))
    assert node.code_of(on_slot(kind)) == "stale_token"
    assert (node.snapshot(), node.fences()) == before
    assert "order.refused" not in [body.kind for body in node.told()], "it is the operation that is refused"


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (apply(memory=128), "conflicting_content"),
        (apply(11, index=7), "wrong_node"),
        (
            apply(11).model_copy(
                update={
                    "body": apply().body.model_copy(
                        update={"network": network().model_copy(update={"bridge": "br-ex"})}
                    )
                }
            ),
            "wrong_network",
        ),
    ],
)
def test_a_wish_that_does_not_pass_the_fence_fails_its_operation_with_that_code(
    node: Entrance, wish: Order, code: str
) -> None:
    before = node.snapshot(), node.fences()
    refused = on_slot(PortReconcile, wish)
    node.do(refused)
    assert node.code_of(refused) == code
    assert (node.snapshot(), node.fences()) == before


def test_an_operation_for_another_node_is_refused(node: Entrance) -> None:
    elsewhere = operation(verify().body, node="lab-b")
    node.do(elsewhere)
    assert node.code_of(elsewhere) == "wrong_node"


def test_a_node_says_what_it_has_and_what_it_lacks(node: Entrance) -> None:
    node.do(verify())
    with node.simulated.change() as state:
        state.forwards, state.uplinks = False, []
    node.do(verify(2))
    found = [result_of(node, verify(attempt)) for attempt in (1, 2)]
    well, ill = ({each.name: each for each in r.checks} for r in found if isinstance(r, NodeVerified))
    assert list(well) == [
        "switch",
        "forwarding",
        "uplink",
        "translation",
        "dhcp",
        "images",
        "vf",
        "bf3",
        "pci",
    ]
    assert all(check.ok for check in well.values())
    assert {well[device].detail for device in ("vf", "bf3", "pci")} == {"not configured"}
    assert [name for name, check in ill.items() if not check.ok] == ["forwarding", "uplink"]
    assert ill["uplink"].detail == "default route by uplink0"


def test_an_address_is_reported_with_the_port_at_which_it_answers(node: Entrance) -> None:
    node.do(on_slot(AddressReport))
    assert result_of(node, on_slot(AddressReport)) == AddressReported(
        mac="52:54:00:01:00:00",
        expected_ip="10.100.1.10",
        actual_ip="10.100.1.10",
        lease_state="bound",
        endpoint_port=22,
    )


def test_a_slice_that_answers_is_polled_as_ready(node: Entrance) -> None:
    node.do(on_slot(ReadinessPoll))
    assert result_of(node, on_slot(ReadinessPoll)) == ReadinessPolled(
        address="10.100.1.10", port=22, banner="SSH-2.0-simulated"
    )


def test_a_slice_that_never_answers_is_polled_until_its_deadline(toy_node: Entrance, toy: Toy) -> None:
    toy.silent = True
    wish = apply(8, deadline=1)
    toy_node.do(on_slot(ReadinessPoll, wish))
    assert toy_node.code_of(on_slot(ReadinessPoll, wish)) == "not_reachable"


def test_a_machine_is_inspected_running_paused_and_gone(node: Entrance) -> None:
    node.do(on_slot(MachineInspect))
    with node.simulated.change() as state:
        state.domains.clear()
    node.do(on_slot(MachineInspect, attempt=2))
    assert result_of(node, on_slot(MachineInspect)) == MachineInspected(
        state="running", vcpus=1, memory_mib=96
    )
    assert result_of(node, on_slot(MachineInspect, attempt=2)) == MachineInspected(state="absent")


def test_a_host_that_cannot_be_read_whole_is_not_mended_in_part(toy_node: Entrance, toy: Toy) -> None:
    toy.there.clear()
    toy.unreadable.add("machine")
    toy_node.do(on_slot(PortReconcile))
    assert toy_node.code_of(on_slot(PortReconcile)) == "host_unreadable"
    assert toy.done == []


def test_a_step_that_the_host_refuses_is_named_in_the_reason(toy_node: Entrance, toy: Toy) -> None:
    toy.there.clear()
    toy.refused.add("port.add")
    toy_node.do(on_slot(PortReconcile))
    end = toy_node.end_of(on_slot(PortReconcile))
    assert end.model_dump()["reason"] == {"code": "step_refused", "message": "port.add: no port.add today"}


def test_steps_are_told_as_they_are_taken(node: Entrance) -> None:
    order, mend = apply(), on_slot(PortReconcile)
    assert [(step, number, of) for task, step, number, of in node.steps if task == order.order_id] == [
        ("link.add_tap", 1, 7),
        ("lease.reserve", 2, 7),
        ("port.add", 3, 7),
        ("port.set_flows", 4, 7),
        ("translation.set_rules", 5, 7),
        ("machine.write_seed", 6, 7),
        ("machine.start", 7, 7),
        ("readiness.wait", 8, None),
    ]
    with node.simulated.change() as state:
        without_port(state)
    node.do(mend)
    assert [(step, number, of) for task, step, number, of in node.steps if task == mend.operation_id] == [
        ("port.delete_flows", 1, 3),
        ("port.add", 2, 3),
        ("port.set_flows", 3, 3),
    ]


def test_a_running_operation_is_cancelled_between_two_of_its_steps(toy_node: Entrance, toy: Toy) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    at_work = begin(toy_node, poll)
    await_wait(toy_node, poll)
    toy_node.do(cancel(poll))
    at_work.join(10)
    assert toy_node.code_of(poll) == "cancelled"
    assert result_of(toy_node, cancel(poll)) == OperationCancelled(was_running=True)


def test_an_operation_cancelled_before_it_came_never_begins_as_long_as_it_may_come(
    toy_node: Entrance, toy: Toy
) -> None:
    toy.there.clear()
    mend = on_slot(PortReconcile)
    toy_node.do(cancel(mend), mend)
    assert toy_node.code_of(mend) == "cancelled"
    assert toy.done == []
    assert result_of(toy_node, cancel(mend)) == OperationCancelled(was_running=False)


def test_a_cancel_does_not_reach_an_order(toy_node: Entrance, toy: Toy) -> None:
    toy.slow["machine.start"] = threading.Event()
    order = apply(8, memory=128)
    at_work = threading.Thread(target=toy_node.do, args=(order,), daemon=True)
    at_work.start()
    assert toy.begun.wait(10)
    stop = operation(cancel(verify()).body.model_copy(update={"target": order.order_id}))
    toy_node.do(stop)
    toy.slow["machine.start"].set()
    at_work.join(10)
    assert result_of(toy_node, stop) == OperationCancelled(was_running=False)
    assert "machine.start" in toy.done


def test_a_newer_order_halts_an_operation_of_its_slot(toy_node: Entrance, toy: Toy) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    at_work = begin(toy_node, poll)
    await_wait(toy_node, poll)
    toy_node.do(remove())
    at_work.join(10)
    assert toy_node.code_of(poll) == "superseded"
    assert toy.kinds() == set()


def test_an_operation_on_a_busy_slot_waits_for_it_and_no_longer_than_its_time_limit(
    toy_node: Entrance, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = next(iter(toy_node.acceptance.slots))
    limited = bounds_of("port.reconcile")
    monkeypatch.setattr(
        "node_agent.operations.bounds_of",
        lambda _kind: type(limited)(
            time_limit=timedelta(seconds=0.2),
            retries=0,
            maximum_age=limited.maximum_age,
            payload_bytes=limited.payload_bytes,
            lane=limited.lane,
        ),
    )
    with slot.working():
        toy_node.do(on_slot(PortReconcile))
    assert toy_node.code_of(on_slot(PortReconcile)) == "time_limit"
    toy_node.do(on_slot(PortReconcile, attempt=2))
    assert toy_node.end_of(on_slot(PortReconcile, attempt=2)).kind == "operation.done"


def test_an_operation_that_waits_for_its_slot_can_be_cancelled(toy_node: Entrance) -> None:
    slot, mend = next(iter(toy_node.acceptance.slots)), on_slot(PortReconcile)
    with slot.working():
        waiting = begin(toy_node, mend)
        eventually(lambda: (mend.operation_id, "slot.wait", 1, None) in toy_node.steps)
        toy_node.do(cancel(mend))
        waiting.join(10)
    assert toy_node.code_of(mend) == "cancelled"


def test_a_mend_that_waited_while_its_slot_was_told_otherwise_does_nothing(
    toy_node: Entrance, toy: Toy
) -> None:
    slot, mend = next(iter(toy_node.acceptance.slots)), on_slot(PortReconcile)
    toy.there.clear()
    with slot.working():
        waiting = begin(toy_node, mend)
        eventually(lambda: (mend.operation_id, "slot.wait", 1, None) in toy_node.steps)
        newer = threading.Thread(target=toy_node.do, args=(remove(),), daemon=True)
        newer.start()
        eventually(lambda: slot.held is not None and slot.held.order.token == remove().token)
    waiting.join(10)
    newer.join(10)
    assert toy_node.code_of(mend) == "superseded"
    assert toy.done == []


def test_operations_past_the_nodes_places_are_told_busy_and_a_cancel_still_gets_through(
    toy_node: Entrance, toy: Toy
) -> None:
    toy.silent = True
    polls = [on_slot(ReadinessPoll, attempt=attempt) for attempt in range(CREDIT["operations"])]
    at_work = [begin(toy_node, poll) for poll in polls]
    await_wait(toy_node, *polls)
    toy_node.do(verify())
    assert toy_node.code_of(verify()) == "busy"
    toy_node.do(*(cancel(poll) for poll in polls))
    for thread in at_work:
        thread.join(10)
    assert {toy_node.code_of(poll) for poll in polls} == {"cancelled"}


def test_an_agent_that_ends_gives_its_operations_back_and_tells_nothing(toy_node: Entrance, toy: Toy) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    given_back = threading.Event()

    def carry_out() -> None:
        with pytest.raises(GivenBack):
            toy_node.operations.carry_out(poll)
        given_back.set()

    threading.Thread(target=carry_out, daemon=True).start()
    await_wait(toy_node, poll)
    toy_node.operations.close()
    assert given_back.wait(10)
    with pytest.raises(GivenBack):
        toy_node.operations.carry_out(verify())
    assert list(toy_node.ends()) == []


def test_an_operation_given_out_too_often_is_told_as_poisoned(node: Entrance) -> None:
    node.poison(copy_of(on_slot(PortReconcile)))
    assert node.code_of(on_slot(PortReconcile)) == "poisoned"


def test_an_operation_that_breaks_is_told_and_not_repeated(
    node: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of the test")

    monkeypatch.setattr("node_agent.operations.verify_node", broken)
    node.do(verify())
    assert node.code_of(verify()) == "broke"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema_version": 2}, "unsupported"),
        ({"shell": "rm -rf /"}, "malformed"),
        ({"trace_context": "x" * 70_000}, "oversized"),
    ],
)
def test_what_cannot_be_read_whole_is_refused_whole(
    node: Entrance, change: dict[str, object], code: str
) -> None:
    before = node.snapshot(), node.fences()
    mend = on_slot(ExposureRemove)
    text = json.dumps(json.loads(mend.model_dump_json()) | change)
    node.deliver(signed(mend.operation_id, "exposure.remove", text))
    assert node.code_of(mend) == code
    assert (node.snapshot(), node.fences()) == before


def test_a_host_that_does_not_say_what_machines_it_has_is_told(
    node: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: object) -> None:
        raise HostUnreadable("libvirt does not answer")

    object.__setattr__(node.host, "inspect_machine", unreadable)
    node.do(on_slot(MachineInspect))
    assert node.code_of(on_slot(MachineInspect)) == "host_unreadable"


def test_a_tap_of_somebody_else_is_replaced(node: Entrance) -> None:
    with node.simulated.change() as state:
        state.taps = [Tap("slice0", owner=None)]
    node.do(on_slot(VnicAttach))
    assert steps_of(node, on_slot(VnicAttach)) == [("link.delete", "link.add_tap")]
