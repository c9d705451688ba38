"""Text output of `sliceplane`: complete ids, states and reasons, and advice where a list is empty."""

import json
from collections.abc import Callable

import pytest

from control_plane.cli.pages.words import span
from tests.cli.control_plane import ScriptedPlane, document, page, problem
from tests.cli.examples import ALLOCATION, NODE, allocation
from tests.cli.outcome import Outcome

Run = Callable[..., Outcome]
SLOT = {
    "id": "lab-a/0",
    "node_id": "lab-a",
    "index": 0,
    "state": "quarantined",
    "skus": ["lab.small"],
    "vcpus": 1,
    "memory_mib": 96,
    "network_device": "tap0",
    "mac_address": "52:54:00:12:34:56",
    "private_ip": "10.100.1.10",
    "allocation_id": ALLOCATION,
    "reason": {"code": "leftovers", "message": "a tap is left"},
}


INGRESS = "ing-01jd4z0000000000000000000b"
INGRESS_DRIFT = {
    "node_id": "lab-a",
    "slot_id": "lab-a/0",
    "ingress_id": INGRESS,
    "scope": "ingress",
    "kind": "ingress.changed",
    "desired": "2 rules",
    "observed": "no rules",
    "since": "2026-01-02T03:04:05Z",
    "blocks": True,
}
PORT_DRIFT = {**INGRESS_DRIFT, "ingress_id": None, "scope": "slot", "kind": "port.absent"}


def test_show_of_an_active_allocation_prints_its_state_slots_and_login_command(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    shown = allocation(labels={"team": "a"})
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(shown))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    out = sliceplane("allocations", "show", ALLOCATION).out
    for part in (
        ALLOCATION,
        "active",
        "lab-a/0",
        "52:54:00:12:34:56",
        "bound",
        "team=a",
        "10.100.1.10:22  (on node lab-a)",
        f"sliceplane ssh {ALLOCATION}",
    ):
        assert part in out


def test_show_prints_the_allowed_actions_and_the_others_with_the_reason(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    denied = {"allowed": False, "code": "role_missing", "reason": "the caller has the role auditor"}
    active = {"allowed": False, "code": "wrong_state", "reason": "the allocation is active"}
    mixed = {"stop": {"allowed": True}, "release": {"allowed": True}, "start": active}
    none = {"approve": denied, "readmit": denied}
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(allocation(allowed_actions=mixed)))
    plane.script("GET /v1/nodes/lab-a", document({**NODE, "allowed_actions": none}))

    shown, node = sliceplane("allocations", "show", ALLOCATION), sliceplane("nodes", "show", "lab-a")

    assert "stop, release (not start: the allocation is active)" in " ".join(shown.out.split())
    assert "none (not approve, readmit: the caller has the role auditor)" in " ".join(node.out.split())
    printed = json.loads(sliceplane("allocations", "show", ALLOCATION, "-o", "json").out)
    assert printed["allowed_actions"] == mixed


def test_show_of_an_allocation_with_an_unreachable_slice_prints_the_evidence_of_its_own_slots_only(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    unreachable = {
        **PORT_DRIFT,
        "kind": "slice.unreachable",
        "desired": "an answer of 10.100.1.10 to ARP requests on br-slice",
        "observed": "no answer to ARP for 5 s (hop: address)",
        "blocks": False,
    }
    others = {**unreachable, "slot_id": "lab-a/1", "observed": "another slot's"}
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(allocation()))
    plane.script("GET /v1/nodes/lab-a", document({**NODE, "slot_drift": [unreachable, others]}))
    out = sliceplane("allocations", "show", ALLOCATION).out
    for part in ("slice.unreachable of lab-a/0", "of 10.100.1.10 to ARP", "for 5 s (hop: address)"):
        assert part in out
    assert "another slot's" not in out


def test_show_of_an_allocation_on_a_simulated_node_prints_no_login_command(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(allocation()))
    plane.script("GET /v1/nodes/lab-a", document({**NODE, "simulated": True}))
    outcome = sliceplane("allocations", "show", ALLOCATION)
    assert outcome.code == 0
    assert "node lab-a is simulated" in outcome.out
    assert "sliceplane ssh" not in outcome.out


def test_show_reports_an_observed_address_that_differs_from_the_reserved_address(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    slot = {"slot_id": "lab-a/0", "node_id": "lab-a", "private_ip": "10.100.1.10", "actual_ip": "10.100.1.66"}
    shown = allocation(slots=[slot], endpoints=[])
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(shown))
    assert "observed at 10.100.1.66" in sliceplane("allocations", "show", ALLOCATION).out


def test_drift_of_an_ingress_rule_is_listed_with_the_id_of_the_rule(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/nodes/lab-a/drift", page(INGRESS_DRIFT))
    out = sliceplane("nodes", "drift", "lab-a").out
    for part in (f"lab-a/0 {INGRESS}", "ingress", "ingress.changed", "blocked", "2 rules", "no rules"):
        assert part in out


def test_show_of_a_node_prints_the_drift_of_its_slots(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/nodes/lab-a", document({**NODE, "slot_drift": [INGRESS_DRIFT]}))
    out = sliceplane("nodes", "show", "lab-a").out
    for part in (f"ingress.changed of lab-a/0 {INGRESS}", "2 rules", "no rules"):
        assert part in out


def test_nodes_addresses_without_arguments_prints_the_addresses_and_changes_nothing(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    shared = {"address": "203.0.113.7", "use": "ports", "first_port": 20000, "last_port": 29999}
    whole = {"address": "203.0.113.8", "use": "whole"}
    plane.script("GET /v1/nodes/lab-a", document({**NODE, "public_addresses": [shared, whole]}))
    shown = [line.split() for line in sliceplane("nodes", "addresses", "lab-a").out.splitlines()]
    assert shown == [
        ["node", "lab-a"],
        ["public", "203.0.113.7,", "ports", "20000", "to", "29999"],
        ["203.0.113.8,", "as", "a", "whole"],
    ]
    assert plane.requests("PUT /v1/nodes/lab-a/public-addresses") == []


def test_nodes_addresses_with_option_none_removes_all_addresses_and_excludes_other_arguments(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("PUT /v1/nodes/lab-a/public-addresses", document(NODE))
    assert sliceplane("nodes", "addresses", "lab-a", "203.0.113.7", "--none").code == 2
    removed = sliceplane("nodes", "addresses", "lab-a", "--none")
    assert (removed.code, removed.out.split()) == (0, ["node", "lab-a", "public", "none"])
    [put] = plane.requests("PUT /v1/nodes/lab-a/public-addresses")
    assert json.loads(put.body) == {"addresses": []}


def test_blocked_node_is_listed_with_the_blocking_reason_within_80_columns(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    blocked = {**NODE, "missing": [], "blocked_by": "bridge.foreign_flows"}
    revoked = {**NODE, "id": "lab-b", "state": "revoked", "blocked_by": "revoked"}
    plane.script("GET /v1/nodes", page(blocked, revoked))
    plane.script("GET /v1/nodes/lab-a", document(blocked))
    _, first, second = sliceplane("nodes", "list").out.splitlines()
    assert first[:80].split()[:3] == ["lab-a", "blocked:", "bridge.foreign_flows"]
    assert second.split()[:3] == ["lab-b", "revoked", NODE["subnet"]]
    assert "blocked: bridge.foreign_flows" in sliceplane("nodes", "show", "lab-a").out


def test_free_slot_is_listed_as_blocked_if_placement_does_not_use_it(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    free = {**SLOT, "state": "free", "allocation_id": None, "reason": None}
    listed = (
        free,
        {**free, "id": "lab-a/1", "blocked_by": "port.absent", "drift": [PORT_DRIFT]},
        {**free, "id": "lab-b/0", "blocked_by": "revoked"},
        {**SLOT, "id": "lab-b/1", "state": "claimed", "blocked_by": "revoked"},
    )
    plane.script("GET /v1/slots", page(*listed))
    rows = [line[:80].split("lab.small")[0].split() for line in sliceplane("slots", "list").out.splitlines()]
    assert rows[1:] == [
        ["lab-a/0", "free"],
        ["lab-a/1", "blocked:", "port.absent"],
        ["lab-b/0", "blocked:", "revoked"],
        ["lab-b/1", "claimed"],
    ]


def test_quarantined_slot_is_listed_with_the_reason(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/slots", page(SLOT))
    out = sliceplane("slots", "list", "--node", "lab-a").out
    assert plane.received[0].path == "/v1/slots?node=lab-a"
    for part in ("lab-a/0", "quarantined", ALLOCATION, "a tap is left"):
        assert part in out


def test_slot_is_shown_with_its_pci_devices_and_their_approval(plane: ScriptedPlane, sliceplane: Run) -> None:
    gpu = {"address": "0000:1b:00.0", "use": "gpu", "number": "10de:2330", "kind": "gpu", "numa_node": 0}
    gone = {"address": "0000:18:00.1", "use": "fabric", "number": None, "kind": None, "numa_node": None}
    slot = {**SLOT, "devices": [{**gpu, "granted": True}, {**gone, "granted": False}], "numa_node": 0}
    plane.script("GET /v1/slots", page(slot))
    then = {"kind": "slot", "name": "lab-a/0", "at": {"position": 7, "time": None}, "state": slot}
    plane.script("GET /v1/history/slot/lab-a/0", document(then))
    plane.script("GET /v1/events", page())
    assert "1 gpu, 1 fabric" in " ".join(sliceplane("slots", "list").out.split())
    shown = sliceplane("history", "show", "slot", "lab-a/0").out
    for part in ("10de:2330 (gpu), NUMA node 0", "0000:18:00.1  not present, not approved", "of NUMA node 0"):
        assert part in shown


def test_slot_is_shown_with_the_facts_about_its_pci_devices(plane: ScriptedPlane, sliceplane: Run) -> None:
    gpu = {
        "address": "0000:9a:00.0",
        "use": "gpu",
        "number": "10de:2335",
        "kind": "gpu",
        "numa_node": 1,
        "model": "NVIDIA H200 SXM 141GB",
        "memory_mib": 143771,
        "bar_mib": 262144,
        "iommu_group": "107",
        "root_port": "0000:97:01.0",
        "uuid": "GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b",
        "granted": True,
    }
    card = {
        "address": "0000:3b:00.5",
        "use": "card",
        "number": "15b3:101e",
        "kind": "vf",
        "physical_function": "0000:3b:00.0",
        "vf_number": 2,
        "representor": "pf0vf2",
        "fabric_metadata": {
            "link_layer": "ethernet",
            "port_state": "active",
            "physical_state": "link_up",
            "rate_mbit": 200_000,
            "mtu": 9000,
        },
        "granted": True,
    }
    hung = {"address": "0000:18:00.0", "use": "fabric", "number": "15b3:1021", "unreadable": "no answer"}
    approved = {"vcpus": 8, "memory_mib": 2048, "devices": [{"address": "0000:9a:00.0", "use": "gpu"}]}
    slot = {
        **SLOT,
        "approved_hardware": approved,
        "devices": [gpu, {**card, "evidence": [{"path": "/sys/x", "value": "0"}]}, hung],
    }
    plane.script("GET /v1/nodes/lab-a/slots/0", document(slot))
    shown = " ".join(sliceplane("slots", "show", "lab-a/0").out.split())
    for part in (
        "0000:9a:00.0 NVIDIA H200 SXM 141GB, 10de:2335 (gpu), NUMA node 1",
        "memory 143771 MiB, BAR 256 GiB, root port 0000:97:01.0, IOMMU group 107, UUID GPU-9221d5d1-",
        "virtual function 2 of 0000:3b:00.0, representor pf0vf2",
        "link ethernet, port active, physical link_up, rate 200000 Mbit/s, MTU 9000",
        "unreadable: no answer",
        "approved 8 vCPU, 2 GiB, PCI functions 0000:9a:00.0",
    ):
        assert part in shown


def test_node_is_listed_and_shown_with_its_missing_requirements(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("GET /v1/nodes", page(NODE))
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    assert "no bridge br-slice" in sliceplane("nodes", "list").out
    assert "no bridge br-slice" in sliceplane("nodes", "show", "lab-a").out


def test_node_is_shown_with_the_network_modes_that_it_does_not_support(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    mode = {"mode": "private-nat", "reason": "cannot add a rule with masquerade"}
    plane.script("GET /v1/nodes/lab-a", document({**NODE, "unsupported_modes": [mode]}))
    shown = " ".join(sliceplane("nodes", "show", "lab-a").out.split())
    assert "network mode private-nat: cannot add a rule with masquerade" in shown


def test_node_is_shown_with_the_number_of_undelivered_reports(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/nodes/lab-a", document({**NODE, "spooled_reports": 9_998}))
    assert "9998 not delivered yet" in sliceplane("nodes", "show", "lab-a").out


def test_throttled_node_is_shown_with_the_start_of_the_throttling(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    throttled = {**NODE, "reports_throttled_at": "2026-01-02T03:04:05Z"}
    plane.script("GET /v1/nodes/lab-a", document(throttled))
    assert "the node has exceeded its report budget since" in sliceplane("nodes", "show", "lab-a").out


def test_nodes_show_reports_a_copied_node_disk_with_the_superseded_session_that_the_copy_presented(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    copied = {
        **NODE,
        "key_thumbprint": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
        "superseded_session": 7,
        "superseded_at": "2026-01-02T03:04:05Z",
    }
    plane.script("GET /v1/nodes/lab-a", document(copied))
    out = sliceplane("nodes", "show", "lab-a").out
    assert "a copy of this node's disk, which presented session 7" in out
    assert "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k" in out


def test_allocation_on_an_unreachable_node_is_shown_with_the_condition_and_its_age(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    message = "node lab-a is unreachable: the node's last heartbeat came at 2026-01-02T03:04:05+00:00"
    since = {"code": "node_unreachable", "node_id": "lab-a", "since": "2026-01-02T03:04:05Z"}
    found = allocation(conditions=[{**since, "message": message}])
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(found))
    plane.script("GET /v1/allocations", page(found, allocation(conditions=[])))
    shown = sliceplane("allocations", "show", ALLOCATION).out
    assert "active, unreachable" in shown
    assert message in shown
    assert "[node_unreachable]" in shown
    _, first, second = sliceplane("allocations", "list").out.splitlines()
    assert ("active, unreachable" in first, "unreachable" in second) == (True, False)


def test_overdue_release_is_shown_with_its_deadline_and_the_reason_of_each_slot(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    reason = {"code": "removal_refused", "message": "the order to remove the slice ended in state refused"}
    overdue = {
        "deadline": "2026-01-02T03:14:05Z",
        "remaining": [{"slot_id": "lab-a/0", "reason": reason}],
    }
    found = allocation("releasing", release_overdue=overdue)
    plane.script("GET /v1/nodes/lab-a", document(NODE))
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(found))
    plane.script("GET /v1/allocations", page(found, allocation("releasing")))
    shown = " ".join(sliceplane("allocations", "show", ALLOCATION).out.split())
    assert "state releasing, overdue" in shown
    assert "lease until" not in shown
    assert "release not complete by its deadline 2026-01-02" in shown
    assert f"remaining lab-a/0: {reason['message']} [removal_refused]" in shown
    _, first, second = sliceplane("allocations", "list").out.splitlines()
    assert ("releasing, overdue" in first, "overdue" in second) == (True, False)


def test_waiting_allocation_is_shown_with_its_position_reason_and_times(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    queue = {
        "priority": -5,
        "queued_at": "2026-01-02T03:04:05Z",
        "waits_until": "2026-01-02T04:04:05Z",
        "reason": {"code": "no_capacity", "message": "no schedulable node has 2 free slots"},
        "position": 3,
        "earliest_possible_at": "2026-01-02T03:34:05Z",
    }
    found = allocation("waiting", slots=[], lease=None, endpoints=[], queue=queue)
    plane.script(f"GET /v1/allocations/{ALLOCATION}", document(found))
    shown = " ".join(sliceplane("allocations", "show", ALLOCATION).out.split())
    assert "state waiting" in shown
    assert "waits position 3 in the queue, priority -5, since 2026-01-02" in shown
    assert "until 2026-01-02" in shown
    assert "earliest 2026-01-02" in shown
    assert "waits for no schedulable node has 2 free slots [no_capacity]" in shown


def test_nodes_remove_prints_the_removed_node_and_the_subnet_that_it_freed(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    removed = {**NODE, "state": "removed", "hostname": None, "missing": []}
    plane.script("DELETE /v1/nodes/lab-a", document(removed))
    done = sliceplane("nodes", "remove", "lab-a")
    assert done.code == 0
    assert "removed" in done.out
    assert f"the subnet {NODE['subnet']} can be registered again" in done.err


def test_nodes_remove_of_an_enrolled_node_ends_with_code_1_and_the_reason(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    plane.script("DELETE /v1/nodes/lab-a", problem(409, "node_enrolled", "node lab-a has enrolled"))
    done = sliceplane("nodes", "remove", "lab-a")
    assert (done.code, "node lab-a has enrolled" in done.err) == (1, True)


def test_nodes_revoke_requires_a_reason_and_sends_it(sliceplane: Run, plane: ScriptedPlane) -> None:
    revoked = {**NODE, "state": "revoked", "revoked": "the host was sold"}
    plane.script("POST /v1/nodes/lab-a/revoke", document(revoked))
    assert sliceplane("nodes", "revoke", "lab-a").code == 2
    assert plane.received == []
    outcome = sliceplane("nodes", "revoke", "lab-a", "--reason", "the host was sold")
    assert (outcome.code, plane.received[0].body) == (0, b'{"reason":"the host was sold"}')
    assert "the host was sold" in outcome.out


def test_nodes_register_prints_the_enrolment_token(plane: ScriptedPlane, sliceplane: Run) -> None:
    token = {"id": "lab-c", "subnet": "10.100.3.0/24", "enrolment_token": "enrol_x"}
    plane.script("POST /v1/nodes", document({**token, "token_expires_at": "2026-01-02T04:00:00Z"}, 201))
    outcome = sliceplane("nodes", "register", "lab-c")
    assert outcome.code == 0
    assert "enrol_x" in outcome.out
    assert plane.received[0].body == b'{"id":"lab-c"}'


def test_slots_approve_accepts_several_slots_and_prints_all_of_them(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/nodes/lab-a/slots/0/approve", document(SLOT))
    plane.script("POST /v1/nodes/lab-a/slots/1/approve", document({**SLOT, "id": "lab-a/1"}))
    outcome = sliceplane("slots", "approve", "lab-a/0", "lab-a/1", "-o", "json")
    assert outcome.document == {"items": [SLOT, {**SLOT, "id": "lab-a/1"}], "next_cursor": None}


def test_slots_force_release_sends_the_reason_and_prints_the_free_slot(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/nodes/lab-a/slots/0/force-release", document({**SLOT, "state": "free"}))
    outcome = sliceplane("slots", "force-release", "lab-a/0", "--reason", "the host was destroyed")
    assert outcome.code == 0
    assert "free" in outcome.out
    assert plane.received[0].body == b'{"reason":"the host was destroyed"}'


def test_slots_force_release_without_a_reason_is_refused_without_a_request(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    assert sliceplane("slots", "force-release", "lab-a/0").code == 2
    assert plane.received == []


FAILED = {
    "slot_id": "lab-a/0",
    "allocation_id": ALLOCATION,
    "reason": {"code": "step_refused", "message": "machine.start: no free memory"},
    "failed_at": "2026-01-02T03:04:05Z",
}
EXCLUDED = {
    "excluded": {"code": "bring_ups_failed", "message": "3 consecutive bring-ups failed"},
    "failures": [FAILED],
    "blocked_by": "bring_ups_failed",
}


def test_pages_of_a_node_excluded_after_failed_bring_ups_show_the_reason_and_each_failure(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    node = {**NODE, "missing": [], **EXCLUDED}
    plane.script("GET /v1/nodes", page(node))
    plane.script("GET /v1/nodes/lab-a", document(node))
    assert "blocked: bring_ups_failed" in sliceplane("nodes", "list").out
    shown = sliceplane("nodes", "show", "lab-a").out
    for part in (
        "3 consecutive bring-ups failed",
        "machine.start: no free memory",
        "step_refused",
        ALLOCATION,
    ):
        assert part in shown


def test_excluded_slot_is_listed_with_its_reason(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/slots", page({**SLOT, "state": "free", "reason": None, **EXCLUDED}))
    listed = sliceplane("slots", "list").out
    assert "blocked: bring_ups_failed" in listed
    assert "3 consecutive bring-ups failed" in listed


@pytest.mark.parametrize(
    ("words", "route", "answer"),
    [
        (("nodes", "readmit", "lab-a"), "POST /v1/nodes/lab-a/readmit", NODE),
        (("nodes", "cordon", "lab-a"), "POST /v1/nodes/lab-a/cordon", NODE),
        (("nodes", "uncordon", "lab-a"), "POST /v1/nodes/lab-a/uncordon", NODE),
        (("nodes", "drain", "lab-a"), "POST /v1/nodes/lab-a/drain", NODE),
        (("slots", "retire", "lab-a/0"), "POST /v1/nodes/lab-a/slots/0/retire", SLOT),
        (("slots", "reprovision", "lab-a/0"), "POST /v1/nodes/lab-a/slots/0/reprovision", SLOT),
        (("slots", "readmit", "lab-a/0"), "POST /v1/nodes/lab-a/slots/0/readmit", SLOT),
    ],
)
def test_command_for_an_excluded_or_cordoned_resource_sends_its_reason_and_is_refused_without_a_reason(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...], route: str, answer: dict[str, object]
) -> None:
    plane.script(route, document(answer))
    assert sliceplane(*words).code == 2
    assert plane.received == []
    outcome = sliceplane(*words, "--reason", "repaired")
    assert outcome.code == 0
    assert "lab-a" in outcome.out
    assert plane.received[0].body == b'{"reason":"repaired"}'


DRAIN = {
    "reason": "its firmware is old",
    "since": "2026-01-02T03:04:05Z",
    "release_at": "2026-01-02T03:34:05Z",
    "outcome": None,
    "remaining": [{"slot_id": "lab-a/1", "reason": {"code": "removal_pending", "message": "no proof yet"}}],
}


@pytest.mark.parametrize(("given", "seconds"), [("30m", 1800), ("now", 0)])
def test_nodes_drain_sends_the_time_of_the_release_and_shows_the_slots_that_are_not_empty(
    plane: ScriptedPlane, sliceplane: Run, given: str, seconds: int
) -> None:
    drained = {**NODE, "cordoned": "its firmware is old", "drain": DRAIN}
    plane.script("POST /v1/nodes/lab-a/drain", document(drained))
    outcome = sliceplane("nodes", "drain", "lab-a", "--reason", "update", "--release-after", given)
    assert plane.received[0].body == b'{"reason":"update","release_after_seconds":%d}' % seconds
    shown = " ".join(outcome.out.split())
    assert outcome.code == 0
    assert "cordoned its firmware is old" in shown
    assert "running; allocations are released at" in shown
    assert "lab-a/1: no proof yet [removal_pending]" in shown


@pytest.mark.parametrize(
    ("ended", "code", "message"),
    [
        ({**DRAIN, "outcome": "empty", "remaining": []}, 0, ""),
        ({**DRAIN, "outcome": "incomplete"}, 5, "its drain ended incomplete, and 1 slots remain"),
        (None, 5, "its drain was cancelled"),
    ],
)
def test_nodes_drain_that_waits_reports_by_its_exit_code_whether_the_node_is_empty(
    plane: ScriptedPlane, sliceplane: Run, ended: dict[str, object] | None, code: int, message: str
) -> None:
    plane.script("POST /v1/nodes/lab-a/drain", document({**NODE, "drain": DRAIN}))
    plane.script(
        "GET /v1/nodes/lab-a", document({**NODE, "drain": DRAIN}), document({**NODE, "drain": ended})
    )
    outcome = sliceplane("nodes", "drain", "lab-a", "--reason", "update", "--wait")
    assert (outcome.code, message in outcome.err) == (code, True)
    assert [each.route.split()[0] for each in plane.received] == ["POST", "GET", "GET"]


def test_slots_approve_that_is_refused_midway_prints_the_slots_approved_before(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script("POST /v1/nodes/lab-a/slots/0/approve", document(SLOT))
    plane.script("POST /v1/nodes/lab-a/slots/1/approve", problem(404, "unknown_slot", "no slot lab-a/1"))
    outcome = sliceplane("slots", "approve", "lab-a/0", "lab-a/1")
    assert outcome.code == 1
    assert "lab-a/0" in outcome.out
    assert "no slot lab-a/1" in outcome.err


@pytest.mark.parametrize("resource", ["nodes", "slots", "allocations"])
def test_empty_list_prints_advice_or_an_empty_json_list(
    plane: ScriptedPlane, sliceplane: Run, resource: str
) -> None:
    plane.script(f"GET /v1/{resource}", page())
    assert "sliceplane" in sliceplane(resource, "list").out
    assert sliceplane(resource, "list", "-o", "json").document == {"items": [], "next_cursor": None}


SKU = {
    "name": "h200.one",
    "version": 3,
    "state": "offered",
    "reason": None,
    "gpu_model": "NVIDIA H200",
    "gpu_count": 1,
    "vcpus": 24,
    "memory_mib": 245760,
    "disk_gib": 200,
    "fabric": "ib",
    "network_modes": ["private-nat"],
    "rate_mbit": 100,
    "numa": "single",
    "placement": "pack",
    "price_per_hour": "3.20",
    "provisioning_seconds": 600,
    "max_lease_seconds": 86400,
}


def test_skus_are_listed_with_version_size_and_price(plane: ScriptedPlane, sliceplane: Run) -> None:
    none = {"gpu_model": None, "gpu_count": 0, "disk_gib": 0, "rate_mbit": None}
    plane.script("GET /v1/skus", page(SKU, {**SKU, "name": "plain", "state": "retired", **none}))
    shown = [line.split() for line in sliceplane("skus", "list").out.splitlines()[1:]]
    first = "h200.one 3 offered 1 x NVIDIA H200 24 240 GiB 200 GiB ib 100 Mbit/s 3.20"
    assert shown == [
        first.split(),
        ["plain", "3", "retired", "-", "24", "240", "GiB", "-", "ib", "-", "3.20"],
    ]


def test_page_of_a_sku_shows_its_whole_content(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.script("GET /v1/skus/h200.one", document({**SKU, "state": "retired", "reason": "sold out"}))
    shown = sliceplane("skus", "show", "h200.one").out
    for each in (
        "h200.one",
        "3",
        "retired",
        "sold out",
        "240 GiB",
        "1 x NVIDIA H200",
        "ib",
        "single",
        "3.20",
        "at most 1 d",
    ):
        assert each in shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.00 s"),
        (0.344, "0.34 s"),
        (12.54, "12.5 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400 * 4 + 3600 * 3, "4 d 3 h"),
    ],
)
def test_duration_is_formatted_with_a_precision_that_depends_on_its_length(
    seconds: float, shown: str
) -> None:
    assert span(seconds) == shown


def test_control_characters_in_a_reason_from_a_node_are_not_printed(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    slot = {**SLOT, "reason": {"code": "leftovers", "message": "a tap \x1b]0;mine\x07\x1b[2J\x9b1m is left"}}
    plane.script("GET /v1/slots", page(slot))
    out = sliceplane("slots", "list").out
    assert "is left" in out
    assert not [sign for sign in out if sign != "\n" and not sign.isprintable()]


def test_revocation_of_a_principal_prints_that_tokens_issued_until_its_time_are_refused(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    revoked = {"actor": "user:corp/alice", "reason": "laptop lost", "revoked_at": "2026-01-02T03:04:05Z"}
    plane.script("POST /v1/principals/revoke", document(revoked))
    out = sliceplane("principals", "revoke", "user:corp/alice", "--reason", "laptop lost").out
    for part in ("user:corp/alice", "revoked", "laptop lost", "tokens issued until"):
        assert part in out
    assert json.loads(plane.requests("POST /v1/principals/revoke")[0].body) == {
        "actor": "user:corp/alice",
        "reason": "laptop lost",
    }


def test_configure_replaces_the_network_settings_of_a_node_and_its_page_shows_them(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    pool = {"first": "02:00:5e:00:00:00", "last": "02:00:5e:00:ff:ff"}
    network = {"bridge": "br-lab", "l2_domain": "hall-2", "mac_pool": pool}
    plane.script("PUT /v1/nodes/lab-a/network", document({**NODE, **network}))
    done = sliceplane(
        *("nodes", "configure", "lab-a", "--bridge", "br-lab", "--l2-domain", "hall-2"),
        *("--mac-pool", "02:00:5e:00:00:00-02:00:5e:00:ff:ff"),
    )
    shown = " ".join(done.out.split())
    assert "bridge br-lab, L2 domain hall-2, MACs 02:00:5e:00:00:00 to 02:00:5e:00:ff:ff" in shown
    assert json.loads(plane.received[0].body) == network
    wrong = sliceplane("nodes", "configure", "lab-a", "--mac-pool", "02:00:5e:00:00:00")
    assert "use FIRST-LAST" in " ".join(wrong.err.split())


PLACEMENT = {
    "allocation_id": ALLOCATION,
    "attempt": 2,
    "placed_at": "2026-01-02T03:04:05Z",
    "position": 48213,
    "sku": "h200.one",
    "slots": ["rack-2/0", "rack-2/1"],
    "order": "spread",
    "groups": [
        {
            "sku": "h200.one",
            "code": "suitable",
            "message": "suitable",
            "obstacle": "nothing",
            "nodes": 9,
            "example": "rack-2",
        },
        {
            "sku": "h200.one",
            "code": "other_fabric",
            "message": "no slot has an accepted fabric",
            "obstacle": "hardware",
            "nodes": 3,
            "example": "rack-7",
        },
    ],
}


def test_placement_of_an_allocation_prints_the_choice_and_the_reason_of_every_node(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.script(f"GET /v1/allocations/{ALLOCATION}/placement", document(PLACEMENT))
    out = sliceplane("allocations", "placement", ALLOCATION).out
    for part in (
        "rack-2/0, rack-2/1",
        "after position 48213",
        "2: the slices could not be brought up on the node before",
        "the suitable node with the most free slots",
        "reservations of the past are not known",
    ):
        assert part in out
    [other] = [line.split() for line in out.splitlines() if line.startswith("3 ")]
    assert other == ["3", "no", "slot", "has", "an", "accepted", "fabric", "hardware", "rack-7"]
