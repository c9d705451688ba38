"""Operation `node.verify`: check every prerequisite of a host for slices, and report each as met or not."""

from node_agent.host.host import Host, Prerequisite
from node_agent.host.slices import HostUnreadable
from tasks.fields import line
from tasks.operations import Check, NodeVerified


def verify_node(host: Host) -> NodeVerified:
    """Check every prerequisite of the node without changing the host.

    A prerequisite that cannot be read counts as unmet, with the error as its detail.
    """
    found = (*host.gateway.prerequisites(), _images(host), *host.devices())
    return NodeVerified(
        checks=tuple(Check(name=each.name, ok=each.ok, detail=line(each.detail)) for each in found)
    )


def _images(host: Host) -> Prerequisite:
    try:
        names = host.images()
    except HostUnreadable as unreadable:
        return Prerequisite("images", ok=False, detail=str(unreadable))
    return Prerequisite("images", ok=bool(names), detail=", ".join(names) or "no image found")
