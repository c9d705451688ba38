"""Reported drift is recorded for nodes and slots, shown for any time, and blocks placement (NOD-8)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from tests.api.node import SLOT, admit, allocate, batch, blocked_by, survey
from tests.servers.plane import RunningPlane
from tests.waiting import until

NOTICED = "2026-03-01T12:00:00Z"
RULE, OTHER_RULE = "ing-06at3vsrq1f9b0e3x7z8kc2h5m", "ing-06at3vsrq1f9b0e3x7z8kc2h5n"


class DescribedNode:
    """Node with two approved slots. Each reported description lists all open drift and replaces the earlier one."""

    def __init__(self, plane: RunningPlane) -> None:
        self.plane, self._node = plane, admit(plane, "n1", slots=2)
        self._spool, self._sequence = str(uuid4()), 0

    def report_description(self, *open_: dict[str, Any]) -> None:
        self.report_slots((0, 1), *open_)

    def report_slots(self, indexes: tuple[int, ...], *open_: dict[str, Any]) -> None:
        slots = [{**SLOT, "index": index, "network_device": f"slice{index}"} for index in indexes]
        self._report(survey(slots=slots, drift=list(open_)))

    def report_repaired(self, slot: int | None, *drift: dict[str, Any]) -> None:
        self._report({"kind": "drift.repaired", "slot": slot, "drift": list(drift)})

    def drift_events(self) -> list[tuple[str, str]]:
        """Return the streams and types of all events about drift, in ledger order."""
        types = ("degraded", "recovered", "repaired")
        rows = self.plane.rows("select stream_id, type from ledger.event order by position")
        return [(stream, type_) for stream, type_ in rows if type_.partition(".")[2] in types]

    def listed(self, path: str) -> list[dict[str, Any]]:
        with self.plane.client() as client:
            return list(client.get(path).json()["items"])

    def post_report(self, body: dict[str, Any]) -> httpx.Response:
        return self._node.post("/reports", json=batch(self._spool, (self._sequence + 1, body)))

    def _report(self, body: dict[str, Any]) -> None:
        answer = self.post_report(body)
        assert answer.is_success, answer.text
        self._sequence += 1


@pytest.fixture
def node(emptied_plane: RunningPlane) -> DescribedNode:
    return DescribedNode(emptied_plane)


def evidence(kind: str, **fields: str | None) -> dict[str, Any]:
    return {"kind": kind, "desired": "this", "observed": "that", "since": NOTICED, **fields}


def drift(kind: str, slot: int | None = None, **fields: str | None) -> dict[str, Any]:
    return {**evidence(kind, **fields), "slot": slot}


def ingress_drift(name: str) -> dict[str, Any]:
    """Return drift of an ingress rule to the slice in slot 0. All fields except the rule's id are constant."""
    return drift("ingress.changed", 0, desired="2 rules", observed="no rules", ingress_id=name)


def rules_with_open_drift(node: DescribedNode) -> list[str]:
    return [each["ingress_id"] for each in node.listed("/drift")]


def test_drift_of_a_slot_degrades_only_that_slot_until_it_is_resolved(node: DescribedNode) -> None:
    node.report_description(drift("port.absent", 1))
    assert node.drift_events() == [("slot-n1/1", "slot.degraded")]
    assert [(each["slot_id"], each["kind"]) for each in node.listed("/drift")] == [("n1/1", "port.absent")]
    node.report_description()
    assert node.drift_events()[1:] == [("slot-n1/1", "slot.recovered")]
    assert node.listed("/drift") == []


def test_foreign_dhcp_lease_degrades_a_claimed_slot_until_the_lease_is_gone(
    node: DescribedNode,
) -> None:
    node.report_description()
    [placed] = allocate(node.plane).json()["slots"]
    index = int(placed["slot_id"].partition("/")[2])
    node.report_description(drift("lease.foreign", index))
    assert node.drift_events() == [(f"slot-{placed['slot_id']}", "slot.degraded")]
    [shown] = [each for each in node.listed("/slots") if each["drift"]]
    assert (shown["id"], shown["drift"][0]["kind"], shown["drift"][0]["blocks"]) == (
        placed["slot_id"],
        "lease.foreign",
        True,
    )
    node.report_description()
    assert node.drift_events()[1:] == [(f"slot-{placed['slot_id']}", "slot.recovered")]
    assert not any(each["drift"] for each in node.listed("/slots"))


def test_drift_that_concerns_all_slots_degrades_the_node_until_it_is_resolved(node: DescribedNode) -> None:
    node.report_description(drift("uplink.lost"))
    assert node.drift_events() == [("node-n1", "node.degraded")]
    node.report_description()
    assert node.drift_events()[1:] == [("node-n1", "node.recovered")]


def test_drift_of_the_same_kind_with_other_observed_text_is_recorded_once(node: DescribedNode) -> None:
    node.report_description(drift("host.unreadable", observed="no answer within 5.0 s"))
    node.report_description(drift("host.unreadable", observed="no answer within 5.1 s"))
    assert len(node.drift_events()) == 1


def test_second_kind_of_drift_is_recorded_with_all_open_drift(node: DescribedNode) -> None:
    node.report_description(drift("port.absent", 0))
    node.report_description(drift("port.absent", 0), drift("lease.conflicting", 0))
    assert node.drift_events() == [("slot-n1/0", "slot.degraded")] * 2
    assert [each["kind"] for each in node.listed("/nodes/n1/drift")] == ["lease.conflicting", "port.absent"]


def test_repaired_drift_is_recorded_with_its_evidence_and_leaves_no_open_drift(node: DescribedNode) -> None:
    node.report_repaired(None, evidence("gateway.forwarding"))
    node.report_repaired(1, evidence("port.flows", desired="11 flows", observed="9 flows"))
    assert node.drift_events() == [("node-n1", "node.repaired"), ("slot-n1/1", "slot.repaired")]
    assert node.listed("/drift") == []
    [(data,)] = node.plane.rows("select data::jsonb from ledger.event where type = 'slot.repaired'")
    assert data["drift"] == [
        {"kind": "port.flows", "desired": "11 flows", "observed": "9 flows", "since": "2026-03-01T12:00:00Z"}
    ]


def test_repaired_drift_of_a_slot_that_its_node_never_listed_is_not_recorded(node: DescribedNode) -> None:
    node.report_repaired(7, evidence("port.flows"))
    assert node.drift_events() == []


def test_node_and_slot_views_show_their_drift_with_its_evidence(node: DescribedNode) -> None:
    node.report_description(
        drift("uplink.lost"), drift("port.absent", 0, desired="port 1000", observed="no port")
    )
    with node.plane.client() as client:
        view = client.get("/nodes/n1").json()
    assert [each["kind"] for each in view["drift"]] == ["uplink.lost"]
    [slot, _] = node.listed("/slots")
    assert slot["drift"] == [
        {
            "node_id": "n1",
            "slot_id": "n1/0",
            "ingress_id": None,
            "scope": "slot",
            "kind": "port.absent",
            "desired": "port 1000",
            "observed": "no port",
            "since": "2026-03-01T12:00:00Z",
            "blocks": True,
        }
    ]


def test_node_view_shows_the_drift_of_its_slots_and_ingress_rules(node: DescribedNode) -> None:
    node.report_description(drift("uplink.lost"), ingress_drift(RULE), drift("port.absent", 1))
    with node.plane.client() as client:
        view = client.get("/nodes/n1").json()
        then = client.get("/nodes/n1", params={"at": f"position:{node.plane.last_position()}"}).json()
        listed = client.get("/nodes/n1/drift").json()["items"]
    assert [each["kind"] for each in view["drift"]] == ["uplink.lost"]
    places = [(each["slot_id"], each["ingress_id"], each["kind"]) for each in view["slot_drift"]]
    assert places == [("n1/0", RULE, "ingress.changed"), ("n1/1", None, "port.absent")]
    assert [*view["drift"], *view["slot_drift"]] == [*then["drift"], *then["slot_drift"]] == listed


def test_degraded_slot_is_not_allocated_and_other_slots_of_its_node_are(node: DescribedNode) -> None:
    node.report_description(drift("port.absent", 0))
    [placed] = allocate(node.plane).json()["slots"]
    assert placed["slot_id"] == "n1/1"
    assert allocate(node.plane).status_code == 409
    node.report_description()
    assert allocate(node.plane).status_code == 202


def test_degraded_node_receives_no_allocation_until_it_recovers(node: DescribedNode) -> None:
    node.report_description(drift("gateway.rules"))
    assert allocate(node.plane).status_code == 409
    node.report_description()
    assert allocate(node.plane).status_code == 202


def test_node_and_slot_lists_name_the_drift_that_blocks_placement(node: DescribedNode) -> None:
    assert blocked_by(node.plane) == {"n1": None, "n1/0": None, "n1/1": None}
    node.report_description(
        drift("lease.expired", 0), drift("lease.conflicting", 0), drift("lease.expired", 1)
    )
    assert blocked_by(node.plane) == {"n1": None, "n1/0": "lease.conflicting", "n1/1": None}
    node.report_description(drift("uplink.lost"), drift("lease.conflicting", 0))
    assert blocked_by(node.plane) == dict.fromkeys(("n1", "n1/0", "n1/1"), "uplink.lost")
    node.report_description()
    assert blocked_by(node.plane) == {"n1": None, "n1/0": None, "n1/1": None}


def test_drift_of_a_kind_that_does_not_block_placement_does_not_prevent_placement(
    node: DescribedNode,
) -> None:
    node.report_description(*(drift("lease.expired", slot) for slot in (0, 1)))
    assert {each["blocks"] for each in node.listed("/drift")} == {False}
    assert allocate(node.plane, slot_count=2).status_code == 202


def test_slot_that_its_nodes_newest_report_does_not_list_is_not_allocated(node: DescribedNode) -> None:
    node.report_slots((0,))
    assert [(each["slot_id"], each["kind"]) for each in node.listed("/drift")] == [("n1/1", "slot.absent")]
    assert allocate(node.plane, slot_count=2).status_code == 409
    node.report_description()
    assert node.drift_events() == [("slot-n1/1", "slot.degraded"), ("slot-n1/1", "slot.recovered")]


def test_drift_reported_with_the_wrong_scope_for_its_kind_is_not_recorded(node: DescribedNode) -> None:
    for kind, slot in (("port.absent", None), ("uplink.lost", 1)):
        node.report_description(drift(kind, slot))
        node.report_repaired(slot, evidence(kind))
        assert node.drift_events() == []


def test_drift_of_the_same_kind_in_another_device_is_recorded(node: DescribedNode) -> None:
    node.report_description(drift("device.absent", desired="link vf0"))
    node.report_description(drift("device.absent", desired="link bf3"))
    assert node.drift_events() == [("node-n1", "node.degraded")] * 2


def test_repair_of_one_of_two_ingress_rules_with_equal_drift_is_recorded(node: DescribedNode) -> None:
    node.report_description(ingress_drift(RULE), ingress_drift(OTHER_RULE))
    node.report_description(ingress_drift(OTHER_RULE))
    assert node.drift_events() == [("slot-n1/0", "slot.degraded")] * 2
    assert rules_with_open_drift(node) == [OTHER_RULE]


def test_drift_that_moves_from_one_ingress_rule_to_another_is_recorded(node: DescribedNode) -> None:
    node.report_description(ingress_drift(RULE))
    node.report_description(ingress_drift(OTHER_RULE))
    assert node.drift_events() == [("slot-n1/0", "slot.degraded")] * 2
    assert rules_with_open_drift(node) == [OTHER_RULE]


def test_drift_of_an_ingress_rule_names_the_rule_when_open_and_when_repaired(node: DescribedNode) -> None:
    node.report_description(ingress_drift(RULE))
    [shown] = node.listed("/drift")
    assert (shown["scope"], shown["slot_id"], shown["ingress_id"]) == ("ingress", "n1/0", RULE)
    node.report_repaired(0, evidence("ingress.changed", ingress_id=RULE))
    query = (
        "select data::jsonb -> 'drift' -> 0 ->> 'ingress_id' from ledger.event where type = 'slot.repaired'"
    )
    assert node.plane.rows(query) == [(RULE,)]


def test_each_drift_shows_the_scope_of_its_kind(node: DescribedNode) -> None:
    node.report_description(
        drift("uplink.lost"), drift("port.absent", 0), ingress_drift(RULE), drift("newer.kind", 1)
    )
    scopes = {each["kind"]: each["scope"] for each in node.listed("/drift")}
    assert scopes == {
        "uplink.lost": "node",
        "port.absent": "slot",
        "ingress.changed": "ingress",
        "newer.kind": "slot",
    }


def test_drift_of_a_revoked_node_is_not_listed(node: DescribedNode) -> None:
    node.report_description(drift("uplink.lost"), drift("port.absent", 1))
    with node.plane.client() as client:
        assert client.post("/nodes/n1/revoke", json={"reason": "gone"}).is_success
    assert node.listed("/drift") == node.listed("/nodes/n1/drift") == []


def test_drift_with_a_terminal_escape_sequence_is_refused(node: DescribedNode) -> None:
    answer = node.post_report(survey(drift=[drift("uplink.lost", observed="no\x1b[2J route")]))
    assert answer.status_code == 422


def test_request_for_several_slots_does_not_count_degraded_slots(node: DescribedNode) -> None:
    node.report_description(drift("port.absent", 0))
    assert allocate(node.plane, slot_count=2).status_code == 409


def test_drift_kind_of_a_newer_agent_is_accepted_and_blocks_placement(node: DescribedNode) -> None:
    node.report_description(drift("fabric.unplugged", 0))
    [seen] = node.listed("/drift")
    assert (seen["kind"], seen["blocks"]) == ("fabric.unplugged", True)


def test_drift_list_at_an_earlier_position_shows_the_drift_that_was_open_then(node: DescribedNode) -> None:
    node.report_description(drift("uplink.lost"), drift("port.absent", 1))
    [(then,)] = node.plane.rows("select max(position) from ledger.event")
    node.report_description()
    for path in ("/drift", "/nodes/n1/drift"):
        assert node.listed(path) == []
        seen = node.listed(f"{path}?at=position:{then}")
        assert [(each["slot_id"], each["kind"]) for each in seen] == [
            (None, "uplink.lost"),
            ("n1/1", "port.absent"),
        ]


def test_drift_list_of_an_unknown_node_returns_404(emptied_plane: RunningPlane) -> None:
    with emptied_plane.client() as client:
        answer: httpx.Response = client.get("/nodes/n9/drift")
    assert answer.status_code == 404


def test_recording_a_survey_report_locks_the_rows_of_slots_before_the_row_of_their_node(
    node: DescribedNode,
) -> None:
    """Placement of ingress rules locks slots and then their node; the opposite order would cause a deadlock."""
    plane = node.plane
    with ThreadPoolExecutor() as pool, psycopg.connect(plane.database.admin_dsn) as placing:
        placing.execute("select 1 from read.slot where node_id = 'n1' and slot_index = 1 for update")
        describing = pool.submit(node.report_description, drift("uplink.lost"), drift("port.absent", 1))
        until(
            lambda: describing.done() or plane.has_lock_waiter(),
            "the description waits for the slot",
        )
        placing.execute("select 1 from read.node where node_id = 'n1' for share nowait")
        placing.commit()
        describing.result()
    assert len(node.listed("/drift")) == 2
