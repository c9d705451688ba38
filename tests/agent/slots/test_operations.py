"""Operations on a node, from the signed payload to the final report of each (TSK-2, TSK-4, TSK-7)."""

import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from events.values import SlotIndex
from node_agent.aspects.flows import cookie_of
from node_agent.aspects.links import Tap
from node_agent.host.slices import HostRefused, HostUnreadable
from node_agent.lab.simulated.host import State
from node_agent.transport.broker import RequeueOrder
from tasks.catalogue import CREDIT, bounds_of
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
    MachineInspect,
    MachineInspected,
    NodeVerified,
    Operation,
    OperationCancelled,
    PortReconcile,
    PortReconciled,
    ReadinessPoll,
    ReadinessPolled,
    SlotRepair,
    VnicAttach,
    VnicAttached,
)
from tasks.orders import Order
from tasks.reports import OperationDone, SliceReady
from tests.agent.entrance import Entrance, copy_of, signed
from tests.agent.eventually import eventually
from tests.agent.operations import INSPECTIONS, REPAIRS, cancel, on_slot, operation, verify
from tests.agent.orders import apply, network, remove, stop
from tests.agent.toy_host import Toy


@pytest.fixture
def node(tmp_path: Path) -> Entrance:
    """A node with a slice on its first slot."""
    node = Entrance(tmp_path)
    node.do(apply())
    assert isinstance(node.reports()[-1], SliceReady)
    return node


@pytest.fixture
def toy() -> Toy:
    return Toy()


@pytest.fixture
def toy_node(tmp_path: Path, toy: Toy) -> Entrance:
    """A node with a slice, on a toy host that can delay steps."""
    node = Entrance(tmp_path, host=toy.host())
    node.do(apply())
    toy.done.clear()
    return node


def result_of(node: Entrance, done: Operation) -> object:
    end = node.end_of(done)
    assert isinstance(end, OperationDone), end
    return end.result


def steps_of(node: Entrance, repair: Operation) -> list[tuple[str, ...]]:
    """Return the steps of each reported execution of a repair operation."""
    done = [end for end in node.final_reports() if isinstance(end, OperationDone)]
    results = [end.result for end in done if end.operation_id == repair.operation_id]
    repair_results = (VnicAttached, PortReconciled, LeaseApplied, IngressApplyResult)
    return [result.steps for result in results if isinstance(result, repair_results)]


def begin(node: Entrance, task: Operation) -> threading.Thread:
    thread = threading.Thread(target=node.do, args=(task,), daemon=True)
    thread.start()
    return thread


def await_wait(node: Entrance, *polls: Operation) -> None:
    waited_for = {poll.operation_id for poll in polls}
    eventually(lambda: waited_for <= {task for task, step, *_ in node.steps if step == "readiness.wait"})


def delete_tap(state: State) -> None:
    state.taps.clear()


def delete_port(state: State) -> None:
    state.ports.clear()


def delete_flows(state: State) -> None:
    state.flows = [each for each in state.flows if each.cookie != cookie_of(SlotIndex(0))]


def delete_reservation(state: State) -> None:
    state.reservations.clear()


def delete_rules(state: State) -> None:
    state.nat = [each for each in state.nat if each.rule.owner != "slice0"]


DAMAGE: list[tuple[type[SlotRepair], Callable[[State], None], str, tuple[str, ...]]] = [
    (VnicAttach, delete_tap, "link", ("link.add_tap",)),
    (PortReconcile, delete_port, "port", ("port.delete_flows", "port.add", "port.set_flows")),
    (PortReconcile, delete_flows, "port", ("port.set_flows",)),
    (LeaseApply, delete_reservation, "lease", ("lease.reserve",)),
    (IngressApply, delete_rules, "translation", ("translation.set_rules",)),
]


@pytest.mark.parametrize(("kind", "fault", "aspect", "steps"), DAMAGE)
def test_manual_damage_of_a_slot_is_reported_as_drift_and_repaired_by_the_repair_operation(
    node: Entrance,
    kind: type[SlotRepair],
    fault: Callable[[State], None],
    aspect: str,
    steps: tuple[str, ...],
) -> None:
    undamaged = on_slot(DriftReport)
    node.do(undamaged)
    assert result_of(node, undamaged) == DriftReported(drift=())
    with node.simulated.change() as state:
        fault(state)
    damaged = on_slot(DriftReport, attempt=2)
    node.do(damaged)
    drift = result_of(node, damaged)
    assert isinstance(drift, DriftReported)
    assert (aspect, steps) in [(each.aspect, each.steps) for each in drift.drift]
    repaired = on_slot(kind)
    node.do(repaired)
    assert steps_of(node, repaired) == [steps]
    again = on_slot(DriftReport, attempt=3)
    node.do(again)
    assert result_of(node, again) == DriftReported(drift=())


@pytest.mark.parametrize("kind", [*REPAIRS, *INSPECTIONS])
def test_operation_on_an_undamaged_slot_changes_nothing_when_repeated(
    node: Entrance, kind: type[SlotRepair]
) -> None:
    before = node.snapshot(), node.fences()
    for attempt in (1, 1, 2):
        node.do(on_slot(kind, attempt=attempt))
    assert [end.kind for end in node.final_reports()] == ["operation.done"] * 3
    assert (node.snapshot(), node.fences()) == before


@pytest.mark.parametrize(("kind", "fault", "aspect", "steps"), DAMAGE)
def test_repair_operation_executed_twice_changes_nothing_the_second_time(
    node: Entrance,
    kind: type[SlotRepair],
    fault: Callable[[State], None],
    aspect: str,
    steps: tuple[str, ...],
) -> None:
    with node.simulated.change() as state:
        fault(state)
    node.do(on_slot(kind))
    repaired = node.snapshot()
    node.do(on_slot(kind))
    assert node.snapshot() == repaired
    assert steps_of(node, on_slot(kind)) == [steps, ()]


def test_ingress_apply_operation_does_not_restore_a_missing_dhcp_reservation(node: Entrance) -> None:
    with node.simulated.change() as state:
        delete_rules(state)
        delete_reservation(state)
    node.do(on_slot(IngressApply))
    with node.simulated.look() as state:
        assert state.reservations == []


def test_ingress_remove_on_an_empty_slot_deletes_nat_rules_and_dhcp_lease_and_verifies_their_absence(
    node: Entrance,
) -> None:
    node.do(on_slot(IngressRemove), on_slot(IngressRemove, attempt=2))
    first, second = (result_of(node, on_slot(IngressRemove, attempt=each)) for each in (1, 2))
    assert isinstance(first, IngressRemoveResult)
    assert first.steps == ("translation.delete_rules", "lease.withdraw", "lease.clear")
    assert second == IngressRemoveResult(steps=(), absent=("translation", "lease"))
    with node.simulated.look() as state:
        assert (state.reservations, state.leases) == ([], [])
        assert len(state.domains) == 1, "the machine must remain: the removal order deletes it"


def test_order_that_arrives_inside_an_operation_is_stored_and_executed_by_the_slot(
    node: Entrance,
) -> None:
    node.do(on_slot(IngressRemove))
    assert [slot.slot_id for slot in node.scheduled_slots] == ["lab-a/0"]
    node.settle_slots()
    assert node.reports()[-1].kind == "slice.removed"
    with node.simulated.look() as state:
        assert (state.domains, state.taps, state.ports) == ([], [], [])


def test_operation_that_contains_the_order_that_its_slot_already_has_does_not_execute_this_order_again(
    node: Entrance,
) -> None:
    node.do(*(on_slot(kind) for kind in (*REPAIRS, *INSPECTIONS)))
    assert node.scheduled_slots == []


@pytest.mark.parametrize("kind", [*REPAIRS, AddressReport, ReadinessPoll])
def test_operation_on_a_slot_ordered_to_be_empty_fails_with_reason_code_not_wanted(
    node: Entrance, kind: type[SlotRepair]
) -> None:
    node.do(remove())
    before = node.snapshot()
    node.do(on_slot(kind, remove()))
    assert node.code_of(on_slot(kind, remove())) == "not_wanted"
    assert node.snapshot() == before


@pytest.mark.parametrize("kind", [*REPAIRS, AddressReport, ReadinessPoll])
def test_operation_on_a_stopped_slice_fails_with_reason_code_not_wanted(
    node: Entrance, kind: type[SlotRepair]
) -> None:
    node.do(stop())
    before = node.snapshot()
    node.do(on_slot(kind, stop()))
    assert node.code_of(on_slot(kind, stop())) == "not_wanted"
    assert node.snapshot() == before


def test_drift_report_of_a_stopped_slice_names_a_tap_that_was_created(node: Entrance) -> None:
    node.do(stop())
    undamaged, machine = on_slot(DriftReport, stop()), on_slot(MachineInspect, stop())
    node.do(undamaged, machine)
    assert result_of(node, undamaged) == DriftReported(drift=())
    assert result_of(node, machine) == MachineInspected(state="absent")
    with node.simulated.change() as state:
        state.taps.append(Tap("slice0"))
    damaged = on_slot(DriftReport, stop(), attempt=2)
    node.do(damaged)
    drift = result_of(node, damaged)
    assert isinstance(drift, DriftReported)
    assert [(each.aspect, each.steps) for each in drift.drift] == [("link", ("link.delete",))]


@pytest.mark.parametrize("order", [apply(), stop()])
def test_ingress_remove_on_a_slice_that_is_not_removed_fails_with_reason_code_not_wanted(
    node: Entrance, order: Order
) -> None:
    node.do(order)
    before = node.snapshot()
    node.do(on_slot(IngressRemove, order))
    assert node.code_of(on_slot(IngressRemove, order)) == "not_wanted"
    assert node.snapshot() == before


@pytest.mark.parametrize("kind", [*REPAIRS, *INSPECTIONS])
def test_operation_superseded_by_a_newer_order_fails_as_stale_and_changes_nothing(
    node: Entrance, kind: type[SlotRepair]
) -> None:
    node.do(remove())
    before = node.snapshot(), node.fences()
    node.do(on_slot(kind))
    assert node.code_of(on_slot(kind)) == "stale_token"
    assert (node.snapshot(), node.fences()) == before
    assert "order.refused" not in [body.kind for body in node.reports()], (
        "the operation must fail instead of the order being refused"
    )


@pytest.mark.parametrize(
    ("order", "code"),
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
def test_operation_that_contains_a_refused_order_fails_with_the_refusal_code_of_this_order(
    node: Entrance, order: Order, code: str
) -> None:
    before = node.snapshot(), node.fences()
    refused = on_slot(PortReconcile, order)
    node.do(refused)
    assert node.code_of(refused) == code
    assert (node.snapshot(), node.fences()) == before


def test_operation_for_another_node_is_refused(node: Entrance) -> None:
    elsewhere = operation(verify().body, node="lab-b")
    node.do(elsewhere)
    assert node.code_of(elsewhere) == "wrong_node"


def test_node_verify_reports_the_result_of_every_check(node: Entrance) -> None:
    node.do(verify())
    with node.simulated.change() as state:
        state.forwards, state.uplinks = False, []
    node.do(verify(2))
    found = [result_of(node, verify(attempt)) for attempt in (1, 2)]
    healthy, unhealthy = (
        {each.name: each for each in r.checks} for r in found if isinstance(r, NodeVerified)
    )
    assert list(healthy) == [
        "switch",
        "forwarding",
        "uplink",
        "translation",
        "network_modes",
        "dhcp",
        "images",
        "vf",
        "bf3",
        "pci",
    ]
    assert all(check.ok for check in healthy.values())
    assert {healthy[device].detail for device in ("vf", "bf3", "pci")} == {"not configured"}
    assert [name for name, check in unhealthy.items() if not check.ok] == ["forwarding", "uplink"]
    assert unhealthy["uplink"].detail == "default route by uplink0"


def test_result_of_an_address_report_contains_addresses_dhcp_lease_state_and_endpoint_port(
    node: Entrance,
) -> None:
    node.do(on_slot(AddressReport))
    assert result_of(node, on_slot(AddressReport)) == AddressReported(
        mac="52:54:00:01:00:00",
        expected_ip="10.100.1.10",
        actual_ip="10.100.1.10",
        lease_state="bound",
        endpoint_port=22,
    )


def test_readiness_poll_of_an_answering_slice_returns_its_banner(node: Entrance) -> None:
    node.do(on_slot(ReadinessPoll))
    assert result_of(node, on_slot(ReadinessPoll)) == ReadinessPolled(
        address="10.100.1.10", port=22, banner="SSH-2.0-simulated"
    )


def test_readiness_poll_of_a_slice_that_does_not_answer_fails_at_its_deadline(
    toy_node: Entrance, toy: Toy
) -> None:
    toy.silent = True
    order = apply(8, deadline=1)
    toy_node.do(on_slot(ReadinessPoll, order))
    assert toy_node.code_of(on_slot(ReadinessPoll, order)) == "not_reachable"


def test_machine_inspect_reports_a_running_and_an_absent_machine(node: Entrance) -> None:
    node.do(on_slot(MachineInspect))
    with node.simulated.change() as state:
        state.domains.clear()
    node.do(on_slot(MachineInspect, attempt=2))
    assert result_of(node, on_slot(MachineInspect)) == MachineInspected(
        state="running", vcpus=1, memory_mib=96
    )
    assert result_of(node, on_slot(MachineInspect, attempt=2)) == MachineInspected(state="absent")


def test_repair_operation_changes_nothing_on_the_host_while_its_virtual_machines_cannot_be_read(
    toy_node: Entrance, toy: Toy
) -> None:
    toy.objects.clear()
    toy.unreadable.add("machine")
    toy_node.do(on_slot(PortReconcile))
    assert toy_node.code_of(on_slot(PortReconcile)) == "host_unreadable"
    assert toy.done == []


def test_repair_step_that_the_host_refuses_is_named_in_the_failure_reason(
    toy_node: Entrance, toy: Toy
) -> None:
    toy.objects.clear()
    toy.refused["port.add"] = HostRefused
    toy_node.do(on_slot(PortReconcile))
    end = toy_node.end_of(on_slot(PortReconcile))
    assert end.model_dump()["reason"] == {
        "code": "step_refused",
        "message": "port.add: port.add is refused by the test",
    }


def test_progress_of_a_task_names_each_step_when_the_step_is_executed(node: Entrance) -> None:
    order, repair = apply(), on_slot(PortReconcile)
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
        delete_port(state)
    node.do(repair)
    assert [(step, number, of) for task, step, number, of in node.steps if task == repair.operation_id] == [
        ("port.delete_flows", 1, 3),
        ("port.add", 2, 3),
        ("port.set_flows", 3, 3),
    ]


def test_running_operation_is_cancelled_between_two_steps(toy_node: Entrance, toy: Toy) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    running = begin(toy_node, poll)
    await_wait(toy_node, poll)
    toy_node.do(cancel(poll))
    running.join(10)
    assert toy_node.code_of(poll) == "cancelled"
    assert result_of(toy_node, cancel(poll)) == OperationCancelled(was_running=True)


def test_operation_cancelled_before_its_arrival_never_starts(toy_node: Entrance, toy: Toy) -> None:
    toy.objects.clear()
    repair = on_slot(PortReconcile)
    toy_node.do(cancel(repair), repair)
    assert toy_node.code_of(repair) == "cancelled"
    assert toy.done == []
    assert result_of(toy_node, cancel(repair)) == OperationCancelled(was_running=False)


def test_operation_cancel_does_not_cancel_an_order(toy_node: Entrance, toy: Toy) -> None:
    toy.slow["machine.start"] = threading.Event()
    order = apply(8, memory=128)
    running = threading.Thread(target=toy_node.do, args=(order,), daemon=True)
    running.start()
    assert toy.begun.wait(10)
    stop = operation(cancel(verify()).body.model_copy(update={"target": order.order_id}))
    toy_node.do(stop)
    toy.slow["machine.start"].set()
    running.join(10)
    assert result_of(toy_node, stop) == OperationCancelled(was_running=False)
    assert "machine.start" in toy.done


def test_newer_order_stops_a_running_operation_of_its_slot(toy_node: Entrance, toy: Toy) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    running = begin(toy_node, poll)
    await_wait(toy_node, poll)
    toy_node.do(remove())
    running.join(10)
    assert toy_node.code_of(poll) == "superseded"
    assert toy.kinds() == set()


def test_operation_on_a_busy_slot_waits_at_most_its_time_limit(
    toy_node: Entrance, toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = next(iter(toy_node.acceptance.slots))
    limited = bounds_of("port.reconcile")
    monkeypatch.setattr(
        "node_agent.operations.operations.bounds_of",
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


def test_operation_that_waits_for_its_slot_can_be_cancelled(toy_node: Entrance) -> None:
    slot, repair = next(iter(toy_node.acceptance.slots)), on_slot(PortReconcile)
    with slot.working():
        waiting = begin(toy_node, repair)
        eventually(lambda: (repair.operation_id, "slot.wait", 1, None) in toy_node.steps)
        toy_node.do(cancel(repair))
        waiting.join(10)
    assert toy_node.code_of(repair) == "cancelled"


def test_repair_operation_superseded_while_it_waits_for_its_slot_changes_nothing(
    toy_node: Entrance, toy: Toy
) -> None:
    slot, repair = next(iter(toy_node.acceptance.slots)), on_slot(PortReconcile)
    toy.objects.clear()
    with slot.working():
        waiting = begin(toy_node, repair)
        eventually(lambda: (repair.operation_id, "slot.wait", 1, None) in toy_node.steps)
        newer = threading.Thread(target=toy_node.do, args=(remove(),), daemon=True)
        newer.start()
        eventually(lambda: slot.held is not None and slot.held.order.token == remove().token)
    waiting.join(10)
    newer.join(10)
    assert toy_node.code_of(repair) == "superseded"
    assert toy.done == []


def test_operation_beyond_the_nodes_concurrency_limit_fails_as_busy_and_a_cancel_still_runs(
    toy_node: Entrance, toy: Toy
) -> None:
    toy.silent = True
    polls = [on_slot(ReadinessPoll, attempt=attempt) for attempt in range(CREDIT["operations"])]
    running = [begin(toy_node, poll) for poll in polls]
    await_wait(toy_node, *polls)
    toy_node.do(verify())
    assert toy_node.code_of(verify()) == "busy"
    toy_node.do(*(cancel(poll) for poll in polls))
    for thread in running:
        thread.join(10)
    assert {toy_node.code_of(poll) for poll in polls} == {"cancelled"}


def test_agent_that_shuts_down_requeues_its_operations_and_sends_no_report(
    toy_node: Entrance, toy: Toy
) -> None:
    toy.silent = True
    poll = on_slot(ReadinessPoll)
    requeued = threading.Event()

    def carry_out() -> None:
        with pytest.raises(RequeueOrder):
            toy_node.operations.carry_out(poll)
        requeued.set()

    threading.Thread(target=carry_out, daemon=True).start()
    await_wait(toy_node, poll)
    toy_node.operations.close()
    assert requeued.wait(10)
    with pytest.raises(RequeueOrder):
        toy_node.operations.carry_out(verify())
    assert list(toy_node.final_reports()) == []


def test_operation_delivered_too_often_is_reported_as_poisoned(node: Entrance) -> None:
    node.poison(copy_of(on_slot(PortReconcile)))
    assert node.code_of(on_slot(PortReconcile)) == "poisoned"


def test_operation_that_raises_an_unexpected_error_is_reported_as_internal_error(
    node: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("raised by the test")

    monkeypatch.setattr("node_agent.operations.operations.verify_node", broken)
    node.do(verify())
    assert node.code_of(verify()) == "internal_error"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema_version": 2}, "unsupported"),
        ({"shell": "rm -rf /"}, "malformed"),
        ({"trace_context": "x" * 70_000}, "oversized"),
    ],
)
def test_operation_that_is_malformed_oversized_or_of_an_unsupported_version_is_refused_and_changes_nothing(
    node: Entrance, change: dict[str, object], code: str
) -> None:
    before = node.snapshot(), node.fences()
    repair = on_slot(IngressRemove)
    text = json.dumps(json.loads(repair.model_dump_json()) | change)
    node.deliver(signed(repair.operation_id, "ingress.remove", text))
    assert node.code_of(repair) == code
    assert (node.snapshot(), node.fences()) == before


def test_machine_inspect_fails_as_host_unreadable_when_libvirt_does_not_answer(
    node: Entrance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: object) -> None:
        raise HostUnreadable("libvirt does not answer")

    object.__setattr__(node.host, "inspect_machine", unreadable)
    node.do(on_slot(MachineInspect))
    assert node.code_of(on_slot(MachineInspect)) == "host_unreadable"


def test_tap_with_a_wrong_owner_is_replaced(node: Entrance) -> None:
    with node.simulated.change() as state:
        state.taps = [Tap("slice0", owner=None)]
    node.do(on_slot(VnicAttach))
    assert steps_of(node, on_slot(VnicAttach)) == [("link.delete", "link.add_tap")]
