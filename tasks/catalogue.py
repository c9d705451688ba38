"""The catalogue of all task types with their bounds (TSK-1, TSK-2).

There are two kinds of tasks: an *order* sets the desired state of a slot, an *operation* is executed once. The
catalogue is closed: the control plane and the nodes refuse any other type. `docs/tasks.md` is generated from it. A
type's version rises when its shape changes; a node announces the versions that it supports, and only supported
operations can be requested on the node.

Every bound is enforced: `payload_bytes` by sender and receiver (`tasks.wire`, `tasks.reading`), `time_limit` by the
node and by the deadline that the control plane computes for each attempt of a task, `maximum_age` by the signature's
expiry, `credit` by the task sender, `retries` by the control plane after a failed attempt.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Final, Literal

from pydantic import BaseModel

from tasks import operations as op
from tasks.orders import ApplySlice, RemoveSlice, StopSlice
from tasks.reasons import RefusalCode, SliceFailureCode, codes
from tasks.reports import SliceFailed, SliceNotRemoved, SliceReady, SliceRemoved, SliceStopped
from tasks.streams import CONSOLES, GRAPHICS, SSH, STREAMS

_KIB: Final = 1024
REFUSALS: Final = codes(RefusalCode)
"""Codes with which a node refuses a task of any type, before any effect (`tasks.reasons.RefusalCode`)."""

Lane = Literal["orders", "operations", "cancels"]
"""Group of tasks that share a node's credit. Cancellations have a lane of their own, so that they need not wait for the
tasks that they cancel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a task type: time, retries, age and size. All tasks of the same `lane` share a limit per node, the
    `credit`.
    """

    time_limit: timedelta
    """Maximum run time on the node, including the time that the task waits for its slot."""
    retries: int
    """Number of retries after a retryable failure; each retry is a new operation from the ledger."""
    maximum_age: timedelta
    """Maximum time from sending a task to its start on a node. The time is counted again from each repeated sending of
    the task."""
    payload_bytes: int
    """Maximum size in bytes of the task's JSON, encoded in UTF-8, without its signature."""
    lane: Lane
    """Lane of tasks of this type: the tasks of one lane share a credit."""

    @property
    def credit(self) -> int:
        """Maximum number of tasks of the same `lane`, such as all orders, that a node may have queued and in flight."""
        return CREDIT[self.lane]


CREDIT: Final[Mapping[Lane, int]] = MappingProxyType({"orders": 64, "operations": 8, "cancels": 8})
"""Maximum number of tasks of each lane that a node may have queued and in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskType:
    """One task type: the Pydantic models of its task and reports, its limits and its failure codes."""

    body: type[BaseModel]
    version: int
    serves: str
    """Id and summary of the requirement that the type implements."""
    results: tuple[type[BaseModel], ...]
    """Types of the results that a node reports for a successful task of this type."""
    failures: tuple[str, ...]
    """Codes of the reasons for which a task of this type can fail after it began."""
    failure_report: type[BaseModel] | None = None
    """Report of a failed order; the report of a failed operation is `OperationFailed`."""
    bounds: Bounds

    @property
    def kind(self) -> str:
        """Name of the task type in the queue, which is the name of its Dramatiq actor."""
        kind: str = self.body.model_fields["kind"].default
        return kind

    @property
    def announced(self) -> str:
        """Identifier by which a node announces that it supports this task type and version."""
        return f"{self.kind}/{self.version}"

    @property
    def retryable(self) -> frozenset[str]:
        """Failure codes of the task type after which a task is retried."""
        return _RETRYABLE.intersection(self.failures) if self.bounds.retries else frozenset()


class NotInCatalogue(LookupError):
    """The catalogue has no task type of this name."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"unknown task type {kind[:100]!r}; docs/tasks.md lists all types")
        self.kind = kind


_RETRYABLE: Final = frozenset({"host_unreadable", "step_refused", "busy", "leftovers"})

_ORDER: Final = Bounds(
    # A slice may take an hour to become ready, after it has waited for the previous slice to shut down.
    time_limit=timedelta(hours=2),
    retries=0,
    maximum_age=timedelta(hours=1),
    payload_bytes=64 * _KIB,
    lane="orders",
)
_SLOT_OPERATION: Final = Bounds(
    time_limit=timedelta(seconds=60),
    retries=2,
    maximum_age=timedelta(minutes=5),
    # A complete order and its envelope.
    payload_bytes=66 * _KIB,
    lane="operations",
)
_NODE_OPERATION: Final = Bounds(
    time_limit=timedelta(seconds=60),
    retries=2,
    maximum_age=timedelta(minutes=5),
    payload_bytes=2 * _KIB,
    lane="operations",
)
_POLL: Final = Bounds(
    time_limit=timedelta(hours=1, minutes=5),
    retries=0,
    maximum_age=timedelta(minutes=5),
    payload_bytes=66 * _KIB,
    lane="operations",
)
_CANCEL: Final = Bounds(
    time_limit=timedelta(seconds=10),
    retries=0,
    maximum_age=timedelta(minutes=5),
    payload_bytes=2 * _KIB,
    lane="cancels",
)
_ANY: Final = ("busy", "internal_error", "cancelled", "time_limit")
_INSPECTION: Final = (*_ANY, "host_unreadable")
_REPAIR: Final = (*_INSPECTION, "superseded", "step_refused", "not_wanted")

TYPES: Final = (
    TaskType(
        body=ApplySlice,
        version=1,
        serves="requirement TSK-2: start the VM, with its vNIC, port, DHCP lease and ingress",
        results=(SliceReady,),
        failures=codes(SliceFailureCode),
        failure_report=SliceFailed,
        bounds=_ORDER,
    ),
    TaskType(
        body=StopSlice,
        version=1,
        serves="requirement TSK-2: stop the VM, and remove its ingress",
        results=(SliceStopped,),
        failures=(),
        failure_report=SliceNotRemoved,
        bounds=_ORDER,
    ),
    TaskType(
        body=RemoveSlice,
        version=1,
        serves="requirement TSK-2: remove ingress and DHCP lease on release",
        results=(SliceRemoved,),
        failures=(),
        failure_report=SliceNotRemoved,
        bounds=_ORDER,
    ),
    TaskType(
        body=op.NodeVerify,
        version=1,
        serves="requirement TSK-2: verify prerequisites (OVS, BF3, VF, IP forwarding, NAT)",
        results=(op.NodeVerified,),
        failures=(*_ANY, "host_unreadable"),
        bounds=_NODE_OPERATION,
    ),
    TaskType(
        body=op.VnicAttach,
        version=1,
        serves="requirement TSK-2: attach or validate the vNIC",
        results=(op.VnicAttached,),
        failures=_REPAIR,
        bounds=_SLOT_OPERATION,
    ),
    TaskType(
        body=op.PortReconcile,
        version=1,
        serves="requirement TSK-2: reconcile the OVS port",
        results=(op.PortReconciled,),
        failures=_REPAIR,
        bounds=_SLOT_OPERATION,
    ),
    TaskType(
        body=op.LeaseApply,
        version=1,
        serves="requirement TSK-2: apply the DHCP lease of MAC and IP",
        results=(op.LeaseApplied,),
        failures=_REPAIR,
        bounds=_SLOT_OPERATION,
    ),
    TaskType(
        body=op.IngressApply,
        version=1,
        serves="requirement TSK-2: apply NAT, firewall, proxy or overlay ingress",
        results=(op.IngressApplyResult,),
        failures=_REPAIR,
        bounds=_SLOT_OPERATION,
    ),
    TaskType(
        body=op.IngressRemove,
        version=1,
        serves="requirement TSK-2: remove ingress and DHCP lease on release",
        results=(op.IngressRemoveResult,),
        failures=(*_REPAIR, "leftovers"),
        bounds=_SLOT_OPERATION,
    ),
    TaskType(
        body=op.AddressReport,
        version=1,
        serves="requirement TSK-2: report VM IP and endpoint",
        results=(op.AddressReported,),
        failures=(*_INSPECTION, "not_wanted"),
        bounds=_SLOT_OPERATION,
    ),
    TaskType(
        body=op.ReadinessPoll,
        version=1,
        serves="requirement TSK-2: poll readiness",
        results=(op.ReadinessPolled,),
        failures=(*_INSPECTION, "superseded", "not_wanted", "lease_mismatch", "no_lease", "not_reachable"),
        bounds=_POLL,
    ),
    TaskType(
        body=op.DriftReport,
        version=1,
        serves="requirement TSK-2: emit drift evidence",
        results=(op.DriftReported,),
        failures=_INSPECTION,
        bounds=_SLOT_OPERATION,
    ),
    TaskType(
        body=op.MachineInspect,
        version=1,
        serves="requirement TSK-2: inspect the VM",
        results=(op.MachineInspected,),
        failures=_INSPECTION,
        bounds=_SLOT_OPERATION,
    ),
    TaskType(
        body=op.OperationCancel,
        version=1,
        serves="requirement TSK-7: a running task can be cancelled",
        results=(op.OperationCancelled,),
        failures=("internal_error",),
        bounds=_CANCEL,
    ),
)
"""All task types, in the order of the documentation."""

CATALOGUE: Final[Mapping[str, TaskType]] = MappingProxyType({type_.kind: type_ for type_ in TYPES})
"""Task types by kind."""
INGRESS: Final = "slice.apply/1+ingress"
"""Identifier by which a node announces that its agent supports ingress rules in orders."""
RATE: Final = "slice.apply/1+rate"
"""Identifier by which a node announces that its agent supports rate limits in orders."""
ROOT_DISK: Final = "slice.apply/1+root_disk"
"""Identifier by which a node announces that it can create root disks from disk images."""
ANNOUNCED: Final = (
    *(type_.announced for type_ in TYPES),
    INGRESS,
    RATE,
    ROOT_DISK,
    STREAMS,
    CONSOLES,
    GRAPHICS,
    SSH,
)
"""All task types and versions, and all other features, that a node of this release can announce as supported."""


def type_of(kind: str) -> TaskType:
    """Return the task type of a kind. Raises `NotInCatalogue`."""
    try:
        return CATALOGUE[kind]
    except KeyError:
        raise NotInCatalogue(kind) from None


def bounds_of(kind: str) -> Bounds:
    """Return the limits of the task type of a kind. Raises `NotInCatalogue`."""
    return type_of(kind).bounds


def is_order(kind: str) -> bool:
    """Return whether a task kind is an order; an unknown kind counts as an operation."""
    return kind in CATALOGUE and CATALOGUE[kind].bounds.lane == "orders"
