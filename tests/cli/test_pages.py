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
        "ssh -o UserKnownHostsFile=/dev/null root@10.100.1.10  (on node lab-a)",
    ):
        assert part in out


def ssh_from_outside(out: str) -> list[str]:
    """The lines that log in at a public address."""
    return [" ".join(line.split()) for line in out.splitlines() if "root@203.0.113.7" in line]


def test_a_way_in_to_port_22_tells_how_to_log_in_from_outside(plane: ScriptedPlane, sliceplane: Run) -> None:
    way = {"id": WAY, "slot_id": "lab-a/0", "state": "published", "public_address": "203.0.113.7"}
    at_22 = {**way, "protocol": "tcp", "public_port": 20022, "port": 22}
    ways = [at_22, {**at_22, "public_port": 20443, "port": 443}, {**at_22, "protocol": "udp"}, way]
    closed = [{**at_22, "state": state} for state in ("reserved", "lost", "withdrawn", "removed")]
    shown = allocation(network_mode="public-nat", ingress=[*ways, *closed])
    plane.answers(f"GET /v1/allocations/{ALLOCATION}", document(shown))
    plane.answers("GET /v1/nodes/lab-a", document(NODE), document({**NODE, "simulated": True}))
    told = ssh_from_outside(sliceplane("allocations", "show", ALLOCATION).out)
    assert told == ["ssh ssh -o UserKnownHostsFile=/dev/null -p 20022 root@203.0.113.7"]
    assert ssh_from_outside(sliceplane("allocations", "show", ALLOCATION).out) == []


def test_a_slice_of_a_simulated_node_is_shown_without_a_way_to_log_in(
    plane: ScriptedPlane, sliceplane: Run
) -> None:
    plane.answers(f"GET /v1/allocations/{ALLOCATION}", document(allocation()))
    plane.answers("GET /v1/nodes/lab-a", document({**NODE, "simulated": True}))
    outcome = sliceplane("allocations", "show", ALLOCATION)
    assert outcome.code == 0
    assert "node lab-a is simulated" in outcome.out
    assert "root@" not in outcome.out


def test_another_ssh_port_stands_in_the_hint(plane: ScriptedPlane, sliceplane: Run) -> None:
    endpoint = {"kind": "ssh", "address": "192.0.2.1", "port": 2222, "node_id": None, "via": None}
    plane.answers(f"GET /v1/allocations/{ALLOCATION}", document(allocation(endpoints=[endpoint])))
    assert "ssh -p 2222 root@192.0.2.1" in sliceplane("allocations", "show", ALLOCATION).out


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
