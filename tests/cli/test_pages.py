"""What people see: whole ids, every fact that matters, a hint where there is nothing."""

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
    "state": "withheld",
    "sku": "lab.small",
    "vcpus": 1,
    "memory_mib": 96,
    "network_device": "tap0",
    "mac_address": "52:54:00:12:34:56",
    "private_ip": "10.100.1.10",
    "allocation_id": ALLOCATION,
    "reason": {"code": "leftovers", "message": "a tap is still there"},
}


WAY = "ing-01jd4z0000000000000000000b"
WAY_DRIFTS = {
    "node_id": "lab-a",
    "slot_id": "lab-a/0",
    "ingress_id": WAY,
    "scope": "exposure",
    "kind": "mapping.changed",
    "wanted": "2 rules",
    "found": "no rules",
    "since": "2026-01-02T03:04:05Z",
    "blocks": True,
}
PORT_DRIFTS = {**WAY_DRIFTS, "ingress_id": None, "scope": "slot", "kind": "port.absent"}


def test_show_tells_how_the_allocation_stands_and_how_to_log_in(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    shown = allocation(labels={"team": "a"})
    plane.answers(f"GET /v1/allocations/{ALLOCATION}", document(shown))
    plane.answers("GET /v1/nodes/lab-a", document(NODE))
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


def test_show_of_an_allocation_whose_slice_does_not_answer_shows_the_evidence_of_its_own_slots_alone(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    unreachable = {
        **PORT_DRIFTS,
        "kind": "slice.unreachable",
        "wanted": "an answer of 10.100.1.10 to ARP on br-slice",
        "found": "no answer to ARP for 5 s (hop: address)",
        "blocks": False,
    }
    others = {**unreachable, "slot_id": "lab-a/1", "found": "another slot's"}
    plane.answers(f"GET /v1/allocations/{ALLOCATION}", document(allocation()))
    plane.answers("GET /v1/nodes/lab-a", document({**NODE, "slot_drift": [unreachable, others]}))
    out = sliceplane("allocations", "show", ALLOCATION).out
    for part in ("slice.unreachable of lab-a/0", "of 10.100.1.10 to ARP", "for 5 s (hop: address)"):
        assert part in out
    assert "another slot's" not in out


def test_a_slice_of_a_simulated_node_is_shown_without_a_way_to_log_in(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers(f"GET /v1/allocations/{ALLOCATION}", document(allocation()))
    plane.answers("GET /v1/nodes/lab-a", document({**NODE, "simulated": True}))
    outcome = sliceplane("allocations", "show", ALLOCATION)
    assert outcome.code == 0
    assert "node lab-a is simulated" in outcome.out
    assert "sliceplane ssh" not in outcome.out


def test_an_address_that_differs_from_the_reservation_is_pointed_out(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    slot = {"slot_id": "lab-a/0", "node_id": "lab-a", "private_ip": "10.100.1.10", "actual_ip": "10.100.1.66"}
    shown = allocation(slots=[slot], endpoints=[])
    plane.answers(f"GET /v1/allocations/{ALLOCATION}", document(shown))
    assert "seen at 10.100.1.66" in sliceplane("allocations", "show", ALLOCATION).out


def test_drift_of_a_way_in_names_the_way(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("GET /v1/nodes/lab-a/drift", page(WAY_DRIFTS))
    out = sliceplane("nodes", "drift", "lab-a").out
    for part in (f"lab-a/0 {WAY}", "exposure", "mapping.changed", "blocked", "2 rules", "no rules"):
        assert part in out


def test_a_host_is_shown_with_what_drifts_in_its_slots(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("GET /v1/nodes/lab-a", document({**NODE, "slot_drift": [WAY_DRIFTS]}))
    out = sliceplane("nodes", "show", "lab-a").out
    for part in (f"mapping.changed of lab-a/0 {WAY}", "2 rules", "no rules"):
        assert part in out


def test_addresses_of_a_host_are_shown_unless_others_are_named(plane: ScriptedPlane, sliceplane: Run) -> None:
    shared = {"address": "203.0.113.7", "use": "ports", "first_port": 20000, "last_port": 29999}
    whole = {"address": "203.0.113.8", "use": "whole"}
    plane.answers("GET /v1/nodes/lab-a", document({**NODE, "public_addresses": [shared, whole]}))
    shown = [line.split() for line in sliceplane("nodes", "addresses", "lab-a").out.splitlines()]
    assert shown == [
        ["node", "lab-a"],
        ["public", "203.0.113.7,", "ports", "20000", "to", "29999"],
        ["203.0.113.8,", "as", "a", "whole"],
    ]
    assert plane.of("PUT /v1/nodes/lab-a/public-addresses") == []


def test_all_addresses_of_a_host_are_taken_away_by_a_word_for_that(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers("PUT /v1/nodes/lab-a/public-addresses", document(NODE))
    assert sliceplane("nodes", "addresses", "lab-a", "203.0.113.7", "--none").code == 2
    taken = sliceplane("nodes", "addresses", "lab-a", "--none")
    assert (taken.code, taken.out.split()) == (0, ["node", "lab-a", "public", "none"])
    [put] = plane.of("PUT /v1/nodes/lab-a/public-addresses")
    assert json.loads(put.body) == {"addresses": []}


def test_a_node_that_gets_no_slices_says_why_within_80_columns(plane: ScriptedPlane, sliceplane: Run) -> None:
    blocked = {**NODE, "missing": [], "blocked_by": "bridge.foreign_flows"}
    revoked = {**NODE, "id": "lab-b", "state": "revoked", "blocked_by": "revoked"}
    plane.answers("GET /v1/nodes", page(blocked, revoked))
    plane.answers("GET /v1/nodes/lab-a", document(blocked))
    _, first, second = sliceplane("nodes", "list").out.splitlines()
    assert first[:80].split()[:3] == ["lab-a", "blocked:", "bridge.foreign_flows"]
    assert second.split()[:3] == ["lab-b", "revoked", NODE["subnet"]]
    assert "blocked: bridge.foreign_flows" in sliceplane("nodes", "show", "lab-a").out


def test_a_slot_is_free_only_where_slices_are_placed(plane: ScriptedPlane, sliceplane: Run) -> None:
    free = {**SLOT, "state": "free", "allocation_id": None, "reason": None}
    listed = (
        free,
        {**free, "id": "lab-a/1", "blocked_by": "port.absent", "drift": [PORT_DRIFTS]},
        {**free, "id": "lab-b/0", "blocked_by": "revoked"},
        {**SLOT, "id": "lab-b/1", "state": "claimed", "blocked_by": "revoked"},
    )
    plane.answers("GET /v1/slots", page(*listed))
    told = [line[:80].split("lab.small")[0].split() for line in sliceplane("slots", "list").out.splitlines()]
    assert told[1:] == [
        ["lab-a/0", "free"],
        ["lab-a/1", "blocked:", "port.absent"],
        ["lab-b/0", "blocked:", "revoked"],
        ["lab-b/1", "claimed"],
    ]


def test_a_withheld_slot_says_why(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("GET /v1/slots", page(SLOT))
    out = sliceplane("slots", "list", "--node", "lab-a").out
    assert plane.seen[0].path == "/v1/slots?node=lab-a"
    for part in ("lab-a/0", "withheld", ALLOCATION, "a tap is still there"):
        assert part in out


def test_a_slot_shows_its_pci_devices_and_which_are_not_approved(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    gpu = {"address": "0000:1b:00.0", "use": "gpu", "number": "10de:2330", "kind": "gpu", "numa_node": 0}
    gone = {"address": "0000:18:00.1", "use": "fabric", "number": None, "kind": None, "numa_node": None}
    slot = {**SLOT, "devices": [{**gpu, "granted": True}, {**gone, "granted": False}], "numa_node": 0}
    plane.answers("GET /v1/slots", page(slot))
    then = {"kind": "slot", "name": "lab-a/0", "at": {"position": 7, "time": None}, "state": slot}
    plane.answers("GET /v1/history/slot/lab-a/0", document(then))
    assert "1 gpu, 1 fabric" in " ".join(sliceplane("slots", "list").out.split())
    shown = sliceplane("history", "show", "slot", "lab-a/0").out
    for part in ("10de:2330 (gpu), NUMA node 0", "0000:18:00.1  not there, not approved", "of NUMA node 0"):
        assert part in shown


def test_a_node_says_what_it_lacks(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("GET /v1/nodes", page(NODE))
    plane.answers("GET /v1/nodes/lab-a", document(NODE))
    assert "no bridge br-slice" in sliceplane("nodes", "list").out
    assert "no bridge br-slice" in sliceplane("nodes", "show", "lab-a").out


def test_a_node_says_how_many_reports_it_could_not_deliver(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("GET /v1/nodes/lab-a", document({**NODE, "spooled_reports": 9_998}))
    assert "9998 not delivered yet" in sliceplane("nodes", "show", "lab-a").out


def test_page_of_a_throttled_node_shows_since_when(plane: ScriptedPlane, sliceplane: Run) -> None:
    throttled = {**NODE, "reports_throttled_at": "2026-01-02T03:04:05Z"}
    plane.answers("GET /v1/nodes/lab-a", document(throttled))
    assert "its reports exceed their budget, first" in sliceplane("nodes", "show", "lab-a").out


def test_a_refused_copy_of_a_node_is_shown_on_its_page(sliceplane: Run, plane: ScriptedPlane) -> None:
    copied = {
        **NODE,
        "key_thumbprint": "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
        "superseded_session": 7,
        "superseded_at": "2026-01-02T03:04:05Z",
    }
    plane.answers("GET /v1/nodes/lab-a", document(copied))
    out = sliceplane("nodes", "show", "lab-a").out
    assert "a copy of its disk, at session 7" in out
    assert "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k" in out


def test_allocation_on_an_unreachable_node_is_shown_with_the_condition_and_its_age(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    message = "node lab-a is unreachable: its last heartbeat came at 2026-01-02T03:04:05+00:00"
    since = {"code": "node_unreachable", "node_id": "lab-a", "since": "2026-01-02T03:04:05Z"}
    found = allocation(conditions=[{**since, "message": message}])
    plane.answers("GET /v1/nodes/lab-a", document(NODE))
    plane.answers(f"GET /v1/allocations/{ALLOCATION}", document(found))
    plane.answers("GET /v1/allocations", page(found, allocation(conditions=[])))
    shown = sliceplane("allocations", "show", ALLOCATION).out
    assert "active, unreachable" in shown
    assert message in shown
    assert "[node_unreachable]" in shown
    _, first, second = sliceplane("allocations", "list").out.splitlines()
    assert ("active, unreachable" in first, "unreachable" in second) == (True, False)


def test_node_that_is_removed_is_shown_with_the_subnet_that_is_free_again(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    removed = {**NODE, "state": "removed", "hostname": None, "missing": []}
    plane.answers("DELETE /v1/nodes/lab-a", document(removed))
    done = sliceplane("nodes", "remove", "lab-a")
    assert done.code == 0
    assert "removed" in done.out
    assert f"the subnet {NODE['subnet']} can be registered again" in done.err


def test_removal_that_is_refused_shows_the_reason_and_ends_with_code_1(
    sliceplane: Run, plane: ScriptedPlane
) -> None:
    plane.answers("DELETE /v1/nodes/lab-a", problem(409, "node_enrolled", "node lab-a has enrolled"))
    done = sliceplane("nodes", "remove", "lab-a")
    assert (done.code, "node lab-a has enrolled" in done.err) == (1, True)


def test_a_node_is_revoked_with_a_reason(sliceplane: Run, plane: ScriptedPlane) -> None:
    revoked = {**NODE, "state": "revoked", "revoked": "the host was sold"}
    plane.answers("POST /v1/nodes/lab-a/revoke", document(revoked))
    assert sliceplane("nodes", "revoke", "lab-a").code == 2
    assert plane.seen == []
    outcome = sliceplane("nodes", "revoke", "lab-a", "--why", "the host was sold")
    assert (outcome.code, plane.seen[0].body) == (0, b'{"why":"the host was sold"}')
    assert "the host was sold" in outcome.out


def test_expecting_a_node_gives_its_token(plane: ScriptedPlane, sliceplane: Run) -> None:
    token = {"id": "lab-c", "subnet": "10.100.3.0/24", "enrolment_token": "enrol_x"}
    plane.answers("POST /v1/nodes", document({**token, "token_expires_at": "2026-01-02T04:00:00Z"}, 201))
    outcome = sliceplane("nodes", "expect", "lab-c")
    assert outcome.code == 0
    assert "enrol_x" in outcome.out
    assert plane.seen[0].body == b'{"id":"lab-c"}'


def test_several_slots_are_approved_at_once(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("POST /v1/nodes/lab-a/slots/0/approve", document(SLOT))
    plane.answers("POST /v1/nodes/lab-a/slots/1/approve", document({**SLOT, "id": "lab-a/1"}))
    outcome = sliceplane("slots", "approve", "lab-a/0", "lab-a/1", "--json")
    assert outcome.document == {"items": [SLOT, {**SLOT, "id": "lab-a/1"}], "next_cursor": None}


def test_a_slot_is_freed_without_proof_with_the_admins_words(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("POST /v1/nodes/lab-a/slots/0/break-glass", document({**SLOT, "state": "free"}))
    outcome = sliceplane("slots", "break-glass", "lab-a/0", "--why", "its host burned down")
    assert outcome.code == 0
    assert "free" in outcome.out
    assert plane.seen[0].body == b'{"why":"its host burned down"}'


def test_glass_is_not_broken_without_a_reason(plane: ScriptedPlane, sliceplane: Run) -> None:
    assert sliceplane("slots", "break-glass", "lab-a/0").code == 2
    assert plane.seen == []


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


def test_excluded_node_is_shown_with_its_reason_and_failures(plane: ScriptedPlane, sliceplane: Run) -> None:
    node = {**NODE, "missing": [], **EXCLUDED}
    plane.answers("GET /v1/nodes", page(node))
    plane.answers("GET /v1/nodes/lab-a", document(node))
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
    plane.answers("GET /v1/slots", page({**SLOT, "state": "free", "reason": None, **EXCLUDED}))
    listed = sliceplane("slots", "list").out
    assert "blocked: bring_ups_failed" in listed
    assert "3 consecutive bring-ups failed" in listed


@pytest.mark.parametrize(
    ("words", "route", "answer"),
    [
        (("nodes", "readmit", "lab-a"), "POST /v1/nodes/lab-a/readmit", NODE),
        (("slots", "readmit", "lab-a/0"), "POST /v1/nodes/lab-a/slots/0/readmit", SLOT),
    ],
)
def test_readmit_sends_the_reason_and_is_refused_without_one(
    plane: ScriptedPlane, sliceplane: Run, words: tuple[str, ...], route: str, answer: dict[str, object]
) -> None:
    plane.answers(route, document(answer))
    assert sliceplane(*words).code == 2
    assert plane.seen == []
    outcome = sliceplane(*words, "--why", "repaired")
    assert outcome.code == 0
    assert "lab-a" in outcome.out
    assert plane.seen[0].body == b'{"why":"repaired"}'


def test_slots_approved_before_a_refusal_are_told(plane: ScriptedPlane, sliceplane: Run) -> None:
    plane.answers("POST /v1/nodes/lab-a/slots/0/approve", document(SLOT))
    plane.answers("POST /v1/nodes/lab-a/slots/1/approve", problem(404, "unknown_slot", "no slot lab-a/1"))
    outcome = sliceplane("slots", "approve", "lab-a/0", "lab-a/1")
    assert outcome.code == 1
    assert "lab-a/0" in outcome.out
    assert "no slot lab-a/1" in outcome.err


@pytest.mark.parametrize("thing", ["nodes", "slots", "allocations"])
def test_an_empty_list_says_what_to_do(plane: ScriptedPlane, sliceplane: Run, thing: str) -> None:
    plane.answers(f"GET /v1/{thing}", page())
    assert "sliceplane" in sliceplane(thing, "list").out
    assert sliceplane(thing, "list", "--json").document == {"items": [], "next_cursor": None}


def test_skus_are_listed(plane: ScriptedPlane, sliceplane: Run) -> None:
    sku = {"name": "lab.small", "vcpus": 1, "memory_mib": 96, "images": ["lab-guest"]}
    limited = {**sku, "name": "lab.medium", "rate_mbit": 100}
    plane.answers("GET /v1/skus", page({**sku, "rate_mbit": None}, limited, sku))
    shown = [line.split() for line in sliceplane("skus", "list").out.splitlines()[1:]]
    free = ["lab.small", "1", "96", "MiB", "-", "lab-guest"]
    assert shown == [free, ["lab.medium", "1", "96", "MiB", "100", "Mbit/s", "lab-guest"], free]


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
def test_a_length_of_time_is_told_with_the_precision_that_matters(seconds: float, shown: str) -> None:
    assert span(seconds) == shown


def test_what_a_node_says_commands_no_terminal(plane: ScriptedPlane, sliceplane: Run) -> None:
    said = {**SLOT, "reason": {"code": "leftovers", "message": "a tap \x1b]0;mine\x07\x1b[2J\x9b1m is there"}}
    plane.answers("GET /v1/slots", page(said))
    out = sliceplane("slots", "list").out
    assert "is there" in out
    assert not [sign for sign in out if sign != "\n" and not sign.isprintable()]
