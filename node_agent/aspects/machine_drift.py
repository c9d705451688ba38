"""Drift of a slot's machine: the difference between the ordered and the observed machine, described for people."""

from dataclasses import replace

from node_agent.aspects.machine_plans import (
    Change,
    Continue,
    Destroy,
    EndStray,
    Found,
    FoundDomain,
    FoundProcess,
    NoteDevice,
    Pin,
    Resume,
    matches_desired,
    seed_name,
)
from node_agent.host.guests import Guest
from node_agent.host.host_resources import Place
from node_agent.host.slices import Difference


def difference(change: Change, wanted: Guest, found: Found) -> Difference:
    """Return the drift that this planned change of a slot's virtual machine repairs."""
    own = next((domain for domain in found.domains if domain.name == wanted.name), None)
    ordered = _describe_guest(wanted)
    match change:
        case Pin(domain, pins):
            return Difference("machine.pins", f"on CPUs {', '.join(pins)}", _describe_pins(domain))
        case Destroy(domain) if domain is not own:
            return Difference("machine.duplicate", ordered, _describe_found(domain))
        case EndStray(process):
            return Difference("machine.duplicate", ordered, describe_process(process))
        case Continue(process):
            return Difference("machine.frozen", ordered, f"{describe_process(process)}, stopped by a signal")
        case Resume(domain):
            return Difference("machine.paused", ordered, _describe_found(domain))
        case _:
            return _own_machine_difference(own, wanted, found) or _file_difference(change, wanted)


def _own_machine_difference(own: FoundDomain | None, wanted: Guest, found: Found) -> Difference | None:
    """Return how the slot's own machine differs from the desired one, or None if it does not."""
    ordered = _describe_guest(wanted)
    match own:
        case None:
            return Difference("machine.absent", ordered, "no domain")
        case FoundDomain(guest=Guest() as guest) if _has_other_devices(guest, wanted):
            return Difference("machine.devices", _describe_devices(wanted), _describe_devices(guest))
        case FoundDomain(guest=guest) if not matches_desired(guest, wanted):
            return Difference("machine.changed", ordered, _describe_found(own))
        case _ if found.process is not None and found.process.foreign:
            foreign = ", ".join(found.process.foreign)
            return Difference("machine.changed", ordered, f"{describe_process(found.process)} with {foreign}")
        case FoundDomain(state="stopped"):
            return Difference("machine.absent", ordered, _describe_found(own))
        case _ if not found.plugged:
            return Difference("machine.unplugged", ordered, f"no process holds {wanted.tap}")
        case _:
            return None


def _file_difference(change: Change, wanted: Guest) -> Difference:
    name = change.name if isinstance(change, NoteDevice) else seed_name(wanted)
    return Difference("machine.seed", f"file {name}", "no such file")


def _has_other_devices(found: Guest, wanted: Guest) -> bool:
    """Whether the machine differs from the desired one only in its PCI devices."""
    as_wanted = replace(found.place, devices=wanted.place.devices)
    return found.place.addresses != wanted.place.addresses and matches_desired(
        replace(found, place=as_wanted), wanted
    )


def _describe_devices(guest: Guest) -> str:
    devices = ", ".join(f"{each.use} {each.address}" for each in guest.place.devices)
    return f"domain {guest.name} of {guest.allocation_id} with {devices or 'no PCI device'}"


def _describe_pins(domain: FoundDomain) -> str:
    pins = domain.guest.place.pins if domain.guest is not None else ()
    return f"on CPUs {', '.join(pins)}" if pins else "on any CPU"


def _describe_found(domain: FoundDomain) -> str:
    if domain.guest is None:
        return f"{describe_domain(domain)}, created by another program, with {', '.join(domain.interfaces) or 'no network card'}"
    return f"{_describe_guest(domain.guest)}, {domain.state}"


def describe_domain(domain: FoundDomain) -> str:
    """Describe a libvirt domain by name, UUID and state."""
    return f"domain {domain.name} ({domain.uuid}, {domain.state})"


def describe_process(process: FoundProcess) -> str:
    """Describe a QEMU process by pid and guest name."""
    return f"qemu process {process.pid} of {process.name}"


def _describe_guest(guest: Guest) -> str:
    disk = guest.root_disk
    root = "" if disk is None else f", root disk of {disk.size_gib} GiB from {disk.digest} by {disk.firmware}"
    size = f"{guest.vcpus} vcpus, {guest.memory_mib} MiB, {guest.image}{root}"
    whole = f"{size}, {guest.mac} on {guest.tap}{_describe_place(guest.place)}"
    # Foreign settings come first, because a long text is truncated at its end.
    strange = f" with {', '.join(guest.strange)}" if guest.strange else ""
    return f"domain {guest.name} ({guest.uuid}) of {guest.allocation_id}{strange}: {whole}"


def _describe_place(place: Place) -> str:
    """Describe a machine's host resources that have no drift kind of their own: queues, page size, NUMA node."""
    queues = f", {place.queues} queues" if place.queues > 1 else ""
    pages = f", huge pages of {place.hugepage_kib} KiB" if place.hugepage_kib is not None else ""
    node = f", memory of NUMA node {place.nodeset}" if place.nodeset is not None else ""
    return f"{queues}{pages}{node}"
