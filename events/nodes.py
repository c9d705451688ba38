"""Facts about hosts, in life order. Stream: `node-<node_id>`."""

from datetime import datetime

from events.facts import Fact
from events.values import Ipv4Subnet, NodeId


class NodeExpected(Fact, frozen=True):
    """An admin admitted a host by name and opened a one-time enrolment token for it.

    The node-local subnet is reserved here, for good: slots get their addresses from it.
    """

    node_id: NodeId
    subnet: Ipv4Subnet
    l2_domain: str
    token_sha256: str
    token_expires_at: datetime


class EnrolmentReopened(Fact, frozen=True):
    """An admin opened another one-time token: the first was lost, or the host lost its disk."""

    node_id: NodeId
    token_sha256: str
    token_expires_at: datetime


class NodeEnrolled(Fact, frozen=True):
    """The host presented its token. Secrets were made on the host; only their SHA-256 came here (hex)."""

    node_id: NodeId
    credential_sha256: str
    queue_password_sha256: str
    agent_version: str


class NodeInspected(Fact, frozen=True):
    """The host described itself, and differently from the last time."""

    node_id: NodeId
    hostname: str
    agent_version: str
    simulated: bool
    images: tuple[str, ...]
    missing: tuple[str, ...]
    """Prerequisites that the host lacks, in words; empty means fit to carry slices."""


NodeFact = NodeExpected | EnrolmentReopened | NodeEnrolled | NodeInspected
