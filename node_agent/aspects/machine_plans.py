"""Plans that turn the observed machine of a slot into the desired one. The comparison does not read or change the host.

A domain name, a UUID and a tap exist once per host, so whatever holds them is removed before a machine is created.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal
from uuid import UUID

from events.values import PciAddress
from node_agent.aspects.gpu_partitions import GpuPartition, active_with, is_partitioned
from node_agent.host.guests import Guest

_NOTE: Final = "device-"
_SEED: Final = re.compile(r"seed-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-.*", re.DOTALL)
DomainState = Literal["running", "paused", "stopped"]


@dataclass(frozen=True, slots=True)
class FoundDomain:
    """A libvirt domain of the host. `guest` is None if another program created the domain.

    `interfaces` are the links and MACs that it uses, foreign ones included. `devices` are its PCI functions; a stopped
    domain would get them at its start. `tainted`: another program may have sent QEMU commands that bypass libvirt.
    """

    name: str
    uuid: UUID
    state: DomainState
    guest: Guest | None
    interfaces: tuple[str, ...] = ()
    devices: tuple[PciAddress, ...] = ()
    tainted: bool = False


@dataclass(frozen=True, slots=True)
class FoundProcess:
    """A QEMU process of the guest `name`. Its start time `started` distinguishes it from a later process with the same
    pid.

    `frozen`: a signal or a tracer stopped it. `foreign` lists objects that the process uses and that its domain does
    not show: internet sockets, devices, other taps.
    """

    name: str
    pid: int
    started: int
    frozen: bool = False
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Observed state of the machine of one slot.

    `files` are the slot's folder of disks and its files, which a reboot deletes; `root_disk_files` are the slot's
    folder of root disks and its files, which survive it.

    `domains` contains a foreign domain only if it has the slot's name; `Machines.remains` also reports foreign domains
    that use the slot's tap. `plugged` is False if no process has the tap open. `process` is the QEMU process of the
    slot's own machine. `partitions` are those of the fabric manager that contain a GPU of the slot, or one that its
    machine may have used.
    """

    domains: tuple[FoundDomain, ...]
    strays: tuple[FoundProcess, ...]
    files: tuple[str, ...]
    plugged: bool = True
    process: FoundProcess | None = None
    root_disk_files: tuple[str, ...] = ()
    partitions: tuple[GpuPartition, ...] = ()

    @property
    def intact(self) -> bool:
        """Whether the slot's tap, if any, is open in a process, and the machine's QEMU process uses no foreign objects.

        Otherwise the machine is started again, even if its domain equals the desired one.
        """
        return self.plugged and (self.process is None or not self.process.foreign)


@dataclass(frozen=True, slots=True)
class Destroy:
    """Planned change: destroy a libvirt domain."""

    domain: FoundDomain


@dataclass(frozen=True, slots=True)
class EndStray:
    """Planned change: kill a QEMU process that has no libvirt domain."""

    process: FoundProcess


@dataclass(frozen=True, slots=True)
class ResetDevice:
    """Planned change: reset a PCI function that a machine of the slot may have used."""

    address: PciAddress


@dataclass(frozen=True, slots=True)
class WipeDisks:
    """Planned change: wipe and delete the slot's folder, which contains the machine's files."""

    slot: str


@dataclass(frozen=True, slots=True)
class WipeRootDisk:
    """Planned change: overwrite and delete the root disk of a slot."""

    slot: str


@dataclass(frozen=True, slots=True)
class FetchImage:
    """Planned change: download the image of a guest's root disk, unless the node has it."""

    guest: Guest


@dataclass(frozen=True, slots=True)
class MakeRootDisk:
    """Planned change: create the root disk of a guest."""

    name: str


@dataclass(frozen=True, slots=True)
class WriteSeed:
    """Planned change: write the seed image of the slot's guest."""

    name: str


@dataclass(frozen=True, slots=True)
class CheckDevices:
    """Planned change: refuse to start a machine if one of its PCI devices cannot be used."""

    guest: Guest


@dataclass(frozen=True, slots=True)
class NoteDevice:
    """Planned change: record in the slot's folder that its machine may have used a PCI device."""

    name: str
    address: PciAddress


@dataclass(frozen=True, slots=True)
class ActivatePartition:
    """Planned change: activate the partition of the fabric manager that has exactly the guest's GPUs."""

    guest: Guest


@dataclass(frozen=True, slots=True)
class DeactivatePartition:
    """Planned change: deactivate a partition of the fabric manager that has a GPU of the slot."""

    number: int


@dataclass(frozen=True, slots=True)
class Start:
    """Planned change: start a guest."""

    guest: Guest


@dataclass(frozen=True, slots=True)
class Resume:
    """Planned change: resume a paused libvirt domain."""

    domain: FoundDomain


@dataclass(frozen=True, slots=True)
class Continue:
    """Planned change: resume a QEMU process that a signal stopped."""

    process: FoundProcess


@dataclass(frozen=True, slots=True)
class Pin:
    """Planned change: pin the virtual CPUs of a running libvirt domain to the host's CPUs."""

    domain: FoundDomain
    pins: tuple[str, ...]


Removal = Destroy | EndStray | DeactivatePartition | ResetDevice | WipeDisks | WipeRootDisk
Change = (
    Removal
    | FetchImage
    | MakeRootDisk
    | WriteSeed
    | CheckDevices
    | NoteDevice
    | ActivatePartition
    | Start
    | Resume
    | Continue
    | Pin
)


def note_name(slot: str, address: PciAddress) -> str:
    """Return the name of the file that records a PCI function which the slot's machine may have used."""
    return f"{slot}/{_NOTE}{address}"


def noted(files: tuple[str, ...]) -> tuple[PciAddress, ...]:
    """Return the PCI functions that the slot's machine may have used, as recorded in its folder."""
    names = (file.partition("/")[2] for file in files)
    return tuple(
        PciAddress(name.removeprefix(_NOTE)) for name in names if name.startswith(_NOTE) and ":" in name
    )


def seed_name(guest: Guest) -> str:
    """Return the name of the guest's seed file, which identifies the guest and its first-boot data."""
    return f"{guest.name}/seed-{guest.uuid}-{guest.first_boot[:12]}.iso"


def seeded_guests(files: tuple[str, ...]) -> frozenset[UUID]:
    """Return the UUIDs of the guests with a seed among the files of a slot's folder. These guests own the folder."""
    found = (_SEED.fullmatch(file.partition("/")[2]) for file in files)
    return frozenset(UUID(each[1]) for each in found if each is not None)


def root_disk_name(guest: Guest) -> str:
    """Return the name of the file with the guest's root disk."""
    return f"{guest.name}/root-{guest.uuid}.qcow2"


def plan(wanted: Guest, found: Found) -> tuple[Change, ...]:
    """Return the changes that turn the observed machine of a slot into the desired one.

    Deletions come first, to free the domain name, the UUID and the tap.
    """
    matching = (
        domain
        for domain in found.domains
        if matches_desired(domain.guest, wanted) and domain.state != "stopped"
    )
    # A machine loses its tap when the tap is deleted; a new tap of the same name is not connected to the machine.
    kept = next(matching, None) if found.intact else None
    changes: list[Change] = [Destroy(domain) for domain in found.domains if domain is not kept]
    changes += [EndStray(process) for process in found.strays]
    gpus = frozenset(wanted.place.of("gpu"))
    active = active_with(gpus, found.partitions)
    has_partition = [each.gpus for each in active] == [gpus]
    if kept is None and not has_partition:
        changes += [DeactivatePartition(each.number) for each in active]
    files = found.files
    if seed_name(wanted) not in files:
        # An empty folder is wiped under a running guest too: no data is lost, and the path may not be a folder.
        if files and (kept is None or files == (wanted.name,)):
            changes += _emptying(wanted.name, files)
            files = ()
        changes.append(WriteSeed(seed_name(wanted)))
    if kept is None:
        changes += _root_disk(wanted, found.root_disk_files)
    if kept is None and wanted.place.devices:
        changes.append(CheckDevices(wanted))
    notes = {note_name(wanted.name, each.address): each.address for each in wanted.place.devices}
    changes += [NoteDevice(name, address) for name, address in notes.items() if name not in files]
    if kept is None and is_partitioned(gpus, found.partitions) and not has_partition:
        changes.append(ActivatePartition(wanted))
    return (*changes, *_running(wanted, kept, found.process))


def _running(wanted: Guest, kept: FoundDomain | None, process: FoundProcess | None) -> Iterator[Change]:
    if kept is None:
        yield Start(wanted)
        return
    # This comes first, because a stopped process does not answer the requests of other changes.
    if process is not None and process.frozen:
        yield Continue(process)
    if kept.state == "paused":
        yield Resume(kept)
    pins = wanted.place.pins
    if pins and kept.guest is not None and kept.guest.place.pins != pins:
        yield Pin(kept, pins)


def _root_disk(wanted: Guest, files: tuple[str, ...]) -> Iterator[Change]:
    """Yield the changes that give a machine its root disk, and delete that of another tenant or an incomplete one."""
    if wanted.root_disk is not None and root_disk_name(wanted) in files:
        return
    if files:
        yield WipeRootDisk(wanted.name)
    if wanted.root_disk is not None:
        yield FetchImage(wanted)
        yield MakeRootDisk(root_disk_name(wanted))


def _emptying(slot: str, files: tuple[str, ...]) -> tuple[Removal, ...]:
    # The folder goes last: its notes record which devices are still to be reset.
    return (*map(ResetDevice, noted(files)), WipeDisks(slot))


def matches_desired(found: Guest | None, wanted: Guest) -> bool:
    """Whether a running guest equals the desired one and may be kept.

    CPU pinning is ignored, because it is repaired while the guest runs; the memory's NUMA node is ignored if none is
    desired.
    """
    if found is None:
        return False
    place = replace(found.place, pins=wanted.place.pins)
    if wanted.place.nodeset is None:
        place = replace(place, nodeset=None)
    return replace(found, place=place) == wanted


def plan_stop(found: Found) -> tuple[Removal, ...]:
    """Return the changes that end every machine of a slot."""
    active = (DeactivatePartition(each.number) for each in found.partitions if each.active)
    return (*map(Destroy, found.domains), *map(EndStray, found.strays), *active)


def plan_removal(slot: str, found: Found) -> tuple[Removal, ...]:
    """Return the changes that remove a slot's machines and files.

    The files are deleted last, because a running guest would keep deleted files open.
    """
    root_disk = (WipeRootDisk(slot),) if found.root_disk_files else ()
    return (*plan_stop(found), *root_disk, *(_emptying(slot, found.files) if found.files else ()))
