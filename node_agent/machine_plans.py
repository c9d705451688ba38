"""From what a host has of a slot's machine to what is wanted: pure comparison, and why each change is made.

A domain's name, its UUID and its tap can be had once on a host, so what holds them goes before it is made anew.
"""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from node_agent.guests import Guest
from node_agent.slices import Difference

DomainState = Literal["running", "paused", "stopped"]


@dataclass(frozen=True, slots=True)
class FoundDomain:
    """A domain of the host, whoever made it; `guest` is None when it was not this program.

    `interfaces` are the links and MACs that it uses, ours or not.
    """

    name: str
    uuid: UUID
    state: DomainState
    guest: Guest | None
    interfaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundProcess:
    """A QEMU process that was started for the guest `name`. `started` tells it from a later one with its pid."""

    name: str
    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Found:
    """Everything of one slot. Foreign domains are in it only by name; see `remains` for those that use its tap.

    `plugged` is False where no program holds the slot's tap.
    """

    domains: tuple[FoundDomain, ...]
    strays: tuple[FoundProcess, ...]
    files: tuple[str, ...]
    plugged: bool = True


@dataclass(frozen=True, slots=True)
class Destroy:
    domain: FoundDomain


@dataclass(frozen=True, slots=True)
class EndStray:
    process: FoundProcess


@dataclass(frozen=True, slots=True)
class WipeDisks:
    slot: str


@dataclass(frozen=True, slots=True)
class WriteSeed:
    name: str


@dataclass(frozen=True, slots=True)
class Start:
    guest: Guest


@dataclass(frozen=True, slots=True)
class Resume:
    domain: FoundDomain


Removal = Destroy | EndStray | WipeDisks
Change = Removal | WriteSeed | Start | Resume


def seed_name(guest: Guest) -> str:
    return f"{guest.name}/seed-{guest.uuid}-{guest.first_boot[:12]}.iso"


def plan(wanted: Guest, found: Found) -> tuple[Change, ...]:
    """From `found` to `wanted`. Deletions come first: a domain's name, UUID and tap are free only then."""
    whole = (domain for domain in found.domains if domain.guest == wanted and domain.state != "stopped")
    # A tap that was deleted under a machine is not its own any more when it is made anew.
    kept = next(whole, None) if found.plugged else None
    changes: list[Change] = [Destroy(domain) for domain in found.domains if domain is not kept]
    changes += [EndStray(process) for process in found.strays]
    if seed_name(wanted) not in found.files:
        if found.files and kept is None:
            changes.append(WipeDisks(wanted.name))
        changes.append(WriteSeed(seed_name(wanted)))
    if kept is None:
        changes.append(Start(wanted))
    elif kept.state == "paused":
        changes.append(Resume(kept))
    return tuple(changes)


def difference(change: Change, wanted: Guest, found: Found) -> Difference:
    """Why a plan has this change."""
    own = next((domain for domain in found.domains if domain.name == wanted.name), None)
    ordered = _guest_words(wanted)
    match change, own:
        case Destroy(domain), _ if domain is not own:
            return Difference("machine.rival", ordered, _as_found(domain))
        case EndStray(process), _:
            return Difference("machine.rival", ordered, process_words(process))
        case Resume(domain), _:
            return Difference("machine.paused", ordered, _as_found(domain))
        case _, None:
            return Difference("machine.absent", ordered, "no domain")
        case _, FoundDomain(guest=guest) if guest != wanted:
            return Difference("machine.changed", ordered, _as_found(own))
        case _, FoundDomain(state="stopped"):
            return Difference("machine.absent", ordered, _as_found(own))
        case _ if not found.plugged:
            return Difference("machine.unplugged", ordered, f"nobody holds {wanted.tap}")
        case _:
            return Difference("machine.seed", f"file {seed_name(wanted)}", "no such file")


def plan_stop(found: Found) -> tuple[Removal, ...]:
    """From `found` to nothing that runs."""
    return (*map(Destroy, found.domains), *map(EndStray, found.strays))


def plan_removal(slot: str, found: Found) -> tuple[Removal, ...]:
    """From `found` to nothing. Disks go last: a running guest would keep what is deleted under it."""
    wipe = (WipeDisks(slot),) if found.files else ()
    return (*plan_stop(found), *wipe)


def _guest_words(guest: Guest) -> str:
    size = f"{guest.vcpus} vcpus, {guest.memory_mib} MiB, {guest.image}"
    return f"domain {guest.name} ({guest.uuid}) of {guest.allocation_id}: {size}, {guest.mac} on {guest.tap}"


def _as_found(domain: FoundDomain) -> str:
    if domain.guest is None:
        return f"{domain_words(domain)}, made by another program, with {', '.join(domain.interfaces) or 'no card'}"
    return f"{_guest_words(domain.guest)}, {domain.state}"


def domain_words(domain: FoundDomain) -> str:
    return f"domain {domain.name} ({domain.uuid}, {domain.state})"


def process_words(process: FoundProcess) -> str:
    return f"qemu process {process.pid} of {process.name}"
