"""PCI functions of slots: a node reports them, approval claims them, and each has one slot at most (LED-3, ALC-1)."""

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


NOT_REPORTED: Final[dict[str, Any]] = {
    **dict.fromkeys(("unreadable", "model", "memory_mib", "bar_mib", "uuid", "iommu_group", "root_port")),
    **dict.fromkeys(("physical_function", "vf_number", "representor", "fabric_metadata")),
    "evidence": [],
}
"""Fields of a device in the view of a slot, if its node reports no facts about the device."""
H200: Final = {
    **GPU,
    "model": "NVIDIA H200 SXM 141GB",
    "memory_mib": 143771,
    "bar_mib": 262144,
    "iommu_group": "59",
    "root_port": "0000:15:01.0",
    "uuid": "GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b",
    "evidence": [{"path": "/sys/bus/pci/devices/0000:1b:00.0/class", "value": "0x030200"}],
}
FABRIC_FIELDS: Final = (
    "link_layer",
    "rdma_device",
    "port_state",
    "physical_state",
    "rate_mbit",
    "mtu",
    "guid",
    "mac",
)
PORT: Final = {
    "link_layer": "infiniband",
    "rdma_device": "mlx5_0",
    "port_state": "active",
    "rate_mbit": 400_000,
}
HCA: Final = {**CARD, "physical_function": "0000:18:00.0", "vf_number": 0, "fabric_metadata": PORT}


class DescribedNode:
    """Node with two slots that are not approved. Each of its reports is a new description of the node."""

    def __init__(self, plane: RunningPlane) -> None:
        self.plane, self._node = plane, admit(plane, "n1", slots=2, approve=False)
        self._spool, self._sequence = str(uuid4()), 0

    def describe_devices(self, *devices: dict[str, Any], slot: int = 0, numa_node: int | None = 0) -> None:
        """Report a node description with these PCI devices in one slot, and without devices in the other slot."""
        slots = [{**SLOT, "index": index, "network_device": f"slice{index}"} for index in (0, 1)]
        slots[slot] |= {"devices": list(devices), "numa_node": numa_node}
        self._describe(slots)

    def describe_slots(self, *, memory_mib: int) -> None:
        """Report a node description with two slots of this size and without PCI devices."""
        sized = {**SLOT, "memory_mib": memory_mib}
        self._describe([{**sized, "index": index, "network_device": f"slice{index}"} for index in (0, 1)])

    def _describe(self, slots: list[dict[str, Any]]) -> None:
        self._sequence += 1
        report = batch(self._spool, (self._sequence, survey(slots=slots)))
        answer = self._node.post("/reports", json=report)
        assert answer.is_success, answer.text

    def approve(self, slot: int = 0, *, skus: list[str] | None = None) -> httpx.Response:
        """Approve a slot, under these SKUs; None: the request names none."""
        with self.plane.client() as client:
            return client.post(f"/nodes/n1/slots/{slot}/approve", json={} if skus is None else {"skus": skus})

    def slot(self, slot: int = 0) -> dict[str, Any]:
        with self.plane.client() as client:
            return dict(client.get("/slots").json()["items"][slot])

    def claims(self) -> list[tuple[str, str]]:
        query = "select value, stream_id from ledger.claim where kind = 'pci' order by value"
        return [(value, stream) for value, stream in self.plane.rows(query)]

    def holders(self, position: int) -> list[str]:
        """Return the ledger streams of the slots that held the GPU at a position, from the history of the GPU."""
        with self.plane.client() as client:
            answer = client.get("/history/device/n1/0000:1b:00.0", params={"at": f"position:{position}"})
        return [held["stream"] for held in answer.json()["state"]["holders"]] if answer.is_success else []

    def events(self, type_: str) -> int:
        """Return the number of recorded events of a type."""
        return len(self.plane.rows(f"select 1 from ledger.event where type = '{type_}'"))

    def device_events(self) -> list[str]:
        """Return the types of the recorded events about devices and drift, in ledger order."""
        rows = self.plane.rows("select type from ledger.event order by position")
        kept = ("slot.devices_described", "slot.devices_granted", "slot.degraded", "slot.recovered")
        return [type_ for (type_,) in rows if type_ in kept]


@pytest.fixture
def node(emptied_plane: RunningPlane) -> DescribedNode:
    return DescribedNode(emptied_plane)


def test_slot_shows_the_pci_devices_that_its_node_reports_and_claims_them_when_it_is_approved(
    node: DescribedNode,
) -> None:
    node.describe_devices(GPU, CARD)
    slot = node.slot()
    shown = [{**NOT_REPORTED, **GPU, "granted": False}, {**NOT_REPORTED, **CARD, "granted": False}]
    assert slot["devices"] == shown
    assert (slot["numa_node"], node.claims()) == (0, [])
    assert node.approve().is_success
    assert node.slot()["devices"] == [{**each, "granted": True} for each in shown]
    assert node.claims() == [("n1/0000:18:00.1", "slot-n1/0"), ("n1/0000:1b:00.0", "slot-n1/0")]


def test_slot_view_has_the_properties_of_its_pci_devices_and_the_files_that_show_them(
    node: DescribedNode,
) -> None:
    node.describe_devices(H200, HCA)
    port = {**dict.fromkeys(FABRIC_FIELDS), **PORT}
    assert node.slot()["devices"] == [
        {**NOT_REPORTED, **H200, "granted": False},
        {**NOT_REPORTED, **HCA, "fabric_metadata": port, "granted": False},
    ]
    with node.plane.client() as client:
        assert client.get("/nodes/n1/slots/0").json()["devices"] == node.slot()["devices"]


@pytest.mark.parametrize(
    "changed",
    [
        {"unreadable": "read its files: no answer within 2 s"},
        {"uuid": None},
        {"fabric_metadata": {"link_layer": "ethernet"}},
        {"evidence": [{"path": "/sys/bus/pci/devices/0000:1b:00.0/class", "value": "0x030000"}]},
    ],
    ids=lambda changed: str(next(iter(changed))),
)
def test_changed_property_of_a_pci_device_that_approvals_do_not_compare_is_recorded_once_and_not_as_drift(
    changed: dict[str, Any], node: DescribedNode
) -> None:
    node.describe_devices(H200)
    node.approve()
    node.describe_devices({**H200, **changed})
    node.describe_devices({**H200, **changed})
    assert node.device_events() == [
        "slot.devices_described",
        "slot.devices_granted",
        "slot.devices_described",
    ]
    (shown,) = node.slot()["devices"]
    ((field, value),) = list(changed.items())[:1]
    assert shown[field] == ({**dict.fromkeys(FABRIC_FIELDS), **value} if isinstance(value, dict) else value)


def test_slot_without_pci_devices_records_no_device_events(node: DescribedNode) -> None:
    node.describe_devices(numa_node=None)
    assert node.approve().is_success
    assert (node.device_events(), node.slot()["devices"], node.slot()["numa_node"]) == ([], [], None)


def test_pci_devices_that_a_node_reports_repeatedly_without_a_change_are_recorded_once(
    node: DescribedNode,
) -> None:
    node.describe_devices(GPU)
    node.describe_devices(GPU)
    assert node.device_events() == ["slot.devices_described"]


def test_approval_of_a_pci_device_that_another_slot_claims_is_refused(node: DescribedNode) -> None:
    node.describe_devices(GPU)
    assert node.approve().is_success
    node.describe_devices(GPU, slot=1)
    refused = node.approve(1)
    assert refused.status_code == 409
    assert "pci_taken" in refused.text
    assert node.claims() == [("n1/0000:1b:00.0", "slot-n1/0")]


def test_approved_slot_with_changed_pci_devices_is_not_allocated_until_it_is_approved_again(
    node: DescribedNode,
) -> None:
    node.describe_devices(GPU)
    node.approve()
    node.describe_devices(CARD)
    (open_,) = node.slot()["drift"]
    assert (open_["kind"], open_["blocks"]) == ("slot.ungranted", True)
    assert allocate(node.plane).status_code == 409
    assert node.approve().is_success
    assert node.slot()["drift"] == []
    assert node.claims() == [("n1/0000:18:00.1", "slot-n1/0")]
    node.describe_devices(CARD)
    assert node.device_events() == [
        "slot.devices_described",
        "slot.devices_granted",
        "slot.devices_described",
        "slot.degraded",
        "slot.devices_granted",
        "slot.recovered",
    ]
    assert node.events("slot.hardware_approved") == 2
    assert allocate(node.plane).is_success


def test_pci_device_that_moved_to_another_slot_can_be_claimed_there_and_its_history_names_both_slots(
    node: DescribedNode,
) -> None:
    node.describe_devices(GPU)
    node.approve()
    first = node.plane.last_position()
    node.describe_devices(GPU, slot=1)
    assert node.approve().is_success
    unclaimed = node.plane.last_position()
    assert node.approve(1).is_success
    assert node.claims() == [("n1/0000:1b:00.0", "slot-n1/1")]
    until(
        lambda: node.holders(node.plane.last_position()) == ["slot-n1/1"], "its history shows the next holder"
    )
    assert (node.holders(first), node.holders(unclaimed)) == (["slot-n1/0"], [])


def test_approval_of_changed_pci_devices_of_a_claimed_slot_is_refused(node: DescribedNode) -> None:
    node.describe_devices(GPU)
    node.approve()
    assert allocate(node.plane).is_success
    node.describe_devices(CARD)
    assert node.approve().status_code == 409
    assert node.claims() == [("n1/0000:1b:00.0", "slot-n1/0")]


OTHER_UUID: Final = {"uuid": "GPU-12345678-b60b-a624-bf14-0a1819cfda3b"}


@pytest.mark.parametrize(
    ("changed", "desired", "observed"),
    [
        (OTHER_UUID, f"UUID {H200['uuid']}", OTHER_UUID["uuid"]),
        ({"number": None, "kind": None, "numa_node": None}, "device id 10de:2330", "none"),
        ({"iommu_group": "60"}, "IOMMU group 59", "60"),
    ],
    ids=["another UUID", "vanished", "another IOMMU group"],
)
def test_changed_hardware_blocks_an_approved_slot_until_it_is_approved_again(
    changed: dict[str, Any], desired: str, observed: str, node: DescribedNode
) -> None:
    node.describe_devices(H200)
    assert node.approve().is_success
    node.describe_devices({**H200, **changed})
    node.describe_devices({**H200, **changed})
    slot = node.slot()
    (open_,) = slot["drift"]
    assert (open_["kind"], open_["desired"], open_["observed"], open_["blocks"]) == (
        "slot.changed",
        f"GPU 0000:1b:00.0: {desired}, as approved",
        observed,
        True,
    )
    assert (slot["blocked_by"], slot["allowed_actions"]["approve"]) == ("slot.changed", {"allowed": True})
    assert node.events("slot.degraded") == 1
    assert allocate(node.plane).status_code == 409
    assert node.approve().is_success
    for _ in ("the approval ends the drift", "the next survey finds none"):
        assert (node.slot()["drift"], node.slot()["blocked_by"]) == ([], None)
        node.describe_devices({**H200, **changed})
    assert node.events("slot.degraded") == 1
    assert allocate(node.plane).is_success
    assert node.approve().status_code == 409


def test_slot_is_offered_again_when_its_node_finds_the_approved_hardware_again(node: DescribedNode) -> None:
    node.describe_devices(H200)
    node.approve()
    node.describe_devices({**H200, **OTHER_UUID})
    assert allocate(node.plane).status_code == 409
    node.describe_devices(H200)
    assert node.slot()["drift"] == []
    assert (node.events("slot.recovered"), node.events("slot.hardware_approved")) == (1, 1)
    assert allocate(node.plane).is_success


def test_exchanged_gpu_stays_drift_while_its_uuid_cannot_be_read(node: DescribedNode) -> None:
    node.describe_devices(H200)
    node.approve()
    node.describe_devices({**H200, **OTHER_UUID})
    for unread in ({"uuid": None}, {"unreadable": "read its files: no answer within 2 s"}):
        node.describe_devices({**H200, **unread})
        assert [each["observed"] for each in node.slot()["drift"]] == [OTHER_UUID["uuid"]]


def test_slice_in_a_slot_with_changed_hardware_stays_and_the_slot_cannot_be_approved_until_it_is_free(
    node: DescribedNode,
) -> None:
    node.describe_devices(H200)
    node.approve()
    assert allocate(node.plane).is_success
    node.describe_devices({**H200, **OTHER_UUID})
    slot = node.slot()
    assert (slot["state"], slot["blocked_by"]) == ("claimed", "slot.changed")
    refused = node.approve()
    assert (refused.status_code, "not_awaiting_approval" in refused.text) == (409, True)
    assert node.events("slot.hardware_approved") == 1


def test_retired_slot_gives_up_its_pci_devices_and_gets_them_back_when_it_is_approved_again(
    node: DescribedNode,
) -> None:
    node.describe_devices(H200)
    node.approve()
    with node.plane.client() as client:
        assert client.post("/nodes/n1/slots/0/retire", json={"reason": "sold"}).is_success
    assert node.claims() == []
    node.describe_devices({**H200, **OTHER_UUID})
    assert (node.slot()["drift"], node.slot()["state"]) == ([], "retired")
    assert node.approve().is_success
    assert node.claims() == [("n1/0000:1b:00.0", "slot-n1/0")]
    node.describe_devices({**H200, **OTHER_UUID})
    assert (node.slot()["drift"], node.slot()["state"]) == ([], "free")


def test_approval_without_skus_is_refused_with_the_reason_if_the_hardware_became_too_small_for_a_kept_sku(
    node: DescribedNode,
) -> None:
    node.describe_slots(memory_mib=192)
    assert node.approve(skus=["lab.small", "lab.medium"]).is_success
    node.describe_slots(memory_mib=96)
    refused = node.approve()
    assert refused.status_code == 409
    (reason,) = refused.json()["reasons"]
    assert reason["code"] == "sku_does_not_fit"
    assert "the slot has 1 vCPU and 96 MiB; name SKUs that fit" in reason["message"]
    slot = node.slot()
    assert (slot["blocked_by"], slot["allowed_actions"]["approve"]) == ("slot.changed", {"allowed": True})
    assert node.approve(skus=["lab.small"]).is_success
    slot = node.slot()
    assert (slot["blocked_by"], slot["skus"]) == (None, ["lab.small"])


def test_retired_slot_that_became_too_small_for_its_sku_is_not_approved_under_it(node: DescribedNode) -> None:
    node.describe_slots(memory_mib=192)
    assert node.approve(skus=["lab.medium"]).is_success
    with node.plane.client() as client:
        assert client.post("/nodes/n1/slots/0/retire", json={"reason": "smaller"}).is_success
    node.describe_slots(memory_mib=96)
    refused = node.approve()
    assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (409, "sku_does_not_fit")
    assert node.approve(skus=["lab.small"]).is_success


def test_slot_keeps_a_retired_sku_that_fits_the_changed_hardware(node: DescribedNode) -> None:
    node.describe_slots(memory_mib=192)
    assert node.approve(skus=["lab.medium"]).is_success
    with node.plane.client() as client:
        assert client.post("/skus/lab.medium/retire", json={"reason": "not sold"}).is_success
    node.describe_slots(memory_mib=384)
    assert node.approve().is_success
    assert node.slot()["skus"] == ["lab.medium"]


def test_approved_slot_is_refused_an_approval_without_skus_and_accepts_one_that_names_a_sku(
    node: DescribedNode,
) -> None:
    node.describe_slots(memory_mib=192)
    assert node.approve(skus=["lab.small"]).is_success
    refused = node.approve()
    assert (refused.status_code, refused.json()["reasons"][0]["code"]) == (409, "not_awaiting_approval")
    assert node.slot()["allowed_actions"]["approve"] == {"allowed": True}
    assert node.approve(skus=["lab.medium"]).is_success
    assert node.slot()["skus"] == ["lab.medium"]


def test_view_and_history_of_a_slot_have_the_hardware_that_its_approvals_accepted(
    node: DescribedNode,
) -> None:
    node.describe_devices(H200)
    assert node.slot()["approved_hardware"] is None
    node.approve()
    approved = node.slot()["approved_hardware"]
    assert (approved["memory_mib"], approved["devices"][0]["uuid"]) == (96, H200["uuid"])
    first = node.plane.last_position()
    node.describe_devices({**H200, **OTHER_UUID})
    assert node.slot()["approved_hardware"] == approved
    node.approve()
    last = node.plane.last_position()
    with node.plane.client() as client:
        query = {"from": f"position:{first}", "to": f"position:{last}"}
        changes = client.get("/history/slot/n1/0/changes", params=query).raise_for_status().json()
        fields = [each["path"] for change in changes["changes"] for each in change["fields"]]
        assert "/approved_hardware/devices/0/uuid" in fields
        then = client.get("/nodes/n1/slots/0", params={"at": f"position:{first}"})
        assert then.json()["approved_hardware"] == approved
        before = client.get("/nodes/n1/slots/0", params={"at": "position:1"})
        assert (before.status_code, before.json()["reasons"][0]["code"]) == (404, "unknown_slot")
