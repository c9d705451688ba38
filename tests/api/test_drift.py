"""What nodes say of drift: facts of nodes and slots, seen then and now; nothing is placed where it lasts (NOD-8)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from tests.api.node import SLOT, admit, allocate, batch, blocked, survey
from tests.servers.plane import RunningPlane
from tests.waiting import until

NOTICED = "2026-03-01T12:00:00Z"
WAY, OTHER_WAY = "ing-06at3vsrq1f9b0e3x7z8kc2h5m", "ing-06at3vsrq1f9b0e3x7z8kc2h5n"


class Host:
    """A node of two slots that describes itself anew at every word."""

    def __init__(self, plane: RunningPlane) -> None:
        self.plane, self._node = plane, admit(plane, "n1", slots=2)
        self._spool, self._sequence = str(uuid4()), 0

    def describes(self, *open_: dict[str, Any]) -> None:
        self.has_slots((0, 1), *open_)

    def has_slots(self, indexes: tuple[int, ...], *open_: dict[str, Any]) -> None:
        slots = [{**SLOT, "index": index, "network_device": f"slice{index}"} for index in indexes]
        self._says(survey(slots=slots, drift=list(open_)))

    def mended(self, slot: int | None, *drift: dict[str, Any]) -> None:
        self._says({"kind": "drift.mended", "slot": slot, "drift": list(drift)})

    def told(self) -> list[tuple[str, str]]:
        """Streams and types of all facts about drift, in their order."""
        types = ("degraded", "recovered", "mended")
        rows = self.plane.rows("select stream_id, type from ledger.event order by position")
        return [(stream, type_) for stream, type_ in rows if type_.partition(".")[2] in types]

    def asked(self, path: str) -> list[dict[str, Any]]:
        with self.plane.client() as client:
            return list(client.get(path).json()["items"])

    def says(self, body: dict[str, Any]) -> httpx.Response:
        return self._node.post("/reports", json=batch(self._spool, (self._sequence + 1, body)))

    def _says(self, body: dict[str, Any]) -> None:
        answer = self.says(body)
        assert answer.is_success, answer.text
        self._sequence += 1


@pytest.fixture
def host(running_plane: RunningPlane) -> Host:
    return Host(running_plane)


def sighting(kind: str, **words: str | None) -> dict[str, Any]:
    return {"kind": kind, "wanted": "this", "found": "that", "since": NOTICED, **words}


def drift(kind: str, slot: int | None = None, **words: str | None) -> dict[str, Any]:
    return {**sighting(kind, **words), "slot": slot}


def way_drifts(name: str) -> dict[str, Any]:
    """Of one way in to the slice in slot 0: each is told in the same words."""
    return drift("mapping.changed", 0, wanted="2 rules", found="no rules", ingress_id=name)


def ways_open(host: Host) -> list[str]:
    return [each["ingress_id"] for each in host.asked("/drift")]


def test_what_is_open_in_a_slot_degrades_it_alone_and_it_recovers(host: Host) -> None:
    host.describes(drift("port.absent", 1))
    assert host.told() == [("slot-n1/1", "slot.degraded")]
    assert [(each["slot_id"], each["kind"]) for each in host.asked("/drift")] == [("n1/1", "port.absent")]
    host.describes()
    assert host.told()[1:] == [("slot-n1/1", "slot.recovered")]
    assert host.asked("/drift") == []


def test_another_lease_than_the_reserved_degrades_the_slot_that_a_slice_has_until_it_is_taken_down(
    host: Host,
) -> None:
    host.describes()
    [placed] = allocate(host.plane).json()["slots"]
    index = int(placed["slot_id"].partition("/")[2])
    host.describes(drift("lease.foreign", index))
    assert host.told() == [(f"slot-{placed['slot_id']}", "slot.degraded")]
    [shown] = [each for each in host.asked("/slots") if each["drift"]]
    assert (shown["id"], shown["drift"][0]["kind"], shown["drift"][0]["blocks"]) == (
        placed["slot_id"],
        "lease.foreign",
        True,
    )
    host.describes()
    assert host.told()[1:] == [(f"slot-{placed['slot_id']}", "slot.recovered")]
    assert not any(each["drift"] for each in host.asked("/slots"))


def test_what_concerns_all_slots_degrades_the_node(host: Host) -> None:
    host.describes(drift("uplink.lost"))
    assert host.told() == [("node-n1", "node.degraded")]
    host.describes()
    assert host.told()[1:] == [("node-n1", "node.recovered")]


def test_said_again_in_other_words_it_is_no_news(host: Host) -> None:
    host.describes(drift("host.unreadable", found="no answer within 5.0 s"))
    host.describes(drift("host.unreadable", found="no answer within 5.1 s"))
    assert len(host.told()) == 1


def test_another_kind_is_news_and_tells_all_that_is_open(host: Host) -> None:
    host.describes(drift("port.absent", 0))
    host.describes(drift("port.absent", 0), drift("lease.rival", 0))
    assert host.told() == [("slot-n1/0", "slot.degraded")] * 2
    assert [each["kind"] for each in host.asked("/nodes/n1/drift")] == ["port.absent", "lease.rival"]


def test_what_was_mended_is_a_fact_with_its_evidence_and_leaves_nothing_open(host: Host) -> None:
    host.mended(None, sighting("gateway.forwarding"))
    host.mended(1, sighting("port.flows", wanted="11 flows", found="9 flows"))
    assert host.told() == [("node-n1", "node.mended"), ("slot-n1/1", "slot.mended")]
    assert host.asked("/drift") == []
    [(data,)] = host.plane.rows("select data::jsonb from ledger.event where type = 'slot.mended'")
    assert data["drift"] == [
        {"kind": "port.flows", "wanted": "11 flows", "found": "9 flows", "since": "2026-03-01T12:00:00Z"}
    ]


def test_of_a_slot_that_was_never_described_nothing_is_recorded(host: Host) -> None:
    host.mended(7, sighting("port.flows"))
    assert host.told() == []


def test_the_evidence_stands_beside_the_node_and_the_slot(host: Host) -> None:
    host.describes(drift("uplink.lost"), drift("port.absent", 0, wanted="port 1000", found="no port"))
    with host.plane.client() as client:
        node = client.get("/nodes/n1").json()
    assert [each["kind"] for each in node["drift"]] == ["uplink.lost"]
    [slot, _] = host.asked("/slots")
    assert slot["drift"] == [
        {
            "node_id": "n1",
            "slot_id": "n1/0",
            "ingress_id": None,
            "scope": "slot",
            "kind": "port.absent",
            "wanted": "port 1000",
            "found": "no port",
            "since": "2026-03-01T12:00:00Z",
            "blocks": True,
        }
    ]


def test_a_host_is_shown_with_what_drifts_in_its_slots_and_their_ways_in(host: Host) -> None:
    host.describes(drift("uplink.lost"), way_drifts(WAY), drift("port.absent", 1))
    with host.plane.client() as client:
        node = client.get("/nodes/n1").json()
        then = client.get("/nodes/n1", params={"at": f"position:{host.plane.last_position()}"}).json()
        listed = client.get("/nodes/n1/drift").json()["items"]
    assert [each["kind"] for each in node["drift"]] == ["uplink.lost"]
    places = [(each["slot_id"], each["ingress_id"], each["kind"]) for each in node["slot_drift"]]
    assert places == [("n1/0", WAY, "mapping.changed"), ("n1/1", None, "port.absent")]
    assert [*node["drift"], *node["slot_drift"]] == [*then["drift"], *then["slot_drift"]] == listed


def test_nothing_is_placed_in_a_degraded_slot_and_the_others_are_free(host: Host) -> None:
    host.describes(drift("port.absent", 0))
    [placed] = allocate(host.plane).json()["slots"]
    assert placed["slot_id"] == "n1/1"
    assert allocate(host.plane).status_code == 409
    host.describes()
    assert allocate(host.plane).status_code == 202


def test_nothing_is_placed_on_a_degraded_node(host: Host) -> None:
    host.describes(drift("gateway.rules"))
    assert allocate(host.plane).status_code == 409
    host.describes()
    assert allocate(host.plane).status_code == 202


def test_lists_name_the_drift_that_keeps_slices_off_a_node_and_off_a_slot(host: Host) -> None:
    assert blocked(host.plane) == {"n1": None, "n1/0": None, "n1/1": None}
    host.describes(drift("lease.expired", 0), drift("lease.rival", 0), drift("lease.expired", 1))
    assert blocked(host.plane) == {"n1": None, "n1/0": "lease.rival", "n1/1": None}
    host.describes(drift("uplink.lost"), drift("lease.rival", 0))
    assert blocked(host.plane) == dict.fromkeys(("n1", "n1/0", "n1/1"), "uplink.lost")
    host.describes()
    assert blocked(host.plane) == {"n1": None, "n1/0": None, "n1/1": None}


def test_what_is_only_reported_keeps_nothing_from_being_placed(host: Host) -> None:
    host.describes(*(drift("lease.expired", slot) for slot in (0, 1)))
    assert {each["blocks"] for each in host.asked("/drift")} == {False}
    assert allocate(host.plane, slot_count=2).status_code == 202


def test_a_slot_that_its_node_describes_no_more_is_not_placed_in(host: Host) -> None:
    host.has_slots((0,))
    assert [(each["slot_id"], each["kind"]) for each in host.asked("/drift")] == [("n1/1", "slot.absent")]
    assert allocate(host.plane, slot_count=2).status_code == 409
    host.describes()
    assert host.told() == [("slot-n1/1", "slot.degraded"), ("slot-n1/1", "slot.recovered")]


@pytest.mark.parametrize(("kind", "slot"), [("port.absent", None), ("uplink.lost", 1)])
def test_nothing_is_said_of_another_scope_than_the_kinds(host: Host, kind: str, slot: int | None) -> None:
    host.describes(drift(kind, slot))
    host.mended(slot, sighting(kind))
    assert host.told() == []


def test_of_two_of_one_kind_the_other_is_news(host: Host) -> None:
    host.describes(drift("device.absent", wanted="link vf0"))
    host.describes(drift("device.absent", wanted="link bf3"))
    assert host.told() == [("node-n1", "node.degraded")] * 2


def test_one_of_two_ways_that_drift_alike_is_mended_and_that_is_news(host: Host) -> None:
    host.describes(way_drifts(WAY), way_drifts(OTHER_WAY))
    host.describes(way_drifts(OTHER_WAY))
    assert host.told() == [("slot-n1/0", "slot.degraded")] * 2
    assert ways_open(host) == [OTHER_WAY]


def test_drift_that_goes_from_one_way_to_another_is_news(host: Host) -> None:
    host.describes(way_drifts(WAY))
    host.describes(way_drifts(OTHER_WAY))
    assert host.told() == [("slot-n1/0", "slot.degraded")] * 2
    assert ways_open(host) == [OTHER_WAY]


def test_drift_of_a_way_names_it_open_and_mended(host: Host) -> None:
    host.describes(way_drifts(WAY))
    [shown] = host.asked("/drift")
    assert (shown["scope"], shown["slot_id"], shown["ingress_id"]) == ("exposure", "n1/0", WAY)
    host.mended(0, sighting("mapping.changed", ingress_id=WAY))
    query = "select data::jsonb -> 'drift' -> 0 ->> 'ingress_id' from ledger.event where type = 'slot.mended'"
    assert host.plane.rows(query) == [(WAY,)]


def test_every_drift_says_for_whom_it_speaks(host: Host) -> None:
    host.describes(drift("uplink.lost"), drift("port.absent", 0), way_drifts(WAY), drift("newer.kind", 1))
    told = {each["kind"]: each["scope"] for each in host.asked("/drift")}
    assert told == {
        "uplink.lost": "node",
        "port.absent": "slot",
        "mapping.changed": "exposure",
        "newer.kind": "slot",
    }


def test_of_a_node_without_access_nothing_is_told(host: Host) -> None:
    host.describes(drift("uplink.lost"), drift("port.absent", 1))
    with host.plane.client() as client:
        assert client.post("/nodes/n1/revoke", json={"why": "gone"}).is_success
    assert host.asked("/drift") == host.asked("/nodes/n1/drift") == []


def test_a_word_that_would_command_a_terminal_is_refused(host: Host) -> None:
    answer = host.says(survey(drift=[drift("uplink.lost", found="no\x1b[2J route")]))
    assert answer.status_code == 422


def test_slots_of_one_request_are_counted_without_the_degraded(host: Host) -> None:
    host.describes(drift("port.absent", 0))
    assert allocate(host.plane, slot_count=2).status_code == 409


def test_a_kind_of_a_newer_node_is_taken_and_blocks(host: Host) -> None:
    host.describes(drift("fabric.unplugged", 0))
    [seen] = host.asked("/drift")
    assert (seen["kind"], seen["blocks"]) == ("fabric.unplugged", True)


@pytest.mark.parametrize("path", ["/drift", "/nodes/n1/drift"])
def test_drift_is_seen_as_it_was(host: Host, path: str) -> None:
    host.describes(drift("uplink.lost"), drift("port.absent", 1))
    [(then,)] = host.plane.rows("select max(position) from ledger.event")
    host.describes()
    assert host.asked(path) == []
    seen = host.asked(f"{path}?at=position:{then}")
    assert [(each["slot_id"], each["kind"]) for each in seen] == [
        (None, "uplink.lost"),
        ("n1/1", "port.absent"),
    ]


def test_the_drift_of_a_node_that_nobody_knows_is_not_found(running_plane: RunningPlane) -> None:
    with running_plane.client() as client:
        answer: httpx.Response = client.get("/nodes/n9/drift")
    assert answer.status_code == 404


def test_a_node_that_describes_itself_waits_for_its_slots_before_it_takes_its_own_row(host: Host) -> None:
    """Who places ways in holds slots and then their node: the other way round each would wait for the other."""
    plane = host.plane
    with ThreadPoolExecutor() as pool, psycopg.connect(plane.database.admin_dsn) as placing:
        placing.execute("select 1 from read.slot where node_id = 'n1' and slot_index = 1 for update")
        describing = pool.submit(host.describes, drift("uplink.lost"), drift("port.absent", 1))
        until(
            lambda: describing.done() or plane.somebody_waits_for_a_lock(),
            "the description waits for the slot",
        )
        placing.execute("select 1 from read.node where node_id = 'n1' for share nowait")
        placing.commit()
        describing.result()
    assert len(host.asked("/drift")) == 2
