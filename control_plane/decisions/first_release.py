"""Specifications of allocations of the first release. Its SKUs were constants of the program, so the histories of its
allocations have no `allocation.specified`.

An order is derived again from the same facts at any time, and must then have the same content: its node refuses
different content under the same fence token. So these sizes never change. Histories of all later allocations contain
`allocation.specified`.
"""

from typing import Final

import msgspec

from events.allocations import AllocationRequested, AllocationSpecified, ReadinessCheckSet
from events.entries import ImageContent, ReadinessCheck, SkuContent, SpecifiedImage, SpecifiedSku
from events.values import SkuName

SSH: Final = ReadinessCheck(port=22, banner="SSH-")
"""The SSH banner (RFC 4253, section 4.2): the readiness check of an image that defines no other."""
_BEFORE_THE_CATALOGUE: Final = 0
_SMALL: Final = SkuContent(
    gpu_model=None,
    gpu_count=0,
    vcpus=1,
    memory_mib=96,
    disk_gib=0,
    fabric="none",
    network_modes=("private-nat", "public-nat"),
    rate_mbit=None,
    numa="any",
    placement="pack",
    price_per_hour="0",
    provisioning_seconds=120,
)
_SIZES: Final = {
    SkuName("lab.small"): _SMALL,
    SkuName("lab.medium"): msgspec.structs.replace(_SMALL, memory_mib=192, rate_mbit=100),
}
_IMAGE: Final = ImageContent(
    format="kernel",
    digest=None,
    size_bytes=0,
    architecture="x86_64",
    firmware=None,
    readiness=SSH,
    default_user="root",
    minimum_disk_gib=0,
)


def implied_specification(request: AllocationRequested) -> AllocationSpecified:
    """Return the specification that a request of the first release implies. The versions of its SKU and its
    image are 0, because they are not entries of the catalogue.
    """
    return AllocationSpecified(
        request.allocation_id,
        SpecifiedSku(request.sku, _BEFORE_THE_CATALOGUE, _SIZES[request.sku]),
        SpecifiedImage(request.image, _BEFORE_THE_CATALOGUE, _IMAGE),
        app_profile=None,
    )


def with_check(specification: AllocationSpecified, check: ReadinessCheckSet) -> AllocationSpecified:
    """Return the specification with its readiness check replaced by `check`, a separate fact of the first release."""
    image = specification.image
    content = msgspec.structs.replace(image.content, readiness=ReadinessCheck(check.port, check.banner))
    return msgspec.structs.replace(specification, image=SpecifiedImage(image.name, image.version, content))
