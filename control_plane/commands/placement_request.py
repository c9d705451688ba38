"""A request for slots: as a caller makes it, and as placement and its explanation use it."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy.dialects.postgresql import ARRAY

from control_plane.decisions.placing.suitability import Demand, demand_of
from control_plane.decisions.public_addresses import IngressRequest
from control_plane.decisions.reservations import Supply
from control_plane.identity.sessions import supports
from events.allocations import AllocationRequested, AllocationSpecified
from events.values import AppProfileName, IngressId, NodeId, SkuName
from read_models import nodes
from tasks.catalogue import INGRESS, RATE, ROOT_DISK


@dataclass(frozen=True, slots=True)
class NewAllocation:
    """What a caller requests. If no node is suitable for the SKU of the request, the allocation gets the first of the
    alternative SKUs for which one is. The other fields have the same meaning as those of `PlacementRequest`.
    """

    request: AllocationRequested
    unreachable_after: timedelta
    simulated_allowed: bool
    alternative_skus: Sequence[SkuName] = ()
    app_profile: AppProfileName | None = None
    max_price_per_hour: str | None = None
    """Price of the whole allocation per hour that its SKU must not exceed; None: any price."""
    ingress_rules: Sequence[tuple[IngressId, IngressRequest]] = ()
    wait: "WaitOptions | None" = None
    """How the request waits if it cannot be placed now; None: it is refused then."""

    def as_sku(self, sku: SkuName) -> AllocationRequested:
        """Return the request with another SKU."""
        return replace(self.request, sku=sku)

    def with_slots(self, count: int) -> "NewAllocation":
        """Return the request with `count` slots, and without ingress rules of slots with higher numbers."""
        rules = [each for each in self.ingress_rules if each[1].slot < count]
        return dataclasses.replace(self, request=replace(self.request, slot_count=count), ingress_rules=rules)

    def placed_as(self, specified: AllocationSpecified, apart_nodes: frozenset[NodeId]) -> "PlacementRequest":
        """Return the request for slots of the allocation with the SKU of `specified`."""
        return PlacementRequest(
            self.as_sku(specified.sku.name),
            demand_of(specified),
            self.ingress_rules,
            self.unreachable_after,
            simulated_allowed=self.simulated_allowed,
            needs_root_disk=needs_root_disk(specified),
            apart_nodes=apart_nodes,
        )


@dataclass(frozen=True, slots=True)
class WaitOptions:
    """How a request waits for capacity: with which priority, and for how long. `most_waiting` is the number of requests
    of a project that may wait at a time, if the project has no limit of its own.
    """

    priority: int
    duration: timedelta
    most_waiting: int


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A request for slots and ingress rules on one node, which must not be in `except_nodes`.

    Placement ignores nodes without heartbeat for `unreachable_after`. It ignores a simulated node too, unless the
    request names this node or `simulated_allowed` is set.
    """

    request: AllocationRequested
    demand: Demand
    ingress_rules: Sequence[tuple[IngressId, IngressRequest]]
    unreachable_after: timedelta
    simulated_allowed: bool
    needs_root_disk: bool = False
    """Whether the slices have a root disk that is created from a disk image."""
    is_for_sku: bool = False
    """Whether this request stands for all requests for its SKU: a node is suitable whatever images it has, if it
    supports one of the network modes of the SKU.
    """
    except_nodes: frozenset[NodeId] = frozenset()
    apart_nodes: frozenset[NodeId] = frozenset()
    """Nodes that the request excludes, because an allocation with a label in its field `apart_from` has a slot there.
    """
    kept_classes: frozenset[str] = frozenset()
    """Classes of slots that the request must not get, because their free slots are kept for other projects."""
    kept_supplies: tuple[Supply, ...] = ()
    """Reservations of other projects for which the free slots of `kept_classes` are kept."""
    kept_nodes: frozenset[NodeId] = frozenset()
    """Nodes with free slots that are kept for requests that wait for capacity."""

    @property
    def form(self) -> tuple[object, ...]:
        """What the text of queries for the request depends on: requests with equal forms differ in `values` only."""
        sku, request = self.demand.sku, self.request
        return (
            sku.placement,
            sku.rate_mbit is not None,
            request.node is not None,
            request.slot_count > 1,
            self.needs_root_disk,
            self.is_for_sku,
            self.simulated_allowed,
            bool(self.except_nodes),
            bool(self.apart_nodes),
            bool(self.kept_nodes),
            tuple(each.to for each in self.ingress_requests),
        )

    @property
    def values(self) -> dict[str, object]:
        """The values of the named parameters in queries for the request."""
        return {
            "wanted_node": self.request.node,
            "wanted_image": self.request.image,
            "wanted_modes": self._network_modes,
            "wanted_slots": self.request.slot_count,
            "except_nodes": sorted(self.except_nodes),
            "apart_nodes": sorted(self.apart_nodes),
            "kept_nodes": sorted(self.kept_nodes),
            "unreachable_after": self.unreachable_after,
        }

    @property
    def ingress_requests(self) -> list[IngressRequest]:
        """The requested ingress rules without their ids."""
        return [rule for _, rule in self.ingress_rules]

    def has_image(self, node: sa.FromClause = nodes.node) -> sa.ColumnElement[bool]:
        """Return the SQL condition on a row of `read.node`, or of a query with its columns, for a node that can boot
        the image of the request. A node downloads disk images, and must have the others.
        """
        if self.needs_root_disk or self.is_for_sku:
            return sa.true()
        return node.c.images.any_() == sa.bindparam("wanted_image", self.request.image)

    def supports_mode(self, node: sa.FromClause = nodes.node) -> sa.ColumnElement[bool]:
        """Return the SQL condition on a row of `read.node`, or of a query with its columns, for a node on which slices
        can have the network mode of the request.
        """
        modes = sa.bindparam("wanted_modes", self._network_modes, ARRAY(sa.Text))
        supports_none: sa.ColumnElement[bool] = node.c.unsupported_modes.has_all(modes)
        return sa.not_(supports_none)

    @property
    def _network_modes(self) -> list[str]:
        """The network modes of which a node must support one."""
        return sorted(self.demand.sku.network_modes) if self.is_for_sku else [self.request.network_mode]

    def support_of(self, node_id: sa.ColumnElement[str]) -> Iterator[sa.ColumnElement[bool]]:
        """Yield SQL conditions for a node with an agent that supports everything that the request needs. Another agent
        would refuse the order.
        """
        needed = {
            RATE: self.demand.sku.rate_mbit is not None,
            INGRESS: bool(self.ingress_rules),
            ROOT_DISK: self.needs_root_disk,
        }
        yield from (supports(node_id, announced) for announced, is_needed in needed.items() if is_needed)


def needs_root_disk(specified: AllocationSpecified) -> bool:
    """Return whether the slices of an allocation have a root disk: all except those that boot a kernel directly."""
    return specified.image.content.format != "kernel"
