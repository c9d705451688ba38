"""The rest of the talk between a node and the control plane: enrolment, heartbeat, desired state."""

from datetime import datetime

from pydantic import Field

from tasks.fields import Count, Ipv4Subnet, NodeId, Wire, Word
from tasks.orders import Order

_SHA256 = r"^[0-9a-f]{64}$"


class Enrolment(Wire):
    """`POST /v1/agent/enroll`, authenticated by the one-time token alone.

    The node makes its secrets, stores them, and sends their SHA-256 (hex): asked twice with the same hashes,
    the answer is the same, so that a node killed between the two ends up enrolled.
    """

    node_id: NodeId
    token: str = Field(min_length=16, max_length=256)
    credential_sha256: str = Field(pattern=_SHA256)
    queue_password_sha256: str = Field(pattern=_SHA256)
    agent_version: Word = Field(max_length=64)


class Queue(Wire):
    """Where the node finds its orders. The password is the node's own."""

    host: str
    port: int
    username: str
    namespace: str
    queue: str = "slices"


class Enrolled(Wire):
    node_id: NodeId
    subnet: Ipv4Subnet
    queue: Queue
    heartbeat_seconds: int = 5


class Heartbeat(Wire):
    """`POST /v1/agent/heartbeat`, bearer `<node_id>:<credential>`, every few seconds."""

    agent_version: Word = Field(max_length=64)
    spooled_reports: Count
    resynced: bool
    """Whether the agent, since it started, has compared every slot with what it should carry."""


class HeartbeatAnswer(Wire):
    """The control plane's time: nodes keep no time of their own (design section 4)."""

    now: datetime


class DesiredState(Wire):
    """`GET /v1/agent/desired-state`: the newest order of each slot of the node that wants something."""

    orders: tuple[Order, ...]
