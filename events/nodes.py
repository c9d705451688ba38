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
    """The addresses of this host's slots."""
    l2_domain: str
    """The layer-2 domain that the host's slots will be in; a MAC address has one holder in each."""
    token_sha256: str
    """Of the token; the token itself was shown once."""
    token_expires_at: datetime
    """After this the token admits nobody."""


class EnrolmentReopened(Fact, frozen=True):
    """An admin opened another one-time token: the first was lost, or the host lost its disk."""

    node_id: NodeId
    token_sha256: str
    """Of the token; the token itself was shown once."""
    token_expires_at: datetime
    """After this the token admits nobody."""


class NodeEnrolled(Fact, frozen=True):
    """The host presented its token. Secrets were made on the host; only their SHA-256 came here (hex)."""

    node_id: NodeId
    credential_sha256: str
    """Of what the agent shows the API."""
    queue_password_sha256: str
    """Of what the agent shows its queue."""
    agent_version: str
    """Release of the agent that enrolled."""


class NodeInspected(Fact, frozen=True):
    """The host described itself, and differently from the last time."""

    node_id: NodeId
    hostname: str
    """What the host calls itself."""
    agent_version: str
    """Release of the agent that looked."""
    simulated: bool
    """True for a host that an agent keeps in its memory."""
    images: tuple[str, ...]
    """Names of the images that a slice can be started from there."""
    missing: tuple[str, ...]
    """Prerequisites that the host lacks, in words; empty means fit to carry slices."""


NodeFact = NodeExpected | EnrolmentReopened | NodeEnrolled | NodeInspected
