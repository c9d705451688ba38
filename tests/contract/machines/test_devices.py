"""PCI functions that a slot's virtual machine may use, and their state after the machine is gone.

On the real host, the agent reads composed PCI trees (`tests.node.pci_trees`), while libvirt sees the PCI functions of
the test machine. The agent's own refusals, which precede the definition of a domain, are the same as on a host with
such devices. No test passes a device through to a guest of the real host.
"""

import re
from pathlib import Path
from typing import Final

import pytest

from events.values import PciAddress, SlotIndex
from node_agent.aspects.machines import Machines
from node_agent.drivers.sysfs import SysfsPci
from node_agent.host.host_resources import HostDevice, Place, Use
from node_agent.host.slices import HostRefused
from node_agent.host.snapshots import host_snapshot
from tests.contract.machines.hosts import Host, Simulated, machines_of
from tests.node.guests import SECOND, network_on, slice_on
from tests.node.pci_trees import VF, lay_out

GPU: Final = PciAddress("0000:1b:00.0")
CARD: Final = PciAddress("0000:18:00.1")


def place(*addresses: str, use: Use = "gpu", nodeset: str | None = None) -> Place:
    return Place(tuple(HostDevice(PciAddress(each), use) for each in addresses), nodeset=nodeset)


def on(host: Host, its: Place) -> Machines:
    return machines_of(host, {SlotIndex(0): its})


def apply(machines: Machines, allocation: str = slice_on(0).allocation_id) -> list[str]:
    steps = machines.to_apply(slice_on(0, SECOND if allocation == SECOND else slice_on(0).allocation_id))
    for step in steps:
        step.run()
    return [step.name for step in steps]


def refused(host: Host, its: Place) -> str:
    """Apply a slice for which the host must refuse to define a domain, and return the reason of the refusal."""
    host.add_tap("slice0")
    with pytest.raises(HostRefused) as reason:
        apply(on(host, its))
    assert [each.name for each in host.hypervisor.domains() if each.name == "slice0"] == []
    assert [name for name in host.disks.found("slice0") if "device-" in name] == []
    return str(reason.value)


def test_guest_with_an_absent_pci_device_is_refused(host: Host, tmp_path: Path) -> None:
    host.have_pci("hgx", tmp_path)
    assert refused(host, place("0000:02:00.0")) == "PCI device 0000:02:00.0 does not exist"


def test_refusal_of_a_guest_lists_the_objections_to_all_its_pci_devices(host: Host, tmp_path: Path) -> None:
    host.have_pci("hgx", tmp_path)
    host.hold("other", GPU)
    reasons = refused(host, place(GPU, "0000:18:00.2", "0000:29:00.0", "0000:02:00.0")).split("; ")
    assert reasons == [
        "PCI device 0000:1b:00.0 is held by domain other (stopped)",
        "PCI device 0000:18:00.2 is bound to mlx5_core",
        "PCI device 0000:29:00.0 is not a gpu, but a fabric (15b3:1021)",
        "PCI device 0000:29:00.0 is bound to mlx5_core",
        "PCI device 0000:02:00.0 does not exist",
    ]


def test_gpu_that_node_settings_declare_as_a_fabric_device_is_refused(host: Host, tmp_path: Path) -> None:
    host.have_pci("hgx", tmp_path)
    assert "is not a fabric, but a gpu (10de:2330)" in refused(host, place(GPU, use="fabric"))


@pytest.mark.parametrize(
    ("tree", "device", "reason"),
    [
        ("bluefield", "0000:3b:00.0", "is not a virtual function, but a fabric (15b3:a2dc)"),
        ("bluefield", "0000:3b:00.6", "does not exist"),
        ("hgx", "0000:9a:00.1", "has no representor: its card is not in switchdev mode"),
    ],
)
def test_network_card_of_a_guest_is_refused_unless_it_is_a_virtual_function_of_a_card_in_switchdev_mode(
    host: Host, tmp_path: Path, tree: str, device: str, reason: str
) -> None:
    host.have_pci(tree, tmp_path)
    assert f"PCI device {device} {reason}" in refused(host, place(device, use="card"))


def test_pci_device_without_an_iommu_group_is_refused(host: Host, tmp_path: Path) -> None:
    host.have_pci("cloud", tmp_path)
    assert "is in no IOMMU group" in refused(host, place("0000:00:01.0"))


def test_pci_device_is_refused_if_its_slot_does_not_have_its_whole_iommu_group(
    host: Host, tmp_path: Path
) -> None:
    host.have_pci("workstation", tmp_path)
    assert refused(host, place("0000:01:00.0")) == (
        "PCI device 0000:01:00.0 shares IOMMU group 1 with 0000:01:00.1 (10de:22ba), which do not belong to the slot"
    )


def test_pci_device_with_its_whole_iommu_group_is_refused_only_because_of_a_bound_driver(
    host: Host, tmp_path: Path
) -> None:
    host.have_pci("workstation", tmp_path)
    reason = "PCI device 0000:01:00.1 is bound to snd_hda_intel"
    assert refused(host, place("0000:01:00.0", "0000:01:00.1")) == reason


def test_pci_device_of_a_slot_that_a_driver_or_another_domain_holds_is_a_leftover(
    host: Host, tmp_path: Path
) -> None:
    host.have_pci("workstation", tmp_path)
    host.hold("other", PciAddress("0000:01:00.0"))
    assert on(host, place("0000:01:00.0", "0000:01:00.1")).remains(network_on(0)) == (
        "PCI device 0000:01:00.0 is held by domain other (stopped)",
        "PCI device 0000:01:00.1 is bound to snd_hda_intel",
    )


def test_pci_device_that_was_passed_through_from_a_slot_is_reset_before_the_slots_disk_folder_is_wiped(
    host: Host, tmp_path: Path
) -> None:
    devices = host.have_pci("hgx", tmp_path)
    host.disks.write(f"slice0/device-{GPU}", GPU.encode())
    machines = on(host, place())
    steps = machines.to_remove(network_on(0))
    assert [step.name for step in steps] == ["machine.reset_device", "machine.wipe_disks"]
    for step in steps:
        step.run()
    assert machines.remains(network_on(0)) == ()
    assert isinstance(host, Simulated) or (devices / GPU / "reset").read_text() == "1"


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ("0000:18:00.2", "is bound to mlx5_core"),
        ("0000:00:00.0", "has no reset method"),
    ],
)
def test_refused_reset_of_a_pci_device_states_the_reason_and_keeps_the_record_of_the_device(
    host: Host, tmp_path: Path, device: str, reason: str
) -> None:
    host.have_pci("hgx" if device == "0000:18:00.2" else "workstation", tmp_path)
    host.disks.write(f"slice0/device-{device}", b"noted")
    machines = on(host, place())
    (resetting, _wiping) = machines.to_remove(network_on(0))
    with pytest.raises(HostRefused, match=reason):
        resetting.run()
    assert f"file slice0/device-{device}" in machines.remains(network_on(0))


def test_pci_device_that_was_passed_through_and_that_another_virtual_machine_now_holds_is_not_reset(
    host: Host, tmp_path: Path
) -> None:
    host.have_pci("hgx", tmp_path)
    host.disks.write(f"slice0/device-{GPU}", b"noted")
    host.hold("other", GPU)
    (resetting, _wiping) = on(host, place()).to_remove(network_on(0))
    with pytest.raises(HostRefused, match="held by domain other"):
        resetting.run()


def test_pci_device_that_was_passed_through_and_is_now_absent_needs_no_reset(
    host: Host, tmp_path: Path
) -> None:
    host.have_pci("hgx", tmp_path)
    host.disks.write("slice0/device-0000:02:00.0", b"noted")
    machines = on(host, place())
    for step in machines.to_remove(network_on(0)):
        step.run()
    assert machines.remains(network_on(0)) == ()


@pytest.fixture
def simulated(tmp_path: Path) -> Simulated:
    """Simulated host with the GPUs of an HGX system. No other host of these tests can pass a device through to a
    guest.
    """
    host = Simulated()
    host.have_pci("hgx", tmp_path)
    host.add_tap("slice0")
    return host


STARTING: Final = ["machine.check_devices", "machine.note_device", "machine.note_device", "machine.start"]


def both() -> Place:
    return Place((HostDevice(GPU, "gpu"), HostDevice(CARD, "fabric")), nodeset="0")


def test_pci_devices_of_a_virtual_machine_are_reset_before_the_next_tenant_gets_them(
    simulated: Simulated,
) -> None:
    machines = on(simulated, both())
    assert apply(machines) == ["machine.write_seed", *STARTING]
    assert apply(machines) == []
    (domain,) = simulated.hypervisor.domains()
    assert domain.devices == (CARD, GPU)
    assert apply(machines, SECOND) == [
        "machine.destroy",
        "machine.reset_device",
        "machine.reset_device",
        "machine.wipe_disks",
        "machine.write_seed",
        *STARTING,
    ]


def test_removed_virtual_machine_has_its_pci_devices_reset_and_leaves_nothing(simulated: Simulated) -> None:
    machines = on(simulated, both())
    apply(machines)
    steps = machines.to_remove(network_on(0))
    assert [step.name for step in steps] == [
        "machine.destroy",
        "machine.reset_device",
        "machine.reset_device",
        "machine.wipe_disks",
    ]
    for step in steps:
        step.run()
    assert machines.remains(network_on(0)) == ()
    assert machines.to_remove(network_on(0)) == ()


def test_virtual_machine_with_a_virtual_function_as_network_card_starts_without_a_tap(tmp_path: Path) -> None:
    host = Simulated()
    host.have_pci("bluefield", tmp_path)
    machines = on(host, place(VF, use="card"))
    assert apply(machines)[1:] == ["machine.check_devices", "machine.note_device", "machine.start"]
    assert apply(machines) == []
    (domain,) = host.hypervisor.domains()
    assert (domain.interfaces, domain.devices) == ((network_on(0).mac,), (VF,))
    steps = machines.to_remove(network_on(0))
    assert [step.name for step in steps] == ["machine.destroy", "machine.reset_device", "machine.wipe_disks"]


def test_pci_devices_have_the_vfio_driver_while_their_machine_exists_and_afterwards_no_driver(
    simulated: Simulated,
) -> None:
    for address in both().addresses:
        simulated.bus.unbind(address)
    machines = on(simulated, both())
    apply(machines)
    assert drivers(simulated) == {GPU: "vfio-pci", CARD: "vfio-pci"}
    for step in machines.to_remove(network_on(0)):
        step.run()
    assert drivers(simulated) == {GPU: None, CARD: None}


def drivers(host: Simulated) -> dict[PciAddress, str | None]:
    return {each.address: each.driver for each in host.bus.devices() if each.address in both().addresses}


def test_pci_devices_of_a_removed_virtual_machine_are_reset_through_the_kernel(
    simulated: Simulated, tmp_path: Path
) -> None:
    root = lay_out("hgx", tmp_path / "sys")
    simulated.bus = SysfsPci(root)
    machines = on(simulated, both())
    apply(machines)
    resets = [root / "devices" / device / "reset" for device in (GPU, CARD)]
    assert [path.read_text() for path in resets] == ["", ""]
    for step in machines.to_remove(network_on(0)):
        step.run()
    assert [path.read_text() for path in resets] == ["1", "1"]


def test_pci_device_that_was_bound_to_a_driver_after_planning_is_refused_at_machine_start(
    simulated: Simulated, tmp_path: Path
) -> None:
    root = lay_out("hgx", tmp_path / "sys")
    simulated.bus = SysfsPci(root)
    with host_snapshot():
        # Read before planning, as a slot's link is read before its machine is.
        simulated.bus.devices()
        steps = {step.name: step for step in on(simulated, place(GPU)).to_apply(slice_on(0))}
        driver = root / "devices" / GPU / "driver"
        driver.unlink()
        driver.symlink_to("../../bus/pci/drivers/nvidia")
        with pytest.raises(HostRefused, match="is bound to nvidia"):
            steps["machine.check_devices"].run()


def test_unreadable_pci_device_is_neither_passed_through_nor_reset_and_remains_a_leftover(
    simulated: Simulated, tmp_path: Path
) -> None:
    root = lay_out("hgx", tmp_path / "sys")
    simulated.bus = SysfsPci(root)
    machines = on(simulated, place(GPU))
    apply(machines)
    (root / "devices" / GPU / "class").write_text("display")
    unreadable = f"{GPU}.* cannot be read"
    destroy, resetting, _wiping = machines.to_remove(network_on(0))
    destroy.run()
    with pytest.raises(HostRefused, match=unreadable):
        resetting.run()
    assert (root / "devices" / GPU / "reset").read_text() == ""
    assert [words for words in machines.remains(network_on(0)) if re.search(unreadable, words)] != []
    with pytest.raises(HostRefused, match=unreadable):
        apply(machines)


def test_virtual_machine_with_other_pci_devices_than_its_slot_is_replaced_and_reported(
    simulated: Simulated,
) -> None:
    apply(on(simulated, both()))
    steps = on(simulated, place(GPU, nodeset="0")).to_apply(slice_on(0))
    assert [step.name for step in steps] == ["machine.destroy", "machine.check_devices", "machine.start"]
    (evidence,) = {step.repairs for step in steps}
    assert evidence is not None
    assert evidence.kind == "machine.devices"
    assert evidence.desired.endswith(f"with gpu {GPU}")
    assert evidence.observed.endswith(f"with gpu {GPU}, fabric {CARD}")


def test_pci_device_that_the_running_machine_of_another_slot_holds_is_refused(simulated: Simulated) -> None:
    apply(on(simulated, both()))
    simulated.add_tap("slice1")
    other_machines = machines_of(simulated, {SlotIndex(1): place(GPU)})
    seed, check, *_ = other_machines.to_apply(slice_on(1))
    seed.run()
    with pytest.raises(HostRefused, match=r"held by domain slice0 \(running\)"):
        check.run()
