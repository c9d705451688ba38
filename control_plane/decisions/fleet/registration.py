"""Decisions about the registration of a node: its subnet, its bridge and layer-2 domain, and whether the registration
can be repeated or removed.

Nodes that are registered concurrently see the same free subnets, and only one of them gets each subnet. A registration
that lost a race chooses again, by a hash of the node's name, among 64 times as many subnets after each lost race, so
that two registrations that collided rarely collide again.

A node that never enrolled has no key, no slots and no orders, so its registration is a name, a token and a subnet, and
can be removed without a trace on any host. After the enrolment slots have addresses of the subnet and a host may carry
slices, so the registration is kept and only the access can be revoked.
"""

import ipaddress
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final, NamedTuple
from zlib import crc32

from control_plane.decisions.refusals import Conflict, Objection, refuse_if
from events.nodes import NodeAddressesChanged, NodeFact, NodeNetwork, NodeNetworkChanged, NodeRemoved
from events.values import Ipv4Address, Ipv4Subnet, NodeId, SlotId, ipv4_subnet

_WIDER: Final = 64


class Registration(NamedTuple):
    """Registration of a node; `has_enrolled` stays true after a revocation and after the enrolment is reopened."""

    node_id: NodeId
    subnet: Ipv4Subnet
    addresses: tuple[Ipv4Address, ...]
    has_enrolled: bool


def check_repeatable(node: Registration) -> None:
    """Check that a node can be registered again with a new token. Raises `Conflict` if the node has enrolled."""
    if node.has_enrolled:
        reason = (
            f"node {node.node_id} is registered and has enrolled; to let a host that lost its disk enrol again, "
            f"request a new token: POST /v1/nodes/{node.node_id}/enrolment"
        )
        raise Conflict(Objection("node_exists", reason, "/id"))


def removal(node: Registration) -> tuple[NodeFact, ...]:
    """Return the facts that remove a node's registration and its claims. Raises `Conflict` if the node has enrolled."""
    refuse_if(against_removing(node))
    removed = NodeRemoved(node_id=node.node_id, subnet=node.subnet)
    if not node.addresses:
        return (removed,)
    return NodeAddressesChanged(node.node_id, addresses=(), added=(), withdrawn=node.addresses), removed


def against_removing(node: Registration) -> list[Objection]:
    """Return the reason why a node's registration cannot be removed; an empty list if it can."""
    if not node.has_enrolled:
        return []
    reason = (
        f"node {node.node_id} has enrolled, and its host may carry slices with addresses of {node.subnet}; "
        f"revoke its access instead: sliceplane nodes revoke {node.node_id} --reason TEXT"
    )
    return [Objection("node_enrolled", reason)]


def free_subnet(
    node: NodeId, among: ipaddress.IPv4Network, held: Collection[str], lost_races: int
) -> Ipv4Subnet:
    """Choose a /24 subnet of the network `among` that is not in `held`. Raises `Conflict` if there is none."""
    free = [*islice((each for each in _subnets(among) if each not in held), _WIDER**lost_races)]
    if not free:
        raise Conflict(
            Objection(
                "no_subnet",
                f"every /24 subnet of {among} belongs to a node; extend the slice networks or remove a node",
            )
        )
    return ipv4_subnet(free[crc32(f"{node} {lost_races}".encode()) % len(free)])


def _subnets(among: ipaddress.IPv4Network) -> Iterator[str]:
    """Yield all /24 subnets of a network except the first. Integer arithmetic avoids creating thousands of
    `ipaddress` objects.
    """
    first, last = int(among.network_address), int(among.broadcast_address)
    for start in range(first + 256, last, 256):
        yield f"{start >> 24}.{start >> 16 & 255}.{start >> 8 & 255}.0/24"


def configure(
    node: NodeId, present: NodeNetwork, wanted: NodeNetwork, approved: Collection[SlotId]
) -> tuple[NodeNetworkChanged, ...]:
    """Set the network of a node; return no facts if it is not changed. `approved` are the slots that have addresses.

    Raises `Conflict` if the bridge or the domain changes while slots have addresses: a node has one bridge, and their
    MACs are unique in the present domain only.
    """
    if wanted == present:
        return ()
    moved = (wanted.bridge, wanted.l2_domain) != (present.bridge, present.l2_domain)
    refuse_if(_against_moving(node, approved, present) if moved else [])
    return (NodeNetworkChanged(node, wanted),)


def _against_moving(node: NodeId, approved: Collection[SlotId], present: NodeNetwork) -> list[Objection]:
    if not approved:
        return []
    reason = (
        f"slots of node {node} have addresses already: {', '.join(sorted(approved))}; the bridge and the L2 domain"
        f" can be set only before the first slot is approved; use bridge {present.bridge} and L2 domain"
        f" {present.l2_domain}, or register the host under another node name"
    )
    return [Objection("slots_approved", reason)]
