"""Explanation of a placement: why nodes are or are not suitable for a request, in groups of nodes with the same reason.

Every registered node is in exactly one group, with the first reason that applies to it: its hardware first, then its
health, then its free slots. So the groups also show what has to change: the hardware, the health of a node, or the use
of its slots.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from typing import Final, NamedTuple, assert_never

from control_plane.decisions.placing.choice import CORDONED, free_slots
from control_plane.decisions.placing.suitability import Demand, Mismatch
from control_plane.decisions.public_addresses import no_free_address_anywhere
from control_plane.decisions.quotas import CODE as QUOTA_EXCEEDED
from control_plane.decisions.quotas import PRICE_TOO_HIGH, NotAdmitted
from control_plane.decisions.refusals import Conflict, Objection
from events.values import NodeId, SkuName

SUITABLE: Final = "suitable"
NO_SLOTS: Final = "no_slots"
TOO_FEW_SLOTS: Final = "too_few_slots"
IMAGE_MISSING: Final = "image_missing"
MODE_UNSUPPORTED: Final = "network_mode_unsupported"
UNSUPPORTED: Final = "unsupported_by_agent"
SLOTS_BLOCKED: Final = "slots_blocked"
NO_FREE_SLOT: Final = "no_free_slot"
RESERVED: Final = "reserved_for_others"
NO_PUBLIC_ADDRESS: Final = "no_public_address"
NOT_APART: Final = "not_apart"
KEPT: Final = "kept_for_waiting"
SIMULATED: Final = "simulated"
NODE_BLOCKED: Final = "node_blocked"
_MOST_GROUPS: Final = 8
"""Number of groups that the message of a refusal names."""


class Obstacle(IntEnum):
    """What has to change before the nodes of a group are suitable. A higher value is closer to suitable."""

    HARDWARE = 0
    """The node has no slots for such a request, or too few."""
    HEALTH = 1
    """The node or its slots are not fit for placement now."""
    USE = 2
    """Other allocations use the slots or the public addresses."""
    NOTHING = 3
    """The node is suitable."""


class Group(NamedTuple):
    """Number of nodes (`nodes`) that are or are not suitable for a SKU of a request for the same reason (`code`).
    `example` is the first of these nodes by name.
    """

    sku: SkuName
    code: str
    nodes: int
    example: NodeId


_HARDWARE: Final[Mapping[str, str]] = {
    NO_SLOTS: "no slots",
    Mismatch.OTHER_SKU: "no slot is offered under the SKU",
    Mismatch.OTHER_GPU: "the GPUs are not those of the SKU",
    Mismatch.TOO_SMALL: "the slots are smaller than the SKU",
    Mismatch.OTHER_FABRIC: "no slot has an accepted fabric",
    Mismatch.SEVERAL_NUMA_NODES: "the slots are not on one NUMA node",
    TOO_FEW_SLOTS: "fewer suitable slots than requested",
}
_HEALTH: Final[Mapping[str, str]] = {
    IMAGE_MISSING: "the node does not have the image",
    Mismatch.FABRIC_DOWN: "the fabric ports of suitable slots carry no traffic",
    MODE_UNSUPPORTED: "the node does not support the network mode",
    UNSUPPORTED: "the agent does not support a part of the request",
    SLOTS_BLOCKED: "suitable slots are blocked by drift, quarantined, or excluded after failed bring-ups or a fault",
    "unreachable": "the node sends no heartbeats",
    "resyncing": "the agent has not compared all slots with their desired state yet",
    CORDONED: "cordoned",
    "missing": "the host lacks a prerequisite",
    "registered": "the node has not enrolled",
    "revoked": "the access of the node is revoked",
    "bring_ups_failed": "excluded after failed bring-ups",
}
_USE: Final[Mapping[str, str]] = {
    NO_FREE_SLOT: "too few free slots",
    RESERVED: "the free slots are reserved for other projects",
    NOT_APART: "an allocation with a label that the request names in apart_from has a slot on the node",
    KEPT: "its free slots are kept for requests that wait for capacity",
    NO_PUBLIC_ADDRESS: "no public address or port is free",
    SIMULATED: "the node is simulated, and is used only for requests that name it",
    QUOTA_EXCEEDED: "slots are free, but the request exceeds a limit of its project or caller",
    PRICE_TOO_HIGH: "slots are free, but the request costs more than its max_price_per_hour",
}
_BECAME_SUITABLE: Final = "slots became free during the search; send the request again"
"""Reason of a suitable node in a refusal: its slots were in use when the search read them."""
_OF_SLOTS: Final = (IMAGE_MISSING, MODE_UNSUPPORTED, Mismatch.FABRIC_DOWN, UNSUPPORTED, SLOTS_BLOCKED)
"""Reason codes of `Obstacle.HEALTH` that depend on what is requested: a node with one of them may suit another request.
"""


def obstacle_of(code: str) -> Obstacle:
    """Return what has to change before the nodes of a group with this code are suitable."""
    if code == SUITABLE:
        return Obstacle.NOTHING
    if code in _HARDWARE:
        return Obstacle.HARDWARE
    return Obstacle.USE if code in _USE else Obstacle.HEALTH


def meaning_of(code: str) -> str:
    """Return the code of a group in words. A code without own words is that of a drift that blocks placement."""
    words = {SUITABLE: "enough free slots meet the request", **_HARDWARE, **_HEALTH, **_USE}
    return words.get(code) or f"blocked by the drift {code}"


def ordered(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Return groups in the order of their obstacles: suitable nodes first, then the closest ones."""
    return tuple(sorted(groups, key=lambda group: (-obstacle_of(group.code), -group.nodes, group.code)))


class Nearest(NamedTuple):
    """SKU and number of slots of a similar request that could be placed now."""

    sku: SkuName
    slot_count: int


class Outlook(NamedTuple):
    """What is possible instead of a refused request.

    `nearest` is the most similar request that could be placed now: fewer slots of the same SKU, else another SKU of
    the catalogue. `earliest_possible_at` is when the request may be placed at the earliest, according to the ends of
    the leases of other allocations. Each is None if it is not known.
    """

    nearest: Nearest | None = None
    earliest_possible_at: datetime | None = None


UNKNOWN: Final = Outlook()
"""The outlook of a request for which it was not determined."""


class Unplaced(Conflict):
    """Refusal: no node is suitable for a request. For each SKU of the request, every node is counted in one of the
    `groups`, by the reason why it is not suitable.
    """

    def __init__(
        self, objections: Sequence[Objection], groups: Sequence[Group], outlook: Outlook = UNKNOWN
    ) -> None:
        super().__init__(*objections)
        self.groups, self.outlook = tuple(groups), outlook

    def with_outlook(self, outlook: Outlook) -> "Unplaced":
        """Return the same refusal with an outlook: what is possible instead of the refused request."""
        return Unplaced(self.objections, self.groups, outlook)


def not_admitted(groups: Sequence[Group], refusal: NotAdmitted) -> Sequence[Group]:
    """Return the groups for a SKU that the price cap of the request or a quota does not permit: the suitable nodes have
    the code of this refusal.
    """
    code = refusal.objections[0].code
    return ordered([each._replace(code=code) if each.code == SUITABLE else each for each in groups])


def unplaced(
    groups: Sequence[Group], demand: Demand, count: int, node: NodeId | None, cordoned: str | None = None
) -> Unplaced:
    """Return the refusal of a request for which no node is suitable, with the reasons of all nodes.

    `groups` are in the order of `ordered`, and have only the node that the request names, if it names one; `cordoned`
    is the reason of this node's cordon.
    """
    first = _refusal([each.code for each in groups], demand, count, node, cordoned)
    if first.code == NODE_BLOCKED:
        # Its message has the reason of the only node.
        return Unplaced([first], groups)
    reasons = [
        f"{_nodes(each)}: {_BECAME_SUITABLE if each.code == SUITABLE else meaning_of(each.code)}"
        for each in groups[:_MOST_GROUPS]
    ]
    if others := sum(each.nodes for each in groups[_MOST_GROUPS:]):
        reasons.append(f"{_number(others)}: other reasons")
    return Unplaced([first._replace(message="; ".join([first.message, *reasons]))], groups)


def unplaced_with_any(refusals: Sequence[Conflict]) -> Conflict:
    """Return the refusal of a request for which no node is suitable with any of its SKUs. `refusals` are the refusals
    for its SKU and for each of its alternative SKUs.
    """
    if len(refusals) == 1:
        return refusals[0]
    objections = [
        objection._replace(field=field_of_sku(place)) if objection.field == "/sku" else objection
        for place, refusal in enumerate(refusals)
        for objection in refusal.objections
    ]
    not_admitted = [each for each in refusals if isinstance(each, NotAdmitted)]
    if len(not_admitted) == len(refusals):
        exceeded = dict.fromkeys(limit for each in not_admitted for limit in each.exceeded)
        return NotAdmitted([*dict.fromkeys(objections)], [*exceeded])
    groups = [group for refusal in refusals if isinstance(refusal, Unplaced) for group in refusal.groups]
    return Unplaced([*dict.fromkeys(objections)], groups)


def field_of_sku(place: int) -> str:
    """Return the JSON pointer to one of the SKUs of a request, counted from 0: its `sku`, and then its alternatives."""
    return "/sku" if place == 0 else f"/alternative_skus/{place - 1}"


def only_simulated_left(count: int, demand: Demand) -> Objection:
    """Return the objection to a request that names no simulated node although only simulated nodes have free slots."""
    reason = (
        f"only simulated nodes have {free_slots(count, demand)}, and this deployment does not place slices on them; "
        "name one as the request's node, or set SLICEPLANE_PLACE_ON_SIMULATED_NODES=true for the API"
    )
    return Objection("only_simulated_nodes", reason, "/node")


def node_blocked(node: NodeId, code: str, cordoned: str | None = None) -> Objection:
    """Return the objection to a request that names a node on which no slices are placed now, for the reason with this
    code. `cordoned` is the reason of its cordon.
    """
    why = f"cordoned: {cordoned}" if code == CORDONED and cordoned else meaning_of(code)
    reason = f"nothing is placed on node {node} now ({why}); omit the node, or name another node"
    return Objection(NODE_BLOCKED, reason, "/node")


def _refusal(
    codes: Sequence[str], demand: Demand, count: int, node: NodeId | None, cordoned: str | None
) -> Objection:
    """Return the objection to a request for which all nodes have one of these codes. Its code states what the closest
    nodes lack.
    """
    if SIMULATED in codes:
        return only_simulated_left(count, demand)
    if NO_PUBLIC_ADDRESS in codes:
        return no_free_address_anywhere()
    closest = max(map(obstacle_of, codes), default=Obstacle.HARDWARE)
    if node is not None and closest is Obstacle.HEALTH and codes[0] not in _OF_SLOTS:
        return node_blocked(node, codes[0], cordoned)
    what = free_slots(count, demand)
    lacking = f"no schedulable node has {what}" if node is None else f"node {node} does not have {what}"
    match closest:
        case Obstacle.HARDWARE:
            return Objection("no_suitable_slot", lacking, "/sku")
        case Obstacle.HEALTH:
            return Objection("no_healthy_slot", lacking, "/slot_count")
        case Obstacle.USE | Obstacle.NOTHING:
            return Objection("no_capacity", lacking, "/slot_count")
        case _:
            assert_never(closest)


def _nodes(group: Group) -> str:
    return f"node {group.example}" if group.nodes == 1 else _number(group.nodes)


def _number(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"
