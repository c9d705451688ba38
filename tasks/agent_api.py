"""The rest of the talk between a node and the control plane: enrolment, sessions, heartbeat, desired state.

A node is known by an Ed25519 key pair that it made itself, and by its newest *session*: the SHA-256 of a bearer
credential and of a queue password, made by the node too, valid for minutes. Sessions of a node are numbered for ever.
Each begins where the one before ended: the enrolment begins one in exchange for a one-time token, and a renewal names
the session it goes on from. Of two copies of a node's disk only one can go on; the other is refused and shown.

The node writes its secrets to disk before it sends their hashes, and asks with the same ones until it is answered:
asked twice with the same hashes, the answer is the same.
"""

from collections import Counter
from datetime import datetime
from typing import Annotated, Final, Literal, Self
from uuid import UUID

from pydantic import Field, model_validator

from events.values import MAX_SLOTS, SlotIndex
from tasks.fields import Count, Ipv4Subnet, Moment, NodeId, Wire, Word
from tasks.trust import CaPem

_SHA256 = r"^[0-9a-f]{64}$"
_MAX_PROOF = 4096
SHORTEST_TOKEN: Final = 16
LONGEST_TOKEN: Final = 256


Spoken = Annotated[tuple[Annotated[Word, Field(max_length=64)], ...], Field(max_length=64)]
"""The types of task that the agent knows, each with its version (`tasks.catalogue.ANNOUNCED`); none says nothing."""


class EnrolmentClaims(Wire):
    """What a node signs with its key to enrol: that it holds the key, the token and the secrets."""

    purpose: Literal["enrol"] = "enrol"
    node_id: NodeId
    token_sha256: str = Field(pattern=_SHA256)
    credential_sha256: str = Field(pattern=_SHA256)
    queue_password_sha256: str = Field(pattern=_SHA256)
    agent_version: Word = Field(max_length=64)
    speaks: Spoken = ()


class Enrolment(Wire):
    """`POST /v1/agent/enroll`, authenticated by the one-time token alone.

    `proof` is `EnrolmentClaims` as a JWS of type `session+jws` by the key whose public half is sent (PEM).
    """

    token: str = Field(min_length=SHORTEST_TOKEN, max_length=LONGEST_TOKEN)
    public_key: str = Field(max_length=1024)
    proof: str = Field(max_length=_MAX_PROOF)


class RenewalClaims(Wire):
    """What a node signs to go on from its session `number` to a new one.

    The key is on every copy of its disk, of any age, so it also shows what only that session's holder has: the SHA-256
    of its credential.
    """

    purpose: Literal["renew"] = "renew"
    node_id: NodeId
    number: int = Field(ge=0, lt=2**53)
    presented_sha256: str = Field(pattern=_SHA256)
    credential_sha256: str = Field(pattern=_SHA256)
    queue_password_sha256: str = Field(pattern=_SHA256)
    speaks: Spoken = ()


class Renewal(Wire):
    """`POST /v1/agent/sessions`, authenticated by the node's key alone: `proof` is `RenewalClaims`, signed likewise."""

    node_id: NodeId
    proof: str = Field(max_length=_MAX_PROOF)


class Queue(Wire):
    """Where the node finds its orders. The password is the node's own.

    With `tls` the node believes `ca` alone, or its system's CAs when that is None: it needs no file for its queue,
    for this comes from a control plane that it has checked already.
    """

    host: str
    port: int
    username: str
    namespace: str
    queue: str = "slices"
    tls: bool = False
    ca: CaPem | None = None


class Granted(Wire):
    """A session: the answer to an enrolment and to a renewal. It holds no secret."""

    node_id: NodeId
    number: int
    lifetime_seconds: float = Field(gt=0)
    """From the moment of the answer; the node renews at half of it."""
    order_keys: tuple[str, ...] = Field(min_length=1, max_length=64)
    """Public keys (PEM) of which orders may be signed. The next renewal brings those that hold then."""
    subnet: Ipv4Subnet
    queue: Queue
    heartbeat_seconds: float = Field(default=5, gt=0)
    """How often the node says that it lives, until the next session says otherwise."""


class Heartbeat(Wire):
    """`POST /v1/agent/heartbeat`, bearer `<node_id>:<credential>`, every few seconds."""

    agent_version: Word = Field(max_length=64)
    spooled_reports: Count
    resynced: bool
    """Whether the agent, since it started, has compared every slot with what it should carry."""


class HeartbeatAnswer(Wire):
    """The control plane's time: nodes keep no time of their own (design section 4)."""

    now: datetime


Index = Annotated[SlotIndex, Field(ge=0, lt=MAX_SLOTS)]


class HeldOrder(Wire):
    """The newest order that a slot was told: its fence token, and the SHA-256 (hex) of its text as it was signed."""

    index: Index
    epoch: Count
    position: int = Field(ge=0, lt=2**63)
    sha256: str = Field(pattern=_SHA256)


class HeldOrders(Wire):
    """`POST /v1/agent/desired-state`: what each slot of the node holds. A node that lost its disk names none."""

    held: Annotated[tuple[HeldOrder, ...], Field(max_length=MAX_SLOTS)] = ()

    @model_validator(mode="after")
    def _slots_differ(self) -> Self:
        times = Counter(each.index for each in self.held)
        if twice := [index for index, count in times.items() if count > 1]:
            raise ValueError(f"named more than once: slot {', '.join(map(str, twice))}")
        return self


class DesiredState(Wire):
    """What a node should hold and does not: the newest order of each such slot, signed. Others are not mentioned."""

    orders: tuple[str, ...]
    unknown: tuple[Index, ...] = ()
    """Slots that hold something newer than anything that is known of them here, as after a restore of the ledger. No
    order comes for them, and what they carry stays."""


class Progress(Wire):
    """Where the work on an order or operation is: its newest step, `number` from 1, of so many as are known of."""

    order_id: UUID
    step: Word = Field(max_length=64)
    number: Count = Field(ge=1)
    of: Count | None = None
    """None while nobody knows how much is to come, as while a slice is waited for."""
    at: Moment


class ProgressBatch(Wire):
    """`POST /v1/agent/progress`: the newest of each order at work; no fact, sent once or not at all. The answer's body
    is not read."""

    progress: tuple[Progress, ...] = Field(min_length=1, max_length=256)
