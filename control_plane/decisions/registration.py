"""Decisions about the registration of a node: whether the registration can be repeated or removed.

A node that never enrolled has no key, no slots and no orders, so its registration is a name, a token and a subnet, and
can be removed without a trace on any host. After the enrolment slots have addresses of the subnet and a host may carry
slices, so the registration is kept and only the access can be revoked.
"""

from typing import NamedTuple

from control_plane.decisions.refusals import Conflict, Objection, refuse_if
from events.nodes import NodeAddressesChanged, NodeFact, NodeRemoved
from events.values import Ipv4Address, Ipv4Subnet, NodeId


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
