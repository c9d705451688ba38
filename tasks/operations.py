"""Operations: what a node is asked to look at or to mend once, and what came of it.

An order says what a slot shall carry from now on; an operation changes no wish. One that is about a slot brings the
order that the slot should hold along, whole: the node passes that through the fence first, so an operation is never
carried out on a slot that was meanwhile told otherwise, and needs nothing that it does not bring.

Each operation ends in exactly one report: a result of its own type, or a reason with a code that its type declares.
Carried out twice, it finds nothing left to do the second time. Each try at a task is an operation of its own.
"""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from tasks.drift import Evidence
from tasks.fields import Count, Ipv4Address, Line, MacAddress, Moment, NodeId, Wire, Word
from tasks.orders import Order

Steps = Annotated[tuple[Word, ...], Field(max_length=64)]
"""Names of the steps that were taken, in their order; none when the host was as wanted."""


class _OfSlot(Wire):
    wish: Order
    """The newest order of the slot."""


class NodeVerify(Wire):
    """Look whether the host has what slices need: switch, uplink, forwarding, translation, images, devices."""

    kind: Literal["node.verify"] = "node.verify"
    version: Literal[1] = 1


class VnicAttach(_OfSlot):
    """Make the slice's link, or see that it is as it should be."""

    kind: Literal["vnic.attach"] = "vnic.attach"
    version: Literal[1] = 1


class PortReconcile(_OfSlot):
    """Make the slice's switch port and its flows what they should be."""

    kind: Literal["port.reconcile"] = "port.reconcile"
    version: Literal[1] = 1


class LeaseApply(_OfSlot):
    """Make DHCP serve exactly the slice's reserved address to its MAC."""

    kind: Literal["lease.apply"] = "lease.apply"
    version: Literal[1] = 1


class ExposureApply(_OfSlot):
    """Make the slice's translation and firewall rules what they should be."""

    kind: Literal["exposure.apply"] = "exposure.apply"
    version: Literal[1] = 1


class ExposureRemove(_OfSlot):
    """Take exposure and DHCP reservation of a slot away that is to carry nothing, and look afresh."""

    kind: Literal["exposure.remove"] = "exposure.remove"
    version: Literal[1] = 1


class AddressReport(_OfSlot):
    """Say which address the slice has, and where it can be reached."""

    kind: Literal["address.report"] = "address.report"
    version: Literal[1] = 1


class ReadinessPoll(_OfSlot):
    """Probe the slice until it is ready, as long as the wish's readiness allows."""

    kind: Literal["readiness.poll"] = "readiness.poll"
    version: Literal[1] = 1


class DriftReport(_OfSlot):
    """Compare the slot with its wish and say what differs; touch nothing."""

    kind: Literal["drift.report"] = "drift.report"
    version: Literal[1] = 1


class MachineInspect(_OfSlot):
    """Say what the hypervisor knows of the slice's machine; touch nothing."""

    kind: Literal["machine.inspect"] = "machine.inspect"
    version: Literal[1] = 1


class OperationCancel(Wire):
    """Make another operation of this node stop between two of its steps."""

    kind: Literal["operation.cancel"] = "operation.cancel"
    version: Literal[1] = 1
    target: UUID
    """The operation to stop."""


SlotLook = AddressReport | ReadinessPoll | DriftReport | MachineInspect
"""Operations that touch nothing."""
SlotMend = VnicAttach | PortReconcile | LeaseApply | ExposureApply | ExposureRemove
"""Operations that may change the host."""
OperationBody = Annotated[
    NodeVerify | SlotMend | SlotLook | OperationCancel,
    Field(discriminator="kind"),
]


class Operation(Wire):
    """The envelope of an operation; `operation_id` is the same however often it is sent, and another for each try."""

    schema_version: Literal[1] = 1
    operation_id: UUID
    """Name of the try, and of its message in the queue."""
    task_id: UUID
    """What was asked for: the same for every try."""
    node_id: NodeId
    issued_at: Moment
    """When this try was ordered."""
    correlation_id: UUID
    """Shared by all that follows from one request."""
    causation_id: UUID
    """The event that led to it."""
    trace_context: str | None = None
    """W3C `traceparent` of the request."""
    body: OperationBody


class Check(Wire):
    """One prerequisite of a host."""

    name: Word
    """`switch`, `forwarding`, `uplink`, `translation`, `dhcp`, `images`, `vf`, `bf3` or `pci`."""
    ok: bool
    """Whether it is there, or is not configured."""
    detail: Line
    """What was looked for, and why it could not be looked at."""


class NodeVerified(Wire):
    """Every prerequisite that was looked at; the operation succeeds whatever they say."""

    kind: Literal["node.verify"] = "node.verify"
    checks: tuple[Check, ...] = Field(min_length=1, max_length=64)
    """In the order in which they were looked at."""


class _Mended(Wire):
    steps: Steps
    """What was done, in its order; nothing when the host was as wanted."""


class VnicAttached(_Mended):
    """The slice's link is as it should be."""

    kind: Literal["vnic.attach"] = "vnic.attach"


class PortReconciled(_Mended):
    """The slice's port and its flows are as they should be."""

    kind: Literal["port.reconcile"] = "port.reconcile"


class LeaseApplied(_Mended):
    """DHCP serves what is reserved, and nothing that stands in its way."""

    kind: Literal["lease.apply"] = "lease.apply"


class ExposureApplied(_Mended):
    """The slice's rules are as they should be."""

    kind: Literal["exposure.apply"] = "exposure.apply"


class ExposureRemoved(_Mended):
    """A fresh look found nothing of the kinds named in `absent`."""

    kind: Literal["exposure.remove"] = "exposure.remove"
    absent: tuple[Word, ...] = Field(min_length=1, max_length=16)
    """Kinds of things that were looked for: `translation` and `lease`."""


class AddressReported(Wire):
    """NOD-5, and where the slice answers: None while it does not."""

    kind: Literal["address.report"] = "address.report"
    mac: MacAddress
    """Of the guest's card."""
    expected_ip: Ipv4Address
    """The address that is reserved for it."""
    actual_ip: Ipv4Address | None
    """The address of its lease."""
    lease_state: Literal["none", "offered", "bound", "expired", "foreign"]
    """`foreign`: its lease is of another address, or its address is leased to another card."""
    endpoint_port: int | None = Field(default=None, ge=1, le=65535)
    """The port at which the slice answers as its readiness wants."""


class ReadinessPolled(Wire):
    """The slice answers as its readiness wants, at its reserved address."""

    kind: Literal["readiness.poll"] = "readiness.poll"
    address: Ipv4Address
    """Where it answers."""
    port: int = Field(ge=1, le=65535)
    """The port at which it does."""
    banner: str = Field(max_length=256)
    """What it said."""


class Drift(Wire):
    """One aspect of the slot that is not as wished: the steps that would mend it."""

    aspect: Word
    """`link`, `lease`, `port`, `translation` or `machine`."""
    steps: tuple[Word, ...] = Field(min_length=1, max_length=64)
    """What would have to be done, in its order."""
    evidence: tuple[Evidence, ...] = Field(default=(), max_length=64)
    """What the steps would mend; nothing where a slice is only to be taken away."""


class DriftReported(Wire):
    """What differs; empty when the slot is as wished."""

    kind: Literal["drift.report"] = "drift.report"
    drift: tuple[Drift, ...] = Field(max_length=16)
    """One entry for each aspect that differs."""


class MachineInspected(Wire):
    """`stopped`: shut off or crashed; `absent`: there is no such machine. Sizes are those of a machine that we made."""

    kind: Literal["machine.inspect"] = "machine.inspect"
    state: Literal["absent", "running", "paused", "stopped"]
    """What the hypervisor says."""
    vcpus: Count | None = None
    """Its virtual processors."""
    memory_mib: Count | None = None
    """Its memory."""


class OperationCancelled(Wire):
    """Whether the target was at work here when it was told to stop. One that had ended stays as it ended."""

    kind: Literal["operation.cancel"] = "operation.cancel"
    was_running: bool
    """Whether there was something to stop."""


OperationResult = Annotated[
    NodeVerified
    | VnicAttached
    | PortReconciled
    | LeaseApplied
    | ExposureApplied
    | ExposureRemoved
    | AddressReported
    | ReadinessPolled
    | DriftReported
    | MachineInspected
    | OperationCancelled,
    Field(discriminator="kind"),
]
