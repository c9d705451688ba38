"""`node.verify`: what a host needs for slices, each thing looked at and named, whether it is there or not."""

from node_agent.host import Host, Prerequisite
from node_agent.slices import HostUnreadable
from tasks.fields import line
from tasks.operations import Check, NodeVerified


def verify_node(host: Host) -> NodeVerified:
    """Touches nothing. What cannot be looked at is not there, and says why."""
    found = (*host.gateway.prerequisites(), _images(host), *host.devices())
    return NodeVerified(
        checks=tuple(Check(name=each.name, ok=each.ok, detail=line(each.detail)) for each in found)
    )


def _images(host: Host) -> Prerequisite:
    try:
        names = host.images()
    except HostUnreadable as unreadable:
        return Prerequisite("images", ok=False, detail=str(unreadable))
    return Prerequisite("images", ok=bool(names), detail=", ".join(names) or "there is none")
