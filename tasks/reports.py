"""Reports: what a node tells the control plane, in the order it saw it.

Each report has a place (incarnation, sequence) in its node's spool. The incarnation names the spool's disk,
the sequence counts from 1 without gaps, and intake takes each once and in order.
"""

from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field

from tasks import operations
from tasks.drift import DriftSeen, Sighting
from tasks.fields import (
    AllocationId,
    Count,
    IngressId,
    Ipv4Address,
    Line,
    MacAddress,
    Moment,
    PciAddress,
    Port,
    SlotId,
    Wire,
    Word,
    Words,
    is_empty,
    is_none,
)
from tasks.orders import MOST_MAPPINGS

MOST_IMAGES: Final = 64
MOST_DRIFT: Final = 128


class Reason(Wire):
    """A code for programs, one of `tasks.reasons`, and words for people. A reader takes any code: a node may be newer
    than its control plane."""

    code: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    """What kind of reason it is."""
    message: Line
    """The reason itself."""


class FoundDevice(Wire):
    """A PCI function that a slot's slices get for themselves, by the settings, and what the host shows there."""

    address: PciAddress
    """Where it is."""
    use: Literal["gpu", "fabric", "card"]
    """What for."""
    number: Word | None = Field(max_length=9)
    """Vendor and device in hexadecimal, `10de:2330`; null where there is none."""
    kind: Word | None = Field(max_length=16)
    """What it is, by its class and its devices; null where there is none."""
    numa_node: int | None = Field(ge=0, le=1023)
    """Whose memory it is near; null where the host does not say."""


class FoundSlot(Wire):
    """A place for one slice, as the node's settings have it."""

    index: int = Field(ge=0, le=63)
    """Its number on the node."""
    vcpus: Count = Field(ge=1)
    """Processors that a slice gets here."""
    memory_mib: Count = Field(ge=1)
    """Memory that a slice gets here."""
    network_device: Word = Field(max_length=64)
    """Name of the link that the slice's card is plugged into."""
    # Left out where there is none: a control plane that knows of no devices refuses a field that it does not know.
    devices: tuple[FoundDevice, ...] = Field(default=(), max_length=64, exclude_if=is_empty)
    """PCI functions that a slice gets here."""
    numa_node: int | None = Field(default=None, ge=0, le=1023, exclude_if=is_none)
    """Whose memory a slice gets here, where that matters."""


class NodeSurveyed(Wire):
    """The host describes itself: sent once, whenever something in it changed, and when it may have been forgotten."""

    kind: Literal["node.surveyed"] = "node.surveyed"
    hostname: Word
    """What the host calls itself."""
    agent_version: Word = Field(max_length=64)
    """Release of the agent."""
    simulated: bool
    """True for a host that the agent keeps in its memory."""
    images: tuple[Word, ...] = Field(max_length=MOST_IMAGES)
    """Names of what a slice can be started from."""
    missing: tuple[Words, ...] = Field(max_length=64)
    """What the host lacks to carry slices, in words; empty: nothing."""
    slots: tuple[FoundSlot, ...] = Field(max_length=64)
    """By their settings, whatever is on them."""
    drift: tuple[DriftSeen, ...] = Field(default=(), max_length=MOST_DRIFT)
    """All that is otherwise than wanted and could not be mended, of the node and of its slots."""


class DriftMended(Wire):
    """What a look found otherwise than wanted, and is so no more: the node mended it."""

    kind: Literal["drift.mended"] = "drift.mended"
    slot: int | None = Field(ge=0, le=63)
    """The slot that it is about, null where it is about the node."""
    drift: tuple[Sighting, ...] = Field(min_length=1, max_length=MOST_DRIFT)
    """In the order in which it was mended."""


class _OfSlice(Wire):
    slot_id: SlotId
    allocation_id: AllocationId


class SliceStarting(_OfSlice):
    """Work on the slice began: an order was taken up."""

    kind: Literal["slice.starting"] = "slice.starting"


class SliceAddress(_OfSlice):
    """NOD-5. `lease_state` is `none`, `offered`, `bound`, `expired` or `foreign`."""

    kind: Literal["slice.address"] = "slice.address"
    mac: MacAddress
    expected_ip: Ipv4Address
    actual_ip: Ipv4Address | None
    lease_state: Literal["none", "offered", "bound", "expired", "foreign"]


class SliceReady(_OfSlice):
    """The readiness check passed and the lease matches the reservation (ALC-9); its order's ways in lead to it, and no
    others."""

    kind: Literal["slice.ready"] = "slice.ready"
    address: Ipv4Address
    """Where it answers."""
    port: Port
    """The port at which it does."""
    banner: str = Field(max_length=256)
    """What it said."""


class SliceExposed(_OfSlice):
    """Some of an order's ways in do not lead to a slice that is ready, or others do, and that cannot be mended; or all
    is as ordered again."""

    kind: Literal["slice.exposed"] = "slice.exposed"
    lost: tuple[IngressId, ...] = Field(max_length=MOST_MAPPINGS)
    """Those that do not lead to it, all others of the order do; empty: all do."""
    # Left out where it is True: who does not know a field refuses it.
    others: bool = Field(default=True, exclude_if=bool)
    """False where a fresh look found nothing that leads to it besides, and no connection that came in otherwise."""


class SliceInterrupted(_OfSlice):
    """A slice that was ready is not running any more, and nobody ordered that."""

    kind: Literal["slice.interrupted"] = "slice.interrupted"
    reason: Reason


class SliceFailed(_OfSlice):
    """The slice could not be made as ordered; nothing further is tried without a new order."""

    kind: Literal["slice.failed"] = "slice.failed"
    reason: Reason


class SliceStopped(_OfSlice):
    """A fresh look found that nothing of the slice runs or can be reached."""

    kind: Literal["slice.stopped"] = "slice.stopped"
    forced: bool
    """True where the guest did not shut down in the time that it was given, and was cut off."""


class SliceRemoved(_OfSlice):
    """A fresh survey found nothing of the slice; `absent` names the kinds of things looked for."""

    kind: Literal["slice.removed"] = "slice.removed"
    absent: tuple[Line, ...] = Field(min_length=1, max_length=64)
    """`link`, `lease`, `port`, `translation` and `machine`."""


class SliceRemains(_OfSlice):
    """Removal, or a stop, was carried out, and yet a fresh look found `leftovers` of what was to be gone."""

    kind: Literal["slice.remains"] = "slice.remains"
    leftovers: tuple[Line, ...] = Field(min_length=1, max_length=256)
    """What is still there, in words."""


class OrderRefused(Wire):
    """The node would not touch the order; the codes are `tasks.reasons.RefusalCode`.

    Of a copy that is not believed, `order_id` is what stood around it, which anybody may have chosen, and no slot is
    named.
    """

    kind: Literal["order.refused"] = "order.refused"
    order_id: UUID
    slot_id: SlotId | None = None
    reason: Reason


class OperationDone(Wire):
    """The operation was carried out, perhaps again; the first result of an operation counts."""

    kind: Literal["operation.done"] = "operation.done"
    operation_id: UUID
    result: operations.OperationResult


class OperationFailed(Wire):
    """The operation came to nothing: refused before it began, or failed after. The catalogue declares its codes."""

    kind: Literal["operation.failed"] = "operation.failed"
    operation_id: UUID
    reason: Reason


ReportBody = Annotated[
    NodeSurveyed
    | DriftMended
    | SliceStarting
    | SliceAddress
    | SliceReady
    | SliceExposed
    | SliceInterrupted
    | SliceFailed
    | SliceStopped
    | SliceRemoved
    | SliceRemains
    | OrderRefused
    | OperationDone
    | OperationFailed,
    Field(discriminator="kind"),
]


class Report(Wire):
    """One report, at its place in its spool."""

    sequence: int = Field(ge=1, lt=2**63)
    """The place; without gaps."""
    observed_at: Moment
    """When the node saw it, by the control plane's time as the node knew it."""
    order_id: UUID | None = None
    """The order or operation that this came of, where there was one."""
    trace_context: Word | None = None
    body: ReportBody


class ReportBatch(Wire):
    """`POST /v1/agent/reports`: consecutive reports of one spool, oldest first."""

    incarnation: UUID
    reports: tuple[Report, ...] = Field(min_length=1, max_length=100)


class ReportsTaken(Wire):
    """Everything up to and including `sequence` is in the ledger; the spool may forget it."""

    sequence: int
