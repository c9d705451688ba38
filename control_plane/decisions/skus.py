"""The SKUs that can be requested: slice sizes and their time limits. They are part of the release.

An SKU that was ever allocated must not change: orders are derived from it again and again, and a node refuses different
content under the same token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from control_plane.decisions.readiness import SSH, Check
from events.slots import SlotHardware
from events.values import ImageName, SkuName


@dataclass(frozen=True, slots=True)
class Sku:
    """A size of slice. `provisioning` is how long a node waits until the slice is ready; `rate_mbit` limits its traffic
    in each direction, in Mbit/s (NOD-3), None means no limit.
    """

    name: SkuName
    vcpus: int
    memory_mib: int
    provisioning: timedelta
    rate_mbit: int | None = None

    @property
    def ready_within(self) -> timedelta:
        """How long the allocation waits: longer than the node, so that the node's report of the failure arrives
        first.
        """
        return self.provisioning + DELIVERY_LIMIT

    def fits(self, hardware: SlotHardware) -> bool:
        return hardware.vcpus >= self.vcpus and hardware.memory_mib >= self.memory_mib


DELIVERY_LIMIT: Final = timedelta(seconds=30)
"""Maximum total time of the delivery of an order to its node and of the report back."""
GRACE: Final = timedelta(seconds=30)
"""Time that a guest gets to shut down by itself before it is switched off."""
STOP_WITHIN: Final = timedelta(minutes=10)
"""Time until all slices must be proved to be off. Long enough for a node that reboots in the meantime."""

SKUS: Final = {
    sku.name: sku
    for sku in (
        Sku(SkuName("lab.small"), vcpus=1, memory_mib=96, provisioning=timedelta(minutes=2)),
        Sku(SkuName("lab.medium"), vcpus=1, memory_mib=192, provisioning=timedelta(minutes=2), rate_mbit=100),
    )
}
Images = Mapping[ImageName, Check]
"""Images by name, with the readiness check of each (ALC-9)."""
IMAGES: Final[Images] = {ImageName("lab-guest"): SSH}
"""Images of the release itself. A deployment defines further images in its settings."""


def best_fit(hardware: SlotHardware) -> Sku | None:
    """Return the largest SKU that fits the hardware, or None if none does."""
    fitting = [sku for sku in SKUS.values() if sku.fits(hardware)]
    return max(fitting, key=lambda sku: (sku.memory_mib, sku.vcpus), default=None)
