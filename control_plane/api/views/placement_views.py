"""Views of a placement: the chosen slots, and the reason of every node, in groups."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from pydantic import BaseModel

from control_plane.api.views.quota_views import ExceededLimitView
from control_plane.commands.past_placements import Placement
from control_plane.decisions.placing.explanation import Group, Outlook, meaning_of, obstacle_of


class NodeGroupView(BaseModel):
    """A group of nodes that are suitable or not suitable for an allocation for the same reason."""

    sku: str
    """SKU of the request for which the reason applies."""
    code: str
    """`suitable`, or the first reason why the nodes are not suitable."""
    message: str
    """The reason in words."""
    obstacle: str
    """What has to change: `hardware`, `health` of the node, `use` of its slots by others, or `nothing`."""
    nodes: int
    """Number of nodes."""
    example: str
    """First node of the group by name."""


class ObjectionView(BaseModel):
    """A reason why the request would be refused. `field` is a JSON pointer (RFC 6901) into the request body."""

    code: str
    message: str
    field: str | None = None


class NearestView(BaseModel):
    """A similar request that could be placed now."""

    sku: str
    slot_count: int


class OutlookView(BaseModel):
    """What is possible instead of a refused placement."""

    nearest: NearestView | None
    """The most similar request that could be placed now: fewer slots of the same SKU, else another SKU; null if none
    was found."""
    earliest_possible_at: datetime | None
    """When the request may be placed at the earliest: the end of the last lease that has to end before. Null if the
    ends of leases do not help."""


class PlacementPreview(BaseModel):
    """Result of a placement that was tried and not made. Another request may claim the slots in the meantime."""

    sku: str | None
    """SKU that the allocation would get: the first one of the request with suitable slots; null if it would be
    refused."""
    slots: list[str]
    """Slots that the allocation would get; empty if it would be refused."""
    reasons: list[ObjectionView]
    """Reasons why the allocation would be refused; empty if it would be placed."""
    exceeded: list[ExceededLimitView]
    """Limits that the allocation would exceed, if it would be refused for this reason."""
    outlook: OutlookView | None
    """What is possible instead; null if the allocation would be placed, and if it would be refused whatever slots are
    free."""
    groups: list[NodeGroupView]
    """Every registered node that the request permits, in exactly one group for each SKU of the request; the groups of a
    SKU that are closest to suitable come first."""


class PlacementView(BaseModel):
    """How the slots of an allocation were chosen, and why each node was suitable or not at that time."""

    allocation_id: str
    attempt: int
    """Number of this placement of the allocation, counted from 1. An allocation is placed again on another node if its
    slices cannot be brought up."""
    placed_at: datetime
    position: int
    """Last position of the ledger before the placement. The explanation describes the state at this position."""
    sku: str
    slots: list[str]
    """The chosen slots, all on one node."""
    order: Literal["pack", "spread"]
    """Preference of the SKU among the nodes with the best slots for the request: the one with the fewest (`pack`) or
    the most (`spread`) free slots; of several, the first by name."""
    groups: list[NodeGroupView]
    """Every node that was registered and that the request permitted, in exactly one group. Heartbeats, abilities of
    agents, free public addresses, reservations and nodes kept for waiting requests are not known of the past: nodes
    that only lacked these count as suitable."""


def outlook_view(outlook: Outlook) -> OutlookView:
    nearest = outlook.nearest
    return OutlookView(
        nearest=None if nearest is None else NearestView(sku=nearest.sku, slot_count=nearest.slot_count),
        earliest_possible_at=outlook.earliest_possible_at,
    )


def group_views(groups: Sequence[Group]) -> list[NodeGroupView]:
    """Return the views of groups of nodes, in the same order."""
    return [
        NodeGroupView(
            sku=each.sku,
            code=each.code,
            message=meaning_of(each.code),
            obstacle=obstacle_of(each.code).name.lower(),
            nodes=each.nodes,
            example=each.example,
        )
        for each in groups
    ]


def placement_view(placement: Placement, groups: Sequence[Group]) -> PlacementView:
    """Return the view of a placement that was made, with the groups of all nodes."""
    sku = placement.specified.sku
    return PlacementView(
        allocation_id=placement.request.allocation_id,
        attempt=placement.attempt,
        placed_at=placement.placed_at,
        position=placement.position,
        sku=sku.name,
        slots=[each.slot_id for each in placement.slots],
        order=sku.content.placement,
        groups=group_views(groups),
    )
