"""Facts about entries of the catalogue, which are SKUs, images and app profiles. Stream: `<kind>-<name>`.

The kind is `sku`, `image` or `app_profile`. An entry has versions 1, 2, ..., and the content of a version never
changes. The newest version is offered unless the entry is retired; publishing a further version offers a retired entry
again. Allocations record the content that they use (`allocation.specified`), so no fact of these streams changes an
existing allocation.
"""

from typing import Literal, NamedTuple

from events.facts import Fact, Record
from events.values import AppProfileName, EntryKind, Fabric, ImageName, NetworkMode, SkuName


# `omit_defaults`: a SKU without the newer options is stored in the bytes of the first release.
class SkuContent(Record, frozen=True, omit_defaults=True):
    """Content of a version of a SKU: size, fabric, placement and price of a slice."""

    gpu_model: str | None
    """Model of the GPUs; null: the slice has none."""
    gpu_count: int
    """Number of GPUs."""
    vcpus: int
    """Virtual processors."""
    memory_mib: int
    """Memory of the guest."""
    disk_gib: int
    """Size of the root disk; 0: the slice has no root disk."""
    fabric: Fabric
    """Workload fabric that a slot must offer: `ib`, `roce`, `ethernet` or `none`."""
    network_modes: tuple[NetworkMode, ...]
    """Network modes that an allocation may have."""
    rate_mbit: int | None
    """Rate limit in each direction, in Mbit/s (NOD-3); null: not limited."""
    numa: Literal["any", "single"]
    """`single`: processors, memory, GPUs and fabric device are on one NUMA node; `any`: on any NUMA nodes."""
    placement: Literal["pack", "spread"]
    """Whether placement fills a node before it uses the next (`pack`), or prefers empty nodes (`spread`)."""
    price_per_hour: str
    """Price of one slot per hour, a decimal number in the currency of the deployment."""
    provisioning_seconds: int
    """Time after which a node reports a slice that is not ready as failed."""
    max_lease_seconds: int | None = None
    """Longest lease in seconds, from a request or a renewal on; absent: not limited."""


class ReadinessCheck(Record, frozen=True):
    """The readiness check of a slice (ALC-9): the guest accepts a connection and sends a line that begins with
    `banner`.
    """

    port: int
    """TCP port of the guest."""
    banner: str
    """Required beginning of a line from that port; empty if an open port is sufficient."""


class ImageContent(Record, frozen=True):
    """Content of a version of an image: the boot image, and what Sliceplane must know of its guest."""

    format: Literal["kernel", "qcow2", "raw"]
    """`kernel`: kernel and initial RAM disk in the images folder of a node; `qcow2` and `raw`: a disk image."""
    digest: str | None
    """Digest of the disk image, `sha256:` and 64 hexadecimal digits; null for the format `kernel`."""
    size_bytes: int
    """Size of the disk image; 0 for the format `kernel`."""
    architecture: Literal["x86_64"]
    """Processor architecture of the guest."""
    firmware: Literal["uefi", "bios"] | None
    """Firmware that boots the disk image; null for the format `kernel`."""
    readiness: ReadinessCheck
    """How a node detects that a guest is ready."""
    default_user: str
    """User that the SSH keys of an allocation log in as."""
    minimum_disk_gib: int
    """Smallest root disk that the image fits on; 0 for an image without root disk."""


class AppProfileContent(Record, frozen=True):
    """Content of a version of an app profile: the requirements of a workload."""

    description: str
    """What the profile is for."""
    fabrics: tuple[Fabric, ...]
    """Fabrics that the workload accepts, in order of preference."""


class SkuPublished(Fact, frozen=True):
    """A version of a SKU was published, and is offered from now on."""

    name: SkuName
    """Name of the SKU."""
    version: int
    """Version of the SKU, counted from 1."""
    content: SkuContent
    """The whole content of the version."""


class SkuRetired(Fact, frozen=True):
    """A SKU was retired: no new allocation can name it. Existing allocations keep it."""

    name: SkuName
    """Name of the SKU."""
    reason: str
    """Reason that the administrator gave."""


class ImagePublished(Fact, frozen=True):
    """A version of an image was published, and is offered from now on."""

    name: ImageName
    """Name of the image."""
    version: int
    """Version of the image, counted from 1."""
    content: ImageContent
    """The whole content of the version."""


class ImageRetired(Fact, frozen=True):
    """An image was retired: no new allocation can name it. Existing allocations keep it."""

    name: ImageName
    """Name of the image."""
    reason: str
    """Reason that the administrator gave."""


class AppProfilePublished(Fact, frozen=True):
    """A version of an app profile was published, and is offered from now on."""

    name: AppProfileName
    """Name of the app profile."""
    version: int
    """Version of the app profile, counted from 1."""
    content: AppProfileContent
    """The whole content of the version."""


class AppProfileRetired(Fact, frozen=True):
    """An app profile was retired: no new allocation can name it. Existing allocations keep it."""

    name: AppProfileName
    """Name of the app profile."""
    reason: str
    """Reason that the administrator gave."""


EntryContent = SkuContent | ImageContent | AppProfileContent
EntryPublished = SkuPublished | ImagePublished | AppProfilePublished
EntryRetired = SkuRetired | ImageRetired | AppProfileRetired
EntryFact = EntryPublished | EntryRetired


class SpecifiedSku(Record, frozen=True):
    """The version of a SKU that an allocation uses."""

    name: SkuName
    """Name of the SKU."""
    version: int
    """Version of the SKU, counted from 1; 0 for an allocation of the first release, which had no catalogue."""
    content: SkuContent
    """The whole content of the version."""


class SpecifiedImage(Record, frozen=True):
    """The version of an image that an allocation uses."""

    name: ImageName
    """Name of the image."""
    version: int
    """Version of the image, counted from 1; 0 for an allocation of the first release, which had no catalogue."""
    content: ImageContent
    """The whole content of the version."""


class SpecifiedAppProfile(Record, frozen=True):
    """The version of an app profile that an allocation uses."""

    name: AppProfileName
    """Name of the app profile."""
    version: int
    """Version of the app profile, counted from 1."""
    content: AppProfileContent
    """The whole content of the version."""


class Entry(NamedTuple):
    """A version of an entry of the catalogue, usually the newest one.

    `retired` is the reason why the entry is retired; None while it is offered, and in earlier versions.
    `stream_version` is the number of facts in the entry's stream, retirements included; `version` counts only
    publications.
    """

    kind: EntryKind
    name: str
    stream_version: int
    version: int
    content: EntryContent
    retired: str | None
