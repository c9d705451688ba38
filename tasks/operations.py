"""Operations: one-off inspections and repairs on a node, and their results.

An order sets the desired state of a slot; an operation does not change it. An operation on a slot contains the complete
current order of the slot. The node first compares this order with the slot's stored order, so an operation is never
executed on a slot that has a newer order; the operation needs no other input.

Each operation ends in exactly one report: a result of its own type, or a reason with a code that its type declares. A
second execution of an operation changes nothing. Each attempt of a task is a separate operation.
"""

from typing import Annotated, Literal
from uuid import UUID

from pydantic import Field

from tasks.drift import Evidence
from tasks.fields import Count, Flag, Ipv4Address, Line, MacAddress, Moment, NodeId, Whole, Wire, Word
from tasks.orders import Order

Steps = Annotated[tuple[Word, ...], Field(max_length=64)]
"""Names of the executed steps, in order; empty if the host was in the desired state."""


class _OfSlot(Wire):
    order: Order
    """The newest order of the slot that the operation concerns."""


class NodeVerify(Wire):
    """Check whether the host has what slices need: switch, uplink, forwarding, translation, images, devices."""

    kind: Literal["node.verify"] = "node.verify"
    version: Literal[1] = 1


class VnicAttach(_OfSlot):
    """Create the slice's network link, or verify its settings."""

    kind: Literal["vnic.attach"] = "vnic.attach"
    version: Literal[1] = 1


class PortReconcile(_OfSlot):
    """Reconcile the slice's switch port and its flows with the desired state."""

    kind: Literal["port.reconcile"] = "port.reconcile"
    version: Literal[1] = 1


class LeaseApply(_OfSlot):
    """Make the DHCP server offer the slice's reserved address, and no other address, to the slice's MAC address."""

    kind: Literal["lease.apply"] = "lease.apply"
    version: Literal[1] = 1


class IngressApply(_OfSlot):
    """Reconcile the slice's address translation and firewall rules with the desired state."""

    kind: Literal["ingress.apply"] = "ingress.apply"
    version: Literal[1] = 1


class IngressRemove(_OfSlot):
    """Remove the ingress rules and the DHCP reservation of a slot that should be empty, and verify their absence."""

    kind: Literal["ingress.remove"] = "ingress.remove"
    version: Literal[1] = 1


class AddressReport(_OfSlot):
    """Report the slice's address and the endpoint at which it can be reached."""

    kind: Literal["address.report"] = "address.report"
    version: Literal[1] = 1


class ReadinessPoll(_OfSlot):
    """Probe the slice until it is ready or its readiness deadline expires."""

    kind: Literal["readiness.poll"] = "readiness.poll"
    version: Literal[1] = 1


class DriftReport(_OfSlot):
    """Compare the slot with its desired state and report the differences, without changing anything."""

    kind: Literal["drift.report"] = "drift.report"
    version: Literal[1] = 1


class MachineInspect(_OfSlot):
    """Report the hypervisor's state of the slice's machine, without changing anything."""

    kind: Literal["machine.inspect"] = "machine.inspect"
    version: Literal[1] = 1


class OperationCancel(Wire):
    """Stop another operation of this node between two of its steps."""

    kind: Literal["operation.cancel"] = "operation.cancel"
    version: Literal[1] = 1
    target: UUID
    """Id of the operation to stop."""


SlotInspection = AddressReport | ReadinessPoll | DriftReport | MachineInspect
"""Operations on a slot that change nothing."""
SlotRepair = VnicAttach | PortReconcile | LeaseApply | IngressApply | IngressRemove
"""Operations on a slot that may change the host."""
OperationBody = Annotated[
    NodeVerify | SlotRepair | SlotInspection | OperationCancel,
    Field(discriminator="kind"),
]


class Operation(Wire):
    """The envelope of an operation. Its `operation_id` is the same however often the operation is sent; every attempt
    of a task has another id.
    """

    schema_version: Literal[1] = 1
    operation_id: UUID
    """Id of the attempt, and of its message in the queue."""
    task_id: UUID
    """Id of the requested task, the same for every attempt."""
    node_id: NodeId
    issued_at: Moment
    """When the control plane issued this attempt."""
    correlation_id: UUID
    """Id shared by everything that follows from one request."""
    causation_id: UUID
    """Id of the event that caused the operation."""
    trace_context: str | None = None
    """W3C `traceparent` with the trace of the request and the causing event as parent."""
    body: OperationBody


class Check(Wire):
    """Result of checking one prerequisite of a node."""

    name: Word
    """Name of the prerequisite: `switch`, `forwarding`, `uplink`, `translation`, `dhcp`, `images`, `vf`, `bf3` or
    `pci`."""
    ok: Flag
    """True if the prerequisite is met, or is not required because it is not configured."""
    detail: Line
    """What was checked, and the error if it could not be checked."""


class NodeVerified(Wire):
    """Results of checking all prerequisites of a node. The operation succeeds even if a check fails."""

    kind: Literal["node.verify"] = "node.verify"
    checks: tuple[Check, ...] = Field(min_length=1, max_length=64)
    """Results in the order in which the checks were made."""


class _Repaired(Wire):
    steps: Steps
    """Executed steps, in order; empty if the host was in the desired state."""


class VnicAttached(_Repaired):
    """Result: the slice's network link is in the desired state."""

    kind: Literal["vnic.attach"] = "vnic.attach"


class PortReconciled(_Repaired):
    """Result: the slice's switch port and its flows are in the desired state."""

    kind: Literal["port.reconcile"] = "port.reconcile"


class LeaseApplied(_Repaired):
    """Result: the DHCP server offers the slice's reserved address, and has no conflicting reservation or lease."""

    kind: Literal["lease.apply"] = "lease.apply"


class IngressApplyResult(_Repaired):
    """Result: the slice's address translation and firewall rules are in the desired state."""

    kind: Literal["ingress.apply"] = "ingress.apply"


class IngressRemoveResult(_Repaired):
    """Result: after the removal, a fresh check found no object of the kinds listed in `absent`."""

    kind: Literal["ingress.remove"] = "ingress.remove"
    absent: tuple[Word, ...] = Field(min_length=1, max_length=16)
    """Kinds of objects of which the check after the removal found none: `translation` and `lease`."""


class AddressReported(Wire):
    """Result: the slice's address (NOD-5), and the port at which the slice responds, which is null while it does
    not.
    """

    kind: Literal["address.report"] = "address.report"
    mac: MacAddress
    """MAC address of the guest's network card."""
    expected_ip: Ipv4Address
    """Address that is reserved for the guest's network card."""
    actual_ip: Ipv4Address | None
    """Address that is leased to the guest's network card; null if the card has no DHCP lease."""
    lease_state: Literal["none", "offered", "bound", "expired", "foreign"]
    """State of the DHCP lease of the guest's network card. `foreign`: the card has a lease of another address, or the
    reserved address is leased to another network card."""
    endpoint_port: Whole | None = Field(default=None, ge=1, le=65535)
    """Port at which the slice passes its readiness check; null while it does not."""


class ReadinessPolled(Wire):
    """Result: the slice passed its readiness check at its reserved address."""

    kind: Literal["readiness.poll"] = "readiness.poll"
    address: Ipv4Address
    """Address at which the slice responds."""
    port: Whole = Field(ge=1, le=65535)
    """Port at which the slice responds."""
    banner: str = Field(max_length=256)
    """Line that the slice sent."""


class Drift(Wire):
    """One aspect of the slot that differs from the desired state, with the steps that would repair it."""

    aspect: Word
    """Name of the aspect: `link`, `lease`, `port`, `translation` or `machine`."""
    steps: tuple[Word, ...] = Field(min_length=1, max_length=64)
    """Names of the steps that would repair the aspect, in order."""
    evidence: tuple[Evidence, ...] = Field(default=(), max_length=64)
    """Differences that the steps would repair; empty if the only difference is a slice that has to be removed."""


class DriftReported(Wire):
    """Result: the differences of a slot from its desired state; empty if there are none."""

    kind: Literal["drift.report"] = "drift.report"
    drift: tuple[Drift, ...] = Field(max_length=16)
    """One entry for each aspect that differs."""


class MachineInspected(Wire):
    """State of the slice's machine. `stopped`: the machine is shut off or crashed; `absent`: it does not exist. Sizes
    are reported only for machines that the agent created.
    """

    kind: Literal["machine.inspect"] = "machine.inspect"
    state: Literal["absent", "running", "paused", "stopped"]
    """State of the machine that the hypervisor reports."""
    vcpus: Count | None = None
    """Number of the machine's virtual processors."""
    memory_mib: Count | None = None
    """Memory of the machine in MiB."""


class OperationCancelled(Wire):
    """Result: the node cancelled another operation, which stops between two steps or never starts. An operation that
    had already ended keeps its outcome.
    """

    kind: Literal["operation.cancel"] = "operation.cancel"
    was_running: Flag
    """Whether the operation to cancel was running."""


OperationResult = Annotated[
    NodeVerified
    | VnicAttached
    | PortReconciled
    | LeaseApplied
    | IngressApplyResult
    | IngressRemoveResult
    | AddressReported
    | ReadinessPolled
    | DriftReported
    | MachineInspected
    | OperationCancelled,
    Field(discriminator="kind"),
]
