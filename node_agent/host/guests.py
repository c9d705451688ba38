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
class GuestDisk:
    """Root disk of a guest: the digest of its image, its size, and the firmware that boots it."""

    digest: str
    size_gib: int
    firmware: Literal["uefi", "bios"]


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
    root_disk: GuestDisk | None = None


@dataclass(frozen=True, slots=True)
class DiskBoot:
    """Files from which a guest with a root disk boots. `loader` and `variables` are the UEFI firmware and the template
    of its variables, which libvirt copies to `nvram` at the first start; None: the guest boots by BIOS.
    """

    root_disk: Path
    loader: Path | None = None
    variables: Path | None = None
    nvram: Path | None = None


@dataclass(frozen=True, slots=True)
class Hosting:
    """Files and options of a guest on this host.

    The guest reads `seed` as a disk; `console` is the log of its serial port, which virtlogd writes and limits in
    size. `offload` leaves checksums and segmentation to the host, which works with the kernel's datapath of OVS;
    the userspace datapath loses such packets. `bars` are the sizes in bytes of the prefetchable 64-bit BARs of the
    guest's PCI functions.
    """

    boot: Image | DiskBoot
    seed: Path
    console: Path
    accelerator: Accelerator
    offload: bool
    bars: tuple[int, ...] = ()


def guest_for(desired: Slice, place: Place = ANYWHERE) -> Guest:
    """Return the desired guest of a slice. `place` describes the host resources that are reserved for the guest
    (`node_agent.host.host_resources.place_for`)."""
    machine, network = desired.machine, desired.network
    disk = machine.root_disk
    return Guest(
        name=network.tap,
        uuid=guest_uuid(desired.allocation_id, network.tap),
        allocation_id=desired.allocation_id,
        vcpus=machine.vcpus,
        memory_mib=machine.memory_mib,
        image=machine.image,
        first_boot=first_boot_of(machine),
        tap=network.tap,
        mac=network.mac,
        place=place,
        root_disk=None if disk is None else GuestDisk(disk.digest, disk.size_gib, disk.firmware),
    )


def guest_uuid(allocation: AllocationId, slot: str) -> UUID:
    """Return the UUID of the guest of an allocation in the slot with this tap."""
    return uuid5(correlation_of(allocation), slot)


def first_boot_of(machine: Machine) -> str:
    """Return the SHA-256 (hex) of the configuration on a machine's seed disk.

    The digest covers the values and not the disk image, because the image's bytes depend on the library that writes it.
    """
    user_data = () if machine.user_data is None else ({"user_data": machine.user_data},)
    configuration = json.dumps([machine.hostname, *machine.ssh_authorized_keys, *user_data])
    return hashlib.sha256(configuration.encode()).hexdigest()
