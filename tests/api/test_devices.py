"""PCI functions of slots: described by their node, granted by approval, held by one slot each (LED-3, ALC-1)."""

from typing import Any, Final
from uuid import uuid4

import httpx
import pytest

from tests.api.node import SLOT, admit, allocate, batch, survey
from tests.servers.plane import RunningPlane
from tests.waiting import until

GPU: Final = {"address": "0000:1b:00.0", "use": "gpu", "number": "10de:2330", "kind": "gpu", "numa_node": 0}
CARD: Final = {
    "address": "0000:18:00.1",
    "use": "fabric",
    "number": "15b3:101e",
    "kind": "vf",
    "numa_node": 0,
}


class Host:
    """A node of two slots that is not approved, and describes itself anew at every word."""

    def __init__(self, plane: RunningPlane) -> None:
        self.plane, self._node = plane, admit(plane, "n1", slots=2, approve=False)
        self._spool, self._sequence = str(uuid4()), 0

    def has(self, *devices: dict[str, Any], slot: int = 0, numa_node: int | None = 0) -> None:
        """These in one of its slots, and none in the other."""
        slots = [{**SLOT, "index": index, "network_device": f"slice{index}"} for index in (0, 1)]
        slots[slot] |= {"devices": list(devices), "numa_node": numa_node}
        self._sequence += 1
        report = batch(self._spool, (self._sequence, survey(slots=slots)))
        answer = self._node.post("/reports", json=report)
        assert answer.is_success, answer.text

    def approve(self, slot: int = 0) -> httpx.Response:
        with self.plane.client() as client:
            return client.post(f"/nodes/n1/slots/{slot}/approve")

    def slot(self, slot: int = 0) -> dict[str, Any]:
        with self.plane.client() as client:
            return dict(client.get("/slots").json()["items"][slot])

    def claims(self) -> list[tuple[str, str]]:
        query = "select value, stream_id from ledger.claim where kind = 'pci' order by value"
        return [(value, stream) for value, stream in self.plane.rows(query)]

    def holders(self, position: int) -> list[str]:
        """Who held the GPU then, by the log."""
        with self.plane.client() as client:
            answer = client.get("/history/device/n1/0000:1b:00.0", params={"at": f"position:{position}"})
        return [held["stream"] for held in answer.json()["state"]["holders"]] if answer.is_success else []

    def told(self) -> list[str]:
        rows = self.plane.rows("select type from ledger.event order by position")
        kept = ("slot.devices_described", "slot.devices_granted", "slot.degraded", "slot.recovered")
        return [type_ for (type_,) in rows if type_ in kept]


@pytest.fixture
def host(running_plane: RunningPlane) -> Host:
    return Host(running_plane)


def test_a_slot_shows_what_its_node_gives_it_and_has_it_once_it_is_approved(host: Host) -> None:
    host.has(GPU, CARD)
    slot = host.slot()
    assert slot["devices"] == [{**GPU, "granted": False}, {**CARD, "granted": False}]
    assert (slot["numa_node"], host.claims()) == (0, [])
    assert host.approve().is_success
    assert host.slot()["devices"] == [{**GPU, "granted": True}, {**CARD, "granted": True}]
    assert host.claims() == [("n1/0000:18:00.1", "slot-n1/0"), ("n1/0000:1b:00.0", "slot-n1/0")]


def test_a_slot_without_devices_says_nothing_of_any(host: Host) -> None:
    host.has(numa_node=None)
    assert host.approve().is_success
    assert (host.told(), host.slot()["devices"], host.slot()["numa_node"]) == ([], [], None)


def test_what_is_described_again_is_no_news(host: Host) -> None:
    host.has(GPU)
    host.has(GPU)
    assert host.told() == ["slot.devices_described"]


def test_a_device_that_another_slot_holds_cannot_be_approved(host: Host) -> None:
    host.has(GPU)
    assert host.approve().is_success
    host.has(GPU, slot=1)
    refused = host.approve(1)
    assert refused.status_code == 409
    assert "pci_taken" in refused.text
    assert host.claims() == [("n1/0000:1b:00.0", "slot-n1/0")]


def test_an_approved_slot_with_other_devices_is_not_placed_on_until_it_is_approved_again(host: Host) -> None:
    host.has(GPU)
    host.approve()
    host.has(CARD)
    (open_,) = host.slot()["drift"]
    assert (open_["kind"], open_["blocks"]) == ("slot.ungranted", True)
    assert allocate(host.plane).status_code == 409
    assert host.approve().is_success
    assert host.slot()["drift"] == []
    assert host.claims() == [("n1/0000:18:00.1", "slot-n1/0")]
    host.has(CARD)
    assert host.told() == [
        "slot.devices_described",
        "slot.devices_granted",
        "slot.devices_described",
        "slot.degraded",
        "slot.devices_granted",
        "slot.recovered",
    ]
    assert allocate(host.plane).is_success


def test_a_device_that_one_slot_let_go_another_can_have_and_history_tells_who_had_it(host: Host) -> None:
    host.has(GPU)
    host.approve()
    first = host.plane.last_position()
    host.has(GPU, slot=1)
    assert host.approve().is_success
    nobody = host.plane.last_position()
    assert host.approve(1).is_success
    assert host.claims() == [("n1/0000:1b:00.0", "slot-n1/1")]
    until(lambda: host.holders(host.plane.last_position()) == ["slot-n1/1"], "its next holder is known")
    assert (host.holders(first), host.holders(nobody)) == (["slot-n1/0"], [])


def test_a_slot_that_is_in_use_is_not_given_other_devices(host: Host) -> None:
    host.has(GPU)
    host.approve()
    assert allocate(host.plane).is_success
    host.has(CARD)
    assert host.approve().status_code == 409
    assert host.claims() == [("n1/0000:1b:00.0", "slot-n1/0")]
