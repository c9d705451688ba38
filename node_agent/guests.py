"""What a slice's machine is to the hypervisor: who the guest is, and where this host keeps it.

`Guest` is what makes two domains the same guest, and it can be read back out of any running domain: a survey
compares it with what is wanted, and a difference costs the guest its life. `Hosting` is where this host keeps
it; another agent version may choose otherwise, and a running guest must not notice, so it is never compared.

A listing tells both things one needs to know: the name is the slot (`slice<index>`), and the metadata holds
the allocation. The UUID is derived from the two, because an allocation may hold several slots of one node.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID, uuid5

from events.values import AllocationId, ImageName, MacAddress, correlation_of
from node_agent.images import Image
from node_agent.places import ANYWHERE, Place
from node_agent.slices import Slice
from tasks.orders import Machine

Accelerator = Literal["qemu", "kvm"]
"""libvirt's domain types: `qemu` is emulation (TCG)."""


@dataclass(frozen=True, slots=True)
class Guest:
    """`first_boot` is the digest of what the seed tells the guest (`first_boot_of`).

    `strange` is what its domain is or has beside what was written for it, in words: one that is wanted has nothing.
    """

    name: str
    uuid: UUID
    allocation_id: AllocationId
    vcpus: int
    memory_mib: int
    image: ImageName
    first_boot: str
    tap: str
    mac: MacAddress
    place: Place = ANYWHERE
    strange: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hosting:
    """`seed` is read by the guest as a disk; `console` is a log that virtlogd writes and bounds.

    `offload` leaves checksums and segmentation to the host, as the kernel's datapath of OVS can; over the
    userspace one such packets are lost.
    """

    image: Image
    seed: Path
    console: Path
    accelerator: Accelerator
    offload: bool


def guest_for(wanted: Slice, place: Place = ANYWHERE) -> Guest:
    """`place` is what this very slice has of its host (`node_agent.places.place_for`)."""
    machine, network = wanted.machine, wanted.network
    return Guest(
        name=network.tap,
        uuid=uuid5(correlation_of(wanted.allocation_id), network.tap),
        allocation_id=wanted.allocation_id,
        vcpus=machine.vcpus,
        memory_mib=machine.memory_mib,
        image=machine.image,
        first_boot=first_boot_of(machine),
        tap=network.tap,
        mac=network.mac,
        place=place,
    )


def first_boot_of(machine: Machine) -> str:
    """SHA-256 (hex) over what the seed says; its bytes change with the library that writes them."""
    said = json.dumps([machine.hostname, *machine.ssh_authorized_keys])
    return hashlib.sha256(said.encode()).hexdigest()
