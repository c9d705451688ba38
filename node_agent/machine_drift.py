"""Why a slot's machine is changed: what is otherwise than it was ordered, in words for people."""

from dataclasses import replace

from node_agent.guests import Guest
from node_agent.machine_plans import (
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
    is_whole,
    seed_name,
)
from node_agent.places import Place
from node_agent.slices import Difference


def difference(change: Change, wanted: Guest, found: Found) -> Difference:
    """Why a plan has this change."""
    own = next((domain for domain in found.domains if domain.name == wanted.name), None)
    ordered = _guest_words(wanted)
    match change:
        case Pin(domain, pins):
            return Difference("machine.pins", f"on CPUs {', '.join(pins)}", _pins_found(domain))
        case Destroy(domain) if domain is not own:
            return Difference("machine.rival", ordered, _as_found(domain))
        case EndStray(process):
            return Difference("machine.rival", ordered, process_words(process))
        case Continue(process):
            return Difference("machine.frozen", ordered, f"{process_words(process)}, stopped by a signal")
        case Resume(domain):
            return Difference("machine.paused", ordered, _as_found(domain))
        case _:
            return _of_own(own, wanted, found) or _of_files(change, wanted)


def _of_own(own: FoundDomain | None, wanted: Guest, found: Found) -> Difference | None:
    """How the slot's own machine is another than wanted; None: it is not."""
    ordered = _guest_words(wanted)
    match own:
        case None:
            return Difference("machine.absent", ordered, "no domain")
        case FoundDomain(guest=Guest() as guest) if _has_other_devices(guest, wanted):
            return Difference("machine.devices", _devices_words(wanted), _devices_words(guest))
        case FoundDomain(guest=guest) if not is_whole(guest, wanted):
            return Difference("machine.changed", ordered, _as_found(own))
        case _ if found.process is not None and found.process.foreign:
            foreign = ", ".join(found.process.foreign)
            return Difference("machine.changed", ordered, f"{process_words(found.process)} with {foreign}")
        case FoundDomain(state="stopped"):
            return Difference("machine.absent", ordered, _as_found(own))
        case _ if not found.plugged:
            return Difference("machine.unplugged", ordered, f"nobody holds {wanted.tap}")
        case _:
            return None


def _of_files(change: Change, wanted: Guest) -> Difference:
    name = change.name if isinstance(change, NoteDevice) else seed_name(wanted)
    return Difference("machine.seed", f"file {name}", "no such file")


def _has_other_devices(found: Guest, wanted: Guest) -> bool:
    """And is it otherwise as wanted."""
    as_wanted = replace(found.place, devices=wanted.place.devices)
    return found.place.addresses != wanted.place.addresses and is_whole(
        replace(found, place=as_wanted), wanted
    )


def _devices_words(guest: Guest) -> str:
    devices = ", ".join(f"{each.use} {each.address}" for each in guest.place.devices)
    return f"domain {guest.name} of {guest.allocation_id} with {devices or 'no PCI device'}"


def _pins_found(domain: FoundDomain) -> str:
    pins = domain.guest.place.pins if domain.guest is not None else ()
    return f"on CPUs {', '.join(pins)}" if pins else "on any CPU"


def _as_found(domain: FoundDomain) -> str:
    if domain.guest is None:
        return f"{domain_words(domain)}, made by another program, with {', '.join(domain.interfaces) or 'no card'}"
    return f"{_guest_words(domain.guest)}, {domain.state}"


def domain_words(domain: FoundDomain) -> str:
    return f"domain {domain.name} ({domain.uuid}, {domain.state})"


def process_words(process: FoundProcess) -> str:
    return f"qemu process {process.pid} of {process.name}"


def _guest_words(guest: Guest) -> str:
    size = f"{guest.vcpus} vcpus, {guest.memory_mib} MiB, {guest.image}"
    whole = f"{size}, {guest.mac} on {guest.tap}{_place_words(guest.place)}"
    # First, since a long text is cut at its end.
    strange = f" with {', '.join(guest.strange)}" if guest.strange else ""
    return f"domain {guest.name} ({guest.uuid}) of {guest.allocation_id}{strange}: {whole}"


def _place_words(place: Place) -> str:
    """Of what is not told by words of its own."""
    queues = f", {place.queues} queues" if place.queues > 1 else ""
    pages = f", pages of {place.hugepage_kib} KiB" if place.hugepage_kib is not None else ""
    node = f", memory of node {place.nodeset}" if place.nodeset is not None else ""
    return f"{queues}{pages}{node}"
