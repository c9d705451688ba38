"""Decisions about the hardware of a slot: an approval binds the slot to it, and hardware that differs later is drift.

The drift `slot.changed` has one entry for each property that differs. It ends when the node describes the approved
hardware again, or when an admin approves the slot again. Which addresses belong to the slot is not compared here: that
is the drift `slot.ungranted`.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Final

from events.drift import OpenDrift
from events.slots import ApprovedDevice, ApprovedHardware, SlotDevice, SlotHardware
from tasks.drift import CATALOGUE

CHANGED: Final = "slot.changed"
_ALWAYS_KNOWN: Final = {
    "number": "device id",
    "numa_node": "NUMA node",
    "iommu_group": "IOMMU group",
    "root_port": "root port",
    "physical_function": "physical function",
    "vf_number": "VF number",
}
"""Properties that the host reports whatever driver a function uses: null is a value, such as no IOMMU."""
# The node cannot read these properties while a guest or vfio-pci has the function: null is no difference.
_FROM_DRIVER: Final = {
    "model": "model",
    "memory_mib": "memory in MiB",
    "uuid": "UUID",
    "link_layer": "link layer",
}
_USES: Final = {"gpu": "GPU", "fabric": "fabric device", "card": "network card"}


def hardware_of(
    hardware: SlotHardware, devices: Collection[SlotDevice], numa_node: int | None
) -> ApprovedHardware:
    """Return the hardware that an approval of a slot binds it to, as its node describes the slot now."""
    found = sorted(devices, key=lambda each: each.address)
    return ApprovedHardware(hardware.vcpus, hardware.memory_mib, numa_node, tuple(map(_approved, found)))


def _approved(device: SlotDevice) -> ApprovedDevice:
    fabric = device.fabric_metadata
    return ApprovedDevice(
        address=device.address,
        use=device.use,
        number=device.number,
        numa_node=device.numa_node,
        iommu_group=device.iommu_group,
        root_port=device.root_port,
        physical_function=device.physical_function,
        vf_number=device.vf_number,
        model=device.model,
        memory_mib=device.memory_mib,
        uuid=device.uuid,
        link_layer=None if fabric is None else fabric.link_layer,
    )


def changed(
    approved: ApprovedHardware | None,
    found: ApprovedHardware,
    devices: Collection[SlotDevice],
    recorded: Collection[OpenDrift],
    since: datetime,
) -> tuple[OpenDrift, ...]:
    """Return the drift of a slot with hardware other than the approved one, one entry for each difference. `found`
    is the hardware now, with these `devices`.

    Of a property that the node cannot read now, the difference in `recorded` stays: otherwise a GPU that was exchanged
    would be accepted as soon as its driver is unloaded.
    """
    if approved is None:
        return ()
    known = {each.desired: each for each in recorded if each.kind == CHANGED}
    return (
        *_of_size(approved, found, since),
        *_of_devices(approved, devices, known, since),
    )


def _of_size(approved: ApprovedHardware, found: ApprovedHardware, since: datetime) -> Iterator[OpenDrift]:
    names = {"vcpus": "vCPUs", "memory_mib": "memory in MiB", "numa_node": "NUMA node"}
    for name, words in names.items():
        before, now = getattr(approved, name), getattr(found, name)
        if before != now:
            yield _difference(words, before, now, since)


def _of_devices(
    approved: ApprovedHardware,
    devices: Collection[SlotDevice],
    recorded: Mapping[str, OpenDrift],
    since: datetime,
) -> Iterator[OpenDrift]:
    found = {each.address: each for each in devices}
    for device in approved.devices:
        if (now := found.get(device.address)) is not None:
            yield from _of_device(device, now, recorded, since)


def _of_device(
    approved: ApprovedDevice, device: SlotDevice, recorded: Mapping[str, OpenDrift], since: datetime
) -> Iterator[OpenDrift]:
    found, gone = _approved(device), device.number is None
    for name, words in (_ALWAYS_KNOWN | _FROM_DRIVER).items():
        before, now = getattr(approved, name), getattr(found, name)
        entry = _difference(
            f"{_USES.get(approved.use, approved.use)} {approved.address}: {words}", before, now, since
        )
        unread = device.unreadable is not None or (name in _FROM_DRIVER and now is None)
        if unread or (gone and name != "number"):
            if entry.desired in recorded:
                yield recorded[entry.desired]
        elif before != now and not (name in _FROM_DRIVER and before is None):
            yield entry


def _difference(what: str, approved: object, found: object, since: datetime) -> OpenDrift:
    blocks = CATALOGUE[CHANGED].blocks
    return OpenDrift(CHANGED, f"{what} {_shown(approved)}, as approved", _shown(found), since, blocks=blocks)


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
