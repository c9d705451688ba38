"""Views of the catalogue: SKUs, images and app profiles, each version with its whole content."""

from typing import Any, Final, Literal

import msgspec
from pydantic import BaseModel

from control_plane.api.views.allowed_actions import AllowedActions, actions_on_entry
from control_plane.decisions.access import Principal
from events.entries import Entry
from events.values import EntryKind, Fabric, NetworkMode


class EntryView(BaseModel):
    """A version of an entry of the catalogue. `state`: offered, retired, or superseded by a newer version. `reason` is
    why the entry is retired; null if it is not retired.
    """

    name: str
    version: int
    """Version of the entry, counted from 1. Its content never changes."""
    state: Literal["offered", "retired", "superseded"]
    reason: str | None
    allowed_actions: AllowedActions | None = None
    """Actions that the caller may take now, or the reason why not; null in views of the past and of a
    requested version.
    """


class SkuView(EntryView):
    """A version of a SKU, the size of a slice."""

    gpu_model: str | None
    """Model of the GPUs; null: the slice has none."""
    gpu_count: int
    vcpus: int
    memory_mib: int
    disk_gib: int
    """Size of the root disk; 0: the slice has no root disk."""
    fabric: Fabric
    """Workload fabric that a slot must offer."""
    network_modes: list[NetworkMode]
    """Network modes that an allocation may have."""
    rate_mbit: int | None
    """Rate limit of a slice in each direction, in Mbit/s; null: not limited."""
    numa: Literal["any", "single"]
    """`single`: processors, memory, GPUs and fabric device are on one NUMA node; `any`: on any NUMA nodes."""
    placement: Literal["pack", "spread"]
    """Whether placement fills a node before it uses the next (`pack`), or prefers empty nodes (`spread`)."""
    price_per_hour: str
    """Price of one slot per hour, a decimal number in the currency of the deployment."""
    provisioning_seconds: int
    """Time after which a node reports a slice that is not ready as failed."""
    max_lease_seconds: int | None = None
    """Longest lease in seconds, from a request or a renewal on; null: not limited by the SKU."""


class ReadinessView(BaseModel):
    """The readiness check of an image: the guest accepts a connection and sends a line that begins with `banner`."""

    port: int
    banner: str


class ImageView(EntryView):
    """A version of a boot image."""

    format: Literal["kernel", "qcow2", "raw"]
    """`kernel`: kernel and initial RAM disk in the images folder of a node; `qcow2` and `raw`: a disk image."""
    digest: str | None
    """Digest of the disk image, `sha256:` and 64 hexadecimal digits; null for the format `kernel`."""
    size_bytes: int
    """Size of the disk image; 0 for the format `kernel`."""
    architecture: Literal["x86_64"]
    firmware: Literal["uefi", "bios"] | None
    """Firmware that boots the disk image; null for the format `kernel`."""
    readiness: ReadinessView
    default_user: str
    """User that the SSH keys of an allocation log in as."""
    minimum_disk_gib: int
    """Smallest root disk that the image fits on; 0 for an image without root disk."""


class AppProfileView(EntryView):
    """A version of an app profile, the requirements of a workload."""

    description: str
    fabrics: list[Fabric]
    """Fabrics that the workload accepts, in order of preference."""


VIEWS: Final[dict[EntryKind, type[EntryView]]] = {
    "sku": SkuView,
    "image": ImageView,
    "app_profile": AppProfileView,
}


def entry_view(entry: Entry, principal: Principal | None = None, *, newest: int | None = None) -> EntryView:
    """Return the view of an entry. `principal` is the caller for which allowed actions are decided; a view of the past
    or of a requested version has none. `newest` is the newest version of the entry; None means the version shown.
    """
    superseded = newest is not None and newest != entry.version
    state = "superseded" if superseded else "offered" if entry.retired is None else "retired"
    fields: dict[str, Any] = {
        "name": entry.name,
        "version": entry.version,
        "state": state,
        "reason": None if superseded else entry.retired,
        "allowed_actions": None if principal is None else actions_on_entry(principal),
        **msgspec.to_builtins(entry.content),
    }
    return VIEWS[entry.kind].model_validate(fields)
