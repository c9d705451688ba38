"""Facts about hosts, in life order. Stream: `node-<node_id>`."""

from datetime import datetime

from events.bring_ups import FailedBringUp
from events.drift import DriftFound, OpenDrift
from events.facts import Fact, Reason, Record
from events.values import AllocationId, Ipv4Address, Ipv4Subnet, NodeId, SlotId


class NodeExpected(Fact, frozen=True):
    """An admin admitted a host by name and opened a one-time enrolment token for it.

    The node-local subnet is reserved here: slots get their addresses from it. Removing the registration before
    the host enrols frees it; after enrolment it stays reserved permanently.
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


class NodeRemoved(Fact, frozen=True):
    """An admin removed the registration of a host that never enrolled, such as one with a misspelt name.

    The enrolment token is no longer valid. The name and the subnet can be registered again.
    """

    node_id: NodeId
    subnet: Ipv4Subnet
    """The subnet that was freed."""


class NodeEnrolled(Fact, frozen=True):
    """The host presented its token, in the days when it was known by lasting secrets of its own.

    Not written any more: `NodeIdentified` took its place, and a host known by this alone has to enrol again.
    """

    node_id: NodeId
    credential_sha256: str
    """Of what the agent shows the API."""
    queue_password_sha256: str
    """Of what the agent shows its queue."""
    agent_version: str
    """Release of the agent that enrolled."""


class NodeIdentified(Fact, frozen=True):
    """The host presented its token, and proved that it holds the private half of a key pair that it made.

    Whoever enrolled before it under the name is a stranger from here on.
    """

    node_id: NodeId
    public_key: str
    """Ed25519, as PEM."""
    key_thumbprint: str
    """Of the public key (RFC 7638)."""
    session: int
    """Number of the session that began with it."""
    agent_version: str
    """Release of the agent that enrolled."""


class AgentSuperseded(Fact, frozen=True):
    """Somebody with the host's key wanted to go on from a session that had been gone on from: a copied or restored
    disk.

    Recorded once for each session presented, however often it is tried, and once in all for sessions that it never had.
    """

    node_id: NodeId
    presented_session: int
    """The one that it named: its disk knows it, or it is a lie."""
    current_session: int
    """The newest, which somebody else holds."""
    presented_at: datetime
    """By the control plane's clock."""


class NodeRevoked(Fact, frozen=True):
    """The host's access was taken away: its key, session and queue end. A new enrolment brings it back."""

    node_id: NodeId
    reason: str
    """In the admin's words; `queue_flooded: ...` if the control plane did it, since the host took too much of Redis."""


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


class PublicAddress(Record, frozen=True):
    """An address by which the host is reached from outside, and how it is given to slices."""

    address: Ipv4Address
    """It leads to the host already."""
    use: str
    """`whole`: all of it to one slice. `ports`: one port after the other."""
    first_port: int
    """The lowest that is given."""
    last_port: int
    """The highest. Of a whole address neither means anything."""


class NodeAddressesChanged(Fact, frozen=True):
    """An admin said which public addresses the host has."""

    node_id: NodeId
    addresses: tuple[PublicAddress, ...]
    """All of them, from now on."""
    added: tuple[Ipv4Address, ...]
    """Those that the host did not have before: claimed by this very fact."""
    withdrawn: tuple[Ipv4Address, ...]
    """Those that it has no more."""


class NodeDegraded(Fact, frozen=True):
    """Something that all slots of the host need is otherwise than it was wanted, and is not mended. Nothing is placed
    there while any of it blocks.
    """

    node_id: NodeId
    drift: tuple[OpenDrift, ...]
    """All of it, also what was told before."""


class NodeRecovered(Fact, frozen=True):
    """What all slots of the host need is as it is wanted again."""

    node_id: NodeId


class NodeMended(Fact, frozen=True):
    """Something that all slots of the host need was otherwise than it was wanted, and the host made it good at once."""

    node_id: NodeId
    drift: tuple[DriftFound, ...]
    """What was mended."""


class NodeBringUpFailed(Fact, frozen=True):
    """A slice could not be brought up on the node, due to a node fault."""

    node_id: NodeId
    failures: tuple[FailedBringUp, ...]
    """The consecutive failures on the node, oldest first, ending with this one; at most the newest 16."""


class NodeBringUpSucceeded(Fact, frozen=True):
    """A slice came up on the node after failures there: the count of consecutive failures is 0 again. It is recorded
    only where there were failures.
    """

    node_id: NodeId
    slot_id: SlotId
    """The slot in which the slice came up."""
    allocation_id: AllocationId
    """The allocation of the slice."""


class NodeExcluded(Fact, frozen=True):
    """Consecutive bring-ups failed in several slots of the node. Nothing new is placed there until it is readmitted."""

    node_id: NodeId
    reason: Reason
    failures: tuple[FailedBringUp, ...]
    """The evidence, oldest first."""


class NodeReadmitted(Fact, frozen=True):
    """Allocations are placed on the node again, and its count of consecutive failures is 0."""

    node_id: NodeId
    reason: Reason
    """`bring_up_succeeded` if a slice came up there, `readmitted_by_admin` if an admin readmitted it."""


class NodeReportsThrottled(Fact, frozen=True):
    """The host sent more reports than its budget allows.

    Until it sends fewer, of consecutive descriptions of the host only the newest is recorded, and its other reports are
    delayed. No other report is lost.
    """

    node_id: NodeId
    since: datetime
    """When the budget was first exceeded, by the control plane's clock."""
    burst: int
    """Tokens that the budget holds."""
    per_minute: int
    """Tokens that it regains per minute."""


class NodeReportsResumed(Fact, frozen=True):
    """The host stayed within its report budget for one minute, which ends the episode of throttling."""

    node_id: NodeId
    since: datetime
    """When the episode began."""
    refused: int
    """Requests that were refused during the episode."""
    merged: int
    """Descriptions of the host that were replaced by a newer one before they were recorded."""


NodeFact = (
    NodeExpected
    | EnrolmentReopened
    | NodeRemoved
    | NodeEnrolled
    | NodeIdentified
    | AgentSuperseded
    | NodeRevoked
    | NodeInspected
    | NodeAddressesChanged
    | NodeDegraded
    | NodeRecovered
    | NodeMended
    | NodeBringUpFailed
    | NodeBringUpSucceeded
    | NodeExcluded
    | NodeReadmitted
    | NodeReportsThrottled
    | NodeReportsResumed
)
