"""Response types of `/v1/capacity`."""

from datetime import datetime

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


class CapacityPoint(Answer, frozen=True):
    """The slots of each SKU by status at a time, after the event at `position`."""

    at: datetime
    position: int
    skus: tuple[Numbers, ...] = ()


class CapacityHistory(Answer, frozen=True):
    """The slots of each SKU by status at equal steps; `node_id` is None for all nodes."""

    begin: datetime
    end: datetime
    points: tuple[CapacityPoint, ...]
    step_seconds: int | None = None
    node_id: str | None = None


class NodeCapacity(Answer, frozen=True):
    node_id: str
    skus: tuple[Numbers, ...] = ()
