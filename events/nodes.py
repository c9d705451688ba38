"""Facts about nodes, in the order of their life cycle. Stream: `node-<node_id>`."""

from datetime import datetime
from typing import Final

from events.drift import DriftFound, OpenDrift
from events.facts import Fact, FailedBringUp, Reason, Record, RemainingSlot
from events.values import AllocationId, Ipv4Address, Ipv4Subnet, MacAddress, NetworkMode, NodeId, SlotId

DEFAULT_BRIDGE: Final = "br-slice"
DEFAULT_L2_DOMAIN: Final = "default"


class NodeRegistered(Fact, frozen=True):
    """An admin registered a node by name and issued a one-time enrolment token for it.

    The registration also reserves the node's subnet: the node's slots get their addresses from it. Removing the
    registration before the node enrols frees the subnet; after enrolment it stays reserved permanently.
    """

    node_id: NodeId
    subnet: Ipv4Subnet
    """Subnet of the addresses of this node's slots."""
    l2_domain: str
    """Layer-2 domain of the node's slots until an admin changes it. In one domain each MAC address belongs to one slot
    at most."""
    token_sha256: str
    """SHA-256 of the token; the token itself is shown once."""
    token_expires_at: datetime
    """When the token expires."""


class EnrolmentReopened(Fact, frozen=True):
    """An admin issued another one-time enrolment token, because the first was lost or the node lost its disk."""

    node_id: NodeId
    token_sha256: str
    """SHA-256 of the token; the token itself is shown once."""
    token_expires_at: datetime
    """When the token expires."""


class NodeRemoved(Fact, frozen=True):
    """An admin removed the registration of a node that never enrolled, such as one with a misspelt name.

    The enrolment token is no longer valid. The name and the subnet can be registered again.
    """

    node_id: NodeId
    subnet: Ipv4Subnet
    """The subnet that was freed."""


class NodeEnrolled(Fact, frozen=True):
    """The node presented its enrolment token, and proved that it holds the private key of a key pair that it generated.

    Any agent that enrolled earlier under this node name is refused from now on.
    """

    node_id: NodeId
    public_key: str
    """Public key (Ed25519) as PEM."""
    key_thumbprint: str
    """Thumbprint of the public key (RFC 7638)."""
    session: int
    """Number of the session that began with the enrolment."""
    agent_version: str
    """Release of the agent that enrolled."""


class AgentSuperseded(Fact, frozen=True):
    """An agent with the node's key tried to continue a session that another agent had already continued, so the disk of
    one of the two was copied or restored.

    Recorded once for each presented session, however often the agent retries, and once in total for sessions that the
    node never had.
    """

    node_id: NodeId
    presented_session: int
    """Number of the session that the agent presented."""
    current_session: int
    """Number of the newest session, which another agent holds."""
    presented_at: datetime
    """When the agent presented the session, on the control plane's clock."""


class NodeRevoked(Fact, frozen=True):
    """The node's access was revoked: its key, session and queue are invalid until it enrols again."""

    node_id: NodeId
    reason: str
    """Explanation of the admin; `queue_flooded: ...` if the control plane revoked the node because it used too much of
    Redis."""


class UnsupportedMode(Record, frozen=True):
    """A network mode that slices on a node cannot have."""

    mode: NetworkMode
    """The network mode."""
    reason: str
    """What the node lacks for it."""


# `omit_defaults`: a description without unsupported modes is stored in the bytes of the first release.
class NodeInspected(Fact, frozen=True, omit_defaults=True):
    """The node described itself, and the description differs from the previous one."""

    node_id: NodeId
    hostname: str
    """Host name of the node's operating system."""
    agent_version: str
    """Release of the agent that described the node."""
    simulated: bool
    """True if the agent simulates the node in memory."""
    images: tuple[str, ...]
    """Names of the images from which slices can boot on this node."""
    missing: tuple[str, ...]
    """Prerequisites that the node lacks, one sentence each; empty if the node is fit to carry slices."""
    unsupported_modes: tuple[UnsupportedMode, ...] = ()
    """Network modes that slices on this node cannot have, in the order of their names."""


class PublicAddress(Record, frozen=True):
    """A public address of a node, and how it is assigned to slices."""

    address: Ipv4Address
    """A public IPv4 address; traffic to it is already routed to the node."""
    use: str
    """`whole`: the address is assigned to one slice. `ports`: single ports are assigned."""
    first_port: int
    """Lowest port that is assigned; ignored for a whole address."""
    last_port: int
    """Highest port that is assigned; ignored for a whole address."""


class NodeAddressesChanged(Fact, frozen=True):
    """An admin set the public addresses of the node."""

    node_id: NodeId
    addresses: tuple[PublicAddress, ...]
    """All addresses of the node from now on."""
    added: tuple[Ipv4Address, ...]
    """Addresses that the node did not have before; they are claimed in the same append."""
    withdrawn: tuple[Ipv4Address, ...]
    """Addresses that the node no longer has."""


class MacPool(Record, frozen=True):
    """Range of MAC addresses from which slots of a node get theirs."""

    first: MacAddress
    """Lowest MAC address."""
    last: MacAddress
    """Highest MAC address."""


class NodeNetwork(Record, frozen=True):
    """Network settings of a node, which its slots get when they are approved or reprovisioned."""

    bridge: str
    """Name of the bridge on the node, which must be the one in the settings of its agent."""
    l2_domain: str
    """Layer-2 domain in which the MAC addresses of the slots are unique."""
    mac_pool: MacPool | None
    """Pool from which the slots get their MAC addresses; null if these are derived from the slots' ids."""


class NodeNetworkChanged(Fact, frozen=True):
    """An admin changed the network settings of the node. Slots keep their addresses until they are reprovisioned."""

    node_id: NodeId
    network: NodeNetwork
    """All network settings of the node from now on."""


class NodeDegraded(Fact, frozen=True):
    """A part of the node that all its slots need, such as the bridge, differs from its desired state and could not be
    repaired. No slice is placed on the node while drift that blocks placement is open.
    """

    node_id: NodeId
    drift: tuple[OpenDrift, ...]
    """All open drift of the node, including drift that was recorded before."""


class NodeRecovered(Fact, frozen=True):
    """The node has no open drift any more."""

    node_id: NodeId


class NodeRepaired(Fact, frozen=True):
    """A part of the node that all its slots need, such as the bridge, differed from its desired state, and the node
    repaired it at once.
    """

    node_id: NodeId
    drift: tuple[DriftFound, ...]
    """The repaired drift."""


class NodeBringUpFailed(Fact, frozen=True):
    """A slice could not be brought up on the node because of a node fault."""

    node_id: NodeId
    failures: tuple[FailedBringUp, ...]
    """The consecutive failures on the node, oldest first, including this failure as the last; at most the newest 16."""


class NodeBringUpSucceeded(Fact, frozen=True):
    """A slice came up on the node after failed bring-ups, which resets the count of consecutive failures to 0. Recorded
    only if there were failures.
    """

    node_id: NodeId
    slot_id: SlotId
    """The slot in which the slice came up."""
    allocation_id: AllocationId
    """The allocation of the slice."""


class NodeExcluded(Fact, frozen=True):
    """The node was excluded from placement, because consecutive bring-ups failed in several of its slots. No slice is
    placed on the node until it is readmitted.
    """

    node_id: NodeId
    reason: Reason
    failures: tuple[FailedBringUp, ...]
    """The failures that caused the exclusion, oldest first."""


class NodeReadmitted(Fact, frozen=True):
    """The node is used for placement again, and its count of consecutive failures is 0."""

    node_id: NodeId
    reason: Reason
    """`bring_up_succeeded` if a slice came up on the node, `readmitted_by_admin` if an admin readmitted the node."""


class NodeCordoned(Fact, frozen=True):
    """An admin closed the node for new placements. Slices that run there stay."""

    node_id: NodeId
    reason: str
    """Explanation of the admin."""


class NodeUncordoned(Fact, frozen=True):
    """An admin opened a cordoned node for placements again."""

    node_id: NodeId
    reason: str
    """Explanation of the admin."""


class NodeDrainStarted(Fact, frozen=True):
    """An admin began to drain the node, which is cordoned, or changed the release time of a running drain."""

    node_id: NodeId
    reason: str
    """Explanation of the admin."""
    started_at: datetime
    """When the drain began, by the control plane's clock."""
    release_at: datetime | None
    """When the allocations that still hold slots of the node are released; null: they end by themselves."""


class NodeDrainEnded(Fact, frozen=True):
    """The drain of the node ended. The node stays cordoned."""

    node_id: NodeId
    outcome: str
    """`empty`: no allocation holds a slot of the node. `incomplete`: slots were not empty in time after the release.
    `cancelled`: an admin uncordoned the node.
    """
    remaining: tuple[RemainingSlot, ...]
    """The slots that were not empty at the end of the drain; empty if the node is."""


class NodeReportsThrottled(Fact, frozen=True):
    """The node sent more reports than its budget allows.

    Until the node sends fewer reports, only the newest of consecutive descriptions of the node is recorded, and reports
    of other kinds are delayed but not lost.
    """

    node_id: NodeId
    since: datetime
    """When the budget was first exceeded, by the control plane's clock."""
    burst: int
    """Capacity of the report budget, in tokens."""
    per_minute: int
    """Number of tokens that the report budget regains per minute."""


class NodeReportsResumed(Fact, frozen=True):
    """The node stayed within its report budget for one minute, which ends the throttling episode."""

    node_id: NodeId
    since: datetime
    """When the throttling episode began, by the control plane's clock."""
    refused: int
    """Number of requests that were refused during the episode."""
    merged: int
    """Number of descriptions of the node that a newer one replaced before they were recorded."""


class HeadEvidence(Record, frozen=True):
    """Two signed heads of the ledger (compact JWS) that contradict each other, or one that no trusted key signed."""

    held: str | None
    """The head that the node holds; null if it holds none."""
    refused: str
    """The head that the node refused."""


class NodeHeadRefused(Fact, frozen=True):
    """The node refused a signed head of the ledger that came with an order, because it contradicts the head that the
    node holds or is not signed by a trusted key.

    After `head_inconsistent`, the history of the ledger was changed or restored from a backup. Verify the ledger with
    the held head. The event is reported once for each held head and code.
    """

    node_id: NodeId
    reason: Reason
    evidence: HeadEvidence


NodeFact = (
    NodeRegistered
    | EnrolmentReopened
    | NodeRemoved
    | NodeEnrolled
    | AgentSuperseded
    | NodeRevoked
    | NodeInspected
    | NodeAddressesChanged
    | NodeNetworkChanged
    | NodeDegraded
    | NodeRecovered
    | NodeRepaired
    | NodeBringUpFailed
    | NodeBringUpSucceeded
    | NodeExcluded
    | NodeReadmitted
    | NodeCordoned
    | NodeUncordoned
    | NodeDrainStarted
    | NodeDrainEnded
    | NodeReportsThrottled
    | NodeReportsResumed
    | NodeHeadRefused
)
