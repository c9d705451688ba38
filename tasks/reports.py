"""Reports of a node to the control plane, in the order of its observations.

Each report has a position (incarnation, sequence) in its node's spool. The incarnation identifies the spool's disk, the
sequence counts from 1 without gaps, and the control plane records each report once and in order.
"""

from typing import Annotated, Final, Literal
from uuid import UUID

from pydantic import Field

from events.values import NetworkMode
from tasks import operations
from tasks.devices import DeviceReading, FoundDevice
from tasks.drift import LocatedEvidence, TimedEvidence
from tasks.fields import (
    AllocationId,
    Flag,
    IngressId,
    Ipv4Address,
    Line,
    MacAddress,
    Moment,
    Port,
    PositiveCount,
    ShortWord,
    SlotId,
    Whole,
    Wire,
    Word,
    Words,
    is_empty,
    is_none,
)
from tasks.heads import MAX_HEAD
from tasks.orders import MOST_MAPPINGS

MOST_IMAGES: Final = 64
MOST_DRIFT: Final = 128
SignedHead = Annotated[str, Field(min_length=1, max_length=MAX_HEAD)]


class Reason(Wire):
    """A code for programs, one of `tasks.reasons`, and a message for people. A reader accepts any code, because a node
    may be newer than its control plane."""

    code: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    """Reason code for programs, in snake_case."""
    message: Line
    """Explanation for people."""


class FoundSlot(Wire):
    """A slot according to the node's settings."""

    index: Whole = Field(ge=0, le=63)
    """Index of the slot on the node."""
    vcpus: PositiveCount
    """Number of virtual processors of a slice in this slot."""
    memory_mib: PositiveCount
    """Memory of a slice in this slot, in MiB."""
    network_device: ShortWord
    """Name of the link to which the slice's network card is connected."""
    # Omitted if empty: a control plane without support for devices refuses the unknown field.
    devices: tuple[FoundDevice, ...] = Field(default=(), max_length=64, exclude_if=is_empty)
    """PCI functions that are passed through to a slice in this slot."""
    numa_node: Whole | None = Field(default=None, ge=0, le=1023, exclude_if=is_none)
    """NUMA node that provides the memory of a slice in this slot; null for any."""


class UnsupportedMode(Wire):
    """A network mode that slices on this node cannot have now."""

    mode: NetworkMode
    """The network mode."""
    reason: Words
    """What the node lacks for it."""


class NodeSurveyed(Wire):
    """Description of the node. The node sends it whenever the description changed, and when the control plane may have
    lost it."""

    kind: Literal["node.surveyed"] = "node.surveyed"
    hostname: Word
    """Host name of the node's operating system."""
    agent_version: ShortWord
    """Release of the agent."""
    simulated: Flag
    """True if the agent simulates the node in memory."""
    images: tuple[Word, ...] = Field(max_length=MOST_IMAGES)
    """Names of the images from which slices can boot."""
    missing: tuple[Words, ...] = Field(max_length=64)
    """Prerequisites that the node lacks, one sentence each; empty if the node is fit to carry slices."""
    slots: tuple[FoundSlot, ...] = Field(max_length=64)
    """Slots according to the settings, regardless of their contents."""
    drift: tuple[LocatedEvidence, ...] = Field(default=(), max_length=MOST_DRIFT)
    """All drift of the node and its slots that could not be repaired."""
    unsupported_modes: tuple[UnsupportedMode, ...] = Field(default=(), max_length=8, exclude_if=is_empty)
    """Network modes that slices on this node cannot have now, in the order of their names."""


class DriftRepaired(Wire):
    """Drift that the node detected and has repaired."""

    kind: Literal["drift.repaired"] = "drift.repaired"
    slot: Whole | None = Field(ge=0, le=63)
    """Index of the slot that the drift concerns; null if it concerns the whole node."""
    drift: tuple[TimedEvidence, ...] = Field(min_length=1, max_length=MOST_DRIFT)
    """Repaired drift, in the order of the repairs."""


class _OfSlice(Wire):
    slot_id: SlotId
    allocation_id: AllocationId


class SliceStarting(_OfSlice):
    """The node began to work on an order for the slice."""

    kind: Literal["slice.starting"] = "slice.starting"


class SliceAddress(_OfSlice):
    """The slice's address (NOD-5). `lease_state` is `none`, `offered`, `bound`, `expired` or `foreign`."""

    kind: Literal["slice.address"] = "slice.address"
    mac: MacAddress
    expected_ip: Ipv4Address
    actual_ip: Ipv4Address | None
    lease_state: Literal["none", "offered", "bound", "expired", "foreign"]


class SliceReady(_OfSlice):
    """The readiness check passed and the lease matches the reservation (ALC-9); the ingress rules of the slice's order,
    and no others, forward traffic to the slice.
    """

    kind: Literal["slice.ready"] = "slice.ready"
    address: Ipv4Address
    """Address at which the slice responds."""
    port: Port
    """Port at which the slice responds."""
    banner: str = Field(max_length=256)
    """Line that the slice sent."""


class SliceIngressObserved(_OfSlice):
    """The ingress rules on the host differ from the order of a ready slice and cannot be repaired, or they match the
    order again.
    """

    kind: Literal["slice.ingress_observed"] = "slice.ingress_observed"
    lost: tuple[IngressId, ...] = Field(max_length=MOST_MAPPINGS)
    """Ingress rules of the order that do not forward traffic to the slice; all others do. Empty if all rules do."""
    # Omitted if True: a control plane without support for the field refuses it.
    others: Flag = Field(default=True, exclude_if=bool)
    """False if a fresh check found no other rule that forwards to the slice and no connection through another rule."""


class SliceInterrupted(_OfSlice):
    """A slice that was ready stopped running without an order."""

    kind: Literal["slice.interrupted"] = "slice.interrupted"
    reason: Reason


class SliceFailed(_OfSlice):
    """The slice could not be brought up as ordered; the node does not retry without a new order."""

    kind: Literal["slice.failed"] = "slice.failed"
    reason: Reason


class SliceStopped(_OfSlice):
    """A fresh check found that nothing of the slice runs or can be reached."""

    kind: Literal["slice.stopped"] = "slice.stopped"
    forced: Flag
    """True if the guest did not shut down within its timeout and was powered off."""


class SliceRemoved(_OfSlice):
    """A fresh survey found no remains of the slice; `absent` lists the kinds of objects that were searched for."""

    kind: Literal["slice.removed"] = "slice.removed"
    absent: tuple[Line, ...] = Field(min_length=1, max_length=64)
    """Kinds of objects of which the survey found none: `link`, `lease`, `port`, `translation` and `machine`."""
    # Omitted if empty, as in most reports.
    devices: tuple[DeviceReading, ...] = Field(default=(), max_length=64, exclude_if=is_empty)
    """Health of the slot's PCI functions after their reset."""


class SliceNotRemoved(_OfSlice):
    """A removal or stop was executed, but a fresh check found `leftovers` of the slice."""

    kind: Literal["slice.removal_incomplete"] = "slice.removal_incomplete"
    leftovers: tuple[Line, ...] = Field(min_length=1, max_length=256)
    """Remaining objects, one sentence each."""


class OrderRefused(Wire):
    """The node refused an order; its reason has a code of `tasks.reasons.RefusalCode`.

    If the signature of a copy could not be verified, `order_id` comes from the unsigned message and is not trustworthy,
    and `slot_id` is null.
    """

    kind: Literal["order.refused"] = "order.refused"
    order_id: UUID
    slot_id: SlotId | None = None
    reason: Reason


class HeadRefused(Wire):
    """The node refused a signed head of the ledger that came with an order; its reason has a code of
    `tasks.reasons.HeadCode`. The order was carried out nevertheless.

    `held` and `refused` are the signed texts of the head that the node holds and of the refused one: two signed heads
    of different histories prove that the ledger was changed or that the sealer signed two histories.
    """

    kind: Literal["head.refused"] = "head.refused"
    reason: Reason
    held: SignedHead | None
    refused: SignedHead


class OperationDone(Wire):
    """An operation succeeded. If it was executed more than once, the first reported result counts."""

    kind: Literal["operation.done"] = "operation.done"
    operation_id: UUID
    result: operations.OperationResult


class OperationFailed(Wire):
    """An operation was refused before it began, or failed after it began. `tasks.catalogue` declares the possible
    codes.
    """

    kind: Literal["operation.failed"] = "operation.failed"
    operation_id: UUID
    reason: Reason


ReportBody = Annotated[
    NodeSurveyed
    | DriftRepaired
    | SliceStarting
    | SliceAddress
    | SliceReady
    | SliceIngressObserved
    | SliceInterrupted
    | SliceFailed
    | SliceStopped
    | SliceRemoved
    | SliceNotRemoved
    | OrderRefused
    | HeadRefused
    | OperationDone
    | OperationFailed,
    Field(discriminator="kind"),
]


class Report(Wire):
    """One report of a node, with its position in the node's spool."""

    sequence: Whole = Field(ge=1, lt=2**63)
    """Position of the report in the spool, counted from 1 without gaps."""
    observed_at: Moment
    """When the node made the observation, on the control plane's clock as estimated by the node."""
    order_id: UUID | None = None
    """Id of the order or operation that caused the report; null if none caused it."""
    trace_context: Word | None = None
    body: ReportBody


class ReportBatch(Wire):
    """`POST /v1/agent/reports`: consecutive reports of one spool, oldest first."""

    incarnation: UUID
    reports: tuple[Report, ...] = Field(min_length=1, max_length=100)


class ReportsTaken(Wire):
    """Response to a batch of reports: all reports up to and including `sequence` are in the ledger, and the node may
    delete them from its spool."""

    sequence: int
