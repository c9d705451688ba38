"""A slice's machine from the hypervisor's view: the guest's identity and parameters, and its files on this host.

Two domains with equal `Guest` values are the same guest. The value can be read from any running domain: a survey
compares it with the desired state, and a guest that differs is destroyed. `Hosting` holds the guest's files and options
on this host; another agent version may choose others, which must not affect a running guest, so it is never compared.

A domain's name is the slot (`slice<index>`), and its metadata holds the allocation. The UUID is derived from the
allocation and the slot, because an allocation may have several slots of one node.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID, uuid5

from events.values import AllocationId, ImageName, MacAddress, correlation_of
from node_agent.host.host_resources import ANYWHERE, Place
from node_agent.host.images import Image
from node_agent.host.slices import Slice
from tasks.orders import Machine

Accelerator = Literal["qemu", "kvm"]
"""libvirt's domain types: `qemu` is emulation (TCG)."""


@dataclass(frozen=True, slots=True)
class Guest:
    """Identity and parameters of a guest.

    `first_boot` is the digest of the configuration on its seed disk (`first_boot_of`). `strange` describes foreign
    changes to its domain; a desired guest has none.
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
    """Files and options of a guest on this host.

    The guest reads `seed` as a disk; `console` is a log file that virtlogd writes and limits in size. `offload` leaves
    checksums and segmentation to the host, which works with the kernel's datapath of OVS; the userspace datapath loses
    such packets.
    """

    image: Image
    seed: Path
    console: Path
    accelerator: Accelerator
    offload: bool


def guest_for(desired: Slice, place: Place = ANYWHERE) -> Guest:
    """Return the desired guest of a slice. `place` describes the host resources that are reserved for the guest
    (`node_agent.host.host_resources.place_for`)."""
    machine, network = desired.machine, desired.network
    return Guest(
        name=network.tap,
        uuid=uuid5(correlation_of(desired.allocation_id), network.tap),
        allocation_id=desired.allocation_id,
        vcpus=machine.vcpus,
        memory_mib=machine.memory_mib,
        image=machine.image,
        first_boot=first_boot_of(machine),
        tap=network.tap,
        mac=network.mac,
        place=place,
    )


def first_boot_of(machine: Machine) -> str:
    """Return the SHA-256 (hex) of the configuration on a machine's seed disk.

    The digest covers the values and not the disk image, because the image's bytes depend on the library that writes it.
    """
    configuration = json.dumps([machine.hostname, *machine.ssh_authorized_keys])
    return hashlib.sha256(configuration.encode()).hexdigest()
