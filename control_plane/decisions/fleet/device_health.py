"""Judgement of what PCI functions report after a release: a function with a fault is not sold again until an admin has
examined it (ALC-11).

A function is compared with its own link, and with the check at the previous release of its slot. The first check has no
check before it, so it does not see lost BARs or errors. A reboot of the node sets its error counters to 0; a lower
number than before is therefore not compared.
"""

from collections.abc import Iterator, Sequence

from events.facts import Reason
from events.slots import CheckedDevice, SlotDevicesChecked, SlotExcluded, SlotFact
from events.values import AllocationId, PciAddress, SlotId
from tasks.devices import DeviceReading

DEVICE_FAULT = "device_fault"
"""Code of the exclusion of a slot with a PCI function that has a fault."""
FAULT_REPORTED = "fault_reported"
"""Code of the release of an allocation with a fault that its caller reported, and of the exclusion of its slots."""


def checked(
    slot: SlotId,
    by: AllocationId,
    readings: Sequence[DeviceReading],
    before: Sequence[CheckedDevice],
    excluded: Reason | None,
) -> tuple[SlotFact, ...]:
    """Return the facts about the readings of a slot's PCI functions after its release by an allocation: the check, and
    the exclusion of the slot if a function has a fault. `before` is the previous check. No facts without readings.
    """
    if not readings:
        return ()
    known = {each.address: each for each in before}
    devices = tuple(_checked(each, known.get(each.address)) for each in readings)
    check = SlotDevicesChecked(slot, by, devices)
    faults = [f"PCI device {each.address} {fault}" for each in devices for fault in each.faults]
    if not faults or excluded is not None:
        return (check,)
    return check, SlotExcluded(slot, Reason(DEVICE_FAULT, "; ".join(faults)), ())


def exclude_for(slot: SlotId, fault: str, excluded: Reason | None) -> tuple[SlotExcluded, ...]:
    """Return the fact that excludes a slot with a fault that a caller reported; none if it is excluded already."""
    return () if excluded is not None else (SlotExcluded(slot, Reason(FAULT_REPORTED, fault), ()),)


def _checked(reading: DeviceReading, before: CheckedDevice | None) -> CheckedDevice:
    values = reading.model_dump()
    faults = tuple(_faults(reading, before))
    return CheckedDevice(**{**values, "address": PciAddress(reading.address), "faults": faults})


def _faults(reading: DeviceReading, before: CheckedDevice | None) -> Iterator[str]:
    if reading.unreadable is not None:
        yield f"could not be read after the release: {reading.unreadable}"
        return
    if reading.responds is False:
        # The other values of a function that does not respond mean nothing.
        yield "does not respond: each byte of its configuration space reads as 0xFF"
        return
    yield from _of_link(reading)
    if before is None:
        return
    if before.bars and reading.bars != before.bars:
        yield f"has BARs of {_sizes(reading.bars)} bytes; before, they had {_sizes(before.bars)} bytes"
    for kind, now, earlier in (
        ("fatal", reading.fatal_errors, before.fatal_errors),
        ("nonfatal", reading.nonfatal_errors, before.nonfatal_errors),
    ):
        if now is not None and earlier is not None and now > earlier:
            yield f"reported {now - earlier} {kind} errors since the previous release (PCIe AER)"


def _of_link(reading: DeviceReading) -> Iterator[str]:
    width, most = reading.link_width, reading.most_link_width
    if width is not None and most is not None and width < most:
        yield f"has a link with {width} lanes instead of {most}"
    speed, highest = reading.link_mtps, reading.most_link_mtps
    if speed is not None and highest is not None and speed < highest:
        yield f"has a link with {speed} million transfers per second instead of {highest}"


def _sizes(bars: Sequence[int]) -> str:
    return ", ".join(map(str, bars)) or "0"
