"""Request bodies of the catalogue: the content of SKUs, images and app profiles.

`POST` creates an entry with a name and its content; `PUT` publishes a further version with a content.
"""

from typing import Annotated, Literal, Self

import msgspec
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.api.requests.bodies import (
    MAX_LEASE_SECONDS,
    MIN_LEASE_SECONDS,
    Body,
    Description,
    Port,
    Why,
)
from control_plane.decisions.catalogue import least_disk_gib
from events import values
from events.entries import AppProfileContent, ImageContent, SkuContent
from tasks.orders import LONGEST_BANNER, MOST_MBIT

_MOST_INTEGER = 2**31 - 1
Disk = Annotated[int, Field(ge=0, le=2**20)]
"""Size of a root disk in GiB."""


def _refuse(reason: str) -> PydanticCustomError:
    return PydanticCustomError("invalid_value", "{reason}", {"reason": reason})


class PublishSku(Body):
    """Request body of `PUT /v1/skus/{sku}`: the whole content of the new version."""

    gpu_model: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[\x20-\x7e]*$")] | None = None
    """Model of the GPUs; null: the slice has none."""
    gpu_count: int = Field(default=0, ge=0, le=64)
    vcpus: int = Field(ge=1, le=256)
    memory_mib: int = Field(ge=32, le=_MOST_INTEGER)
    disk_gib: Disk = 0
    """Size of the root disk; 0: the slice has no root disk."""
    fabric: values.Fabric = "none"
    """Workload fabric that a slot must offer."""
    network_modes: list[values.NetworkMode] = Field(
        default=["private-nat", "public-nat"], min_length=1, max_length=8
    )
    """Network modes that an allocation may have."""
    rate_mbit: int | None = Field(default=None, ge=1, le=MOST_MBIT)
    """Rate limit of a slice in each direction, in Mbit/s; null: not limited."""
    numa: Literal["any", "single"] = "any"
    """`single`: processors, memory, GPUs and fabric device are on one NUMA node; `any`: on any NUMA nodes."""
    placement: Literal["pack", "spread"] = "pack"
    """Whether placement fills a node before it uses the next (`pack`), or prefers empty nodes (`spread`)."""
    price_per_hour: Annotated[str, AfterValidator(values.price)] = "0"
    """Price of one slot per hour, a decimal number in the currency of the deployment."""
    provisioning_seconds: int = Field(default=120, ge=1, le=3600)
    """Time after which a node reports a slice that is not ready as failed."""
    max_lease_seconds: int | None = Field(default=None, ge=MIN_LEASE_SECONDS, le=MAX_LEASE_SECONDS)
    """Longest lease in seconds, from a request or a renewal on; null: not limited by the SKU."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if (self.gpu_model is None) != (self.gpu_count == 0):
            raise _refuse(
                "gpu_model needs a gpu_count of at least 1, and gpu_count needs a gpu_model; give both or omit both"
            )
        if len(set(self.network_modes)) < len(self.network_modes):
            raise _refuse("network_modes lists a mode twice; list each mode once")
        return self

    @property
    def content(self) -> SkuContent:
        return msgspec.convert(self.model_dump(exclude={"name"}), SkuContent)


class CreateSku(PublishSku):
    """Request body of `POST /v1/skus`."""

    name: Annotated[str, AfterValidator(values.sku_name)]


class ReadinessBody(Body):
    """The readiness check of an image: the guest accepts a connection and sends a line that begins with `banner`."""

    port: Port = 22
    """TCP port of the guest."""
    banner: str = Field(default="SSH-", max_length=LONGEST_BANNER, pattern=r"^[\x20-\x7e]*$")
    """Required beginning of a line from that port, printable ASCII; empty if an open port is sufficient."""


class PublishImage(Body):
    """Request body of `PUT /v1/images/{image}`: the whole content of the new version."""

    format: Literal["kernel", "qcow2", "raw"]
    """`kernel`: kernel and initial RAM disk in the images folder of a node; `qcow2` and `raw`: a disk image."""
    digest: Annotated[str, AfterValidator(values.image_digest)] | None = None
    """Digest of the disk image, `sha256:` and 64 hexadecimal digits; null for the format `kernel`."""
    size_bytes: int = Field(default=0, ge=0, le=2**50)
    """Size of the disk image; 0 for the format `kernel`."""
    architecture: Literal["x86_64"] = "x86_64"
    firmware: Literal["uefi", "bios"] | None = None
    """Firmware that boots the disk image; null for the format `kernel`."""
    readiness: ReadinessBody = ReadinessBody()
    default_user: Annotated[str, AfterValidator(values.user_name)] = "root"
    """User that the SSH keys of an allocation log in as."""
    minimum_disk_gib: Disk = 0
    """Smallest root disk that the image fits on; 0 for an image without root disk."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        of_disk = (self.digest is not None, self.size_bytes > 0, self.firmware is not None)
        if self.format == "kernel" and any(of_disk):
            raise _refuse("an image of the format kernel has no digest, size_bytes or firmware; omit them")
        if self.format != "kernel" and not all(of_disk):
            raise _refuse(f"an image of the format {self.format} needs a digest, size_bytes and a firmware")
        least = least_disk_gib(self.content)
        if 0 < self.minimum_disk_gib < least:
            raise _refuse(
                f"an image of {self.size_bytes} bytes needs a root disk of {least} GiB; raise minimum_disk_gib, or omit it"
            )
        return self

    @property
    def content(self) -> ImageContent:
        return msgspec.convert(self.model_dump(exclude={"name"}), ImageContent)


class CreateImage(PublishImage):
    """Request body of `POST /v1/images`."""

    name: Annotated[str, AfterValidator(values.image_name)]


class PublishAppProfile(Body):
    """Request body of `PUT /v1/app-profiles/{app_profile}`: the whole content of the new version."""

    description: Description = ""
    fabrics: list[values.Fabric] = Field(min_length=1, max_length=4)
    """Fabrics that the workload accepts, in order of preference."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if len(set(self.fabrics)) < len(self.fabrics):
            raise _refuse("fabrics lists a fabric twice; list each fabric once")
        return self

    @property
    def content(self) -> AppProfileContent:
        return msgspec.convert(self.model_dump(exclude={"name"}), AppProfileContent)


class CreateAppProfile(PublishAppProfile):
    """Request body of `POST /v1/app-profiles`."""

    name: Annotated[str, AfterValidator(values.app_profile_name)]


class RetireEntry(Body):
    """Request body that retires an entry of the catalogue, such as of `POST /v1/skus/{sku}/retire`."""

    reason: Why
