"""Response types of `/v1/capacity`."""

from control_plane.client.answers import Answer


class Numbers(Answer, frozen=True):
    """Slots that are offered under a SKU, by status."""

    sku: str
    free: int
    claimed: int
    quarantined: int
    blocked: int


class Capacity(Answer, frozen=True):
    """The slots of a SKU by status. `fits`: how many more allocations of one slot fit now; None in a past state."""

    sku: str
    free: int
    claimed: int
    quarantined: int
    blocked: int
    fits: int | None = None


class CapacityReport(Answer, frozen=True):
    skus: tuple[Capacity, ...]


class NodeCapacity(Answer, frozen=True):
    node_id: str
    skus: tuple[Numbers, ...] = ()
