"""What can be bought: sizes, and how long they may take. They belong to the release. One that was sold stays as it is:
orders are derived anew from it, and a node refuses another content under the same token.
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
    """A size of slice. `provisioning` is how long a node waits for its readiness; `rate_mbit` limits its traffic each
    way, in Mbit/s (NOD-3), where it is given.
    """

    name: SkuName
    vcpus: int
    memory_mib: int
    provisioning: timedelta
    rate_mbit: int | None = None

    @property
    def ready_within(self) -> timedelta:
        """How long its allocation waits: so much longer that a node's own word of why it is not ready comes first."""
        return self.provisioning + HEARD_WITHIN

    def fits(self, hardware: SlotHardware) -> bool:
        return hardware.vcpus >= self.vcpus and hardware.memory_mib >= self.memory_mib


HEARD_WITHIN: Final = timedelta(seconds=30)
"""How long an order's way to its node and the way of a report back may take together."""
GRACE: Final = timedelta(seconds=30)
"""How long a guest that is to stop may take to shut down by itself."""
STOP_WITHIN: Final = timedelta(minutes=10)
"""How long it may take until all slices are proved off: a node that reboots meanwhile is waited for."""

SKUS: Final = {
    sku.name: sku
    for sku in (
        Sku(SkuName("lab.small"), vcpus=1, memory_mib=96, provisioning=timedelta(minutes=2)),
        Sku(SkuName("lab.medium"), vcpus=1, memory_mib=192, provisioning=timedelta(minutes=2), rate_mbit=100),
    )
}
Images = Mapping[ImageName, Check]
"""By what the guest of each is found ready (ALC-9)."""
IMAGES: Final[Images] = {ImageName("lab-guest"): SSH}
"""The release's own. Others are a deployment's, and stand in its settings."""


def best_fit(hardware: SlotHardware) -> Sku | None:
    """The largest SKU that the hardware can carry."""
    fitting = [sku for sku in SKUS.values() if sku.fits(hardware)]
    return max(fitting, key=lambda sku: (sku.memory_mib, sku.vcpus), default=None)
