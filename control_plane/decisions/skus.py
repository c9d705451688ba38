"""The SKUs that can be requested: slice sizes and their time limits. They are part of the release.

An SKU that was ever allocated must not change: an order that is derived again would have another content under the same
fence token, and its node would refuse it.
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
    """Size of a slice. `provisioning` is the time after which a node fails a slice that is not ready. `rate_mbit`
    limits the traffic of the slice in each direction, in Mbit/s (NOD-3); None means no limit.
    """

    name: SkuName
    vcpus: int
    memory_mib: int
    provisioning: timedelta
    rate_mbit: int | None = None

    @property
    def ready_within(self) -> timedelta:
        """Time from placement to the allocation's deadline. It is longer than the time that the node waits, so that the
        node's report of a failure arrives first.
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
    """Return the largest SKU that the hardware of a slot can carry, or None if it can carry none."""
    fitting = [sku for sku in SKUS.values() if sku.fits(hardware)]
    return max(fitting, key=lambda sku: (sku.memory_mib, sku.vcpus), default=None)
