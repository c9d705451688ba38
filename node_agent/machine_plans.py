"""From what a host has of a slot's machine to what is wanted: pure comparison, and why each change is made.

A domain's name, its UUID and its tap can be had once on a host, so what holds them goes before it is made anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal
from uuid import UUID

from events.values import PciAddress
from node_agent.guests import Guest

_NOTE: Final = "device-"
DomainState = Literal["running", "paused", "stopped"]


@dataclass(frozen=True, slots=True)
class FoundDomain:
    """A domain of the host, whoever made it; `guest` is None when it was not this program.

    `interfaces` are the links and MACs that it uses, ours or not; `devices` the PCI functions that it has or, while it
    does not run, would have. `tainted`: another program may have sent QEMU commands that bypass libvirt.
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
    """A QEMU process that was started for the guest `name`. `started` distinguishes it from a later one with its pid.

    `frozen`: a signal or a tracer stopped it. `foreign` is what it has beside what its domain shows: internet sockets,
    devices, other taps.
    """

    name: str
    pid: int
    started: int
    frozen: bool = False
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """Everything of one slot. Foreign domains are in it only by name; see `remains` for those that use its tap.

    `plugged` is False where no program holds the slot's tap. `process` is that of the slot's own machine.
    """

    domains: tuple[FoundDomain, ...]
    strays: tuple[FoundProcess, ...]
    files: tuple[str, ...]
    plugged: bool = True
    process: FoundProcess | None = None

    @property
    def intact(self) -> bool:
        """Whether the slot's own machine, if it is whole by its domain, can stay."""
        return self.plugged and (self.process is None or not self.process.foreign)


@dataclass(frozen=True, slots=True)
class Destroy:
    domain: FoundDomain


@dataclass(frozen=True, slots=True)
class EndStray:
    process: FoundProcess


@dataclass(frozen=True, slots=True)
class ResetDevice:
    address: PciAddress


@dataclass(frozen=True, slots=True)
class WipeDisks:
    slot: str


@dataclass(frozen=True, slots=True)
class WriteSeed:
    name: str


@dataclass(frozen=True, slots=True)
class CheckDevices:
    """Refuse a start that would give the machine what it cannot have."""

    guest: Guest


@dataclass(frozen=True, slots=True)
class NoteDevice:
    """Write down that the slot's machine may have had it."""

    name: str
    address: PciAddress


@dataclass(frozen=True, slots=True)
class Start:
    guest: Guest


@dataclass(frozen=True, slots=True)
class Resume:
    domain: FoundDomain


@dataclass(frozen=True, slots=True)
class Continue:
    """Let a process run again that a signal stopped."""

    process: FoundProcess


@dataclass(frozen=True, slots=True)
class Pin:
    domain: FoundDomain
    pins: tuple[str, ...]


Removal = Destroy | EndStray | ResetDevice | WipeDisks
Change = Removal | WriteSeed | CheckDevices | NoteDevice | Start | Resume | Continue | Pin


def note_name(slot: str, address: PciAddress) -> str:
    return f"{slot}/{_NOTE}{address}"


def noted(files: tuple[str, ...]) -> tuple[PciAddress, ...]:
    """The PCI functions that a slot's machine may have had, by its folder."""
    names = (file.partition("/")[2] for file in files)
    return tuple(
        PciAddress(name.removeprefix(_NOTE)) for name in names if name.startswith(_NOTE) and ":" in name
    )


def seed_name(guest: Guest) -> str:
    return f"{guest.name}/seed-{guest.uuid}-{guest.first_boot[:12]}.iso"


def plan(wanted: Guest, found: Found) -> tuple[Change, ...]:
    """From `found` to `wanted`. Deletions come first: a domain's name, UUID and tap are free only then."""
    whole = (
        domain for domain in found.domains if is_whole(domain.guest, wanted) and domain.state != "stopped"
    )
    # A tap that was deleted under a machine is not its own any more when it is made anew.
    kept = next(whole, None) if found.intact else None
    changes: list[Change] = [Destroy(domain) for domain in found.domains if domain is not kept]
    changes += [EndStray(process) for process in found.strays]
    files = found.files
    if seed_name(wanted) not in files:
        # Where nothing is in it, nothing of a guest that runs is lost, and it may be no folder.
        if files and (kept is None or files == (wanted.name,)):
            changes += _emptying(wanted.name, files)
            files = ()
        changes.append(WriteSeed(seed_name(wanted)))
    if kept is None and wanted.place.devices:
        changes.append(CheckDevices(wanted))
    notes = {note_name(wanted.name, each.address): each.address for each in wanted.place.devices}
    changes += [NoteDevice(name, address) for name, address in notes.items() if name not in files]
    return (*changes, *_running(wanted, kept, found.process))


def _running(wanted: Guest, kept: FoundDomain | None, process: FoundProcess | None) -> Iterator[Change]:
    if kept is None:
        yield Start(wanted)
        return
    # First: a process that is stopped answers no other change.
    if process is not None and process.frozen:
        yield Continue(process)
    if kept.state == "paused":
        yield Resume(kept)
    pins = wanted.place.pins
    if pins and kept.guest is not None and kept.guest.place.pins != pins:
        yield Pin(kept, pins)


def _emptying(slot: str, files: tuple[str, ...]) -> tuple[Removal, ...]:
    # The folder last: it says what is still to be reset.
    return (*map(ResetDevice, noted(files)), WipeDisks(slot))


def is_whole(found: Guest | None, wanted: Guest) -> bool:
    """Whether it is the guest that is wanted, but for what can be mended while it runs, or was left open."""
    if found is None:
        return False
    place = replace(found.place, pins=wanted.place.pins)
    if wanted.place.nodeset is None:
        place = replace(place, nodeset=None)
    return replace(found, place=place) == wanted


def plan_stop(found: Found) -> tuple[Removal, ...]:
    """From `found` to nothing that runs."""
    return (*map(Destroy, found.domains), *map(EndStray, found.strays))


def plan_removal(slot: str, found: Found) -> tuple[Removal, ...]:
    """From `found` to nothing. Disks go last: a running guest would keep what is deleted under it."""
    return (*plan_stop(found), *(_emptying(slot, found.files) if found.files else ()))
